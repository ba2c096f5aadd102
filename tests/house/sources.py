"""What the checks of the house read: the sources of lib and apps, and their
code without comments."""
import re

SUFFIXES = (".h", ".cc", ".cu", ".cuh", ".inc")


def sources_below(root):
    """Paths of all sources of lib and apps below `root`."""
    for top in ("lib", "apps"):
        for path in sorted((root / top).rglob("*")):
            if path.suffix in SUFFIXES:
                yield path


def without_comments(text):
    """The code of a source; lines keep their numbers where comments are of one line."""
    return re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.S)
