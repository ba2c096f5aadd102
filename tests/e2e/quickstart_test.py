"""Runs scripts/quickstart.sh as a user types it, but for 4 steps of short rows, into a separate
folder with a finished run. That run must be kept next to the new one, and the new one must end with
a model that can be loaded. Rows of 512 tokens, as in the config, would run the same code eight
times as long; e2e.memory trains with rows of 512."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from runner import LAUNCHER_VARIABLES, evaluations, exported_weights, manifest, must, skip, steps

SOURCE = pathlib.Path(sys.argv[1])
STEPS = 4
# Fewer samples and a shorter text: 16 samples and 48 tokens would take longer than the steps.
SHORT = ("--set", "train.evaluation.samples=8", "--set", "data.sequence_length=64", "--set",
         "train.generate.tokens=8")


def listing(folder):
    """Returns the names, sizes and times below a folder, which a run into another folder must not
    change."""
    return sorted((str(path), path.lstat().st_size, path.lstat().st_mtime_ns)
                  for path in folder.rglob("*")) if folder.is_dir() else None


def quickstart(out, *options):
    kept = {k: v for k, v in os.environ.items() if k not in LAUNCHER_VARIABLES}
    return must(subprocess.run([SOURCE / "scripts" / "quickstart.sh", "--out", out, *options],
                               capture_output=True, text=True,
                               env=kept, cwd="/"))


def check_run(out, done, steps_done):
    losses = [m["loss"] for m in steps(out)]
    assert len(losses) == steps_done, losses
    assert manifest(out)["exit_code"] == 0, manifest(out)
    shape = json.loads((out / "export" / "model" / "config.json").read_text())
    weights = exported_weights(out)
    assert weights["model.embed_tokens.weight"].shape == (shape["vocab_size"], shape["hidden_size"])
    assert (out / "export" / "model" / "tokenizer.json").exists() and (out / "report.html").exists()
    assert f"model:    {out}/export/model " in done.stdout, done.stdout[-2000:]
    return losses


def main():
    if os.statvfs(tempfile.gettempdir()).f_bavail * os.statvfs(
            tempfile.gettempdir()).f_frsize < 4 << 30:
        skip(f"a run of the quickstart wants 4 GiB in {tempfile.gettempdir()}")
    before = listing(SOURCE / "runs" / "quickstart")
    with tempfile.TemporaryDirectory() as scratch:
        out = pathlib.Path(scratch) / "quickstart"
        finished = out / "export" / "model" / "config.json"
        finished.parent.mkdir(parents=True)
        finished.write_text("of an earlier run")
        result = quickstart(out, "--set", f"train.steps={STEPS}", "--set",
                            "train.evaluation.every=2", *SHORT)
        losses = check_run(out, result, STEPS)
        validated = [m["loss"] for m in evaluations(out)]
        assert (len(validated) == 3
                and validated[-1] < validated[0]), f"four steps learned nothing: {validated}"
        assert f"{out} contains a finished run, which is moved to {out}." in result.stdout, (
            result.stdout[:2000])
        kept, = [path for path in out.parent.iterdir() if path != out]
        assert (kept / "export" / "model" / "config.json").read_text() == "of an earlier run", (
            "the finished run was changed")
    assert listing(SOURCE / "runs" / "quickstart") == before, "the user's own run was touched"
    print(f"losses {losses}, validation {validated}")


main()
