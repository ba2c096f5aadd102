#!/usr/bin/env python3
"""Injects hangs and counts how often the rank that caused the hang is named.

  scripts/soak_hangs.py [--cases 200] [--seed N]

Four of five cases run inside tests/comm/hang_test.cc: an endless computation, a slow disk, an
omitted collective, a wrong size, a deadlock. Every fifth case stops (SIGSTOP) a process of a real
run on a 2 x 2 mesh at a random moment. The supervisor must end the run and write the stopped rank
to run.json. The script prints how long that took. It uses build/release.
"""
import argparse
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

import script_errors

SOURCE = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(SOURCE / "tests" / "e2e"))
os.environ.setdefault("FTRUN_BINARY", str(SOURCE / "build" / "release" / "bin" / "ftrun"))

TIMEOUT = 2  # seconds, comm.timeout of a run


def run_in_one_process(cases, seed):
    """Runs the cases of tests/comm/hang_test.cc; returns whether they passed."""
    completed = subprocess.run([SOURCE / "build/release/bin/test_comm", "-s", "--filenames-as-tags",
                                "[#hang_test]"],
                               capture_output=True, text=True,
                               env={**os.environ, "FTRUN_HANG_CASES": str(cases),
                                    "FTRUN_HANG_SEED": str(seed)})
    lines = [line.strip() for line in completed.stdout.splitlines() if ":=" in line]
    print(f"hangs inside communicators: {'; '.join(lines[:2])}", flush=True)
    if completed.returncode != 0:
        print(completed.stdout[-3000:])
    return completed.returncode == 0


def run_with_stopped_process(job, number, rng):
    """Stops a random process of a run. Returns whether run.json names its rank, and the seconds
    until the run ended."""
    from runner import manifest, start
    victim = rng.randrange(4)
    name = f"stopped-{number}"
    backend = rng.choice(("auto", "gloo"))
    running = start("--config", job.config(name, train={"steps": 100000},
                                           comm={"timeout": TIMEOUT, "backend": backend},
                                           parallel={"data": 2, "tensor": 2}), "--restarts", 0)
    running.await_line("step 2/")
    ranks = running.ranks()
    time.sleep(rng.random() * 0.5)
    running.kill(signal.SIGSTOP, ranks[victim])
    begin = time.monotonic()
    running.wait(6)
    seconds = time.monotonic() - begin
    record = manifest(job.out(name))
    is_named = record["exit_rank"] == victim and "is stopped" in record["exit_reason"]
    if not is_named:
        print(f"{name}: rank {victim} (backend {backend}) was stopped, but run.json has the reason "
              f"{json.dumps(record['exit_reason'])}", flush=True)
    return is_named, seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--seed", type=int, default=20261123)
    script_errors.add_debug(parser)
    options = parser.parse_args()
    stopped = options.cases // 5
    passed = run_in_one_process(options.cases - stopped, options.seed)
    from runner import Job, tiny_model, tiny_weights
    rng = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as scratch:
        model = tiny_model(pathlib.Path(scratch) / "model", tiny_weights(vocabulary=212),
                           vocab_size=212)
        job = Job(scratch, model)
        results = [run_with_stopped_process(job, number, rng) for number in range(stopped)]
    named = sum(is_named for is_named, _ in results)
    times = sorted(seconds for _, seconds in results)
    print(f"stopped processes: {named} of {stopped} named; from the stop to the end of the run "
          f"{times[len(times) // 2]:.1f} s in the median, {times[-1]:.1f} s at most (timeout "
          f"{TIMEOUT} s)")
    sys.exit(0 if passed and 100 * (stopped - named) <= stopped else 1)


if __name__ == "__main__":
    script_errors.install_excepthook("soak_hangs")
    main()
