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
from script_errors import MachineError, UsageError, run

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILDS = ("asan", "release")
LABELS = {"e2e", "waits"}
MAX_OUTPUTS = 20  # the maximum number of failures of an entry whose output is kept
MIN_FREE_BYTES = 2 << 30  # on the disk of temporary files
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

# A process of the load ends with the process that started it, even if that one is killed.
PREAMBLE = ("import ctypes, os, signal, sys\n"
            "ctypes.CDLL(None).prctl(1, signal.SIGKILL)\n"
            "if os.getppid() != int(sys.argv[1]): sys.exit()\n")
COMPUTE = "while True: pass\n"
WRITE = """
block, at = os.urandom(4 << 20), 0
with open(sys.argv[2], "wb", buffering=0) as file:
    while True:
        file.seek(at % 64 * len(block))
        file.write(block)
        os.fsync(file.fileno())
        at += 1
"""
HOLD_MEMORY = """
import time
held = bytearray(int(sys.argv[2]))
while True:
    for at in range(0, len(held), 4096): held[at] = at >> 12 & 255
    time.sleep(0.1)
"""


def available_bytes():
    """Returns the bytes of memory that new programs can use."""
    for line in open("/proc/meminfo"):
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return 0



class Load:
    """Starts processes that load the machine: they compute, write a file of 256 MiB again and
    again, and touch up to half of the free memory."""

    def __init__(self, count, folder):
        self.processes = []
        if count:
            memory = min(available_bytes() // 2, count << 29)
            for body, *arguments in [(COMPUTE,)] * count + [(WRITE, folder / "written"),
                                                            (HOLD_MEMORY, memory)]:
                # The process has its own group, so that Ctrl-C does not reach it.
                self.processes.append(subprocess.Popen([sys.executable, "-c", PREAMBLE + body,
                                                        str(os.getpid()), *map(str, arguments)],
                                                       process_group=0))

    def pids(self):
        """Returns the process ids of the load. Raises an error if a process has ended, because the
        load is then smaller than requested."""
        if ended := [process.args[2] for process in self.processes if process.poll() is not None]:
            raise MachineError(f"{len(ended)} of {len(self.processes)} processes of the load ended "
                               "unexpectedly")
        return [process.pid for process in self.processes]

    def end(self):
        """Ends the processes."""
        for process in self.processes:
            process.kill()
            process.wait()


def known_entries(folder):
    """Returns the labels of each entry, by name."""
    listing = subprocess.run(["ctest", "--test-dir", folder, "--show-only=json-v1"],
                             capture_output=True, text=True)
    if listing.returncode:
        raise MachineError(f"ctest cannot list the entries of {folder}: {listing.stderr.strip()}")
    labels = {}
    for entry in json.loads(listing.stdout)["tests"]:
        properties = {p["name"]: p["value"] for p in entry.get("properties", [])}
        labels[entry["name"]] = set(properties.get("LABELS", []))
    return labels


def select_entries(known, patterns):
    """Returns the names of the known entries that match a pattern; without patterns, those with one
    of the LABELS."""
    if not patterns:
        return [name for name, labels in known.items() if labels & LABELS]
    selected = []
    for pattern in patterns:
        matches = fnmatch.filter(known, pattern)
        if not matches:
            similar = difflib.get_close_matches(pattern, known, 1)
            raise UsageError(f"no entry {pattern} in the builds"
                             + (f"; did you mean {similar[0]}?" if similar else ""))
        selected += [name for name in matches if name not in selected]
    return selected


def make_ctest_folder():
    """Makes a CTest folder with the entries of all existing builds, and returns it."""
    builds = [ROOT / "build" / name for name in BUILDS
              if (ROOT / "build" / name / "CTestTestfile.cmake").exists()]
    if not builds:
        raise MachineError("there is no build; run scripts/build.sh first")
    folder = ROOT / "build" / "unsteady"
    folder.mkdir(parents=True, exist_ok=True)
    names = " ".join(f'"{build}"' for build in builds)
    (folder / "CTestTestfile.cmake").write_text(f"subdirs({names})\n")
    return folder


class Finder:
    """Runs each entry `times` times under a load, and counts failures."""

    def __init__(self, folder, times, load):
        self.folder, self.times, self.load = folder, times, load
        self.scratch = pathlib.Path(tempfile.mkdtemp(prefix="ftrun-unsteady-"))
        self.runs = self.scratch / "runs"  # for the entries' temporary files

    def run_once(self, name):
        """Runs an entry once; removes the processes and temporary files that it leaves."""
        if (free := shutil.disk_usage(self.scratch).free) < MIN_FREE_BYTES:
            raise MachineError(f"{self.scratch}: {free >> 20} MiB are free on this disk, "
                               f"{MIN_FREE_BYTES >> 20} MiB are needed")
        self.runs.mkdir()
        os.environ["TMPDIR"] = str(self.runs)
        spared = self.load.pids()
        try:
            (entry,) = ctest_runs.run(self.folder, self.scratch / "results.xml", [name],
                                      stream=None)
        finally:
            ctest_runs.end_descendants(spared)
            shutil.rmtree(self.runs, ignore_errors=True)
        return entry

    def save_output(self, entry, number):
        """Writes the output of a failed run to a file."""
        folder = self.folder / entry.name
        folder.mkdir(exist_ok=True)
        path = folder / f"{number}.{entry.outcome}.txt"
        path.write_text(f"{entry.reason}\n\n{entry.output}")

    def count_failures(self, name):
        """Runs an entry many times and prints how often it failed, even if the script is stopped;
        returns that count."""
        shutil.rmtree(self.folder / name, ignore_errors=True)
        runs = []
        try:
            for number in range(1, self.times + 1):
                entry = self.run_once(name)
                if entry.outcome == "skipped":
                    print(f"{name}: skipped: {entry.reason}", flush=True)
                    return 0
                runs.append(entry)
                if entry.outcome != "passed" and sum(run.outcome != "passed"
                                                     for run in runs) <= MAX_OUTPUTS:
                    self.save_output(entry, number)
        finally:
            self.print_result(name, runs)
        return sum(run.outcome != "passed" for run in runs)

    def print_result(self, name, runs):
        """Prints how often an entry failed, and its times."""
        if not runs:
            return
        timeouts, faults = (sum(run.outcome == outcome for run in runs)
                            for outcome in ("timeout", "fault"))
        failed = (f" (timeouts: {timeouts}, faults: {faults}, outputs in {self.folder / name})"
                  if timeouts + faults else "")
        seconds = [run.seconds for run in runs]
        print(f"{name}: {timeouts + faults} of {len(runs)} failed{failed}; "
              f"{statistics.median(seconds):.1f} s in the median, {max(seconds):.1f} s at most",
              flush=True)

    def close(self):
        """Ends the load, and removes processes and temporary files of the entries."""
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN)  # a second Ctrl-C must not stop this
        self.load.end()
        ctest_runs.end_descendants()
        shutil.rmtree(self.scratch, ignore_errors=True)


def whole_number(minimum):
    """Returns a parser of whole numbers for the command line."""
    def parse(text):
        value = int(text) if text.isascii() and text.isdigit() else -1
        if value < minimum:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of {minimum} or more")
        return value
    return parse


def find_unsteady(arguments, failed_counts):
    """Runs the command; appends the number of entries that failed to `failed_counts`."""
    folder = arguments.folder or make_ctest_folder()
    names = select_entries(known_entries(folder), arguments.entries)
    if not names:
        raise UsageError(f"no entry of {folder} has one of the labels {', '.join(sorted(LABELS))}")
    budget = test_summary.read_budgets(ROOT / "tests" / "budgets.tsv")
    hours = arguments.times * sum(budget.get(name, 0) for name in names) / 3600
    print(f"{len(names)} entries, {arguments.times} times each under load {arguments.load}; "
          f"{hours:.1f} hours according to their budgets", flush=True)
    ctest_runs.adopt_orphans()
    finder = Finder(folder, arguments.times, Load(0, folder))
    try:
        finder.load = Load(arguments.load, finder.scratch)
        failed_counts.append(sum(finder.count_failures(name) > 0 for name in names))
        print(f"{failed_counts[0]} of {len(names)} entries failed")
    finally:
        finder.close()


def raise_interrupt(number, _):
    """Handles a stop signal like Ctrl-C."""
    raise KeyboardInterrupt


def main():
    parser = argparse.ArgumentParser(prog="unsteady.sh",
                                     description="Runs entries of CTest many times under load.",
                                     allow_abbrev=False)
    parser.add_argument("entries", nargs="*", metavar="entry",
                        help="a name or a pattern (default: all entries that start processes, wait "
                             "or measure)")
    parser.add_argument("--times", type=whole_number(1), default=50)
    parser.add_argument("--load", type=whole_number(0), default=4)
    # used only by tests
    parser.add_argument("--folder", type=pathlib.Path, help=argparse.SUPPRESS)
    arguments = parser.parse_intermixed_args()
    for number in STOP_SIGNALS:
        signal.signal(number, raise_interrupt)
    failed_counts = []
    code = run("unsteady.sh", lambda: find_unsteady(arguments, failed_counts))
    sys.exit(code or (1 if failed_counts and failed_counts[0] else 0))


if __name__ == "__main__":
    main()
