"""Tests scripts/unsteady.sh: what it reports of steady and flaky entries, what it refuses, and
that it leaves no files or processes behind.

    unsteady_test.py SOURCE BUILD
"""
import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

UNSTEADY = pathlib.Path(sys.argv[1]) / "scripts" / "unsteady.sh"
# This script fails in every second run: one entry with a wait that reached its limit, another with
# a fault.
EVERY_SECOND = 'if [ -e "$0.ran" ]; then rm "$0.ran"; {}; exit 1; fi; touch "$0.ran"'
ENTRIES = {"steady": "true", "waits": EVERY_SECOND.format("echo 'timed out: 3 s'"),
           "wrong": EVERY_SECOND.format("echo 'a == b'"),
           "lacks": "echo skipped: no device; exit 77",
           # This entry passes once, and then hangs.
           "stands": 'mktemp; [ ! -e "$0.ran" ] || { touch "$0.stands"; sleep 300; }; touch '
                     '"$0.ran"',
           "leaves": "mktemp; sleep 300 > $0.log 2>&1 &"}
LABELS = {"steady": "e2e;model", "waits": "unit;waits"}


def project(folder):
    lines = []
    for name, script in ENTRIES.items():
        path = folder / f"{name}.sh"
        path.write_text(script + "\n")
        lines.append(f'add_test({name} "sh" "{path}")\nset_tests_properties({name} PROPERTIES '
                     f'SKIP_RETURN_CODE 77 LABELS "{LABELS.get(name, "unit")}")\n')
    (folder / "CTestTestfile.cmake").write_text("".join(lines))


def command(*arguments):
    return [UNSTEADY, "--folder", folder, *map(str, arguments)]


def environment():
    return os.environ | {"TMPDIR": str(scratch)}


def run_unsteady(*arguments):
    result = subprocess.run(command(*arguments), capture_output=True, text=True, env=environment())
    assert list(scratch.iterdir()) == [], list(scratch.iterdir())
    return result.returncode, result.stdout.splitlines(), result.stderr


def results(*arguments):
    """Returns (exit code, output lines without times)."""
    code, lines, errors = run_unsteady(*arguments)
    assert not errors, errors
    return code, [line.split("; ")[0] for line in lines[1:]]


def failures_of_each_entry_are_counted():
    assert results("steady", "--times", 3, "--load",
                   0) == (0, ["steady: 0 of 3 failed", "0 of 1 entries failed"])
    assert results("w*", "lacks", "--times", 4, "--load", 0) == (1, [
        f"waits: 2 of 4 failed (timeouts: 2, faults: 0, outputs in {folder}/waits)",
        f"wrong: 2 of 4 failed (timeouts: 0, faults: 2, outputs in {folder}/wrong)",
        "lacks: skipped: no device", "2 of 3 entries failed"])
    kept = {path.name: path.read_text() for path in (folder / "wrong").iterdir()}
    assert (kept == {f"{number}.fault.txt": "a failed assertion or check\n\na == b\n"
                     for number in (2, 4)}), kept
    # A run without names takes the entries with the labels, and removes outputs of earlier runs.
    assert results("--times", 1, "--load", 0) == (0, ["steady: 0 of 1 failed",
                                                      "waits: 0 of 1 failed",
                                                      "0 of 2 entries failed"])
    assert not (folder / "waits").exists() and (folder / "wrong").exists()


def what_cannot_be_run_is_refused():
    for arguments, message in ((["stedy"], "unsteady.sh: error: no entry stedy in the builds; did "
                                           "you mean steady?\n"),
                               (["steady", "--times", "0"],
                                "argument --times: '0' is not a whole number of 1 or more\n"),
                               (["steady", "--load", "-1"],
                                "argument --load: '-1' is not a whole number of 0 or more\n"),
                               (["steady", "--load", "x"],
                                "argument --load: 'x' is not a whole number of 0 or more\n"),
                               (["steady", "--tims", "3"], "unrecognized arguments: --tims 3\n")):
        code, _, errors = run_unsteady(*arguments)
        assert code == 2 and errors.endswith(message), (code, errors)


def processes_of(session):
    """Returns ids of a session's processes that have not ended."""
    live = set()
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, of = stat.read_text().rsplit(")", 1)[1].split()[:4]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(of) == session and state != "Z":
            live.add(int(stat.parent.name))
    return live


def await_that(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            sys.exit(f"timed out: {seconds} s for {condition.__name__}")
        time.sleep(0.01)


def nothing_outlives_a_search():
    bystander = subprocess.Popen(["sleep", "60"])
    assert results("leaves", "--times", 1, "--load", 1)[0] == 0
    for number in (signal.SIGINT, signal.SIGTERM):
        for mark in ("ran", "stands"):
            (folder / f"stands.sh.{mark}").unlink(missing_ok=True)
        running = subprocess.Popen(command("stands", "--load", 1), stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True, env=environment(),
                                   start_new_session=True)

        def its_load_runs():
            return ((folder / "stands.sh.stands").exists()
                    and any(path.stat().st_size for path in scratch.glob("*/written")))

        await_that(its_load_runs)
        # The session has at least one process each that computes, writes and holds memory, CTest,
        # the entry, and the script.
        assert len(processes_of(running.pid)) >= 6, processes_of(running.pid)
        os.kill(running.pid, number) if number == signal.SIGTERM else os.killpg(running.pid, number)
        output, errors = running.communicate()
        assert "\nstands: 0 of 1 failed; " in output, output
        assert (running.returncode == 130
                and errors == "unsteady.sh: stopped\n"), (running.returncode, errors)
        assert (processes_of(running.pid) == set()
                and list(scratch.iterdir()) == []), list(scratch.iterdir())
    # The load also ends if the script is killed and cannot end it.
    running = subprocess.Popen(command("stands", "--load", 1), stdout=subprocess.DEVNULL,
                               env=environment(), start_new_session=True)

    def it_writes():
        return any(path.stat().st_size for path in scratch.glob("*/written"))

    await_that(it_writes)
    running.kill()
    running.wait()

    def its_load_has_ended():
        return not any(b"prctl" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
                       for pid in processes_of(running.pid))

    await_that(its_load_has_ended)
    for pid in processes_of(running.pid):  # CTest and the entry
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert bystander.poll() is None
    bystander.kill()
    bystander.wait()


with tempfile.TemporaryDirectory() as entries, tempfile.TemporaryDirectory() as temporary:
    folder, scratch = pathlib.Path(entries), pathlib.Path(temporary)
    project(folder)
    failures_of_each_entry_are_counted()
    what_cannot_be_run_is_refused()
    nothing_outlives_a_search()
