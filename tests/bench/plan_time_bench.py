"""Compares predicted with measured step times: trains a small decoder on a grid of layouts,
measures the machine anew before each, and prints what run.json says of both: the time of a step,
and the shares of it that ranks wait for collectives and for other pipeline stages.

    plan_time_bench.py ROOT [--out FILE] [--only WORD] [--steps N] [--full]
                       [--tries N] [--even SHARE]

Steps after the second count, and shares are means over the ranks of the first stage. No other
program should run meanwhile; the script also prints the time for which the host ran other machines
(stolen). With --tries above 1, the script measures the machine again after the steps. A try counts
only if the predictions of both measurements, and the quartiles of the measured steps, agree within
SHARE: on a shared host, the machine's own speed may change in between, which no plan can know. The
compared prediction is always that of the measurement before the steps.
"""
import argparse
import itertools
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

import random_model

parser = argparse.ArgumentParser()
parser.add_argument("root", type=pathlib.Path)
parser.add_argument("--out", type=pathlib.Path)
parser.add_argument("--only", default="")
parser.add_argument("--steps", type=int, default=12)
parser.add_argument("--tries", type=int, default=1)
parser.add_argument("--even", type=float, default=0.06)
parser.add_argument("--full", action="store_true", help="measure the machine without --quick")
options = parser.parse_args()
FTRUN = options.root / "build" / "release" / "bin" / "ftrun"
SHAPE = "6-narrow-layers"
WAITS = ("exposed_communication", "other_stages")  # parts of run.json's times


def layouts():
    """Yields (name, settings), each with a global batch of 4 sequences of 256 tokens."""
    def layout(name, data=1, tensor=1, pipeline=1, stage=0, accumulation=None, **more):
        sequences = 4 // data
        accumulation = accumulation or (sequences if pipeline > 1 else 1)
        return name, {"parallel": {"data": data, "tensor": tensor, "pipeline": pipeline},
                      "zero_optimization": {"stage": stage},
                      "train_micro_batch_size_per_gpu": sequences // accumulation,
                      "gradient_accumulation_steps": accumulation} | more

    bf16 = {"bf16": {"enabled": True}}
    full = {"recompute": "full"}
    lora = {"adapter": {"type": "lora", "r": 16}}
    host = {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}
    yield layout("one")
    yield layout("one, 4 micro-batches", accumulation=4)
    yield layout("one, bf16", **bf16)
    yield layout("one, recompute", **full)
    yield layout("one, LoRA", **lora)
    yield layout("one, bf16, LoRA, recompute", **bf16, **lora, **full)
    for stage in (0, 1, 2, 3):
        yield layout(f"data 2, ZeRO {stage}", data=2, stage=stage)
    yield layout("data 2, ZeRO 3, bf16", data=2, stage=3, **bf16)
    yield layout("data 2, ZeRO 2, optimizer on the host", data=2, **host)
    yield layout("data 2, ZeRO 3, recompute", data=2, stage=3, **full)
    yield layout("data 2, LoRA", data=2, **lora)
    yield layout("tensor 2", tensor=2)
    yield layout("tensor 2, bf16", tensor=2, **bf16)
    yield layout("tensor 2, 4 micro-batches", tensor=2, accumulation=4)
    yield layout("pipeline 2", pipeline=2)
    yield layout("pipeline 2, bf16", pipeline=2, **bf16)
    yield layout("data 4, ZeRO 1", data=4, stage=1)
    yield layout("data 4, ZeRO 3", data=4, stage=3)
    yield layout("data 2, tensor 2", data=2, tensor=2)
    yield layout("tensor 2, pipeline 2", tensor=2, pipeline=2)
    yield layout("data 2, pipeline 2", data=2, pipeline=2)


def stolen_time():
    """Returns the hundredths of a second for which the host ran other machines."""
    return int(pathlib.Path("/proc/stat").read_text().split()[8])


class Machine:
    """A folder for the machine file that `ftrun bench machine` writes and runs read."""

    def __init__(self, folder):
        self.file = folder / "ftrun" / "machine.yaml"
        self.environment = os.environ | {"XDG_CACHE_HOME": str(folder)}

    def run(self, *words):
        """Runs ftrun with this machine file as the machine's own; returns its output."""
        return subprocess.run([FTRUN, *words], check=True, capture_output=True, text=True,
                              env=self.environment).stdout

    def measure(self):
        """Measures the machine anew."""
        self.file.unlink(missing_ok=True)
        self.run("bench", "machine", *([] if options.full else ["--quick"]))


def measure_run(config, nproc, machine, folder):
    """Trains; returns the times of run.json (microseconds by part, predicted and measured), and the
    relative distance of the quartiles of the steps."""
    machine.run("--config", config, "--nproc", str(nproc), "--restarts", "0")
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    seconds = [line["step_seconds"] for line in lines if "step_seconds" in line][2:]
    low, _, high = statistics.quantiles(seconds, n=4)
    return json.loads((folder / "run.json").read_text())["time"], high / low - 1


def predict(config, nproc, machine):
    """Returns the predicted seconds of a step."""
    text = machine.run("plan", "--config", config, "--nproc", str(nproc), "--machine", machine.file)
    return float(re.search(r"time of a step on .*?: ([\d.e+-]+) s", text)[1])


def write_config(config, settings, model, tokens, folder):
    """Writes the config of a run."""
    config.write_text(json.dumps({
        "model": {"path": str(model)}, "output_dir": str(folder),
        "train": {"steps": options.steps},
        "data": {"train": str(tokens), "token_dtype": "uint32", "sequence_length": 256},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}, "checkpoint": {"every": 0}}
                                 | settings))


def compare(name, settings, folder, model, tokens):
    """Measures the machine and a run; returns the row, and how much the machine's speed changed."""
    mesh = settings["parallel"]
    nproc = mesh["data"] * mesh["tensor"] * mesh["pipeline"]
    config, machine = folder.with_suffix(".json"), Machine(folder.with_suffix(".cache"))
    write_config(config, settings, model, tokens, folder)
    machine.measure()
    before = stolen_time()
    times, change = measure_run(config, nproc, machine, folder)
    stolen = stolen_time() - before
    if options.tries > 1:
        plan = predict(config, nproc, machine)
        machine.measure()
        plan_after = predict(config, nproc, machine)
        change = max(change, max(plan, plan_after) / min(plan, plan_after) - 1)
    plan, seconds = (times[which]["step"] / 1e6 for which in ("predicted", "measured"))
    waits = [times[which].get(part, 0) / times[which]["step"] for part in WAITS
             for which in ("predicted", "measured")]
    row = (name, plan, seconds, plan / seconds - 1, *waits)
    shares = "   ".join(f"{word} {100 * predicted:5.1f} % / {100 * measured:5.1f} %"
                        for word, predicted, measured in zip(("collectives", "stages"), waits[::2],
                                                             waits[1::2]))
    print(f"{name:40s} predicted {plan:7.3f} s  measured {seconds:7.3f} s  "
          f"{100 * row[3]:+6.1f} %   {shares}   "
          f"speed changed {100 * change:5.1f} %   stolen {stolen / 100:.2f} s", flush=True)
    return row, change


def main():
    rows, unstable = [], []
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        model, tokens = random_model.make_model(SHAPE, scratch / "model")
        for number, (name, settings) in enumerate(layouts()):
            if options.only not in name:
                continue
            tries = []
            for attempt in range(options.tries):
                tries.append(compare(name, settings, scratch / f"run-{number}-{attempt}", model,
                                     tokens))
                if tries[-1][1] <= options.even:
                    break
            row, change = min(tries, key=lambda attempt: attempt[1])
            rows.append(row)
            if options.tries > 1 and change > options.even:
                unstable.append(name)
    if unstable:
        print("the machine's speed changed in every try (the try with the smallest change is "
              f"shown): {', '.join(unstable)}")
    errors = [abs(row[3]) for row in rows]
    pairs = [(a, b) for a, b in itertools.combinations(rows, 2) if abs(a[2] / b[2] - 1) > 0.05]
    ordered = sum(1 if (a[1] - b[1]) * (a[2] - b[2]) > 0 else -1 for a, b in pairs)
    print(f"{len(rows)} layouts: mean error {100 * statistics.mean(errors):.1f} %, worst "
          f"{100 * max(errors):.1f} %, {sum(e <= 0.15 for e in errors)} within 15 %, order "
          f"{ordered / max(len(pairs), 1):.2f}; waits within 3 points of the step: "
          + ", ".join(f"{sum(abs(row[i] - row[i + 1]) <= 0.03 for row in rows)} for {what}"
                      for i, what in ((4, "collectives"), (6, "other stages"))))
    if options.out:
        options.out.write_text("".join("\t".join(map(str, row)) + "\n" for row in rows))


sys.exit(main())
