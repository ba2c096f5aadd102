"""Kills a run (kill -9) at the calls with which a save opens and changes files, one after another,
in the foreground and in the background (kill_at_call.cc says which calls it sees). The next start
must continue from a checkpoint whose save had returned, or a newer one, and the run must end with
the bits of an undisturbed one. One call of each kind is drawn from a seed; FTRUN_SOAK_CALLS=all
takes all calls (scripts/soak.sh). A kill cannot show missing syncs, because the kernel keeps what
was written; so the list of calls is checked too: each file is on the disk before anything refers to
it."""
import collections
import os
import pathlib
import random
import re
import subprocess
import tempfile
import time

from runner import (BINARY, TIMEOUT, Job, checkpoints, environment, ftrun, must, refuse_traces,
                    require_same_run, skip)

SEED = 20261124
KILLER = os.environ["FTRUN_KILL_AT_CALL"]
EVERY_CALL = os.environ.get("FTRUN_SOAK_CALLS") == "all"
# There are four saves; the third removes what the first has written. The last save is always in the
# foreground.
TRAINING = {"train": {"steps": 4}, "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": 1,
            "scheduler": {"type": "cosine", "params": {"warmup_num_steps": 2}}}
Called = collections.namedtuple("Called", "number name path")
WRITES = ("write", "writev", "pwrite64", "pwritev", "pwritev2")
SYNCS = ("fsync", "fdatasync")


def save_settings(background):
    return TRAINING | {"checkpoint": {"every": 1, "keep_last": 2, "background": background}}


def run_until_killed_at(name, number, background):
    """Starts a run that is killed at one of its calls; returns the process, and the calls up to
    that one."""
    calls = job.scratch / f"{name}.calls"
    config = job.config(name, **save_settings(background))
    process = subprocess.run([KILLER, f"{job.out(name)}/checkpoints", str(number), calls, BINARY,
                              "--config", config],
                             capture_output=True, text=True, env=environment(), timeout=TIMEOUT)
    if process.returncode == 2 and "kill_at_call" in process.stderr:
        skip(process.stderr.strip())
    refuse_traces(process.stdout + process.stderr)
    return process, [Called(int(line[0]), line[1], line[2])
                     for line in (text.split(" ", 2) for text in calls.read_text().splitlines())]


def reported_steps(text, what):
    return [int(step) for step in re.findall(rf"{what} \S*step-(\d+)", text)]


def require_latest(out):
    latest = out / "checkpoints" / "latest"
    if latest.exists():
        assert (out / "checkpoints" / latest.read_text() / "checkpoint.json").exists(), (
            f"latest names {latest.read_text()!r}")


def require_order(root, calls):
    """Checks the order of calls: files, their folder, its name and `latest` are each on the disk
    before the next one is begun, and an old checkpoint is removed only after that."""
    below = [call._replace(path=call.path.replace(str(root.resolve()), "").replace(str(root), ""))
             for call in calls]

    def last(names, path, before):
        """Returns the number of the last call of this kind; 0 if there is none."""
        return max((call.number for call in below if call.name in names and call.path == path
                    and call.number < before), default=0)

    def synced(path, before):
        """Returns the number of the call that synced a file's data."""
        sync = last(SYNCS, path, before)
        assert 0 < last(WRITES, path, before) < sync, (
            f"{path} is not on the disk before call {before}")
        return sync

    def renames(source, target):
        """Returns the renames of this form, each with the number of the call and the match of the
        name."""
        found = [(call.number, re.fullmatch(f"({source}) {target}", call.path)) for call in below
                 if call.name.startswith("rename")]
        return [(number, match[1]) for number, match in found if match]

    pointers = renames(r"/latest\.tmp-\w+", "/latest")
    for step, (pointed, pointer) in enumerate(pointers, 1):
        name = f"/step-{step:08}"
        [(moved, staged)] = renames(rf"{name}\.tmp-\w+", name)
        files = {call.path for call in below if call.name in WRITES
                 and call.path.startswith(f"{staged}/")}
        assert (sorted(pathlib.PurePath(file).suffix for file in files)
                == [".json", ".safetensors"]), files
        assert last(SYNCS, staged, moved) > max(synced(file, moved) for file in files), (
            f"{staged} is not on the disk before its name")
        assert moved < last(SYNCS, "", pointed), f"the name {name} is not on the disk before latest"
        assert moved < synced(pointer, pointed), f"latest does not follow {name}"
        for gone, _ in renames(f"/step-{step - 2:08}", rf"/step-{step - 2:08}\.tmp-\w+"):
            assert pointed < last(SYNCS, "", gone), (
                f"an old checkpoint goes before {name} is on the disk")
    assert len(pointers) == 4 and len(renames("/step-.*", r"/step-.*\.tmp-\w+")) == 2, below


def kill_and_resume(name, number, background):
    """Kills the run at a call and resumes it; returns the call, or None if the run ended before
    it."""
    process, calls = run_until_killed_at(name, number, background)
    if process.returncode == 0:
        return None
    assert (process.returncode == 137 and len(calls) == number), (process.returncode, number, calls,
                                                                  process.stderr[-2000:])
    require_latest(job.out(name))
    saved = max(reported_steps(process.stdout + process.stderr, "saved"), default=0)
    resumed = must(ftrun("--config", job.config(name, **save_settings(background)),
                         "--resume", "auto"))
    found = max(reported_steps(resumed.stdout + resumed.stderr, "resumed from"), default=0)
    assert found >= saved, (
        f"step {saved} was told to be saved, the next start went on from {found}; killed at "
        f"{calls[-1]}")
    try:
        require_same_run(job.out("straight"), job.out(name))
        names = checkpoints(job.out(name))
        assert names[-1] == "step-00000004", names
        assert not any(".tmp-" in folder or ".replaced-" in folder for folder in names), names
        must(ftrun("verify", job.out(name)))
    except AssertionError as error:
        raise AssertionError(f"killed at {calls[-1]}") from error
    return calls[-1]


def calls_of_two_saves(calls):
    """Returns the calls of the first save and of the third."""
    begins = [next(call.number for call in calls if f"step-{step:08}.tmp-" in call.path)
              for step in (2, 3, 4)]
    return [call for call in calls if call.number < begins[0]
            or begins[1] <= call.number < begins[2]]


def draw_calls(calls, which):
    """Draws one call of every second kind; the other way of saving gets the remaining kinds."""
    kinds = sorted({call.name for call in calls})
    return [chance.choice([call.number for call in calls if call.name == kind])
            for kind in kinds[which::2]]


with tempfile.TemporaryDirectory() as scratch:
    job = Job(scratch)
    chance = random.Random(SEED)
    job.run("straight", **TRAINING)
    for which, background in enumerate((False, True)):
        way = "background" if background else "foreground"
        began = time.monotonic()
        process, calls = run_until_killed_at(f"counted-{way}", 0, background)
        assert process.returncode == 0, process.stderr[-2000:]
        require_same_run(job.out("straight"), job.out(f"counted-{way}"))
        assert sorted(reported_steps(process.stdout + process.stderr, "saved")) == [1, 2, 3, 4], (
            process.stdout + process.stderr)
        # No save works without these calls; if they are missing, the tracing does not work.
        assert {"pwrite64", "fsync", "close"} <= {call.name for call in calls}, calls
        assert any(call.name.startswith("mkdir") and ".tmp-" in call.path for call in calls), calls
        require_order(job.out(f"counted-{way}") / "checkpoints", calls)
        calls = calls_of_two_saves(calls)
        assert any(call.name == "rmdir" or call.name.startswith("unlink") for call in calls), calls
        numbers = [call.number for call in calls] if EVERY_CALL else draw_calls(calls, which)
        killed = [kill_and_resume(f"{way}-{number}", number, background) for number in numbers]
        names = collections.Counter(call.name for call in killed if call)
        assert names, "no run was killed at a system call"
        print(f"{way}: {len(calls)} calls of two saves, {len(numbers)} kills, {killed.count(None)} "
              "of them after the run's end: "
              f"{', '.join(f'{count} {name}' for name, count in sorted(names.items()))}; "
              f"{time.monotonic() - began:.1f} s", flush=True)
