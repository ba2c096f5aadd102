"""Fails if scripts/follow_run.py sends other tags of a step or an evaluation to trackers than a run
writes for TensorBoard.

    tags_test.py SOURCE
"""
import json
import pathlib
import re
import sys

ROOT = pathlib.Path(sys.argv[1])
sys.dont_write_bytecode = True  # no __pycache__ next to the scripts
sys.path.insert(0, str(ROOT / "scripts"))
import follow_run  # noqa: E402


def main():
    text = (ROOT / "lib/report/step_metrics.cc").read_text()
    written = set(re.findall(r'"((?:train|time)/\w+)"', text))
    names = re.findall(r'evaluation\.set \+ "/(\w+)"', text)
    assert len(written) >= 8 and len(names) >= 3, (written, names)
    written |= {f"set/{name}" for name in names}
    line = {"step": 1, "evaluation": "set", "tokens": 1, "loss": 1, "perplexity": 1, "accuracy": 1}
    sent = set(follow_run.STEP_TAGS.values()) | set(follow_run.parse_metrics(json.dumps(line))[1])
    faults = [f"tags: {tag} is {where}" for tags, where in
              ((written - sent, "written for TensorBoard, but not sent by scripts/follow_run.py"),
               (sent - written, "sent by scripts/follow_run.py, but not written for TensorBoard"))
              for tag in sorted(tags)]
    print("\n".join(faults) or f"tags: {len(sent)}, no fault")
    sys.exit(1 if faults else 0)


main()
