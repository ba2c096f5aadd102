#!/usr/bin/env python3
"""What a run of CTest comes to: entries that were skipped and why, the slowest entries, and those that broke their
budget of seconds.

    test_summary.py RESULTS.xml BUDGETS.tsv [--write]

A budget is what an entry takes on two quiet cores, in a whole run. Machines differ and are shared, so an entry breaks
its budget when it takes more than FACTOR times that and SLACK seconds, after both are stretched by how much slower than
its budgets the run was as a whole (STRETCH at most). Exits 1, and says why, when one does, when an entry has no budget
and takes longer than NEW seconds, when one was skipped without a reason, or when nothing ran. --write takes the run's
seconds as the new budgets."""
import statistics
import sys
import xml.etree.ElementTree as xml

import script_errors

FACTOR, SLACK, NEW, STRETCH = 3.0, 15.0, 20.0, 4.0
SLOWEST = 12


def entries(path):
    """(name, seconds, reason of the skip or None) of each entry that ran or was skipped."""
    found = []
    for case in xml.parse(path).getroot().iter("testcase"):
        output = case.findtext("system-out") or ""
        # What could not be started has a <skipped>, too; CTest itself counts that as failed.
        skipped = case.find("skipped") is not None and "SKIP_RETURN_CODE" in case.find("skipped").get("message", "")
        found.append((case.get("name"), float(case.get("time") or 0), reason(output) if skipped else None))
    return found


def reason(output):
    for line in output.splitlines():
        if line.startswith("skipped: "):
            return line.removeprefix("skipped: ")
    return "it does not say why"


def budgets(path):
    try:
        with open(path, encoding="utf-8") as file:
            lines = [line.rstrip("\n").split("\t") for line in file if line.strip() and not line.startswith("#")]
    except FileNotFoundError:
        return {}
    return {name: float(seconds) for name, seconds in lines}


def slowness(ran, budget):
    """How many times slower than its budgets this run was, by the median of the entries of some length; 1 to STRETCH."""
    ratios = [seconds / budget[name] for name, seconds in ran.items() if budget.get(name, 0) >= 2]
    return min(STRETCH, max(1.0, statistics.median(ratios))) if len(ratios) >= 5 else 1.0


def broken(ran, budget):
    stretch = slowness(ran, budget)
    over = []
    for name, seconds in ran.items():
        limit = stretch * (FACTOR * budget[name] + SLACK if name in budget else NEW)
        if seconds > limit:
            known = f"a budget of {budget[name]:.0f} s" if name in budget else "no budget in tests/budgets.tsv"
            over.append(f"{name}: {seconds:.1f} s, with {known}; at most {limit:.0f} s on this machine")
    return over


def write(path, ran, budget):
    merged = budget | {name: max(1.0, round(seconds)) for name, seconds in ran.items()}
    with open(path, "w", encoding="utf-8") as file:
        file.write("# Seconds of each CTest entry on two quiet cores (scripts/test_summary.py).\n")
        file.writelines(f"{name}\t{seconds:.0f}\n" for name, seconds in sorted(merged.items()))


def main(*arguments):
    if len(arguments) < 2:
        raise script_errors.UsageError("name the RESULTS.xml of CTest and the BUDGETS.tsv")
    results, table, *options = arguments
    try:
        found = entries(results)
    except xml.ParseError as error:
        raise script_errors.UserError(f"{results}: is no XML: {error}") from None
    ran = {name: seconds for name, seconds, why in found if why is None}
    skipped = [(name, why) for name, _, why in found if why is not None]
    budget = budgets(table)
    print(f"\n{sum(ran.values()):.0f} s in {len(ran)} entries, {slowness(ran, budget):.1f} times their budgets; the slowest:")
    for name, seconds in sorted(ran.items(), key=lambda item: -item[1])[:SLOWEST]:
        print(f"  {seconds:7.1f} s  {name}" + (f"  (budget {budget[name]:.0f} s)" if name in budget else ""))
    print(f"{len(skipped)} skipped" + (":" if skipped else ""))
    for name, why in skipped:
        print(f"  {name}: {why}")
    if "--write" in options:
        write(table, ran, budget)
        return 0
    over = broken(ran, budget)
    for line in over:
        print(f"over budget: {line}")
    silent = [name for name, why in skipped if why == reason("")]
    for name in silent:
        print(f"skipped without a reason: {name} printed no line that begins with 'skipped: '")
    if not ran:
        print("nothing ran")
    return 1 if over or silent or not ran else 0


if __name__ == "__main__":
    script_errors.watch("test_summary")
    sys.exit(main(*(a for a in sys.argv[1:] if a != script_errors.DEBUG)))
