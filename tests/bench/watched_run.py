"""Watches a command while it trains: when each of its steps ended, counted from its launch, and how
many cores other processes used during the timed steps.
"""
import dataclasses
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

# The other load, in cores, up to which a run counts as quiet.
QUIET_CORES = 0.05
TICKS = os.sysconf("SC_CLK_TCK")
# A benchmark that is terminated ends the processes that it started.
signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))


def busy_seconds():
    """Returns busy seconds of all cores since the machine started; time that the hypervisor
    took counts as other processes'."""
    fields = [int(x) for x in open("/proc/stat").readline().split()[1:9]]
    return (fields[0] + fields[1] + fields[2] + fields[5] + fields[6] + fields[7]) / TICKS


def processes():
    """Returns every process's parent and CPU seconds, including those of its ended children."""
    found = {}
    for path in pathlib.Path("/proc").iterdir():
        if not path.name.isdigit():
            continue
        try:
            fields = (path / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        found[int(path.name)] = (int(fields[1]), sum(map(int, fields[11:15])) / TICKS)
    return found


def seconds_of_tree(root):
    """Returns CPU seconds of a process and its descendants."""
    table = processes()
    children = {}
    for pid, (parent, _) in table.items():
        children.setdefault(parent, []).append(pid)
    total, todo = 0.0, [root]
    while todo:
        pid = todo.pop()
        total += table.get(pid, (0, 0.0))[1]
        todo += children.get(pid, [])
    return total


@dataclasses.dataclass
class Mark:
    """Mark is a moment at which the end of a step was seen."""
    seconds: float
    busy: float
    own: float


@dataclasses.dataclass
class Watched:
    output: str
    # Marks by step number, from 1; at least of the first and the last step.
    steps: dict

    @property
    def first_step_seconds(self):
        return self.steps[1].seconds

    @property
    def foreign_cores(self):
        """Returns the cores that other processes used from the end of the first step to the end of
        the last, the steps whose time is reported."""
        first, last = self.steps[1], self.steps[max(self.steps)]
        return max(0.0,
                   (last.busy - first.busy) - (last.own - first.own)) / (
                       last.seconds - first.seconds)


def watch(command, env, step_of, timeout):
    """Runs `command`. `step_of(line)` returns the number of the step whose end a line of its output
    reports, or None. Raises RuntimeError with the end of the output if the command fails or takes
    longer than `timeout` seconds."""
    with tempfile.TemporaryFile("w+") as errors:
        start = time.monotonic()
        process = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=errors,
                                   text=True, bufsize=1,
                                   env={**os.environ, **env}, start_new_session=True)
        alarm = signal.signal(signal.SIGALRM, lambda *_: os.killpg(process.pid, signal.SIGKILL))
        signal.alarm(int(timeout))
        lines, steps = [], {}
        try:
            for line in process.stdout:
                number = step_of(line)
                if number is not None:
                    steps.setdefault(number, Mark(time.monotonic() - start, busy_seconds(),
                                                  seconds_of_tree(process.pid)))
                lines.append(line)
            code = process.wait()
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, alarm)
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if code != 0 or 1 not in steps or len(steps) < 2:
            errors.seek(0)
            raise RuntimeError(f"{' '.join(map(str, command))}\nexit {code}, steps seen: "
                               f"{sorted(steps)}\n{''.join(lines)[-2000:]}\n"
                               f"{errors.read()[-2000:]}")
        return Watched("".join(lines), steps)


def step_of_ftrun(line):
    match = re.match(r"(?:\[rank 0\] )?step (\d+)/\d+ .*loss ", line)
    return int(match[1]) or None if match else None


def step_of_baseline(line):
    return json.loads(line)["step"] + 1 if line.startswith('{"step"') else None
