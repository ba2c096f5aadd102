"""Tests tests/e2e/runner.py: which failures of an end-to-end test are reported as waits that
reached their limit, and which must never be.

    runner_test.py SOURCE
"""
import os
import pathlib
import sys
import tempfile

os.environ.setdefault("FTRUN_BINARY", "none")
sys.path.insert(0, str(pathlib.Path(sys.argv[1]) / "tests" / "e2e"))
import runner  # noqa: E402

# Test bodies that fail only because a wait reached its limit, and the beginning of each one's last
# line.
LATE = "run = sh('echo ftrun: rank 0 waited 2.1s for rank 1; exit 6'); run.wait(6); "
WAITS = {
    LATE + "assert 'waited 2.0s' in run.text(), run.text()": "timed out: ftrun: rank 0 waited 2.1s "
    "for rank 1",
    "fail_by_timeout('3 s for a save', 'step 3')": "timed out: 3 s for a save",
    "must(subprocess.run(['sh', '-c', 'exit 6'], capture_output=True, text=True))":
    "timed out: exit 6, expected 0",
    "must(subprocess.run(['sh', '-c', 'exit 6'], capture_output=True, text=True), 137)":
    "timed out: exit 6, expected 137",
    "sh('exit 6').wait(0)": "timed out: exit 6, expected 0",
    "sh('sleep 60').wait(0, timeout=0.1)": "timed out: still running after 0.1 s",
    "subprocess.run(['sleep', '60'], timeout=0.1)":
    "timed out: Command '['sleep', '60']' timed out after ",
    "runner.TIMEOUT = 0.1; sh('sleep 60').await_line('saved')": "timed out: there is a line with "
    "'saved': not after ",
    "sh('exit 6').await_line('saved')": "timed out: exit 6, expected one of a program that goes on "
                                        "until there is a line with 'saved'",
    "await_that(lambda: False, 'it is there', seconds=0.1)": "timed out: it is there: not after "
                                                             "0.1 s",
    "require_in_time(time.monotonic() - 3, 2, 'a stop')":
    "timed out: a stop took 3.0 s, at most 2 s were expected",
}
FAULTS = (
    LATE + "assert 'bits' == 'bytes', 'the weights differ'",
    LATE.replace("6", "4") + "assert 'waited 2.0s' in run.text(), run.text()",
    "assert 1 + 1 == 3",
    "must(subprocess.run(['sh', '-c', 'kill -SEGV $$'], capture_output=True, text=True))",
    "must(subprocess.run(['sh', '-c', 'exit 0'], capture_output=True, text=True), 6)",
    "sh('exit 137').wait(0)",
    "sh('echo Segmentation fault; exit 6').wait(0)",
    "sh('echo internal error; exec sleep 60').wait(0, timeout=0.5)",
    "sh('echo step 1; exit 4').await_line('saved')",
    "sh('echo Traceback; exit 6').await_line('saved')",
    # A fault that is followed by a wait, and a wait that is followed by a fault.
    "try:\n  assert 'bits' == 'bytes'\nfinally:\n  fail_by_timeout('3 s')",
    "try:\n  fail_by_timeout('3 s')\nexcept AssertionError:\n  assert 'bits' == 'bytes'",
)


def last_line(body):
    """Returns the last line of output of a test with this body, run in a process of its own."""
    with tempfile.TemporaryFile("w+") as output:
        child = os.fork()
        if child == 0:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            try:
                exec(body,
                     vars(runner) | {"runner": runner,
                                     "sh": lambda script: runner.Running(["sh", "-c", script])})
            except Exception:
                sys.excepthook(*sys.exc_info())
            sys.stdout.flush()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        output.seek(0)
        return output.read().rstrip().splitlines()[-1]


for body, said in WAITS.items():
    found = last_line(body)
    assert found.startswith(said), (body, found)
for body in FAULTS:
    found = last_line(body)
    assert not found.startswith("timed out: "), (body, found)

# NaN is not near any number, at any position.
for place in range(3):
    numbers = [1.0, 2.0, 3.0]
    numbers[place] = float("nan")
    try:
        runner.require_near("loss", numbers, [1.0, 2.0, 3.0], 1e-3)
    except AssertionError as error:
        assert "loss: off by nan" in str(error), error
    else:
        raise AssertionError(f"NaN in place {place} is near a number")
assert runner.require_near("loss", [1.0, 2.2], [1.0, 2.0], 0.11) > 0.09

# A test whose wait reached its limit ends the processes that it started, which would disturb later
# tests.
with tempfile.TemporaryDirectory() as folder:
    last_line(f"run = sh('echo $$ > {folder}/pid; exec sleep 60'); await_that(lambda: False, 'it', "
              "run, seconds=1)")
    pid = (pathlib.Path(folder) / "pid").read_text().strip()
    assert not pathlib.Path(f"/proc/{pid}").exists(), pid
