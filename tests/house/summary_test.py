"""Tests scripts/test_summary.py: skipped entries with their reasons, exceeded budgets that are only
listed and those that fail the run, and slow machines, on which neither happens.

    summary_test.py SOURCE BUILD
"""
import pathlib
import subprocess
import sys
import tempfile

SUMMARY = pathlib.Path(sys.argv[1]) / "scripts" / "test_summary.py"


def entry(name, seconds, skipped=None, output=""):
    mark, status = (f'<skipped message="{skipped}"/>', "notrun") if skipped else ("", "run")
    return (f'<testcase name="{name}" time="{seconds}" '
            f'status="{status}">{mark}<system-out>{output}</system-out></testcase>')


def summary(folder, budgets, *entries):
    (folder / "results.xml").write_text(f"<testsuite>{''.join(entries)}</testsuite>")
    (folder / "budgets.tsv").write_text("# seconds\n"
                                        + "".join(f"{name}\t{s}\n" for name, s in budgets.items()))
    result = subprocess.run([sys.executable, SUMMARY, folder / "results.xml",
                             folder / "budgets.tsv"],
                            capture_output=True, text=True)
    assert not result.stderr, result.stderr
    return result.returncode, result.stdout


def main(folder):
    known = {f"t{i}": 10 for i in range(6)}
    all_at = lambda seconds: [entry(name, seconds) for name in known]
    skip = entry("gpu", 0.1, "SKIP_RETURN_CODE=77", "skipped: no GPU")
    assert summary(folder, known, *all_at(9), skip)[0] == 0
    assert "\n1 skipped:\n  gpu: no GPU\n" in summary(folder, known, *all_at(9), skip)[1]
    code, text = summary(folder, known, *all_at(9), entry("gpu", 0.1, "SKIP_RETURN_CODE=77"))
    assert (code == 1 and "skipped without a reason: gpu printed no line that begins with "
                          "'skipped: '\n" in text), text
    # An entry that could not be started does not count as skipped.
    assert "\n0 skipped\n" in summary(folder, known, *all_at(9),
                                      entry("gone", 0, "Unable to find executable"))[1]
    # An entry above its budget is listed. It fails the run if it takes more than five times its
    # budget and more than a minute beyond it.
    quick = {"quick": 2} | known
    def with_one(name, seconds, others=9, budgets=quick):
        return summary(folder, budgets,
                       *[each for each in all_at(others) if f'"{name}"' not in each],
                       entry(name, seconds))
    assert "budget:" not in with_one("t0", 15)[1] and "budget:" not in with_one("quick", 6)[1]
    assert with_one("t0", 16) == (0, with_one("t0", 16)[1])
    assert with_one("t0", 16)[1].endswith("over budget: t0: 16.0 s, with a budget of 10 s, 10 s at "
                                          "the pace of this run\n")
    assert with_one("quick", 61)[0] == 0 and with_one("t0", 69)[0] == 0, (
        "entries fail that exceed five times their budget, but not by a minute")
    code, text = with_one("quick", 63)
    assert code == 1 and text.endswith(
        "far over budget, which fails the run: quick: 63.0 s, with a budget of 2 s, 2 s at the "
        "pace of this run\n"), text
    long = {"long": 100} | known
    assert (with_one("long", 490, budgets=long)[0] == 0
            and with_one("long", 510, budgets=long)[0] == 1)
    # A run in which all entries are slower has larger budgets, but at most four times larger.
    assert ("budget:" not in with_one("t0", 45, others=30)[1]
            and with_one("t0", 149, others=30)[0] == 0)
    code, text = with_one("t0", 151, others=30)
    assert (code == 1 and "the run: t0: 151.0 s, with a budget of 10 s, 30 s at the pace of this "
                          "run\n" in text), text
    code, text = summary(folder, known, *all_at(190))
    assert (code == 0 and " s in 6 entries, 4.0 times their budgets; the slowest:" in text
            and text.count("\nover budget: ") == 6), text
    assert summary(folder, known, *all_at(210))[0] == 1
    code, text = with_one("new", 31)
    assert (code == 0 and text.endswith("over budget: new: 31.0 s, with no budget in "
                                        "tests/budgets.tsv (counted as 20 s), 20 s at the pace of "
                                        "this run\n")), text
    assert with_one("new", 101)[0] == 1
    assert summary(folder, known)[0] == 1, "a run without entries passes"


with tempfile.TemporaryDirectory() as scratch:
    main(pathlib.Path(scratch))
