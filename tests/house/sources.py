"""Sources of lib and apps for the checks of this folder, and their code without comments."""
import re

SUFFIXES = (".h", ".cc", ".cu", ".cuh", ".inc")


def sources_below(root):
    """Yields paths of all sources of lib and apps below `root`."""
    for top in ("lib", "apps"):
        for path in sorted((root / top).rglob("*")):
            if path.suffix in SUFFIXES:
                yield path


def without_comments(text):
    """Returns the code of a source without comments; lines keep their numbers after comments of one
    line."""
    return re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.S)
