"""Every model family trains as transformers does: losses, gradient norms and final weights of 20
AdamW steps, on one rank and on two."""
import json
import math
import pathlib
import subprocess
import sys
import tempfile

from runner import config, ftrun, must, near, preload, steps, write_config
from safetensors.numpy import load_file

SOURCE = pathlib.Path(sys.argv[1])


def make_references(folder):
    subprocess.run([sys.executable, SOURCE / "tests/model/reference.py", "families", folder], check=True,
                   stdout=subprocess.DEVNULL)
    return sorted(p for p in pathlib.Path(folder).iterdir() if p.is_dir())


def check_weights(out, reference):
    weights = {}
    for path in (out / "export" / "model").glob("*.safetensors"):
        weights.update(load_file(path))
    expected = reference["final_weight_norms"]
    assert set(weights) == set(expected), f"exported tensors differ: {set(weights) ^ set(expected)}"
    for name, norm in expected.items():
        found = math.sqrt(float((weights[name].astype("float64") ** 2).sum()))
        assert abs(found - norm) <= 2e-4 * norm, f"{name}: norm {found}, transformers has {norm}"


def check_family(folder, ranks, scratch):
    reference = json.loads((folder / "reference.json").read_text())
    out = scratch / f"{folder.name}-{ranks}"
    s = reference["settings"]
    value = config(folder / "model", folder / "data" / "train.bin", out)
    value["gradient_accumulation_steps"] = s["accumulation"] // ranks
    value["export"] = {"dtype": "fp32"}
    # Two threads of such small models mostly wait for each other; where windows and norms of queries and keys are, two all the same.
    value["threads"] = 2 if ranks == 1 and folder.name.startswith(("mistral", "qwen3")) else 1
    must(ftrun("--config", write_config(scratch, value), "--nproc", ranks))
    found = steps(out)
    assert len(found) == s["steps"], f"{len(found)} steps"
    loss = near("loss", [m["loss"] for m in found], reference["losses"], 1e-5)
    norm = near("gradient norm", [m["grad_norm"] for m in found], reference["grad_norms"], 5e-5)
    check_weights(out, reference)
    print(f"{folder.name}, {ranks} rank(s): loss within {loss:.1e}, gradient norm within {norm:.1e}", flush=True)


def main():
    preload()
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        folders = make_references(scratch / "references")
        assert len(folders) >= 10, folders
        for folder in folders:
            for ranks in (1, 2):
                check_family(folder, ranks, scratch)


main()
