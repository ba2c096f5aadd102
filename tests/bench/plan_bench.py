#!/usr/bin/env python3
"""Measures the time and memory of `ftrun plan` for all ranks of a large run, and for a few ranks.

  tests/bench/plan_bench.py [--binary build/release/bin/ftrun]
                            [--config tests/sim/llama-3-405b/plan.yaml] [--times 5]
  tests/bench/plan_bench.py --pipelines [--micro-batches 16,32,64]

Without --pipelines, each repetition plans and checks the config as it is and then with two
data-parallel ranks; the difference is the cost of all other ranks. With --pipelines, the config has
tensor 8 x pipeline 16 x data 128 under each schedule; the script also measures the picture
(`--schedule`), and adds up plan and check. CPU seconds hardly depend on other load of the machine,
wall-clock seconds do. The script prints the minimum and the median of the seconds, and the maximum
memory. The goal for Llama-3-405B on 16,384 ranks is under 5 s and under 2 GB.
"""
import argparse
import os
import pathlib
import re
import statistics
import subprocess
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]


def plan(binary, config, *arguments):
    """Runs `ftrun plan`; returns (its checked figures, wall-clock seconds, CPU seconds, peak memory
    in bytes)."""
    start = time.monotonic()
    process = subprocess.Popen([binary, "plan", "--config", config, *arguments],
                               stdout=subprocess.PIPE, text=True, cwd=ROOT)
    text = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, f"ftrun plan: exit {process.returncode}"
    checked = re.search(r"^checked: all (\d+) ranks, (\d+) ", text, re.M)
    seconds = time.monotonic() - start
    return checked.groups(), seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


MESH = ("parallel.data=128", "parallel.pipeline=16")
PIPELINES = {"1f1b, ZeRO-1": (), "interleaved, ZeRO-1": ("parallel.schedule=interleaved",
                                                         "parallel.virtual_stages=2"),
             "zb-h1, ZeRO-1": ("parallel.schedule=zb-h1",),
             "1f1b, ZeRO-3": ("zero_optimization.stage=3",)}


def set_options(*settings):
    """Returns the options --set of settings."""
    return [word for setting in settings for word in ("--set", setting)]


def draw_schedule(binary, config, *arguments):
    """Draws the schedule's picture; returns (wall-clock seconds, CPU seconds)."""
    start, before = time.monotonic(), os.times()
    subprocess.run([binary, "plan", "--schedule", "--config", config, *arguments], check=True,
                   stdout=subprocess.DEVNULL, cwd=ROOT)
    after = os.times()
    return (time.monotonic() - start, after.children_user
            + after.children_system - before.children_user - before.children_system)


def plan_pipelines(options):
    """Measures the plans of all PIPELINES."""
    for name, settings in PIPELINES.items():
        for count in options.micro_batches:
            arguments = set_options(*MESH, f"gradient_accumulation_steps={count}", *settings)
            walls, seconds, memory = [], [], []
            for _ in range(options.times):
                draw_wall, draw_cpu = draw_schedule(options.binary, options.config, *arguments)
                (ranks, programs), wall, cpu, peak = plan(options.binary, options.config,
                                                          *arguments)
                walls.append(wall + draw_wall)
                seconds.append(cpu + draw_cpu)
                memory.append(peak)
            print(f"{name}, {count} micro-batches: {ranks} ranks, {programs} programs: "
                  f"{min(walls):.2f} s (median {statistics.median(walls):.2f}), CPU time "
                  f"{min(seconds):.2f} s (median {statistics.median(seconds):.2f}), memory at most "
                  f"{max(memory) / 2**20:.0f} MiB", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", default=str(ROOT / "build/release/bin/ftrun"))
    parser.add_argument("--config", default="tests/sim/llama-3-405b/plan.yaml")
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--pipelines", action="store_true")
    parser.add_argument("--micro-batches",
                        type=lambda text: [int(part)
                                           for part in text.split(",")], default=[16, 32, 64])
    options = parser.parse_args()
    if options.pipelines:
        return plan_pipelines(options)
    variants = {"unchanged": (), "two data-parallel ranks": ("--set", "parallel.data=2")}
    runs = {name: [] for name in variants}
    for _ in range(options.times):
        for name, arguments in variants.items():
            runs[name].append(plan(options.binary, options.config, *arguments))
    for name, results in runs.items():
        ranks, programs = results[0][0]
        walls, seconds, memory = (list(column) for column in list(zip(*results))[1:])
        print(f"{name}: {ranks} ranks, {programs} programs: {min(walls):.2f} s (median "
              f"{statistics.median(walls):.2f}), CPU time {min(seconds):.2f} s (median "
              f"{statistics.median(seconds):.2f}), memory at most {max(memory) / 2**20:.0f} MiB")


main()
