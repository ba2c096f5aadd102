"""Runs CTest and returns the outcome of each entry: passed, skipped, timeout, or fault.

A wait that reaches its limit on a busy machine is noise; no other failure is. So an entry *timed
out* only if it reports that itself: its last line begins with TIMED_OUT, which tests/waiting.h and
tests/e2e/runner.py print when each of its failures is a timeout (a limit that was reached, or the
exit code 6 instead of the expected one). CTest's own Timeout counts if the output shows no failed
assertion. A signal, a report of a sanitizer and every other failure are faults, whatever the entry
reports."""
import ctypes
import dataclasses
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as xml

from script_errors import UserError

TIMED_OUT = "timed out: "
SKIPPED = "skipped: "
# Texts that show a fault, not a timeout: reports of sanitizers, of the C++ runtime at a crash, and
# of Catch2 after a signal.
CRASHED = re.compile(r"(Address|Leak|Thread|Memory|UndefinedBehavior)Sanitizer|: runtime error: "
                    r"|terminate called|"
                    r"Segmentation fault|core dumped|due to a fatal error condition")
ASSERTED = re.compile(r": FAILED:|^Traceback \(most recent call last\)|AssertionError", re.M)
# COLLECTIVE_TIMED_OUT matches the error with which ftrun ends a rank whose collective exceeded its
# time limit; its exit code is one of waiting.
COLLECTIVE_TIMED_OUT = re.compile(r"^error: rank \d+ waited .* in \w+ #\d+ ", re.M)
FAILED_LINE = re.compile(r"^\t *\d+ - (\S+) \((.+?)\)")
OUTPUT_BYTES = 1 << 20  # the maximum output of an entry that CTest keeps
PR_SET_CHILD_SUBREAPER = 36


class CTestError(UserError):
    """CTest itself failed, rather than one of the tests."""

    exit_code = 5


@dataclasses.dataclass
class Entry:
    """An entry of CTest with the outcome of one run."""

    name: str
    seconds: float
    outcome: str  # "passed", "skipped", "timeout", "fault"
    reason: str  # "" if it passed
    output: str


def skip_reason(output):
    """Returns the reason for which an entry was skipped, from its output."""
    for line in output.splitlines():
        if line.startswith(SKIPPED):
            return line.removeprefix(SKIPPED)
    return "the entry printed no reason"


def classify_failure(status, output):
    """Returns (outcome, reason) of an entry that failed; `status` is CTest's word for its end, such
    as Failed, Timeout or SEGFAULT."""
    if status not in ("Failed", "Timeout"):
        return "fault", status
    if crash := CRASHED.search(output):
        return "fault", crash.group(0).strip(": ")
    if status == "Timeout":
        if ASSERTED.search(output):
            return "fault", "a failed assertion, then CTest's time limit"
        return "timeout", "CTest's time limit"
    last_line = output.rstrip().rsplit("\n", 1)[-1]
    if last_line.startswith(TIMED_OUT):
        return "timeout", last_line.removeprefix(TIMED_OUT)
    if COLLECTIVE_TIMED_OUT.search(output) and not ASSERTED.search(output):
        return "timeout", "a collective's time limit"
    return "fault", "a failed assertion or check"


def parse_statuses(text):
    """Returns CTest's word for the end of each failed entry, by name, from CTest's closing list."""
    _, _, closing = text.rpartition("The following tests FAILED:")
    return {match.group(1): match.group(2) for line in closing.splitlines()
            if (match := FAILED_LINE.match(line))}


def parse_entries(results, text):
    """Returns the entries of a run, from its JUnit file and from CTest's output."""
    statuses, entries = parse_statuses(text), []
    for case in xml.parse(results).getroot().iter("testcase"):
        name, output, skipped = case.get("name"), case.findtext("system-out") or "", case.find(
            "skipped")
        # An entry that could not be started has the element <skipped>, too, but CTest counts it as
        # failed.
        if case.get("status") == "run":
            outcome, reason = "passed", ""
        elif skipped is not None and "SKIP_RETURN_CODE" in skipped.get("message", ""):
            outcome, reason = "skipped", skip_reason(output)
        else:
            outcome, reason = classify_failure(statuses.get(name, "Not Run"), output)
        entries.append(Entry(name, float(case.get("time") or 0), outcome, reason, output))
    return entries


def run(folder, results, names=None, parallel=1, stream=sys.stdout, log=None):
    """Runs the entries of a folder (all entries, or those in `names`) and returns them. CTest's
    output is written to `stream` and to the file `log` while it runs."""
    command = ["ctest", "--test-dir", folder, "--parallel", str(parallel), "--output-on-failure",
               "--output-junit", results,
               "--test-output-size-passed", str(OUTPUT_BYTES), "--test-output-size-failed",
               str(OUTPUT_BYTES)]
    if names is not None:
        command += ["-R", f"^({'|'.join(map(re.escape, names))})$"]
    pathlib.Path(results).unlink(missing_ok=True)
    lines = []
    with open(log or os.devnull, "w") as file, subprocess.Popen(list(map(str, command)),
                                                                stdout=subprocess.PIPE,
                                                                stderr=subprocess.STDOUT,
                                                                text=True,
                                                                errors="replace") as ctest:
        try:
            for line in ctest.stdout:
                lines.append(line)
                for target in filter(None, (stream, file)):
                    target.write(line)
                    target.flush()
        except BaseException:
            ctest.kill()
            raise
    if ctest.returncode not in (0, 8) or not os.path.exists(results):  # 8: entries failed
        raise CTestError(f"ctest ended with exit code {ctest.returncode}: "
                         f"{''.join(lines[-3:]).strip()}")
    entries = parse_entries(results, "".join(lines))
    if (ctest.returncode == 8) != any(has_failed(entry) for entry in entries):
        raise CTestError(f"ctest ended with exit code {ctest.returncode}, but its results "
                         f"({results}) do not agree with that")
    return entries


def has_failed(entry):
    """Returns whether an entry timed out or had a fault."""
    return entry.outcome in ("timeout", "fault")


def closing_line(entries):
    """Returns CTest's summary line, "... tests passed". Skipped entries count as passed. If an
    entry failed, the percentage is never rounded up to 100."""
    total = len(entries)
    failed = sum(has_failed(entry) for entry in entries)
    percent = 100 * (total - failed) / total if total else 100
    if failed:
        percent = min(percent, 99)
    return f"{percent:.0f}% tests passed, {failed} tests failed out of {total}"


# ---- processes ----


def adopt_orphans():
    """Makes this process the parent of the processes that an entry leaves running, so that
    end_descendants() finds them."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants():
    """Returns process ids of all descendants of this process."""
    parents = {}
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
            parents[int(folder.name)] = int(fields[1])
        except (FileNotFoundError, ProcessLookupError):  # it has ended
            continue
    pids = {os.getpid()}
    while children := {pid for pid, parent in parents.items() if parent in pids} - pids:
        pids |= children
    return pids - {os.getpid()}


def end_descendants(spared=(), seconds=20):
    """Kills the processes that entries left running, and returns their number. `spared` are
    children that may continue."""
    killed, deadline = set(), time.monotonic() + seconds
    while (remaining := descendants() - set(spared)) and time.monotonic() < deadline:
        for pid in remaining:
            try:
                reaped, _ = os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:  # a grandchild, which becomes our child later
                reaped = 0
            if not reaped:
                try:
                    os.kill(pid, signal.SIGKILL)
                    killed.add(pid)
                except ProcessLookupError:
                    pass
        time.sleep(0.01)
    return len(killed)
