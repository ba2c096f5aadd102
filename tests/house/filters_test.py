"""Fails if a filter by which a script selects tests of a C++ test program matches no title: Catch2
then runs no test, and ends with 0.

    filters_test.py SOURCE
"""
import fnmatch
import pathlib
import re
import sys

ROOT = pathlib.Path(sys.argv[1])
TITLE = re.compile(r'\bTEST_CASE\(\s*((?:"(?:[^"\\]|\\.)*"\s*)+)')
# The program, and the quoted filter behind it. Tags begin with "[" or "~", variables with "$".
FILTER = re.compile(r"""(?:bin/test_\w+"?|\$tests) (['"])([^'"\[~$][^'"]*)\1""")


def titles_of(text):
    """Returns the titles of the test cases of a source."""
    return ["".join(re.findall(r'"((?:[^"\\]|\\.)*)"', words)) for words in TITLE.findall(text)]


def filter_faults(name, text, titles):
    """Yields the filters of a script that match no title."""
    for _, filters in FILTER.findall(text):
        for pattern in filters.split(","):
            if not fnmatch.filter(titles, pattern):
                yield f"{name}: the filter '{pattern}' matches no test"


def main():
    titles = [title for path in sorted((ROOT / "tests").rglob("*.cc"))
              for title in titles_of(path.read_text())]
    assert len(titles) > 1000 and titles_of('TEST_CASE(\n    "a b "\n    "c") {') == ["a b c"]
    known = "bin/test_x 'a b*,x*'\n"
    found = list(filter_faults("x.sh", known, ["a b c"]))
    assert found == ["x.sh: the filter 'x*' matches no test"], found
    scripts = sorted((ROOT / "scripts").glob("*.sh"))
    texts = {path.relative_to(ROOT).as_posix(): path.read_text() for path in scripts}
    count = sum(len(FILTER.findall(text)) for text in texts.values())
    assert count >= 7, f"only {count} filters found in scripts/*.sh"
    faults = [fault for name, text in texts.items()
              for fault in filter_faults(name, text, titles)]
    print("\n".join(faults) or f"filters: {count} in scripts, {len(titles)} titles, no fault")
    sys.exit(1 if faults else 0)


main()
