#!/usr/bin/env python3
"""Summarizes a run of CTest: entries that were skipped and why, the slowest entries, and
those that took longer than their budget of seconds.

    test_summary.py RESULTS.xml BUDGETS.tsv [--write]

A budget is the time of an entry on two idle cores, in a run of all entries. Machines differ and are
shared, so budgets are scaled by the run's pace, which is how much slower than its budgets the run
was as a whole (limited to MAX_PACE). An entry is listed if it takes both more than LISTED times its
scaled budget and more than LISTED_SLACK seconds beyond it. It fails the run if it takes both more
than FAILED times its scaled budget and more than FAILED_SLACK seconds beyond it. An entry without a
budget counts as having a budget of DEFAULT_BUDGET seconds. The script exits with 1, and prints the
reason, if an entry fails the run, if an entry was skipped without a reason, or if nothing ran.
--write saves the run's seconds as the new budgets."""
import statistics
import sys
import xml.etree.ElementTree as xml

import ctest_runs
import script_errors

LISTED, LISTED_SLACK = 1.5, 5.0
FAILED, FAILED_SLACK = 5.0, 60.0
DEFAULT_BUDGET, MAX_PACE = 20.0, 4.0  # seconds; a ratio
SLOWEST = 12  # the number of slowest entries to list


def read_budgets(path):
    """Returns the seconds of each entry by name; none if the file does not exist."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = [line.rstrip("\n").split("\t") for line in file if line.strip()
                     and not line.startswith("#")]
    except FileNotFoundError:
        return {}
    return {name: float(seconds) for name, seconds in lines}


def slowdown_of_run(ran, budget):
    """Returns how many times slower than its budgets this run was: the median over entries with a
    budget of at least 2 s, limited to 1 to MAX_PACE."""
    ratios = [seconds / budget[name] for name, seconds in ran.items() if budget.get(name, 0) >= 2]
    return min(MAX_PACE, max(1.0, statistics.median(ratios))) if len(ratios) >= 5 else 1.0


def find_over_budget(ran, budget):
    """Returns (line that reports it, whether it makes the run fail) for each entry beyond its
    budget, the largest excess first."""
    scale, excesses = slowdown_of_run(ran, budget), []
    for name, seconds in ran.items():
        known = (f"a budget of {budget[name]:.0f} s" if name in budget
                 else f"no budget in tests/budgets.tsv (counted as {DEFAULT_BUDGET:.0f} s)")
        scaled = scale * budget.get(name, DEFAULT_BUDGET)
        if seconds > max(LISTED * scaled, scaled + LISTED_SLACK):
            fails = seconds > max(FAILED * scaled, scaled + FAILED_SLACK)
            excesses.append((seconds - scaled, f"{name}: {seconds:.1f} s, with {known}, "
                                               f"{scaled:.0f} s at the pace of this run", fails))
    return [(line, fails) for _, line, fails in sorted(excesses, reverse=True)]


def write_budgets(path, ran, budget):
    """Writes the seconds of a run as budgets; entries that did not run keep theirs."""
    merged = budget | {name: max(1.0, round(seconds)) for name, seconds in ran.items()}
    with open(path, "w", encoding="utf-8") as file:
        file.write("# Seconds of each CTest entry on two idle cores (scripts/test_summary.py).\n")
        file.writelines(f"{name}\t{seconds:.0f}\n" for name, seconds in sorted(merged.items()))


def summarize(entries, table, cpu_seconds=None):
    """Prints the summary of a run, with the CPU time of the whole run if that is known; returns
    False if the summary makes the run fail."""
    ran = {entry.name: entry.seconds for entry in entries if entry.outcome != "skipped"}
    skipped = [entry for entry in entries if entry.outcome == "skipped"]
    budget = read_budgets(table)
    cpu = f" ({cpu_seconds:.1f} s of CPU time in the whole run)" if cpu_seconds is not None else ""
    print(f"\n{sum(ran.values()):.0f} s in {len(ran)} entries{cpu}, "
          f"{slowdown_of_run(ran, budget):.1f} times their budgets; the slowest:")
    for name, seconds in sorted(ran.items(), key=lambda item: -item[1])[:SLOWEST]:
        print(f"  {seconds:7.1f} s  {name}" + (f"  (budget {budget[name]:.0f} s)" if name in budget
                                               else ""))
    print(f"{len(skipped)} skipped" + (":" if skipped else ""))
    for entry in skipped:
        print(f"  {entry.name}: {entry.reason}")
    over = find_over_budget(ran, budget)
    for line, fails in over:
        print(f"{'far over budget, which fails the run' if fails else 'over budget'}: {line}")
    silent = [entry.name for entry in skipped if entry.reason == ctest_runs.skip_reason("")]
    for name in silent:
        print(f"skipped without a reason: {name} printed no line that begins with "
              f"'{ctest_runs.SKIPPED}'")
    if not ran:
        print("nothing ran")
    return bool(ran) and not silent and not any(fails for _, fails in over)


def main(*arguments):
    """Runs the script; returns its exit code."""
    if len(arguments) < 2:
        raise script_errors.UsageError("name the RESULTS.xml of CTest and the BUDGETS.tsv")
    results, table, *options = arguments
    try:
        entries = ctest_runs.parse_entries(results, "")
    except xml.ParseError as error:
        raise script_errors.UserError(f"{results}: is not XML: {error}") from None
    if "--write" in options:
        ran = {entry.name: entry.seconds for entry in entries if entry.outcome != "skipped"}
        write_budgets(table, ran, read_budgets(table))
        return 0
    return 0 if summarize(entries, table) else 1


if __name__ == "__main__":
    script_errors.install_excepthook("test_summary")
    sys.exit(main(*(a for a in sys.argv[1:] if a != script_errors.DEBUG)))
