#!/usr/bin/env python3
"""Measures the start of ranks: whole runs of two steps of a tiny model, which consist almost only
of start and end.

  start_bench.py [--ranks 1 2 4 8] [--pairs 5] [--binary FTRUN]

Each pair runs, in turn, ranks started by `ftrun --nproc`, which share what their supervisor has
loaded, and as many processes with RANK and WORLD_SIZE, as a launcher starts them, each of which
loads LibTorch itself. The script prints CPU and wall-clock time of the whole run, and the ratio
between the two ways: medians, with lowest and highest in brackets.
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

from random_model import make

ROOT = pathlib.Path(__file__).resolve().parents[2]


def free_port():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


def write_config(folder, name, ranks):
    path = folder / f"{name}.json"
    path.write_text(json.dumps({
        "model": {"path": str(folder / "model")}, "output_dir": str(folder / name), "threads": 1,
        "data": {"train": str(folder / "model" / "train.bin"), "sequence_length": 32},
        "train": {"steps": 2}, "train_batch_size": 8, "train_micro_batch_size_per_gpu": 1,
        "parallel": {"data": ranks},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}, "export": {"enabled": False},
        "checkpoint": {"every": 0}}))
    return path


def measured(commands):
    """Returns CPU and wall-clock seconds of processes that run concurrently, each with its own
    environment."""
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    started = [subprocess.Popen(command, env={**os.environ, **more}, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True)
               for command, more in commands]
    texts = [process.communicate()[0] for process in started]
    wall, after = time.monotonic() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    for process, text in zip(started, texts, strict=True):
        if process.returncode:
            sys.exit(f"exit {process.returncode}:\n{text[-2000:]}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall


def by_supervisor(args, folder, ranks, name):
    return measured([([args.binary, "--config", write_config(folder, name, ranks), "--nproc",
                       str(ranks)], {})])


def by_launcher(args, folder, ranks, name):
    config, port = write_config(folder, name, ranks), str(free_port())
    return measured([([args.binary, "--config", config], {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}) for rank in range(ranks)])


def spread(values, unit=""):
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
        make("tiny", folder / "model")
        for ranks in args.ranks:
            own, launched = [], []
            for pair in range(args.pairs):
                own.append(by_supervisor(args, folder, ranks, f"own-{ranks}-{pair}"))
                launched.append(by_launcher(args, folder, ranks, f"launched-{ranks}-{pair}"))
            for what, column in (("CPU time", 0), ("wall clock", 1)):
                mine, theirs = [run[column] for run in own], [run[column] for run in launched]
                print(f"{ranks} ranks, {what}: ftrun's supervisor {spread(mine, ' s')}, each by "
                      f"itself {spread(theirs, ' s')}, ratio "
                      f"{spread([a / b for a, b in zip(mine, theirs, strict=True)])}", flush=True)


if __name__ == "__main__":
    main()
