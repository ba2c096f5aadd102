"""Tests scripts/run_tests.py: which failed entries it runs again, how it reports a flaky entry (one
that fails once and then passes), and that only timeouts make an entry flaky. The entries are shell
scripts of a small CTest project, run by CTest itself.

    second_look_test.py SOURCE BUILD
"""
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(sys.argv[1])
sys.path.insert(0, str(SOURCE / "scripts"))
from ctest_runs import classify_failure as classify  # noqa: E402

GOOD = {"good": "true", "skips": "echo skipped: no device; exit 77"}
# This beginning of a script makes it pass from its second run on; what follows it makes the first
# run fail.
ONCE = 'if [ -e "$0.ran" ]; then echo well; exit 0; fi; touch "$0.ran"; '
WAITS = ONCE + "echo 'timed out: 3 s for \"saved\"'; exit 1"
REPORT = "==7==ERROR: AddressSanitizer: heap-use-after-free on address 0x60"


def project(folder, scripts, limits=()):
    """Makes a folder for CTest with one entry for each script; entries in `limits` have a time
    limit of three seconds."""
    lines = []
    for name, script in scripts.items():
        path = folder / f"{name}.sh"
        path.write_text(script + "\n")
        lines.append(f'add_test({name} "sh" "{path}")\nset_tests_properties({name} PROPERTIES '
                     f'SKIP_RETURN_CODE 77{" TIMEOUT 3" if name in limits else ""})\n')
    (folder / "CTestTestfile.cmake").write_text("".join(lines))


def run(scripts, limits=(), before=":"):
    """Returns (exit code, lines, rows of unsteady.tsv, folder) of running such entries. The shell
    that becomes run_tests.py runs the command `before` first."""
    folder = pathlib.Path(tempfile.mkdtemp(dir=scratch))
    project(folder, scripts, limits)
    command = [sys.executable, SOURCE / "scripts" / "run_tests.py", folder,
               folder / "budgets.tsv", "--parallel", "4"]
    result = subprocess.run(["sh", "-c", f"{before}\nexec {shlex.join(map(str, command))}"],
                            capture_output=True, text=True)
    assert not result.stderr, result.stderr
    rows = [line.split("\t") for line in (folder / "unsteady.tsv").read_text().splitlines()[1:]]
    return result.returncode, result.stdout.splitlines(), rows, folder


def ctest_line(lines):
    """Returns the closing line that CTest itself printed for the first run."""
    return next(line for line in lines if re.match(r"\d+% tests passed", line))


def a_run_without_a_failure_has_ctests_own_closing_line():
    code, lines, rows, _ = run(GOOD)
    assert (code, rows) == (0, []), lines
    assert lines[-1] == ctest_line(lines) == "100% tests passed, 0 tests failed out of 2", lines


def the_summary_has_the_cpu_time_of_the_run_with_all_descendants():
    def cpu_seconds(scripts, before=":"):
        _, lines, _, _ = run(scripts, before=before)
        return next(float(found[1]) for line in lines
                    if (found := re.search(r"\(([\d.]+) s of CPU time in the whole run\)", line)))

    computes = "sh -c 'i=0; while [ $i -lt 1000000 ]; do i=$((i+1)); done'; true"
    alone, computing = cpu_seconds(GOOD), cpu_seconds(GOOD | {"computes": computes})
    assert computing > alone + 0.2, (alone, computing)
    computed_before = cpu_seconds(GOOD, before=computes)
    assert computed_before < computing - 0.1, (computed_before, computing)


def an_entry_that_timed_out_once_is_flaky_and_the_run_passes():
    code, lines, rows, folder = run(GOOD | {"slow": WAITS, "stands": ONCE + "echo begun; sleep 60"},
                                    limits=("stands",))
    assert code == 0, lines
    assert (lines[-2] == "flaky, timed out and passed when run again alone: slow, "
                         f"stands (outputs: {folder}/unsteady.tsv)"), lines
    assert (lines[-1] == "100% tests passed, 0 tests failed out of 4"
            and ctest_line(lines).startswith("50% tests passed, 2 ")), lines
    assert rows == [["slow", '3 s for "saved"', "unsteady/slow.first.txt",
                     "unsteady/slow.second.txt"],
                    ["stands", "CTest's time limit", "unsteady/stands.first.txt",
                     "unsteady/stands.second.txt"]], rows
    outputs = [(folder / path).read_text() for row in rows for path in row[2:]]
    assert outputs == ['timed out: 3 s for "saved"\n', "well\n", "begun\n", "well\n"], outputs


def a_fault_fails_the_run_without_a_second_look():
    faults = {"asserts": ONCE + "echo 'a.cc:3: FAILED: REQUIRE( a == b )'; exit 1",
              "crashes": ONCE + "kill -SEGV $$",
              "aborts": ONCE + "kill -ABRT $$",
              "reports": ONCE + f"echo '{REPORT}'; echo 'timed out: 3 s'; exit 1",
              "stops": ONCE + "echo 'a.cc:3: FAILED:'; sleep 60"}
    code, lines, rows, folder = run(GOOD | {"slow": WAITS} | faults, limits=("stops",))
    assert code == 1 and [row[0] for row in rows] == ["slow"], lines
    assert lines[-1] == "38% tests passed, 5 tests failed out of 8", lines
    assert [line for line in lines if line.startswith("failed: ")] == [
        "failed: asserts: a failed assertion or check", "failed: crashes: SEGFAULT",
        "failed: aborts: Subprocess aborted",
        "failed: reports: AddressSanitizer", "failed: stops: a failed assertion, then CTest's time "
                                             "limit"], lines
    # These entries would all have passed in a second run.
    assert all((folder / f"{name}.sh.ran").exists() for name in faults)


def an_entry_that_fails_again_fails_the_run():
    code, lines, rows, _ = run(GOOD | {"slow": "echo 'timed out: 3 s'; exit 1",
                                       "later": ONCE + "echo 'timed out: 3 s'; exit 1", "worse":
                               'if [ -e "$0.ran" ]; then kill -SEGV $$; fi; touch "$0.ran"; echo '
                               '"timed out: 3 s"; exit 1'})
    assert code == 1 and [row[0] for row in rows] == ["later"], lines
    assert lines[-1] == "60% tests passed, 2 tests failed out of 5", lines
    assert [line for line in lines if line.startswith("failed: ")] == [
        "failed: slow: 3 s (again; the first run timed out)",
        "failed: worse: SEGFAULT (again; the first run timed out)"], lines


def more_than_three_timeouts_are_not_run_again():
    assert run({f"slow{i}": WAITS for i in range(3)})[0] == 0
    code, lines, rows, _ = run(GOOD | {f"slow{i}": WAITS for i in range(4)})
    assert (code, rows) == (1, []), lines
    assert ("[test] 4 entries timed out, more than 3: none is run again (slow0, slow1, "
            "slow2, slow3)" in lines), lines
    assert lines[-1] == ctest_line(lines) == "33% tests passed, 4 tests failed out of 6", lines


def leftover_processes_are_ended_before_an_entry_is_run_again():
    left = ONCE + "sleep 300 & echo $! > $0.pid; echo 'timed out: 3 s'; exit 1"
    code, lines, _, folder = run({"leaves": left.replace("sleep 300 &",
                                                         "sleep 300 >/dev/null 2>&1 &")})
    assert (code == 0 and any(line.endswith("; killed 1 leftover processes")
                              for line in lines)), lines
    pid = (folder / "leaves.sh.pid").read_text().strip()
    assert not pathlib.Path(f"/proc/{pid}").exists(), pid


def a_run_that_ctest_could_not_make_fails():
    folder = pathlib.Path(tempfile.mkdtemp(dir=scratch))
    (folder / "CTestTestfile.cmake").write_text("no such command(\n")
    result = subprocess.run([sys.executable, SOURCE / "scripts" / "run_tests.py", folder, "none"],
                            capture_output=True, text=True)
    assert result.returncode != 0, result
    missing = pathlib.Path(tempfile.mkdtemp(dir=scratch))
    (missing / "CTestTestfile.cmake").write_text('add_test(gone "/nonexistent")\n')
    result = subprocess.run([sys.executable, SOURCE / "scripts" / "run_tests.py", missing, "none"],
                            capture_output=True, text=True)
    assert (result.returncode == 1
            and result.stdout.splitlines()[-1]
            == "0% tests passed, 1 tests failed out of 1"), result.stdout


def only_the_last_line_says_that_an_entry_timed_out():
    assert classify("Failed", "timed out: 3 s\n\n") == ("timeout", "3 s")
    assert classify("Failed", "timed out: 3 s\nmore\n") == ("fault", "a failed assertion or check")
    assert classify("Failed", "not timed out: 3 s\n") == ("fault", "a failed assertion or check")
    assert classify("Failed", "") == ("fault", "a failed assertion or check")
    late = "error: rank 1 waited 1m 00s in all_gather #4 (b, 8 x F32) of group dp: rank 0 is late\n"
    assert classify("Failed", late) == ("timeout", "a collective's time limit")
    assert classify("Failed", late + "a.cc:3: FAILED:\n")[0] == "fault"
    assert classify("Failed", "rank 1: " + late)[0] == "fault"
    assert classify("Timeout", "") == ("timeout", "CTest's time limit")
    assert classify("Timeout", "Traceback (most recent call last):\n")[0] == "fault"
    for ended in ("SEGFAULT", "Subprocess aborted", "Subprocess killed", "Bus error", "ILLEGAL",
                  "Not Run", "Numerical"):
        assert classify(ended, "timed out: 3 s\n") == ("fault", ended)
    for text in (REPORT, "WARNING: ThreadSanitizer: data race",
                 "lib/a.cc:7:3: runtime error: shift exponent 64 is too large",
                 "terminate called after throwing an instance of",
                 "due to a fatal error condition:\n  SIGSEGV"):
        assert (classify("Failed", f"{text}\ntimed out: 3 s\n")[0] == classify("Timeout", text)[0]
                == "fault"), text


with tempfile.TemporaryDirectory() as scratch:
    for check in (a_run_without_a_failure_has_ctests_own_closing_line,
                  the_summary_has_the_cpu_time_of_the_run_with_all_descendants,
                  an_entry_that_timed_out_once_is_flaky_and_the_run_passes,
                  a_fault_fails_the_run_without_a_second_look,
                  an_entry_that_fails_again_fails_the_run,
                  more_than_three_timeouts_are_not_run_again,
                  leftover_processes_are_ended_before_an_entry_is_run_again,
                  a_run_that_ctest_could_not_make_fails,
                  only_the_last_line_says_that_an_entry_timed_out):
        check()
