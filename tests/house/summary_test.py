"""scripts/test_summary.py: skips with their reasons, budgets that fail, slow machines that do not.

    summary_test.py SOURCE BUILD
"""
import pathlib
import subprocess
import sys
import tempfile

SUMMARY = pathlib.Path(sys.argv[1]) / "scripts" / "test_summary.py"


def entry(name, seconds, skipped=None, output=""):
    mark = f'<skipped message="{skipped}"/>' if skipped else ""
    return f'<testcase name="{name}" time="{seconds}">{mark}<system-out>{output}</system-out></testcase>'


def summary(folder, budgets, *entries):
    (folder / "results.xml").write_text(f"<testsuite>{''.join(entries)}</testsuite>")
    (folder / "budgets.tsv").write_text("# seconds\n" + "".join(f"{name}\t{s}\n" for name, s in budgets.items()))
    done = subprocess.run([sys.executable, SUMMARY, folder / "results.xml", folder / "budgets.tsv"], capture_output=True, text=True)
    assert not done.stderr, done.stderr
    return done.returncode, done.stdout


def main(folder):
    known = {f"t{i}": 10 for i in range(6)}
    all_at = lambda seconds: [entry(name, seconds) for name in known]
    skip = entry("gpu", 0.1, "SKIP_RETURN_CODE=77", "skipped: no GPU")
    assert summary(folder, known, *all_at(9), skip)[0] == 0
    assert "\n1 skipped:\n  gpu: no GPU\n" in summary(folder, known, *all_at(9), skip)[1]
    code, text = summary(folder, known, *all_at(9), entry("gpu", 0.1, "SKIP_RETURN_CODE=77"))
    assert code == 1 and "skipped without a reason: gpu printed no line that begins with 'skipped: '\n" in text, text
    # What could not be started is no skip.
    assert "\n0 skipped\n" in summary(folder, known, *all_at(9), entry("gone", 0, "Unable to find executable"))[1]
    # 3 times the budget and 15 s, no more.
    assert summary(folder, known, *all_at(9), entry("t0", 44))[0] == 0
    code, text = summary(folder, known, *all_at(9)[1:], entry("t0", 46))
    assert code == 1 and text.endswith("over budget: t0: 46.0 s, with a budget of 10 s; at most 45 s on this machine\n"), text
    # Three times slower throughout is the machine, ten times is not.
    assert summary(folder, known, *all_at(30))[0] == 0
    code, text = summary(folder, known, *all_at(30)[1:], entry("t0", 140))
    assert code == 1 and "over budget: t0: 140.0 s, with a budget of 10 s; at most 135 s" in text, text
    assert " s in 6 entries, 4.0 times their budgets; the slowest:" in summary(folder, known, *all_at(190))[1]
    assert summary(folder, known, *all_at(190))[0] == 1
    code, text = summary(folder, known, *all_at(9), entry("new", 21))
    assert code == 1 and "over budget: new: 21.0 s, with no budget in tests/budgets.tsv; at most 20 s" in text, text
    assert summary(folder, known)[0] == 1, "nothing ran"


with tempfile.TemporaryDirectory() as scratch:
    main(pathlib.Path(scratch))
