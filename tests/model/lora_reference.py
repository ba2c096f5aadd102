#!/usr/bin/env python3
"""Makes low-rank adapters and trains them with PEFT, as references for the tests of adapters.

  lora_reference.py OUT [NAME ...]   For each case: a small random model, an adapter from which
                                     training continues, and the losses and gradient norms of
                                     20 AdamW steps in fp32:
        OUT/NAME/model/       the base, as reference.py makes it
        OUT/NAME/data/        tokens, as reference.py makes them
        OUT/NAME/adapter/     PEFT's folder of the adapter before the first step; all is random
        OUT/NAME/trained/     the same after the last step
        OUT/NAME/reference.json
  If the numbers of a case are stored, they come from references/adapters/NAME.safetensors, without
  PEFT, as long as nothing has changed from which they were made: the case and its family, the
  functions that train, the versions of torch, transformers and PEFT, and each bit of weights and
  tokens. Any other case is trained with PEFT, which takes a second.
  lora_reference.py store [NAME ...]   Trains cases with PEFT and stores the numbers.
With names, only those cases; some of these have magnitudes (DoRA).
Dropout uses ftrun's masks, computed here from the description in docs/reproducibility.md.
"""
import hashlib
import importlib.metadata
import json
import pathlib
import shutil
import sys
import tempfile

import numpy as np
import reference
import torch
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

STORED = reference.STORED / "adapters"


def load_libraries():
    """Imports the libraries that train, which takes seconds; stored numbers do not need them."""
    global transformers, LoraConfig, PeftModel, get_peft_model
    reference.load_libraries()
    import transformers
    from peft import LoraConfig, PeftModel, get_peft_model


ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
# Name: family of reference.py, fields of LoraConfig. Together the cases use every field that ftrun
# supports.
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
    # Linear layers that are one module have one A and one B.
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

# The same with magnitudes, for dora_test.py: made only when they are named.
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


class Adapted:
    """Adapters on a family's model. Each kind of cases is a class that says what its base is, what
    the adapter has, and which code and tables decide both."""

    cases = CASES | MAGNITUDES

    @classmethod
    def make_base(cls, name, folder):
        """Saves the base in `folder`; its weights are arbitrary."""
        family, _ = cls.cases[name]
        reference.small_model(family, 0).save_pretrained(folder)
        if family in reference.VERSION_4:
            reference.to_version_4(folder / "config.json")

    @staticmethod
    def base_in(name, folder, dtype):
        """Loads the base model that the adapter trains on."""
        return base_of(folder, dtype)

    @classmethod
    def fields(cls, name):
        """Returns the fields of LoraConfig."""
        return cls.cases[name][1]

    @classmethod
    def made_of(cls, name):
        """Returns the parts of the recipe that belong to this case."""
        return [cls.cases[name], reference.recipe(cls.cases[name][0]), reference.code_of(cls)]


def base_of(folder, dtype):
    return transformers.AutoModelForCausalLM.from_pretrained(folder / "model", dtype=dtype,
                                                             attn_implementation="eager")


def draw_adapter(tensors, seed, magnitudes):
    """Draws all tensors of an adapter except its magnitudes. These must be close to the lengths of
    the base's rows, so they are not drawn around 0."""
    return {**reference.drawn_weights(tensors, [seed, 1]), **magnitudes}


def write_adapter(folder, fields, seed):
    """Writes PEFT's folder of an adapter with random tensors. Returns (shapes for drawn_weights,
    magnitudes)."""
    model = get_peft_model(base_of(folder, torch.float32),
                           LoraConfig(task_type="CAUSAL_LM", **fields))
    model.save_pretrained(folder / "adapter")
    path = folder / "adapter" / "adapter_model.safetensors"
    random = np.random.default_rng([seed, 2])
    magnitudes = {name: values * (1 + 0.1 * random.standard_normal(values.shape)).astype(np.float32)
                  for name, values in sorted(load_file(path).items())
                  if name.endswith("_magnitude_vector")}
    tensors = {name: shape for name, shape in reference.tensors_of_file(path).items()
               if name not in magnitudes}
    save_file(draw_adapter(tensors, seed, magnitudes), path, metadata={"format": "pt"})
    return tensors, magnitudes


SEED = 42  # train.seed's default
# The linear layers of a block; those with the same number share a mask.
SITES = {"q_proj": 0, "k_proj": 0, "v_proj": 0, "o_proj": 1, "gate_proj": 2, "up_proj": 2,
         "down_proj": 3}


def splitmix64(x):
    x = np.uint64(x) + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@np.errstate(over="ignore")
def kept(step, layer, site, tokens, columns, p):
    """Returns which elements dropout keeps, [tokens, columns]. `step` counts from 1; `layer` counts
    from the embedding, which is 0; `tokens` are indices in the global batch."""
    key = splitmix64(splitmix64(splitmix64(np.uint64(SEED)) + np.uint64(1)) ^ np.uint64(step))
    row = splitmix64(splitmix64(key ^ splitmix64(np.uint64(16 * layer + site))) ^ np.asarray(
        tokens, np.uint64))[:, None]
    x = np.arange(columns, dtype=np.uint32) ^ row.astype(np.uint32)
    x = ((x ^ (x >> np.uint32(16))) * np.uint32(0x21F0AAAD)) ^ (row >> np.uint64(32)).astype(
        np.uint32)
    x = (x ^ (x >> np.uint32(15))) * np.uint32(0x735A2D97)
    return (x ^ (x >> np.uint32(15))) >= np.uint32(round(p * 2**32))


class Dropout(torch.nn.Module):
    """Replaces PEFT's dropout by ftrun's masks. Each call is for the next micro-batch."""

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
    """Returns the largest relative difference between the tensors of two runs."""
    return max(((single[name].double() - values).norm() / values.norm()).item()
               for name, values in double.items())


def train_case(kind, name, folder):
    """Writes the base, tokens and adapter of a case, and trains with PEFT. Returns (what is stored
    of the case as JSON, the tensors that are stored). If losses or weights in fp32 differ too much
    from fp64 (see reference.py), the run is not usable as a reference, and the next seed is
    tried."""
    data = reference.write_tokens(folder / "data")
    kind.make_base(name, folder / "model")
    base = reference.tensors_of_file(folder / "model" / "model.safetensors")
    for seed in reference.seeds(name):
        reference.write_weights(folder / "model", base, seed)
        tensors, magnitudes = write_adapter(folder, kind.fields(name), seed)
        trained, model, single = train(kind.base_in(name, folder, torch.float32), folder, data,
                                       torch.float32)
        exact, _, double = train(kind.base_in(name, folder, torch.float64), folder, data,
                                 torch.float64)
        error = {key: reference.largest_relative(single[key], double[key])
                 for key in ("losses", "grad_norms")}
        error["weights"] = furthest(trained, exact)
        if error["losses"] < 1e-6 and error["grad_norms"] < 5e-6 and error["weights"] < 1e-5:
            break
    else:
        raise SystemExit(f"{name}: no seed gives a run whose fp32 agrees with its fp64")
    model.save_pretrained(folder / "trained")
    print(f"{name}: {len(trained)} tensors, loss {single['losses'][0]:.6f} -> "
          f"{single['losses'][-1]:.6f}; fp32 against fp64: loss {error['losses']:.1e}, grad norm "
          f"{error['grad_norms']:.1e}, weights {error['weights']:.1e}; seed {seed}", flush=True)
    adapter = json.loads((folder / "adapter" / "adapter_config.json").read_text())
    record = {"recipe": recipe(kind, name), "seed": seed, "base": base, "tensors": tensors,
              "bits": bits_of(folder),
              "files": {path.name: json.loads(path.read_text())
                        for path in sorted((folder / "model").glob("*.json"))},
              "adapter": adapter | {"base_model_name_or_path": None},
              "trains": len(trained), **{key: single[key] for key in ("losses", "grad_norms")}}
    after = load_file(folder / "trained" / "adapter_model.safetensors")
    return record, {**{f"before.{name}": values for name, values in magnitudes.items()},
                    **{f"trained.{name}": values for name, values in after.items()}}


def bits_of(folder):
    """Returns a hash of the weights of base and adapter."""
    files = ("model/model.safetensors", "adapter/adapter_model.safetensors")
    return hashlib.sha256(b"".join((folder / file).read_bytes() for file in files)).hexdigest()


def recipe(kind, name):
    """Returns a hash of everything that decides the numbers of a case, except the bits of its
    weights."""
    made_by = (base_of, draw_adapter, write_adapter, splitmix64, kept, Dropout, give_masks, train,
               reference.run_steps, reference.step_gradients, reference.batch, reference.tokens)
    parts = [kind.made_of(name), SEED, SITES, reference.SETTINGS, reference.COMMON,
             [reference.code_of(function) for function in made_by],
             [importlib.metadata.version(package) for package in ("torch", "transformers", "peft")]]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def write_stored(kind, name, folder):
    """Writes the files of a case from its stored numbers and returns its record; None if it was
    made from other inputs."""
    path = STORED / f"{name}.safetensors"
    if not path.exists():
        return None
    with safe_open(path, framework="np") as held:
        record = json.loads(held.metadata()["record"])
        tensors = {key: held.get_tensor(key) for key in held.keys()}
    if record["recipe"] != recipe(kind, name):
        return None
    parts = {part: {key.removeprefix(f"{part}."): values for key, values in tensors.items()
                    if key.startswith(f"{part}.")} for part in ("before", "trained")}
    before = draw_adapter(record["tensors"], record["seed"], parts["before"])
    (folder / "model").mkdir(parents=True)
    for file, content in record["files"].items():
        (folder / "model" / file).write_text(json.dumps(content, indent=2) + "\n")
    reference.write_weights(folder / "model", record["base"], record["seed"])
    reference.write_tokens(folder / "data")
    said = record["adapter"] | {"base_model_name_or_path": str(folder / "model")}
    for part, values in (("adapter", before), ("trained", parts["trained"])):
        (folder / part).mkdir()
        (folder / part / "adapter_config.json").write_text(json.dumps(said, indent=2) + "\n")
        save_file(values, folder / part / "adapter_model.safetensors", metadata={"format": "pt"})
    return record if bits_of(folder) == record["bits"] else None


def write_cases(out, cases, kind=Adapted):
    """Writes the folders of the cases into a folder, from stored numbers if possible."""
    torch.set_num_threads(1)
    for name in cases:
        folder = pathlib.Path(out) / name
        record = write_stored(kind, name, folder)
        if record is None:
            print(f"{name}: no stored numbers are of this recipe and these weights, PEFT trains it",
                  flush=True)
            load_libraries()
            shutil.rmtree(folder, ignore_errors=True)
            record, _ = train_case(kind, name, folder)
        numbers = {"settings": reference.SETTINGS, "tensors": record["trains"],
                   **{key: record[key] for key in ("losses", "grad_norms")}}
        (folder / "reference.json").write_text(json.dumps(numbers, indent=1) + "\n")


def store_cases(cases, kind=Adapted):
    """Trains cases with PEFT and stores the results."""
    load_libraries()
    STORED.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        for name in cases:
            record, tensors = train_case(kind, name, pathlib.Path(scratch) / name)
            save_file(tensors, STORED / f"{name}.safetensors",
                      metadata={"record": json.dumps(record)})


def model_of(folder, adapter=None):
    """Returns the model that transformers reads from a folder, with PEFT's adapter if one is
    given."""
    load_libraries()
    base = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return base if adapter is None else PeftModel.from_pretrained(base, adapter).eval()


@torch.no_grad()
def logits_of(model):
    return model(torch.arange(40)[None] % 200).logits


def main(every, kind=Adapted):
    out, names = sys.argv[1], sys.argv[2:]
    if out == "store":
        store_cases(names or kind.cases, kind)
    else:
        write_cases(out, names or every, kind)


if __name__ == "__main__":
    main(CASES)
