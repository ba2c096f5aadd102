"""Fails if code outside lib/ops, where operations are defined, and lib/model, which builds models
from them, names an operation: other code reads the table, so that a new operation needs changes in
one folder and one line only.

    kinds_test.py SOURCE
"""
import pathlib
import re
import sys

from sources import sources_below, without_comments

ROOT = pathlib.Path(sys.argv[1])
NAMES = re.compile(r"\bOpKind::k[A-Z]\w*|\bspecs::\w+")
# A kind's name is for messages only: no code may compare it.
COMPARES = re.compile(r"\bop_name\([^;{}]*?\)\s*(?:[=!]=|\.(?:starts_with|ends_with|find|contains"
                      r"|compare|substr)\b)")
MAY_NAME = ("lib/ops", "lib/model")
ENTRY = re.compile(r"^FTRUN_(OP|PREPARED_OP|PAIRED_OP|COLLECTIVE)\((k\w+), (\w+)\)$", re.M)


def faults_of(name, text):
    if name.startswith(MAY_NAME):
        return
    for found in sorted(set(COMPARES.findall(without_comments(text)))):
        yield (f"{name}: compares {found}; give the operation's entry (ops/KIND/spec.cc) a field "
               "and ask for that")
    for found in sorted(set(NAMES.findall(without_comments(text)))):
        yield (f"{name}: names {found}; give the operation's entry (ops/KIND/spec.cc) a field and "
               "ask for that")


def self_check(entries):
    assert len(entries) >= 30, f"only {entries} found in lib/ops/kinds.inc"
    fault = list(faults_of("lib/engine/x.cc", "if (op.kind == OpKind::kAdd) return;  // "
                                            "OpKind::kRope\n"))
    assert len(fault) == 1 and "OpKind::kAdd" in fault[0], fault
    for text in ('if (op_name(op.kind).starts_with("linear")) return;',
                 'return op_name(op_of(x).kind) == "add";'):
        assert len(list(faults_of("lib/engine/x.cc", text))) == 1, text
    assert not list(faults_of("lib/engine/x.cc", 'bug(cat(op_name(op.kind), " == ", name));'))
    assert not list(faults_of("lib/ops/add/spec.cc", "OpKind::kAdd"))


def main():
    entries = ENTRY.findall((ROOT / "lib/ops/kinds.inc").read_text())
    self_check(entries)
    faults = [fault for path in sources_below(ROOT)
              for fault in faults_of(path.relative_to(ROOT).as_posix(), path.read_text())]
    print("\n".join(faults) or f"kinds: {len(entries)} operations, no fault")
    sys.exit(1 if faults else 0)


main()
