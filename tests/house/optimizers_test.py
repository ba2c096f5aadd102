"""Fails if a source outside lib/optimizers names an optimizer: the code of each is in its folder
there, and its name in the list. Comments and messages may name optimizers."""
import pathlib
import re
import sys

from sources import sources_below, without_comments

ROOT = pathlib.Path(sys.argv[1])
# Keys that DeepSpeed has for some optimizers; ftrun reads and checks them but does not keep them.
ALLOWED = {"lib/config/schema_optimizer.cc", "lib/config/schema_deepspeed.cc"}
LINE = re.compile(r'^FTRUN_(?:REFUSED_)?OPTIMIZER\((\w+), "([\w.]+)"', re.M)


def names():
    found = {name for pair in LINE.findall((ROOT / "lib/optimizers/list.inc").read_text())
             for name in pair}
    return found - {"Torch", "torch.optim"}


def pattern_of(all_names):
    """Returns a pattern of the names as identifiers and texts hold them: kLamb, LambRule,
    lamb_update, LAMB, but not lambda."""
    words = sorted({form for name in all_names for form in (name, name.lower(), name.upper())},
                   key=len, reverse=True)
    return re.compile(r"(?:(?<![A-Za-z])|(?<=\bk))(?:" + "|".join(map(re.escape, words))
                      + r")(?![a-z])")


def faults(sources):
    pattern = pattern_of(names())
    found = []
    for path in sources:
        if str(path.relative_to(ROOT)) in ALLOWED:
            continue
        for number, line in enumerate(without_comments(path.read_text()).splitlines(), 1):
            if word := pattern.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: names {word.group(0)}, which "
                             "lib/optimizers alone may")
    return found


def self_check():
    """Checks that the check can fail."""
    assert len(names()) >= 10, f"only {sorted(names())} found in list.inc"
    pattern = pattern_of(names())
    for text in ("OptimizerType::kSgd", "adam_update(", 'type == "Muon"', "SgdOptions", "kAdamW",
                 "is_sgd"):
        assert pattern.search(text), text
    for text in ("lambda", "million", "[lambda_part]", "onebit"):
        assert not pattern.search(text), text


def main():
    self_check()
    all_sources = [path for path in sources_below(ROOT)
                   if "optimizers" not in path.relative_to(ROOT).parts]
    all_faults = faults(all_sources)
    print("\n".join(all_faults) or f"optimizers: {len(all_sources)} sources, none names one")
    sys.exit(1 if all_faults else 0)


main()
