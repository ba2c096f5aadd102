"""Compares two builds of ftrun: the same training runs by both in interleaved pairs, and the ratio
of their speeds.

    builds_bench.py NEW OLD [--pairs 15] [--steps 8] [--shape 15-narrow-layers] [--only WORD]

NEW and OLD are binaries. A pair counts if other processes kept at most 0.05 core busy. The script
compares median times of the steps after the second; a ratio above 1 means that NEW is faster.
"""
import argparse
import json
import pathlib
import statistics
import sys
import tempfile

import random_model
from watched_run import QUIET_CORES, step_of_ftrun, watch

parser = argparse.ArgumentParser()
parser.add_argument("new", type=pathlib.Path)
parser.add_argument("old", type=pathlib.Path)
parser.add_argument("--pairs", type=int, default=15)
parser.add_argument("--steps", type=int, default=8)
parser.add_argument("--shape", default="15-narrow-layers")
parser.add_argument("--only", default="")
options = parser.parse_args()

CASES = {
    "single": (1, {}),
    "ddp": (2, {"zero_optimization": {"stage": 0}}),
    "zero3": (2, {"zero_optimization": {"stage": 3}}),
}
TIMEOUT = 600


def train(binary, ranks, settings, model, tokens, folder):
    """Trains; returns the median seconds of a step, and the number of cores that other processes
    kept busy."""
    config = folder.with_suffix(".json")
    config.write_text(json.dumps({
        "model": {"path": str(model)}, "output_dir": str(folder),
        "data": {"train": str(tokens), "token_dtype": "uint32", "sequence_length": 256},
        "train": {"steps": options.steps}, "train_micro_batch_size_per_gpu": 2,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
        "checkpoint": {"every": 0}} | settings))
    command = [binary, "--config", config, "--nproc", ranks, "--restarts", 0]
    watched = watch(command, {}, step_of_ftrun, TIMEOUT)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    steps = [line["step_seconds"] for line in lines if "step_seconds" in line][2:]
    return statistics.median(steps), watched.foreign_cores


def main():
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        model, tokens = random_model.make_model(options.shape, scratch / "model")
        for name, (ranks, settings) in CASES.items():
            if options.only not in name:
                continue
            ratios = []
            for pair in range(2 * options.pairs):
                results = {}
                # The builds take turns in going first.
                for build in ("new", "old") if pair % 2 else ("old", "new"):
                    folder = scratch / f"{name}-{pair}-{build}"
                    binary = getattr(options, build)
                    results[build] = train(binary, ranks, settings, model, tokens, folder)
                is_idle = max(foreign for _, foreign in results.values()) <= QUIET_CORES
                new, old = results["new"][0], results["old"][0]
                ratio = old / new
                print(f"{name} {pair}: new {new:.3f} s, old {old:.3f} s, ratio {ratio:.3f}"
                      f"{'' if is_idle else ' (machine not idle, not counted)'}", flush=True)
                if is_idle:
                    ratios.append(ratio)
                if len(ratios) == options.pairs:
                    break
            if ratios:
                print(f"{name}: {statistics.median(ratios):.3f} ({min(ratios):.3f} to "
                      f"{max(ratios):.3f}), {len(ratios)} pairs on an idle machine", flush=True)


sys.exit(main())
