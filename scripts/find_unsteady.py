#!/usr/bin/env python3
"""Runs entries of CTest many times under load, as scripts/unsteady.sh says; exits with 0 if none
failed, otherwise with 1."""
import argparse
import difflib
import fnmatch
import json
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile

import ctest_runs
import test_summary
from script_errors import UsageError, UserError, run

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILDS = ("asan", "release")
LABELS = {"e2e", "waits"}
KEPT = 20  # the maximum number of failures of an entry whose output is kept
LEFT_ON_DISK = 2 << 30
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

# A process of the load ends with the process that started it, even if that one is killed.
PREAMBLE = ("import ctypes, os, signal, sys\n"
            "ctypes.CDLL(None).prctl(1, signal.SIGKILL)\n"
            "if os.getppid() != int(sys.argv[1]): sys.exit()\n")
COMPUTING = "while True: pass\n"
WRITING = """
block, at = os.urandom(4 << 20), 0
with open(sys.argv[2], "wb", buffering=0) as file:
    while True:
        file.seek(at % 64 * len(block))
        file.write(block)
        os.fsync(file.fileno())
        at += 1
"""
HOLDING = """
import time
held = bytearray(int(sys.argv[2]))
while True:
    for at in range(0, len(held), 4096): held[at] = at >> 12 & 255
    time.sleep(0.1)
"""


def available_bytes():
    for line in open("/proc/meminfo"):
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return 0


class Unfit(UserError):
    """The machine lacks something that a run needs."""

    exit_code = 5


class Load:
    """The processes of the load: they compute, write a file of 256 MiB again and again, and touch
    up to half of the free memory."""

    def __init__(self, count, folder):
        self.processes = []
        if count:
            held = min(available_bytes() // 2, count << 29)
            for body, *more in [(COMPUTING,)] * count + [(WRITING, folder / "written"),
                                                         (HOLDING, held)]:
                # The process has its own group, so that Ctrl-C does not reach it.
                self.processes.append(subprocess.Popen([sys.executable, "-c", PREAMBLE + body,
                                                        str(os.getpid()), *map(str, more)],
                                                       process_group=0))

    def pids(self):
        """Returns the process ids of the load. Raises an error if a process has ended, because the
        load is then smaller than requested."""
        if ended := [process.args[2] for process in self.processes if process.poll() is not None]:
            raise Unfit(f"{len(ended)} of {len(self.processes)} processes of the load ended by "
                        "themselves")
        return [process.pid for process in self.processes]

    def end(self):
        for process in self.processes:
            process.kill()
            process.wait()


def known_entries(folder):
    """Returns the labels of each entry, by name."""
    shown = subprocess.run(["ctest", "--test-dir", folder, "--show-only=json-v1"],
                           capture_output=True, text=True)
    if shown.returncode:
        raise Unfit(f"ctest cannot list the entries of {folder}: {shown.stderr.strip()}")
    found = {}
    for entry in json.loads(shown.stdout)["tests"]:
        properties = {p["name"]: p["value"] for p in entry.get("properties", [])}
        found[entry["name"]] = set(properties.get("LABELS", []))
    return found


def chosen_entries(known, wanted):
    if not wanted:
        return [name for name, labels in known.items() if labels & LABELS]
    chosen = []
    for pattern in wanted:
        found = fnmatch.filter(known, pattern)
        if not found:
            similar = difflib.get_close_matches(pattern, known, 1)
            raise UsageError(f"no entry {pattern} in the builds"
                             + (f"; did you mean {similar[0]}?" if similar else ""))
        chosen += [name for name in found if name not in chosen]
    return chosen


def builds_folder():
    """Makes a CTest folder with the entries of all existing builds, and returns it."""
    built = [ROOT / "build" / name for name in BUILDS
             if (ROOT / "build" / name / "CTestTestfile.cmake").exists()]
    if not built:
        raise Unfit("there is no build; run scripts/build.sh first")
    folder = ROOT / "build" / "unsteady"
    folder.mkdir(parents=True, exist_ok=True)
    names = " ".join(f'"{build}"' for build in built)
    (folder / "CTestTestfile.cmake").write_text(f"subdirs({names})\n")
    return folder


class Finder:
    def __init__(self, folder, times, load):
        self.folder, self.times, self.load = folder, times, load
        self.scratch = pathlib.Path(tempfile.mkdtemp(prefix="ftrun-unsteady-"))
        self.runs = self.scratch / "runs"  # for the entries' temporary files

    def run_once(self, name):
        """Runs an entry once; removes the processes and temporary files that it leaves."""
        if (free := shutil.disk_usage(self.scratch).free) < LEFT_ON_DISK:
            raise Unfit(f"{self.scratch}: {free >> 20} MiB are free on this disk, "
                        f"{LEFT_ON_DISK >> 20} MiB are needed")
        self.runs.mkdir()
        os.environ["TMPDIR"] = str(self.runs)
        spared = self.load.pids()
        try:
            (entry,) = ctest_runs.run(self.folder, self.scratch / "results.xml", [name], shown=None)
        finally:
            ctest_runs.end_descendants(spared)
            shutil.rmtree(self.runs, ignore_errors=True)
        return entry

    def save_output(self, entry, number):
        place = self.folder / entry.name
        place.mkdir(exist_ok=True)
        (place / f"{number}.{entry.verdict}.txt").write_text(f"{entry.why}\n\n{entry.output}")

    def find(self, name):
        """Runs an entry many times and reports how often it failed, even if it is stopped; returns
        that count."""
        shutil.rmtree(self.folder / name, ignore_errors=True)
        runs = []
        try:
            for number in range(1, self.times + 1):
                entry = self.run_once(name)
                if entry.verdict == "skipped":
                    print(f"{name}: skipped: {entry.why}", flush=True)
                    return 0
                runs.append(entry)
                if entry.verdict != "passed" and sum(run.verdict != "passed"
                                                     for run in runs) <= KEPT:
                    self.save_output(entry, number)
        finally:
            self.print_result(name, runs)
        return sum(run.verdict != "passed" for run in runs)

    def print_result(self, name, runs):
        if not runs:
            return
        waited, faults = (sum(run.verdict == verdict for run in runs)
                          for verdict in ("waited", "fault"))
        failed = (f" ({waited} by waiting, {faults} by a fault, outputs in {self.folder / name})"
                  if waited + faults else "")
        seconds = [run.seconds for run in runs]
        print(f"{name}: {waited + faults} of {len(runs)} failed{failed}; "
              f"{statistics.median(seconds):.1f} s in the median, {max(seconds):.1f} s at most",
              flush=True)

    def close(self):
        for number in STOPS:
            signal.signal(number, signal.SIG_IGN)  # a second Ctrl-C must not stop this
        self.load.end()
        ctest_runs.end_descendants()
        shutil.rmtree(self.scratch, ignore_errors=True)


def count(least):
    def of(text):
        value = int(text) if text.isascii() and text.isdigit() else -1
        if value < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of {least} or more")
        return value
    return of


def find(arguments, outcome):
    folder = arguments.folder or builds_folder()
    names = chosen_entries(known_entries(folder), arguments.entries)
    if not names:
        raise UsageError(f"no entry of {folder} has one of the labels {', '.join(sorted(LABELS))}")
    budget = test_summary.read_budgets(ROOT / "tests" / "budgets.tsv")
    hours = arguments.times * sum(budget.get(name, 0) for name in names) / 3600
    print(f"{len(names)} entries, {arguments.times} times each under load {arguments.load}; "
          f"{hours:.1f} hours if they took their budgets", flush=True)
    ctest_runs.adopt_orphans()
    finder = Finder(folder, arguments.times, Load(0, folder))
    try:
        finder.load = Load(arguments.load, finder.scratch)
        outcome.append(sum(finder.find(name) > 0 for name in names))
        print(f"{outcome[0]} of {len(names)} entries failed")
    finally:
        finder.close()


def stop(number, _):
    raise KeyboardInterrupt


def main():
    parser = argparse.ArgumentParser(prog="unsteady.sh",
                                     description="Runs entries of CTest many times under load.",
                                     allow_abbrev=False)
    parser.add_argument("entries", nargs="*", metavar="entry",
                        help="a name or a pattern; all that start processes, wait or measure by "
                             "default")
    parser.add_argument("--times", type=count(1), default=50)
    parser.add_argument("--load", type=count(0), default=4)
    # used only by tests
    parser.add_argument("--folder", type=pathlib.Path, help=argparse.SUPPRESS)
    arguments = parser.parse_intermixed_args()
    for number in STOPS:
        signal.signal(number, stop)
    outcome = []
    code = run("unsteady.sh", lambda: find(arguments, outcome))
    sys.exit(code or (1 if outcome and outcome[0] else 0))


if __name__ == "__main__":
    main()
