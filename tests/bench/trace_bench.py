"""Measures what tracing a step costs, in training runs that trace every other step.

    trace_bench.py BINARY [--ranks 2] [--stage 3] [--runs 3] [--shape 15-narrow-layers]

The script prints the ratio of each traced step's time to the mean of its two untraced neighbors:
median and quartiles.
"""
import argparse
import json
import pathlib
import statistics
import sys
import tempfile

import random_model
from watched_run import step_of_ftrun, watch

parser = argparse.ArgumentParser()
parser.add_argument("binary", type=pathlib.Path)
parser.add_argument("--ranks", type=int, default=2)
parser.add_argument("--stage", type=int, default=3)
parser.add_argument("--runs", type=int, default=3)
parser.add_argument("--shape", default="15-narrow-layers")
options = parser.parse_args()

TRACED = range(4, 4 + 2 * 32, 2)
TIMEOUT = 1200


def ratios_of_run(model, tokens, folder):
    """Trains; returns the ratio of each traced step."""
    config = folder.with_suffix(".json")
    config.write_text(json.dumps({
        "model": {"path": str(model)}, "output_dir": str(folder),
        "data": {"train": str(tokens), "token_dtype": "uint32", "sequence_length": 256},
        "train": {"steps": TRACED[-1] + 1, "trace": {
            "steps": list(TRACED), "ranks": list(range(options.ranks))}},
        "train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": options.stage},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}, "checkpoint": {"every": 0}}))
    command = [options.binary, "--config", config, "--nproc", options.ranks, "--restarts", 0]
    watch(command, {}, step_of_ftrun, TIMEOUT)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    seconds = {line["step"]: line["step_seconds"] for line in lines if "step_seconds" in line}
    return [2 * seconds[step] / (seconds[step - 1] + seconds[step + 1]) for step in TRACED]


def main():
    ratios = []
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        model, tokens = random_model.make_model(options.shape, scratch / "model")
        for run in range(options.runs):
            ratios += ratios_of_run(model, tokens, scratch / f"run-{run}")
    lower, median, upper = statistics.quantiles(ratios, n=4)
    print(f"a traced step takes {median:.4f} times as long as an untraced step (quartiles of "
          f"{len(ratios)} steps: {lower:.4f} and {upper:.4f})")


sys.exit(main())
