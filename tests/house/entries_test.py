"""Fails if a test could pass without running: what a machine may lack needs a CTest entry of its
own, and no test case may return early or only warn. No unit test may assert how long something
took, because machines are shared.

    entries_test.py SOURCE BUILD
"""
import json
import pathlib
import re
import subprocess
import sys

SOURCE, BUILD = map(pathlib.Path, sys.argv[1:3])
TESTS = SOURCE / "tests"
LEFT_OUT = ("bench",)  # benchmarks, which CTest does not run
CASE = re.compile(r"^TEST_CASE\(.*?^\}", re.M | re.S)
NEED = re.compile(r"\[\.needs-([a-z0-9_]+)\]")


def sources(pattern):
    return [path for path in sorted(TESTS.rglob(pattern))
            if path.relative_to(TESTS).parts[0] not in LEFT_OUT]


def entries():
    shown = subprocess.run(["ctest", "--show-only=json-v1"], cwd=BUILD, capture_output=True,
                           text=True, check=True).stdout
    found = {}
    for entry in json.loads(shown)["tests"]:
        properties = {p["name"]: p["value"] for p in entry.get("properties", [])}
        found[entry["name"].removeprefix("asan.")] = properties
    return found


def needs_without_entry(found):
    """Yields the hidden test cases that no entry runs."""
    built = {name.split(".")[0] for name in found}
    for path in sources("*.cc"):
        folder = path.relative_to(TESTS).parts[0]
        for need in set(NEED.findall(path.read_text())):
            if folder in built and f"{folder}.{need}" not in found:
                yield f"{path}: no CTest entry {folder}.{need}"


def entries_that_cannot_skip(found):
    for name, properties in found.items():
        if any(value.startswith("FTRUN_TEST_NEEDS=")
               for value in properties.get("ENVIRONMENT", [])):
            if properties.get("SKIP_RETURN_CODE") != 77:
                yield f"{name}: no SKIP_RETURN_CODE"


def quiet_ways_out():
    for path in sources("*.cc"):
        text = path.read_text()
        for word in ("WARN(", "SUCCEED("):
            if re.search(rf"\b{re.escape(word)}", text):
                yield (f"{path}: {word[:-1]} lets a test pass that did not run: make it an entry "
                       "(tests/requirements.h)")
        for case in CASE.findall(text):
            if re.search(r"^  (if .*)?return;", case, re.M):
                yield f"{path}: a test case returns early: {case.splitlines()[0]}"


def asserted_seconds():
    """Yields assertions that limit a clock's time, or seconds that were read from a clock."""
    clock = re.compile(r"(REQUIRE|CHECK)(_FALSE)?\([^;]*([cC]lock::now[^;]*<=? "
                       r"*[\w(]|(\b|_)(seconds|took|taken|elapsed)\b[^;]*<=? *\d)")
    for path in sources("*.cc"):
        for statement in clock.finditer(path.read_text()):
            yield (f"{path}: asserts on the time something took: "
                   f"{' '.join(statement.group(0).split())}")


def main():
    found = entries()
    faults = [*needs_without_entry(found), *entries_that_cannot_skip(found), *quiet_ways_out(),
              *asserted_seconds()]
    print("\n".join(faults) if faults else f"{len(found)} entries")
    sys.exit(1 if faults else 0)


main()
