"""Checks that every model family trains as in transformers: losses, gradient norms and final
weights of 20 AdamW steps, on one rank and on two.

  families_test.py SOURCE [NAME ...]   With names: only these small models of
  tests/model/reference.py."""
import json
import math
import pathlib
import sys
import tempfile

from runner import (accumulation_of_ranks, config, ftrun, must, preload, require_near, steps,
                    write_config)
from safetensors.numpy import load_file

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCE / "tests/model"))
from reference import FAMILIES, write_families  # noqa: E402


def make_references(folder, names):
    write_families(folder, names or tuple(FAMILIES))
    return sorted(p for p in pathlib.Path(folder).iterdir() if p.is_dir())


KEY_BIASES = ("attn.c_attn.bias", "query_key_value.bias", "k_proj.bias")


def rotates_whole_heads(folder):
    config = json.loads((folder / "model" / "config.json").read_text())
    rope = config.get("rope_parameters", config)
    return rope.get("partial_rotary_factor", 1.0) == 1.0 and "rope_theta" in rope


def check_weights(out, reference, still):
    weights = {}
    for path in (out / "export" / "model").glob("*.safetensors"):
        weights.update(load_file(path))
    expected = reference["final_weight_norms"]
    assert set(weights) == set(expected), f"exported tensors differ: {set(weights) ^ set(expected)}"
    for name, norm in expected.items():
        found = math.sqrt(float((weights[name].astype("float64") ** 2).sum()))
        # A bias of keys does not change the scores of elements that do not rotate, so its gradient
        # is only rounding error, which Adam turns into full steps.
        bound = 1e-2 if name.endswith(still) else 1e-4
        assert abs(found - norm) <= bound * norm, f"{name}: norm {found}, transformers has {norm}"


LAYOUTS = {"zero-1": {"zero_optimization": {"stage": 1}},
           "zero-3": {"zero_optimization": {"stage": 3}},
           # A separate unit for the position table, next to the tied matrix's.
           "units": {"zero_optimization": {"stage": 2,
                                           "stage3_param_persistence_threshold": 5000}},
           "tensor": {"parallel": {"tensor": 2}}, "pipeline": {"parallel": {"pipeline": 2}}}
LAYOUTS_OF = {"yarn_rope": ("tensor", "pipeline"), "granite": ("zero-3", "tensor", "pipeline"),
              "phi3": ("zero-3", "tensor", "pipeline"),
              "gpt2": ("zero-3", "units", "tensor", "pipeline"),
              "gemma2": ("zero-3", "tensor", "pipeline"),
              "gemma3": ("zero-3", "tensor", "pipeline"), "padding_untied": ("zero-1", "tensor"),
              "padding_tied": ("zero-3", "pipeline"),
              # These have features that no other block has: norms that are summed over ranks,
              # layers without rotation, one sum of attention and MLP, and rows grouped by key head.
              "olmo2": ("zero-3", "tensor", "pipeline"),
              # Norms have no tensors; in a tied model the head has none of its own either.
              "olmo": ("zero-3", "tensor", "pipeline"),
              "olmo_tied": ("zero-3", "units", "tensor", "pipeline"),
              "cohere2": ("zero-3", "tensor", "pipeline"), "gpt_neox": ("tensor",),
              "stablelm_parallel": ("pipeline",), "opt": ("tensor",), "falcon_new": ("tensor",),
              "stablelm_norms": ("zero-3", "tensor", "pipeline"),
              "cohere_norms": ("zero-3", "tensor", "pipeline"),
              "falcon_norms": ("zero-3", "tensor", "pipeline"),
              # The head has a bias, and a vocabulary that the ranks cannot divide evenly.
              "phi": ("zero-3", "tensor", "pipeline")}
# The blocks of these families are like those of others, so two ranks would show nothing new.
ONE_RANK = {"yarn_rope", "phi3_short", "starcoder2", "smollm3", "stablelm", "stablelm_parallel",
            "glm", "glm4", "cohere", "gpt_neox_serial", "falcon", "phi", "ministral",
            "stablelm_norms", "cohere_norms", "falcon_norms", "opt_plain_norms",
            "olmo_tied"}
# Longrope rotates rows of 32 tokens by one of two lists.
LONGROPE = {"phi3": "is above longrope's original_max_position_embeddings, 16: long_factor rotates "
                    "all sequences of the run\n",
            "phi3_short": "is not above longrope's original_max_position_embeddings, 32: "
                          "short_factor rotates all sequences of the run\n"}
NOTE = "token 7, the model's pad_token_id, is trained on: its row of the embedding "


def has_padding(folder):
    return folder.name.startswith("padding")


def config_of(folder, out, ranks=1, changes=None):
    """Returns the config of a family's small model on `ranks` ranks, with the changes for a
    layout."""
    changes = changes or {}
    value = config(folder / "model", folder / "data" / "train.bin", out, **changes)
    value["gradient_accumulation_steps"] = accumulation_of_ranks(changes, ranks, 2)
    if has_padding(folder):
        value["model"]["padding_row_gradient"] = "transformers"
    value["export"] = {"dtype": "fp32"}
    return value


def check_family(folder, ranks, scratch, layout=None, changes=None):
    """Trains on a layout, with `changes` of the config or else those in LAYOUTS. Returns the
    largest differences of loss and gradient norm."""
    reference = json.loads((folder / "reference.json").read_text())
    out = scratch / f"{folder.name}-{layout or ranks}"
    s = reference["settings"]
    value = config_of(folder, out, ranks, LAYOUTS.get(layout, {}) if changes is None else changes)
    # Two threads of such small models mostly wait for each other. Models with windows and with
    # norms of queries and keys use two nevertheless.
    value["threads"] = 2 if ranks == 1 and folder.name.startswith(("mistral", "qwen3")) else 1
    result = must(ftrun("--config", write_config(scratch, value), "--nproc", ranks))
    assert (((NOTE + "gets no gradient from input tokens, as in transformers") in result.stdout)
            == has_padding(folder)), result.stdout
    rotated_by, output = LONGROPE.get(folder.name, ""), result.stdout + result.stderr
    assert (output.count("factor rotates all sequences of the run\n") == bool(rotated_by)
            and rotated_by in output), output
    lines = steps(out)
    assert len(lines) == s["steps"], f"{len(lines)} steps were trained, expected {s['steps']}"
    loss = require_near("loss", [m["loss"] for m in lines], reference["losses"], 1e-5)
    norm = require_near("gradient norm", [m["grad_norm"] for m in lines], reference["grad_norms"],
                        5e-5)
    check_weights(out, reference, () if rotates_whole_heads(folder) else KEY_BIASES)
    print(f"{folder.name}, {layout or f'{ranks} rank(s)'}: loss within {loss:.1e}, gradient norm "
          f"within {norm:.1e}", flush=True)
    return loss, norm


def check_untrained_bytes(folder, scratch, ranks=2):
    """Checks that tensors which files store in other pieces than ranks are exported bit for bit as
    they were read."""
    out = scratch / f"{folder.name}-untrained-{ranks}"
    value = config(folder / "model", folder / "data" / "train.bin", out,
                   **(LAYOUTS["tensor"] if ranks == 2 else {}))
    value["train"]["steps"], value["export"] = 1, {"dtype": "fp32"}
    value["optimizer"]["params"]["lr"] = 0.0
    must(ftrun("--config", write_config(scratch, value), "--nproc", ranks))
    expected = load_file(folder / "model" / "model.safetensors")
    tensors = load_file(out / "export" / "model" / "model.safetensors")
    assert set(tensors) == set(expected), set(tensors) ^ set(expected)
    for name, values in expected.items():
        assert tensors[name].shape == values.shape, name
        assert tensors[name].tobytes() == values.tobytes(), name


def check_trained_padding(folder, scratch):
    """Checks that by default the padding token's row is trained like any other, and that no message
    names a token that is not read."""
    reference = json.loads((folder / "reference.json").read_text())
    value = config(folder / "model", folder / "data" / "train.bin", scratch / "trained-padding")
    value["train"]["steps"], value["export"] = 1, {"enabled": False}
    result = must(ftrun("--config", write_config(scratch, value)))
    assert (NOTE + "is trained as any other row; transformers gives it no gradient, so its "
            "gradient norms and losses differ" in result.stdout), result.stdout
    first_line = steps(scratch / "trained-padding")[0]
    require_near("loss", [first_line["loss"]], reference["losses"][:1], 1e-5)
    assert first_line["grad_norm"] > 1.0001 * reference["grad_norms"][0], (
        first_line, reference["grad_norms"][0])
    # The same state continues only with the same kind of gradient.
    value["model"]["padding_row_gradient"] = "transformers"
    refused = must(ftrun("--config", write_config(scratch, value), "--resume", "auto"), 2)
    assert "config.model.padding_row_gradient" in refused.stderr, refused.stderr
    model = json.loads((folder / "model" / "config.json").read_text())
    (folder / "model" / "config.json").write_text(json.dumps(model | {"pad_token_id": 211}))
    value["output_dir"] = str(scratch / "unread-padding")
    result = must(ftrun("--config", write_config(scratch, value)))
    assert "pad_token_id" not in result.stdout, result.stdout
    require_near("gradient norm", [steps(scratch / "unread-padding")[0]["grad_norm"]],
                 [first_line["grad_norm"]], 1e-6)


def main(names):
    preload()
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        folders = make_references(scratch / "references", names)
        assert len(folders) == len(names) if names else len(folders) >= 10, folders
        for folder in folders:
            for ranks in (1,) if folder.name in ONE_RANK else (1, 2):
                check_family(folder, ranks, scratch)
            for layout in LAYOUTS_OF.get(folder.name, ()):
                check_family(folder, 2, scratch, layout)
            if folder.name in ("stablelm_norms", "cohere_norms"):
                check_untrained_bytes(folder, scratch)
        if not names:
            check_trained_padding(scratch / "references" / "padding_untied", scratch)


if __name__ == "__main__":
    main(sys.argv[2:])
