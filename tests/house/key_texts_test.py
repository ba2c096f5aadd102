"""Fails where the text of a config key or of a section is empty, or begins with a word that hides
what it is about: Of, What, Where, The same, Only, Read, ... docs/config.md, which a test compares
with the schema, holds all of these texts.

    key_texts_test.py SOURCE [BUILD]
"""
import pathlib
import re
import sys

PAGE = pathlib.Path(sys.argv[1]) / "docs" / "config.md"

HIDDEN = re.compile(r"(?:of|what|where|how|when|which|whether|if|in|on|by|for|from|to|with|as|so|"
                    r"those|these|both|its|their|the same|same|only|read|also|not|nothing)\b", re.I)
# The page appends these to a key's text: another name, the types that have the key, the reason why
# it has no effect.
APPENDED = re.compile(r"Also `|\(\w+(?:, \w+)*\)$|No effect: ")
# These verbs follow "Also" in texts that state a further condition.
ACTION = re.compile(r"Also (?:evaluate|save) ")


def texts(page):
    """Yields (line number, key or section, text) of each key and section of the page."""
    section = None
    for number, line in enumerate(page.split("\n"), 1):
        if line.startswith("#"):
            section = line.strip("# `") if line.startswith("### `") else None
        elif line.startswith("| `"):
            cells = re.split(r" (?<!\\)\| ", line.removesuffix(" |"))
            if len(cells) >= 5 or line.count(" | ") >= 4:
                yield number, cells[0].strip("| `"), cells[4] if len(cells) > 4 else ""
        elif section and line and not line.startswith("|"):
            yield number, section, line
            section = None


def fault(text):
    if not text.strip() or APPENDED.match(text):
        return "has no text"
    if HIDDEN.match(text) and not ACTION.match(text):
        return f'"{text[:40]}" does not begin with what it is about'
    return None


def self_check():
    page = ("# Of a page\n\nWhat it is.\n\n### `a.b`\n\nOf things.\n\n"
            "| key | value | default | does | meaning |\n|---|---|---|---|---|\n"
            "| `x` | text | none | yes | Name of it. |\n| `y` | a \\| b | none | yes |  |\n"
            "| `z` | text | none | yes | (Muon) |\n## Keys of others\n\nWhat is here.\n\n"
            "| key | why |\n|---|---|\n| `old` | a comment |\n")
    key_texts = list(texts(page))
    assert key_texts == [(7, "a.b", "Of things."), (11, "x", "Name of it."), (12, "y", ""),
                         (13, "z", "(Muon)")], key_texts
    assert [fault(text) is None for _, _, text in key_texts] == [False, True, False, False]
    assert fault("Also save when it is time.") is None and fault("Also when it is time.")
    assert fault("Offset.") is None and fault("Also `b`.") and fault("The same.")


def main():
    self_check()
    key_texts = list(texts(PAGE.read_text()))
    assert len(key_texts) > 300, f"only {len(key_texts)} texts of keys found in {PAGE}"
    faults = [f"{PAGE.name}:{line}: `{name}` {why}" for line, name, text in key_texts
              if (why := fault(text))]
    print("\n".join(faults))
    print(f"{len(key_texts)} texts of keys, {len(faults)} faults")
    sys.exit(1 if faults else 0)


main()
