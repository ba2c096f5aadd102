#!/usr/bin/env python3
"""What PEFT makes of low-rank adapters, for the tests of adapters.

  lora_reference.py OUT [NAME ...]   For each case: a small random model, an adapter that
  training goes on from, and the
                                     losses and gradient norms of 20 AdamW steps in fp32:
        OUT/NAME/model/       the base, as reference.py makes it
        OUT/NAME/data/        tokens, as reference.py makes them
        OUT/NAME/adapter/     PEFT's folder of the adapter before the first step: A and B are random
        OUT/NAME/trained/     the same after the last step
        OUT/NAME/reference.json
With names: those cases alone, of which some have magnitudes (DoRA).
Dropout has ftrun's masks, worked out here from what docs/numbers.md says of them.
"""
import json
import pathlib
import sys

import numpy as np
import reference
import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model

reference.load_libraries()
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
# Name: family of reference.py, fields of LoraConfig. Between them every field that ftrun takes.
CASES = {
    "all": ("llama_untied", {"r": 4, "lora_alpha": 8, "target_modules": ALL}),
    "defaults": ("llama_tied", {}),
    "one_part": ("granite", {"r": 3, "lora_alpha": 5, "target_modules": ["q_proj", "up_proj"]}),
    "patterns": ("qwen3", {"r": 8, "lora_alpha": 16, "target_modules": ALL, "use_rslora": True,
                           "rank_pattern": {"down_proj": 5, "layers.0.self_attn.q_proj": 2,
                                            "q_proj": 3},
                           "alpha_pattern": {"v_proj": 3}}),
    "expression": ("mistral", {"r": 4, "target_modules": r".*\.(k_proj|gate_proj|o_proj)",
                               "exclude_modules": r"model\.layers\.1\.mlp.*"}),
    "dropout": ("llama_untied", {"r": 4, "lora_alpha": 8, "target_modules": ALL,
                                 "lora_dropout": 0.2}),
    "layers": ("qwen2_window",
               {"r": 2, "target_modules": ["v_proj", "down_proj", "model.layers.0.mlp.up_proj"],
                "layers_to_transform": [1]}),
    "biases": ("llama_bias", {"r": 4, "target_modules": ALL, "bias": "lora_only"}),
    "all_biases": ("qwen2", {"r": 4, "target_modules": ["o_proj"], "bias": "all"}),
    # Products that are one module have one A and one B.
    "fused": ("phi3",
              {"r": 4, "lora_alpha": 8, "target_modules": ["qkv_proj", "o_proj", "gate_up_proj"]}),
    "transposed": ("gpt2", {"r": 3, "lora_alpha": 5, "target_modules": ["c_attn", "c_proj"],
                            "fan_in_fan_out": True}),
    "normed": ("gemma2", {}),
    "head_bias": ("phi", {"modules_to_save": ["lm_head"]}),
    "by_key_head": ("gpt_neox", {}),
    "beside": ("cohere2",
               {"r": 4, "target_modules": ["q_proj", "v_proj", "o_proj", "up_proj", "down_proj"]}),
    "whole_norms": ("olmo2", {"r": 4, "target_modules": ["q_proj", "k_proj", "down_proj"]}),
    "head_norms": ("stablelm_norms", {"r": 4, "target_modules": ["q_proj", "k_proj", "o_proj"]}),
    "saved": ("linear_rope", {"r": 4, "target_modules": ["q_proj"],
                              "modules_to_save": ["lm_head", "embed_tokens"]}),
}

# The same with magnitudes, for dora_test.py: made when they are named.
MAGNITUDES = {
    "dora": ("llama_untied", {"r": 4, "lora_alpha": 8, "target_modules": ALL, "use_dora": True}),
    "dora_fused": ("phi3", {"r": 4, "lora_alpha": 8, "target_modules": ["qkv_proj", "down_proj"],
                            "use_dora": True}),
    "dora_biases": ("qwen2",
                    {"r": 4, "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "up_proj"],
                     "bias": "lora_only", "use_dora": True}),
    "dora_dropout": ("llama_bias", {"r": 3, "lora_alpha": 5, "target_modules": ALL,
                                    "lora_dropout": 0.2, "use_rslora": True, "use_dora": True}),
}


def adapted(name, folder, seed):
    """The base is saved, and an adapter on it whose matrices all are random."""
    family, fields = (CASES | MAGNITUDES)[name]
    reference.small_model(family, seed).save_pretrained(folder / "model")
    if family in reference.VERSION_4:
        reference.to_version_4(folder / "model" / "config.json")
    torch.manual_seed(seed)
    save_adapter(base_of(folder, torch.float32), fields, folder)


def base_of(folder, dtype):
    return transformers.AutoModelForCausalLM.from_pretrained(folder / "model", dtype=dtype,
                                                             attn_implementation="eager")


def save_adapter(base, fields, folder):
    model = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", **fields))
    with torch.no_grad():
        for tensor, value in model.named_parameters():
            if ".lora_B." in tensor:
                value.normal_(std=0.1)
            if ".lora_magnitude_vector." in tensor:  # lengths of the base's rows
                value.mul_(1 + 0.1 * torch.randn_like(value))
    model.save_pretrained(folder / "adapter")


SEED = 42  # train.seed's default
# The products of a block, each with one mask.
SITES = {"q_proj": 0, "k_proj": 0, "v_proj": 0, "o_proj": 1, "gate_proj": 2, "up_proj": 2,
         "down_proj": 3}


def splitmix64(x):
    x = np.uint64(x) + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@np.errstate(over="ignore")
def kept(step, layer, site, tokens, columns, p):
    """[tokens, columns]: which elements dropout leaves. `step` counts from 1, `layer` from the
    embedding's 0; `tokens` are places in the global batch."""
    key = splitmix64(splitmix64(splitmix64(np.uint64(SEED)) + np.uint64(1)) ^ np.uint64(step))
    row = splitmix64(splitmix64(key ^ splitmix64(np.uint64(16 * layer + site))) ^ np.asarray(
        tokens, np.uint64))[:, None]
    x = np.arange(columns, dtype=np.uint32) ^ row.astype(np.uint32)
    x = ((x ^ (x >> np.uint32(16))) * np.uint32(0x21F0AAAD)) ^ (row >> np.uint64(32)).astype(
        np.uint32)
    x = (x ^ (x >> np.uint32(15))) * np.uint32(0x735A2D97)
    return (x ^ (x >> np.uint32(15))) >= np.uint32(round(p * 2**32))


class Dropout(torch.nn.Module):
    """In place of one of PEFT's. Each call is the next micro-batch."""

    def __init__(self, p, layer, site):
        super().__init__()
        self.p, self.layer, self.site, self.calls = p, layer, site, 0

    def forward(self, x):
        step, slot = divmod(self.calls, reference.SETTINGS["accumulation"])
        self.calls += 1
        rows, row_tokens, columns = x.shape
        tokens = slot * rows * row_tokens + np.arange(rows * row_tokens)
        mask = torch.from_numpy(kept(step + 1, self.layer, self.site, tokens, columns,
                                     self.p)).view(x.shape)
        return x * mask / (1 - self.p)


def give_masks(model):
    for name, module in model.named_modules():
        for adapter, dropout in getattr(module, "lora_dropout", {}).items():
            if isinstance(dropout, torch.nn.Dropout):
                layer = int(name.split(".layers.")[1].split(".")[0]) + 1
                module.lora_dropout[adapter] = Dropout(dropout.p, layer,
                                                       SITES[name.rsplit(".", 1)[1]])


def train(base, folder, data, dtype):
    model = PeftModel.from_pretrained(base, folder / "adapter", is_trainable=True).to(dtype).train()
    give_masks(model)
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    return trained, model, reference.run_steps(model, trained, data)


def furthest(single, double):
    """Of the tensors of one run from those of the other, relative."""
    return max(((single[name].double() - values).norm() / values.norm()).item()
               for name, values in double.items())


def write_case(name, folder, make, base_in):
    """`make(name, folder, seed)` saves base and adapter, `base_in(name, folder, dtype)` is what the
    adapter is trained on. A run whose fp32 strays from fp64 (see reference.py), in its weights too,
    is no reference: the next seed is taken."""
    data = reference.write_tokens(folder / "data")
    for seed in reference.seeds(name):
        make(name, folder, seed)
        trained, model, single = train(base_in(name, folder, torch.float32), folder, data,
                                       torch.float32)
        exact, _, double = train(base_in(name, folder, torch.float64), folder, data, torch.float64)
        error = {key: reference.largest_relative(single[key], double[key])
                 for key in ("losses", "grad_norms")}
        error["weights"] = furthest(trained, exact)
        if error["losses"] < 1e-6 and error["grad_norms"] < 5e-6 and error["weights"] < 1e-5:
            break
    else:
        raise SystemExit(f"{name}: no seed gives a run whose fp32 agrees with its fp64")
    model.save_pretrained(folder / "trained")
    record = {"settings": reference.SETTINGS, "tensors": len(trained),
              **{key: single[key] for key in ("losses", "grad_norms")}}
    (folder / "reference.json").write_text(json.dumps(record, indent=1) + "\n")
    print(f"{name}: {len(trained)} tensors, loss {single['losses'][0]:.6f} -> "
          f"{single['losses'][-1]:.6f}; fp32 against fp64: loss {error['losses']:.1e}, grad norm "
          f"{error['grad_norms']:.1e}, weights {error['weights']:.1e}", flush=True)


def write_cases(out, cases, make=adapted,
                base_in=lambda name, folder, dtype: base_of(folder, dtype)):
    """Writes the cases' folders into a folder; a test calls this in its own process, which reads
    what is written with PEFT later."""
    torch.set_num_threads(1)
    for name in cases:
        write_case(name, pathlib.Path(out) / name, make, base_in)


def model_of(folder, adapter=None):
    """What transformers reads from a folder, with PEFT's adapter where one is given."""
    base = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return base if adapter is None else PeftModel.from_pretrained(base, adapter).eval()


@torch.no_grad()
def logits_of(model):
    return model(torch.arange(40)[None] % 200).logits


if __name__ == "__main__":
    write_cases(sys.argv[1], sys.argv[2:] or CASES)
