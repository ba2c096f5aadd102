#!/usr/bin/env python3
"""Measures the start of ranks: whole runs of two steps of a tiny model, which consist almost only
of start and end.

  start_bench.py [--ranks 1 2 4 8] [--pairs 5] [--binary FTRUN]

Each pair consists of two runs with the same number of ranks. In the first, `ftrun --nproc` starts
the ranks, which share what their supervisor has loaded. In the second, processes are started with
RANK and WORLD_SIZE, as a launcher does, and each loads LibTorch itself. The script prints CPU and
wall-clock time of the whole run, and the ratio of the two: medians, with lowest and highest in
brackets.
"""
import argparse
import json
import os
import pathlib
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time

from random_model import make_model

ROOT = pathlib.Path(__file__).resolve().parents[2]


def free_port():
    """Returns a TCP port that no process uses."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


def write_config(folder, name, ranks):
    """Writes the config of a run; returns its path."""
    path = folder / f"{name}.json"
    path.write_text(json.dumps({
        "model": {"path": str(folder / "model")}, "output_dir": str(folder / name), "threads": 1,
        "data": {"train": str(folder / "model" / "train.bin"), "sequence_length": 32},
        "train": {"steps": 2}, "train_batch_size": 8, "train_micro_batch_size_per_gpu": 1,
        "parallel": {"data": ranks},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}, "export": {"enabled": False},
        "checkpoint": {"every": 0}}))
    return path


def measure(commands):
    """Returns CPU and wall-clock seconds of processes that run concurrently, each with its own
    environment."""
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    processes = [subprocess.Popen(command, env={**os.environ, **variables},
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                 for command, variables in commands]
    texts = [process.communicate()[0] for process in processes]
    wall, after = time.monotonic() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    for process, text in zip(processes, texts, strict=True):
        if process.returncode:
            sys.exit(f"exit {process.returncode}:\n{text[-2000:]}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall


def run_by_supervisor(args, folder, ranks, name):
    """Measures a run whose ranks `ftrun --nproc` starts."""
    return measure([([args.binary, "--config", write_config(folder, name, ranks), "--nproc",
                       str(ranks)], {})])


def run_by_launcher(args, folder, ranks, name):
    """Measures a run whose ranks are started one by one."""
    config, port = write_config(folder, name, ranks), str(free_port())
    return measure([([args.binary, "--config", config], {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}) for rank in range(ranks)])


def spread(values, unit=""):
    """Returns a text with the median, the lowest and the highest value."""
    return f"{statistics.median(values):.2f}{unit} ({min(values):.2f}-{max(values):.2f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=str(ROOT / "build/release/bin/ftrun"))
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--pairs", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        make_model("tiny", folder / "model")
        for ranks in args.ranks:
            supervised, launched = [], []
            for pair in range(args.pairs):
                supervised.append(run_by_supervisor(args, folder, ranks,
                                                    f"supervised-{ranks}-{pair}"))
                launched.append(run_by_launcher(args, folder, ranks, f"launched-{ranks}-{pair}"))
            for what, column in (("CPU time", 0), ("wall clock", 1)):
                times, launched_times = ([run[column] for run in runs]
                                         for runs in (supervised, launched))
                ratios = [a / b for a, b in zip(times, launched_times, strict=True)]
                print(f"{ranks} ranks, {what}: by ftrun's supervisor {spread(times, ' s')}, one "
                      f"by one {spread(launched_times, ' s')}, ratio {spread(ratios)}", flush=True)


if __name__ == "__main__":
    main()
