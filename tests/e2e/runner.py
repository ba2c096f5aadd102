"""Runs the ftrun binary for the end-to-end tests: configs as dicts, metrics read back."""
import json
import os
import pathlib
import subprocess

BINARY = os.environ["FTRUN_BINARY"]
TIMEOUT = 300


def config(model, data, out, **changes):
    """A config with the tests' usual settings; `changes` replaces whole top-level keys."""
    base = {
        "model": {"path": str(model)},
        "data": {"train": str(data), "sequence_length": 32, "shuffle": False},
        "train": {"steps": 20, "weight_decay_exempt": "none"},
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 2,
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 3e-3, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}},
        "checkpoint": {"every": 0},
        "output_dir": str(out),
    }
    base.update(changes)
    return base


def write_config(folder, value, name="config.json"):
    path = pathlib.Path(folder) / name
    path.write_text(json.dumps(value, indent=1))
    return path


def ftrun(*arguments, env=None, timeout=TIMEOUT, cwd=None):
    """Runs the binary; returns the finished process with stdout and stderr as text."""
    environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")}
    environment.update(env or {})
    return subprocess.run([BINARY, *map(str, arguments)], capture_output=True, text=True, env=environment,
                          timeout=timeout, cwd=cwd)


def must(process, code=0):
    assert process.returncode == code, (
        f"exit {process.returncode}, expected {code}\nstdout:\n{process.stdout[-3000:]}\nstderr:\n{process.stderr[-3000:]}")
    return process


def metrics(out):
    with open(pathlib.Path(out) / "metrics.jsonl") as lines:
        return [json.loads(line) for line in lines]


def steps(out):
    return [m for m in metrics(out) if "loss" in m]


def near(name, found, expected, relative):
    worst = max(abs(f - e) / abs(e) for f, e in zip(found, expected, strict=True))
    assert worst <= relative, f"{name}: off by {worst:.3g} relative, {relative:g} allowed"
    return worst
