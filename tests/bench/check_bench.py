#!/usr/bin/env python3
"""Measures `ftrun check` of the shipped configs, and `ftrun --version`, which only starts, for
comparison.

  check_bench.py [--rounds 15] [--binary FTRUN] [--config NAME...]

Each round runs `ftrun --version` and then `ftrun check` of each config, in a folder with a random
model of SmolLM2-135M's shape and token files of its vocabulary, at the paths that the configs name.
A check opens the headers of both, plans the step and its memory, and prints the effective config.
The script prints wall-clock and CPU milliseconds of the processes and their ratio to the same
round's `--version`: medians, with lowest and highest in brackets. It prints the load of the machine
before and after.
"""
import argparse
import array
import os
import pathlib
import re
import resource
import statistics
import struct
import subprocess
import sys
import tempfile
import time

from random_model import SHAPES, make_model

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCUMENT, DOCUMENTS = 512, 2000  # tokens per document; documents per data set
UINT16 = 8  # Megatron's code for this dtype


def write_data(prefix):
    """Writes a data set in Megatron's format, PREFIX.bin and PREFIX.idx."""
    prefix.parent.mkdir(parents=True, exist_ok=True)
    vocabulary = SHAPES["smollm2"][-1]
    tokens = array.array("H", (i * 7919 % vocabulary for i in range(DOCUMENT * DOCUMENTS)))
    prefix.with_suffix(".bin").write_bytes(tokens.tobytes())
    lengths = array.array("i", [DOCUMENT] * DOCUMENTS)
    offsets = array.array("q", (2 * DOCUMENT * i for i in range(DOCUMENTS)))
    prefix.with_suffix(".idx").write_bytes(
        b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, UINT16, DOCUMENTS, DOCUMENTS + 1) +
        lengths.tobytes() + offsets.tobytes() + array.array("q", range(DOCUMENTS + 1)).tobytes())


def make_inputs(folder, configs):
    """Makes the models and the data that the configs name below `folder`."""
    for path in configs:
        text = path.read_text()
        for model in re.findall(r"models/[\w.-]+", text):
            shape = "smollm2-12-heads" if model.endswith("-12-heads") else "smollm2"
            make_model(shape, folder / model)
        for data in re.findall(r"^ +(?:train|validation): *(data/[\w./-]+)", text, re.M):
            if not (folder / data).with_suffix(".idx").exists():
                write_data(folder / data)


def measure(command, folder):
    """Returns wall-clock and CPU milliseconds of a process, which must succeed."""
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    wall, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    if result.returncode:
        sys.exit(f"exit {result.returncode}: {' '.join(map(str, command))}\n"
                 f"{(result.stdout + result.stderr)[-2000:]}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return 1000 * wall, 1000 * cpu


def spread(values, digits):
    """Returns a text with the median, the lowest and the highest value."""
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:.{digits}f} ({low:.{digits}f}-{high:.{digits}f})"


def load_text():
    """Returns the load averages of the machine as a text."""
    return " ".join(f"{load:.2f}" for load in os.getloadavg())


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=str(ROOT / "build/release/bin/ftrun"))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--config", nargs="+", help="names in configs/; otherwise all of them")
    args = parser.parse_args()
    configs = sorted((ROOT / "configs").glob("*.yaml"))
    if args.config:
        configs = [path for path in configs if path.stem in args.config]
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        make_inputs(folder, configs)
        commands = {path: [args.binary, "check", "--config", path] for path in configs}
        for command in commands.values():  # to fill the page cache
            measure(command, folder)
        version, checks = [], {path: [] for path in configs}
        print(f"load averages before: {load_text()}")
        for _ in range(args.rounds):
            version.append(measure([args.binary, "--version"], folder))
            for path, command in commands.items():
                checks[path].append(measure(command, folder))
        print(f"load averages after: {load_text()}")
        for column, what in enumerate(("wall clock", "CPU time")):
            start = [times[column] for times in version]
            print(f"{what}: ftrun --version {spread(start, 1)} ms")
            for path, runs in checks.items():
                times = [run[column] for run in runs]
                ratios = [time_ms / base for time_ms, base in zip(times, start, strict=True)]
                print(f"  check of {path.stem}: {spread(times, 1)} ms, ratio {spread(ratios, 2)}")


if __name__ == "__main__":
    main()
