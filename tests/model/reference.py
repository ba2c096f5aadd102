#!/usr/bin/env python3
"""Makes references with transformers for the tests of models. Four commands:

  families OUT [NAME ...]   Writes a small random model of each family, a token file, and
                            the numbers that transformers computes with them, into OUT:
        OUT/NAME/model/{config.json,model.safetensors}
        OUT/NAME/data/{train.bin,meta.json}    flat uint16 tokens
        OUT/NAME/reference.json                losses and gradient norms of 20 AdamW steps in
                                               fp32, and the final norm of each weight tensor
                            If the numbers of a family are stored, they come from
                            references/NAME.json, without transformers, as long as nothing has
                            changed from which they were made: the family's entry and the tables it
                            uses, the functions that train, the versions of torch and transformers,
                            and each bit of weights and tokens. Any other family is trained with
                            transformers, which takes half a minute.
  store [NAME ...]          Trains the families with transformers and stores the numbers in
                            references/. Needed after a change of what the numbers are made from;
                            without it tests only take longer.
  configs FOLDER            Reads every FOLDER/*.vN.json with transformers and writes how it
                            understands the file, with the angles of the rotation, to
                            FOLDER/expected.json
  published FILE            Counts the parameters of each config in FILE that is not refused, and
                            writes the numbers into FILE

Sample i is tokens[i*seq : i*seq+seq+1] (inputs are the first seq, labels the last seq), in file
order. Accumulation slot a of step s takes samples (s*acc + a)*mb + [0, mb), and wraps around at the
end. The loss is the mean over all tokens of a step. All tensors have weight decay. One thread.
"""
import argparse
import ast
import copy
import hashlib
import importlib.metadata
import inspect
import json
import math
import os
import pathlib
import tempfile

import numpy as np
from safetensors.numpy import load_file, save_file

STORED = pathlib.Path(__file__).resolve().parent / "references"


def load_libraries():
    """Imports the libraries that train, which takes seconds; tables, weights and stored numbers do
    not need them."""
    global torch, transformers
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import torch
    import transformers
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()


SETTINGS = {"steps": 20, "sequence": 32, "micro_batch": 2, "accumulation": 2, "learning_rate": 3e-3,
            "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1, "clip": 1.0}
VOCABULARY = 211
SAMPLES = 81  # one more than 20 steps of 4 samples need

# The sizes all differ, so that a swapped dimension is noticed.
COMMON = {"vocab_size": VOCABULARY, "hidden_size": 72, "intermediate_size": 104,
          "num_hidden_layers": 2, "num_attention_heads": 9, "num_key_value_heads": 3,
          "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "bos_token_id": 1,
          "eos_token_id": 2, "pad_token_id": None, "initializer_range": 0.1}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0,
        "original_max_position_embeddings": 16, "beta_fast": 2.0,
        "beta_slow": 0.25, "truncate": False}
PHI3 = {"vocab_size": VOCABULARY, "hidden_size": 64, "num_attention_heads": 8,
        "num_key_value_heads": 2, "intermediate_size": 96,
        "sliding_window": 8, "tie_word_embeddings": False, "max_position_embeddings": 128,
        "rope_parameters": {
"rope_type": "longrope", "rope_theta": 10000.0, "partial_rotary_factor": 0.5,
"short_factor": [1.1, 1.7],
"long_factor": [1.5, 6.5]}}
GEMMA = {"vocab_size": VOCABULARY + 1, "hidden_size": 64, "num_attention_heads": 8,
         "num_key_value_heads": 2,
         "head_dim": 12, "tie_word_embeddings": True}
# These sizes can be divided between two tensor-parallel ranks.
EIGHT_HEADS = {"vocab_size": VOCABULARY + 1, "hidden_size": 64, "num_attention_heads": 8,
               "num_key_value_heads": 2}


class Table(dict):
    """A table that returns copies of its entries, because transformers changes the values that it
    makes a config from."""

    def __getitem__(self, name):
        return copy.deepcopy(super().__getitem__(name))


FAMILIES = Table({
    "llama_tied": ("Llama", {"tie_word_embeddings": True}),
    "llama_untied": ("Llama", {"tie_word_embeddings": False}),
    "llama3_rope": ("Llama", {"tie_word_embeddings": True, "rope_parameters": LLAMA3}),
    "linear_rope": ("Llama", {"tie_word_embeddings": False, "rope_parameters": {
        "rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}}),
    "llama_bias": ("Llama", {"attention_bias": True, "mlp_bias": True,
                             "tie_word_embeddings": False}),
    "mistral": ("Mistral", {"hidden_size": 64, "num_attention_heads": 8, "num_key_value_heads": 2,
                            "head_dim": 12, "sliding_window": 8, "tie_word_embeddings": False}),
    "ministral": ("Ministral", EIGHT_HEADS | {
        "head_dim": 12, "sliding_window": 8, "tie_word_embeddings": False,
        "layer_types": ["sliding_attention", "full_attention"]}),
    "ministral3": ("Ministral3", EIGHT_HEADS | {
        "head_dim": 16, "tie_word_embeddings": True,
        "rope_parameters": YARN | {"llama_4_scaling_beta": 0.1,
                                   "original_max_position_embeddings": 32}}),
    "qwen2": ("Qwen2", {"hidden_size": 60, "num_attention_heads": 5, "num_key_value_heads": 1,
                        "tie_word_embeddings": True, "use_sliding_window": False}),
    "qwen2_window": ("Qwen2", {"hidden_size": 64, "num_attention_heads": 8,
                               "num_key_value_heads": 4, "tie_word_embeddings": False,
                               "use_sliding_window": True,
                               "sliding_window": 8, "max_window_layers": 1}),
    "qwen3": ("Qwen3", {"hidden_size": 64, "num_attention_heads": 5, "num_key_value_heads": 5,
                        "head_dim": 16, "tie_word_embeddings": False}),
    "qwen3_bias": ("Qwen3", {"hidden_size": 64, "num_attention_heads": 7, "num_key_value_heads": 1,
                             "head_dim": 16, "attention_bias": True, "tie_word_embeddings": True}),
    # These sizes can be divided between two tensor-parallel ranks.
    "granite": ("Granite", {"vocab_size": VOCABULARY + 1, "hidden_size": 64,
                            "num_attention_heads": 8, "num_key_value_heads": 2,
                            "tie_word_embeddings": True, "embedding_multiplier": 3.0,
                            "residual_multiplier": 0.4,
                            "attention_multiplier": 0.2, "logits_scaling": 2.5}),
    # In files, q, k and v are one matrix, and so are gate and up. A part of each head rotates, with
    # factors for rows that are longer than the original ones, or for those that are not.
    "phi3": ("Phi3", PHI3 | {"original_max_position_embeddings": 16}),
    "phi3_short": ("Phi3", PHI3 | {"original_max_position_embeddings": 32}),
    "yarn_rope": ("Qwen2", {"vocab_size": VOCABULARY + 1, "hidden_size": 64,
                            "num_attention_heads": 4, "num_key_value_heads": 2,
                            "max_position_embeddings": 16, "tie_word_embeddings": False,
                            "rope_parameters": YARN}),
    "gpt2": ("GPT2", {"vocab_size": VOCABULARY, "n_embd": 64, "n_layer": 2, "n_head": 4,
                      "n_inner": 96, "n_positions": 41,
                      "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0,
                      "tie_word_embeddings": True,
                      "bos_token_id": 1, "eos_token_id": 2, "initializer_range": 0.1}),
    # These sizes can be divided between two tensor-parallel ranks; "gelu" stands for its
    # approximation.
    "gemma": ("Gemma", GEMMA | {"hidden_act": "gelu"}),
    # Some scores and logits exceed the bounds; the first layer has a window.
    "gemma2": ("Gemma2", GEMMA | {"query_pre_attn_scalar": 20, "sliding_window": 8,
                                  "attn_logit_softcapping": 0.8,
                                  "final_logit_softcapping": 1.5}),
    # There are two rotations; all layers but every second have windows.
    "gemma3": ("Gemma3Text", GEMMA | {"query_pre_attn_scalar": 20, "sliding_window": 8,
                                      "num_hidden_layers": 3,
                                      "layer_types": ["sliding_attention", "full_attention",
                                                      "sliding_attention"],
                                      "rope_parameters": {
                                          "full_attention": {"rope_type": "yarn", "factor": 8.0,
                                                             "rope_theta": 1e6,
                                                             "original_max_position_embeddings":
                                                             16},
                                          "sliding_attention": {"rope_type": "default",
                                                                "rope_theta": 1e4}}}),
    # Norms have no weight. In the tied model the head has no tensor.
    "olmo": ("Olmo", EIGHT_HEADS | {"tie_word_embeddings": False}),
    "olmo_tied": ("Olmo", EIGHT_HEADS | {"attention_bias": True, "tie_word_embeddings": True}),
    # Norms come only after attention and MLP; there are norms over all query heads and over all key
    # heads.
    "olmo2": ("Olmo2", EIGHT_HEADS | {"tie_word_embeddings": False}),
    # The second of three layers does not rotate.
    "smollm3": ("SmolLM3", EIGHT_HEADS | {"num_hidden_layers": 3, "no_rope_layers": [1, 0, 1],
                                          "tie_word_embeddings": True}),
    "starcoder2": ("Starcoder2", EIGHT_HEADS | {"norm_epsilon": 1e-5, "sliding_window": 8,
                                                "tie_word_embeddings": True}),
    "stablelm": ("StableLm", EIGHT_HEADS | {"use_qkv_bias": True, "tie_word_embeddings": False}),
    "stablelm_parallel": ("StableLm", EIGHT_HEADS | {"use_parallel_residual": True,
                                                     "tie_word_embeddings": False}),
    # Each query and key head has a layer norm; files have one tensor for each.
    "stablelm_norms": ("StableLm", EIGHT_HEADS | {"qk_layernorm": True,
                                                  "tie_word_embeddings": False}),
    "glm": ("Glm", EIGHT_HEADS | {"head_dim": 16, "tie_word_embeddings": False}),
    "glm4": ("Glm4", EIGHT_HEADS | {"head_dim": 16, "tie_word_embeddings": False}),
    "cohere": ("Cohere", EIGHT_HEADS | {"logit_scale": 0.5, "tie_word_embeddings": True}),
    # Cohere keeps the norms of all heads in one tensor [heads, head size].
    "cohere_norms": ("Cohere", EIGHT_HEADS | {"logit_scale": 0.5, "use_qk_norm": True,
                                              "tie_word_embeddings": True}),
    # The second of three layers has no window, and does not rotate.
    "cohere2": ("Cohere2", EIGHT_HEADS | {"num_hidden_layers": 3, "logit_scale": 0.5,
                                          "sliding_window": 8, "tie_word_embeddings": True,
                                          "layer_types": ["sliding_attention", "full_attention",
                                                          "sliding_attention"]}),
    "gpt_neox": ("GPTNeoX", {"vocab_size": VOCABULARY + 1, "hidden_size": 64,
                             "num_attention_heads": 4, "tie_word_embeddings": False}),
    "gpt_neox_serial": ("GPTNeoX", {"vocab_size": VOCABULARY + 1, "hidden_size": 64,
                                    "num_attention_heads": 4, "use_parallel_residual": False,
                                    "tie_word_embeddings": False}),
    "opt": ("OPT", {"vocab_size": VOCABULARY, "hidden_size": 64, "num_attention_heads": 4,
                    "ffn_dim": 96, "max_position_embeddings": 41,
                    "word_embed_proj_dim": 64, "dropout": 0.0, "init_std": 0.1,
                    "tie_word_embeddings": True}),
    "opt_plain_norms": ("OPT", {"vocab_size": VOCABULARY, "hidden_size": 64,
                                "num_attention_heads": 4, "ffn_dim": 96,
                                "max_position_embeddings": 41, "word_embed_proj_dim": 64,
                                "dropout": 0.0, "init_std": 0.1, "tie_word_embeddings": True,
                                "layer_norm_elementwise_affine": False}),
    # One key head for all query heads; and two key heads, each of which follows four query heads in
    # the rows of the fused matrix.
    "falcon": ("Falcon", {"vocab_size": VOCABULARY + 1, "hidden_size": 64, "num_attention_heads": 4,
                          "tie_word_embeddings": True}),
    "falcon_new": ("Falcon", {"vocab_size": VOCABULARY + 1, "hidden_size": 64,
                              "num_attention_heads": 8, "num_kv_heads": 2, "bias": True,
                              "new_decoder_architecture": True, "num_ln_in_parallel_attn": 1,
                              "tie_word_embeddings": True}),
    # Attention and MLP run in parallel, with a norm for each.
    "falcon_norms": ("Falcon", {"vocab_size": VOCABULARY + 1, "hidden_size": 64,
                                "num_attention_heads": 8, "num_kv_heads": 2,
                                "new_decoder_architecture": True, "tie_word_embeddings": True}),
    # The head has a bias, and a vocabulary that two ranks cannot divide evenly.
    "phi": ("Phi", EIGHT_HEADS | {"vocab_size": VOCABULARY, "tie_word_embeddings": False}),
    # Token 7 is read, and its row of the embedding gets no gradient. These sizes can be divided
    # between two tensor-parallel ranks.
    "padding_untied": ("Llama", {"vocab_size": VOCABULARY + 1, "hidden_size": 64,
                                 "num_attention_heads": 8, "num_key_value_heads": 2,
                                 "pad_token_id": 7, "tie_word_embeddings": False}),
    "padding_tied": ("Llama", {"vocab_size": VOCABULARY + 1, "hidden_size": 64,
                               "num_attention_heads": 8, "num_key_value_heads": 2,
                               "pad_token_id": 7, "tie_word_embeddings": True}),
})
# These configs are written with the keys of transformers 4.
VERSION_4 = {"llama_tied", "llama3_rope", "qwen2_window"}


def tokens():
    """Draws a sequence that a model can partly learn: mostly an affine function of the last token,
    with some noise."""
    state, token, out = 12345, 7, []
    for _ in range(SAMPLES * SETTINGS["sequence"] + 1):
        out.append(token)
        state = (state * 1103515245 + 12345) % 2**31
        noise = state >> 16
        token = noise % VOCABULARY if noise % 5 == 0 else (token * 3 + 11) % VOCABULARY
    return np.array(out, dtype=np.uint16)


def small_model(name, seed):
    family, changes = FAMILIES[name]
    config_class = getattr(transformers, family + "Config")
    known = config_class()
    common = {key: value for key, value in COMMON.items() if hasattr(known, key)
              and family != "GPT2"}
    config = config_class(**common | changes)
    config._attn_implementation = "eager"
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    with torch.no_grad():  # new biases are 0 and new norms 1, which would hide mistakes
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def to_version_4(path):
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    config["torch_dtype"] = config.pop("dtype")
    config.pop("layer_types", None)
    config["transformers_version"] = "4.45.0"
    path.write_text(json.dumps(config, indent=2) + "\n")


def batch(data, step, slot):
    seq, mb = SETTINGS["sequence"], SETTINGS["micro_batch"]
    first = (step * SETTINGS["accumulation"] + slot) * mb
    count = (len(data) - 1) // seq
    rows = [(first + m) % count * seq for m in range(mb)]
    rows = torch.from_numpy(np.stack([data[i:i + seq + 1] for i in rows]).astype("int64"))
    return rows[:, :-1], rows[:, 1:]


def step_gradients(model, data, step):
    """Computes the gradients of the mean loss of a step's micro-batches, and returns that loss."""
    total = 0.0
    for slot in range(SETTINGS["accumulation"]):
        x, y = batch(data, step, slot)
        logits = model(input_ids=x, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten())
        (loss / SETTINGS["accumulation"]).backward()
        total += loss.item() / SETTINGS["accumulation"]
    return total


def file_parameters(model):
    """Returns the parameters by their names in files; GPT-NeoX's head has another name in
    memory."""
    renamed = {"lm_head.weight":
               "embed_out.weight"} if model.config.model_type == "gpt_neox" else {}
    return {renamed.get(name, name): parameter for name, parameter in model.named_parameters()}


def train(folder, data, dtype):
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, attn_implementation="eager").train()
    return run_steps(model, file_parameters(model), data)


def run_steps(model, parameters, data):
    """Runs all steps on `parameters`, which are given by name."""
    optimizer = torch.optim.AdamW(parameters.values(), lr=SETTINGS["learning_rate"],
                                  betas=tuple(SETTINGS["betas"]), eps=SETTINGS["eps"],
                                  weight_decay=SETTINGS["weight_decay"])
    out = {"losses": [], "grad_norms": []}
    for step in range(SETTINGS["steps"]):
        out["losses"].append(step_gradients(model, data, step))
        if step == 0:
            out["first_step_grad_norms"] = norms({n: p.grad for n, p in parameters.items()})
        norm = torch.nn.utils.clip_grad_norm_(parameters.values(), SETTINGS["clip"])
        out["grad_norms"].append(norm.item())
        optimizer.step()
        optimizer.zero_grad()
    out["final_weight_norms"] = norms(parameters)
    return out


def norms(tensors):
    return {name: tensor.detach().double().norm().item() for name, tensor in tensors.items()}


def largest_relative(a, b):
    """Returns the largest relative difference; NaN if any is NaN, which max() may ignore."""
    return float(np.max([abs(x - y) / abs(y) for x, y in zip(a, b, strict=True)]))


# The number of seeds of a name that are known to give no usable reference.
KNOWN_BAD = {"gemma3": 1, "llama_bias": 2, "qwen3_bias": 1, "stablelm": 1}


def seeds(name):
    """Returns the seeds that are tried for a case of this name, in order."""
    first = sum(name.encode())
    return range(first + KNOWN_BAD.get(name, 0), first + 10)


def drawn_weights(tensors, seed):
    """Draws random values for tensors, given by name as (shape, mean), with numpy, so that tests do
    not have to load torch for them."""
    random = np.random.default_rng(seed)
    return {name: (mean + 0.1 * random.standard_normal(shape)).astype(np.float32)
            for name, (shape, mean) in sorted(tensors.items())}


def write_weights(model_folder, tensors, seed):
    """Writes drawn weights; returns the hash of the file."""
    path = model_folder / "model.safetensors"
    save_file(drawn_weights(tensors, seed), path, metadata={"format": "pt"})
    return hashlib.sha256(path.read_bytes()).hexdigest()


def tensors_of_file(path):
    """Returns (shape, mean to draw around) of each tensor in a file, by name. Norms and biases stay
    close to those of a new model."""
    return {name: (list(values.shape),
                   float(round(values.mean())) if values.ndim == 1 or "norm" in name else 0.0)
            for name, values in load_file(path).items()}


def train_both(name, model_folder, data):
    """Saves a model and trains it in fp32 and fp64. If fp32 differs too much from fp64 (a gradient
    element close to 0 changes its sign, and Adam's first steps move the weight the other way), the
    model is not usable as a reference, and the next seed is tried."""
    small_model(name, 0).save_pretrained(model_folder)
    if name in VERSION_4:
        to_version_4(model_folder / "config.json")
    tensors = tensors_of_file(model_folder / "model.safetensors")
    for seed in seeds(name):
        weights = write_weights(model_folder, tensors, seed)
        single = train(model_folder, data, torch.float32)
        double = train(model_folder, data, torch.float64)
        error = {key: largest_relative(single[key], double[key])
                 for key in ("losses", "grad_norms")}
        if error["losses"] < 1e-6 and error["grad_norms"] < 5e-6:
            return {"seed": seed, "weights": weights, "tensors": tensors}, single, error
    raise SystemExit(f"{name}: no seed gives a run whose fp32 losses agree with its fp64 losses")


def write_tokens(folder):
    folder.mkdir(parents=True, exist_ok=True)
    data = tokens()
    data.tofile(folder / "train.bin")
    (folder / "meta.json").write_text(json.dumps({"dtype": "uint16", "tokens": len(data)}) + "\n")
    return data


def code_of(function):
    """Returns the code of a function or class without comments and docstrings, which do not change
    any number."""
    definition, = ast.parse(inspect.getsource(function)).body
    for node in ast.walk(definition):
        if (isinstance(node, (ast.FunctionDef, ast.ClassDef))
                and ast.get_docstring(node) is not None):
            del node.body[0]
    return ast.unparse(definition)


def recipe(name):
    """Returns a hash of everything that decides the numbers of a family, except the bits of its
    weights."""
    made_by = (tokens, small_model, to_version_4, batch, step_gradients, file_parameters, train,
               run_steps, norms)
    parts = [FAMILIES[name], name in VERSION_4, COMMON, SETTINGS,
             [code_of(function) for function in made_by],
             [importlib.metadata.version(package) for package in ("torch", "transformers")]]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


RESULTS = ("losses", "grad_norms", "final_weight_norms")


def train_family(name, folder):
    """Writes the model and tokens of a family, trains them with transformers, and returns what is
    stored of the family."""
    model_folder = folder / name / "model"
    data = write_tokens(folder / name / "data")
    made_of, single, error = train_both(name, model_folder, data)
    print(f"{name}: loss {single['losses'][0]:.6f} -> {single['losses'][-1]:.6f}, grad norm "
          f"{single['grad_norms'][0]:.4f} -> {single['grad_norms'][-1]:.4f}; fp32 against fp64: "
          f"loss {error['losses']:.1e}, grad norm {error['grad_norms']:.1e}; seed "
          f"{made_of['seed']}", flush=True)
    files = {path.name: json.loads(path.read_text())
             for path in sorted(model_folder.glob("*.json"))}
    return {"recipe": recipe(name), **made_of, "files": files,
            **{key: single[key] for key in RESULTS}}


def write_stored(name, folder):
    """Writes the model and tokens of a family from stored numbers, and returns these; None if they
    were made from other inputs."""
    path = STORED / f"{name}.json"
    stored = json.loads(path.read_text()) if path.exists() else {}
    if stored.get("recipe") != recipe(name):
        return None
    model_folder = folder / name / "model"
    model_folder.mkdir(parents=True)
    if write_weights(model_folder, stored["tensors"], stored["seed"]) != stored["weights"]:
        return None
    for file, content in stored["files"].items():
        (model_folder / file).write_text(json.dumps(content, indent=2) + "\n")
    write_tokens(folder / name / "data")
    return stored


def write_families(folder, names=tuple(FAMILIES)):
    """Writes the folder of each family, from stored numbers if possible."""
    folder, loaded = pathlib.Path(folder), False
    for name in names:
        numbers = write_stored(name, folder)
        if numbers is None:
            print(f"{name}: no stored numbers are of this recipe and these weights, transformers "
                  f"trains it (reference.py store {name} stores them)", flush=True)
            if not loaded:
                load_libraries()
                loaded = True
            numbers = train_family(name, folder)
        reference = {"name": name, "settings": SETTINGS, **{key: numbers[key] for key in RESULTS}}
        (folder / name / "reference.json").write_text(json.dumps(reference, indent=1) + "\n")


def store_families(names):
    """Trains families with transformers and stores the results, one line for each part."""
    load_libraries()
    STORED.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        for name in names:
            stored = train_family(name, pathlib.Path(scratch))
            lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}"
                               for key, value in stored.items())
            (STORED / f"{name}.json").write_text("{" + lines + "}\n")


def windows(config):
    window = getattr(config, "sliding_window", None)
    types = getattr(config, "layer_types", None)
    if types is None or config.model_type == "mistral":  # one window for all layers
        types = ["sliding_attention" if window else "full_attention"] * config.num_hidden_layers
    return [window if t == "sliding_attention" else 0 for t in types]


def norm_epsilon(config):
    keys = [key for key in ("rms_norm_eps", "layer_norm_eps", "norm_epsilon")
            if hasattr(config, key)]
    return getattr(config, keys[0]) if keys else 1e-5  # OLMo's class has no key for it


def parameter_shapes(config):
    """Returns the names and shapes of the state dict in order, with enough layers to show the first
    and the last kinds."""
    config.num_hidden_layers = min(config.num_hidden_layers, 2)
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:config.num_hidden_layers]
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    return [[name, list(p.shape)] for name, p in file_parameters(model).items()]


def understood(path):
    config = transformers.AutoConfig.for_model(**json.loads(path.read_text()))
    model_type = type(config).__name__.removesuffix("Config").removesuffix("Text")
    by_layer = "full_attention" in config.rope_parameters  # a rotation for each layer type
    rope = config.rope_parameters["full_attention"] if by_layer else config.rope_parameters
    with torch.device("cpu"):
        folder = config.model_type.removesuffix("_text")
        module = getattr(transformers.models, folder)
        modeling = getattr(module, "modeling_" + folder)
        rotary = getattr(modeling, model_type + "RotaryEmbedding")
        turns = rotary(config)
        whole = turns.full_attention_inv_freq if by_layer else turns.inv_freq
        angles = [float(f) for f in whole]
    heads = config.num_attention_heads
    out = {"vocab_rows": config.vocab_size, "hidden": config.hidden_size,
           "feed_forward": config.intermediate_size, "layers": config.num_hidden_layers,
           "query_heads": heads, "kv_heads": getattr(config, "num_key_value_heads", heads),
           "head_size": getattr(config, "head_dim", None) or config.hidden_size // heads,
           "max_positions": config.max_position_embeddings, "norm_epsilon": norm_epsilon(config),
           "tied": config.tie_word_embeddings, "theta": rope["rope_theta"],
           "windows": windows(config), "dtype": str(config.dtype).removeprefix("torch."),
           "inverse_frequencies": angles}
    if rope["rope_type"] in ("yarn", "longrope"):
        out["attention_factor"] = (turns.full_attention_attention_scaling
                                   if by_layer else turns.attention_scaling)
    if rope["rope_type"] == "longrope":
        init = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS["longrope"]
        beyond = rope["original_max_position_embeddings"] + 1
        out["long_inverse_frequencies"] = [float(f) for f in init(config, seq_len=beyond)[0]]
    if hasattr(config, "no_rope_layers"):
        out["rotates"] = [bool(rotates) for rotates in config.no_rope_layers]
    if by_layer:
        out["window_inverse_frequencies"] = [float(f) for f in turns.sliding_attention_inv_freq]
    with torch.device("meta"):
        out["parameters"] = sum(
            p.numel() for p in transformers.AutoModelForCausalLM.from_config(config).parameters())
    out["tensors_of_2_layers"] = parameter_shapes(config)
    return out


def write_expected(folder):
    expected = {path.stem: understood(path) for path in sorted(folder.glob("*.v?.json"))}
    angles = [f for e in expected.values() for f in e["inverse_frequencies"]]
    assert angles and all(math.isfinite(f) for f in angles)
    (folder / "expected.json").write_text(json.dumps(expected, separators=(",", ":")) + "\n")
    print(f"{len(expected)} configs")


def count_published(path):
    """Writes the number of parameters into each published config that is not refused."""
    rows = json.loads(path.read_text())
    for row in rows:
        if "refused" not in row:
            config = transformers.AutoConfig.for_model(**row["config"])
            with torch.device("meta"):
                model = transformers.AutoModelForCausalLM.from_config(config.get_text_config())
            row["parameters"] = sum(p.numel() for p in model.parameters())
    path.write_text("[\n" + ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows) +
                    "\n]\n")
    print(f"{len(rows)} published configs")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    families = commands.add_parser("families")
    families.add_argument("out", type=pathlib.Path)
    families.add_argument("names", nargs="*", default=list(FAMILIES))
    commands.add_parser("store").add_argument("names", nargs="*", default=list(FAMILIES))
    commands.add_parser("configs").add_argument("folder", type=pathlib.Path)
    commands.add_parser("published").add_argument("file", type=pathlib.Path)
    args = parser.parse_args()
    if args.command == "families":
        write_families(args.out, args.names)
    elif args.command == "store":
        store_families(args.names)
    else:
        load_libraries()
        if args.command == "configs":
            write_expected(args.folder)
        else:
            count_published(args.file)


if __name__ == "__main__":
    main()
