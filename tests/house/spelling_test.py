"""Fails on a British spelling in a name or a text of ftrun, which is written in American English.

    spelling_test.py SOURCE

A name counts as its words do: `kColourCount` and `is_normalised` are faults, and so are names of
files. Only the words that EXCEPTIONS lists may stay, because others chose them.
"""
import functools
import pathlib
import re
import sys
import tempfile

ROOT = pathlib.Path(sys.argv[1])
TOP = (".ci", "apps", "configs", "docs", "lib", "scripts", "tests")

# Words that may occur in a file, by its path.
EXCEPTIONS = {
    # Data sets have a field of this name.
    "docs/data.md": ("licence",),
    "lib/data/jsonl_fields.cc": ("licence",),
    "scripts/training_data/fields.py": ("licence",),
    # Slurm gives a job this state.
    "tests/e2e/private_slurm.py": ("CANCELLED",),
    "tests/e2e/slurm_scripts_test.py": ("CANCELLED",),
}

# Stems of words that end in -ise, -ising or -isation in British English.
ISE = ("author|capital|categor|central|character|custom|discret|emphas|equal|factor|final|formal|"
       "general|harmon|ideal|initial|item|legal|linear|local|material|maxim|memor|minim|modern|"
       "normal|optim|organ|parallel|parametr|penal|priorit|quant|random|real|recogn|regular|"
       "serial|special|stabil|standard|summar|symbol|synchron|token|util|vector|visual")
# Beginnings of words that end in -our.
OUR = "arm|behavi|col|endeav|fav|flav|harb|hon|hum|lab|neighb|rig|rum|vap|vig"
# Verbs whose last letter is doubled.
DOUBLED = "cancel|channel|counsel|fuel|label|level|marshal|model|panel|signal|total|travel|unravel"
BRITISH = re.compile(
    rf"(?:{ISE})is(?:e|ed|er|ers|es|ing|ation|ations)$|(?:ana|cata|para)lys(?:e|ed|er|ers|ing)$|"
    rf"(?:{OUR})our|(?:{DOUBLED})l(?:ed|er|ers|ing)$|centred|centring|"
    r"(?:cent|fib|lit|theat|calib|met)res?$|artefact|catalogue|defence|offence|licence|pretence|"
    r"fulfil(?:s|ment)?$|skilful|grey|whilst|amongst|programmes?$|learnt|spelt|burnt|judgemental|"
    r"manoeuv|mould|plough|sceptic|storeys?$|acknowledgement", re.I)
WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def texts(root):
    """Yields (path below root, text) of the sources, scripts, configs and pages."""
    paths = [path for path in root.iterdir() if path.suffix in (".md", ".txt", ".json")]
    paths += [path for top in TOP for path in (root / top).rglob("*")]
    for path in sorted(paths):
        if path.is_file() and path.suffix != ".pyc":
            content = path.read_bytes()
            if b"\0" not in content:
                yield str(path.relative_to(root)), content.decode(errors="replace")


@functools.cache
def is_british(word):
    return bool(BRITISH.search(word))


def british(text):
    return [word for word in WORD.findall(text) if is_british(word)]


def faults(root):
    for name, text in texts(root):
        if name == "tests/house/spelling_test.py":
            continue
        for word in british(name):
            yield f'{name}: "{word}" of the name is a British spelling'
        for number, line in enumerate(text.split("\n"), 1):
            for word in british(line):
                if word not in EXCEPTIONS.get(name, ()):
                    yield f'{name}:{number}: "{word}" is a British spelling'


def self_check(folder):
    """Checks that the check finds names and words, and leaves American ones and exceptions."""
    wrong = ("kColourCount", "is_normalised", "NEIGHBOURS", "unlabelled", "fulfil", "recentred",
             "tokeniser", "optimisations", "analysed", "metres", "centre")
    for name in wrong:
        assert len(british(name)) == 1, name
    right = ("four hours", "promise otherwise exercise", "optimist", "analyses", "fulfilled",
             "controlled", "parameters", "programmed", "labels", "size", "center", "realistic")
    for name in right:
        assert not british(name), name
    for name in ("docs", "lib", "lib/data"):
        (folder / name).mkdir()
    (folder / "README.md").write_text("x\na flavour\n")
    (folder / "lib" / "colours.h").write_text("licence\n")
    (folder / "lib" / "data" / "jsonl_fields.cc").write_text("licence\n")
    (folder / "lib" / "data" / "values.bin").write_bytes(b"colour\0")
    assert list(faults(folder)) == ['README.md:2: "flavour" is a British spelling',
                                    'lib/colours.h: "colours" of the name is a British spelling',
                                    'lib/colours.h:1: "licence" is a British spelling'
                                    ], list(faults(folder))


def main():
    with tempfile.TemporaryDirectory() as folder:
        self_check(pathlib.Path(folder))
    all_faults = list(faults(ROOT))
    print("\n".join(all_faults) or f"spelling: {sum(1 for _ in texts(ROOT))} texts, no fault")
    sys.exit(1 if all_faults else 0)


main()
