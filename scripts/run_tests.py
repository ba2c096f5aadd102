#!/usr/bin/env python3
"""Runs all entries of a CTest folder, and reruns those that timed out.

    run_tests.py FOLDER BUDGETS.tsv [--parallel N]

An entry that timed out (scripts/ctest_runs.py) is rerun once, alone, after all others. If it
passes, it is *flaky*: the line before the last one and FOLDER/unsteady.tsv name it, and both of its
outputs are kept in FOLDER/unsteady/. If more than MAX_RERUNS entries timed out, they are too many
to be noise, and none is rerun. An entry that failed in any other way is not rerun. At the end the
script prints the summary (scripts/test_summary.py), the entries that failed and, as the last line,
CTest's closing line of the final state. It exits with 0 if neither that line nor the summary
reports a failure."""
import argparse
import pathlib
import resource
import shutil
import signal
import sys

import ctest_runs
import test_summary

MAX_RERUNS = 3
PASSED = ("passed", "skipped")


def rerun_timeouts(folder, first):
    """Runs the entries that timed out once more. Returns pairs (entry of the first run, entry of
    the second run)."""
    timeouts = [entry for entry in first if entry.outcome == "timeout"]
    if not timeouts:
        return []
    names = ", ".join(entry.name for entry in timeouts)
    if len(timeouts) > MAX_RERUNS:
        print(f"\n[test] {len(timeouts)} entries timed out, more than {MAX_RERUNS}: none is run "
              f"again ({names})", flush=True)
        return []
    killed = ctest_runs.end_descendants()
    print(f"\n[test] timed out, so run again alone: {names}"
          + (f"; killed {killed} leftover processes" if killed else ""), flush=True)
    pairs = []
    for entry in timeouts:
        reruns = ctest_runs.run(folder, folder / "again.xml", [entry.name],
                                log=folder / "again.txt")
        pairs += [(entry, second) for second in reruns]
        ctest_runs.end_descendants()
    return pairs


def write_flaky(folder, flaky):
    """Writes the list of flaky entries and their outputs."""
    output_folder = folder / "unsteady"
    shutil.rmtree(output_folder, ignore_errors=True)
    lines = ["# entry\twhat it waited for\tfirst output\tsecond output\n"]
    for first, second in flaky:
        output_folder.mkdir(exist_ok=True)
        paths = [output_folder / f"{first.name}.{which}.txt" for which in ("first", "second")]
        for path, entry in zip(paths, (first, second)):
            path.write_text(entry.output)
        reason = " ".join(first.reason.split())
        lines.append("\t".join((first.name, reason,
                                *(str(path.relative_to(folder)) for path in paths))) + "\n")
    (folder / "unsteady.tsv").write_text("".join(lines))


def cpu_seconds_of_children():
    """Returns the CPU time of all descendants of this process that have ended: CTest, and all runs
    of the entries."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def report_run(folder, table, first, pairs, cpu_seconds):
    """Prints the end of the run; returns whether it passed."""
    flaky = [(entry, rerun) for entry, rerun in pairs if rerun.outcome == "passed"]
    write_flaky(folder, flaky)
    reruns = {rerun.name: rerun for _, rerun in pairs}
    final = [reruns.get(entry.name, entry) for entry in first]
    is_good = test_summary.summarize(final, table, cpu_seconds)
    for entry in final:
        if entry.outcome not in PASSED:
            print(f"failed: {entry.name}: {entry.reason}" + (" (again; the first run timed out)"
                                                             if entry.name in reruns else ""))
    if flaky:
        print("flaky, timed out and passed when run again alone: "
              f"{', '.join(entry.name for entry, _ in flaky)} (outputs: {folder}/unsteady.tsv)")
    print(ctest_runs.closing_line(final), flush=True)
    return is_good and all(entry.outcome in PASSED for entry in final)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("budgets")
    parser.add_argument("--parallel", type=int, default=1)
    options = parser.parse_args()
    folder = options.folder.resolve()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    ctest_runs.adopt_orphans()
    # A shell that became this process (exec) may have had children before: scripts/test.sh builds.
    cpu_seconds_before = cpu_seconds_of_children()
    try:
        first = ctest_runs.run(folder, folder / "results.xml", parallel=options.parallel,
                               log=folder / "output.txt")
        pairs = rerun_timeouts(folder, first)
        cpu_seconds = cpu_seconds_of_children() - cpu_seconds_before
        return 0 if report_run(folder, options.budgets, first, pairs, cpu_seconds) else 1
    except ctest_runs.CTestError as error:
        print(f"run_tests: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        ctest_runs.end_descendants()


if __name__ == "__main__":
    sys.exit(main())
