"""Fails if docs/run-folder.md lists other fields of metrics.jsonl, samples.jsonl or run.json than
the code writes.

    run_folder_test.py SOURCE
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(sys.argv[1])
PAGE = "docs/run-folder.md"
METRICS = "lib/report/step_metrics.cc"
MANIFEST = "lib/report/run_manifest.cc"
# {heading of a table: [(source, functions that write its fields, and tables of them)]}
WRITERS = {
    "The line of a step": [(METRICS, ("metrics_line", "kStepFigures"))],
    "The line of an evaluation": [(METRICS, ("evaluation_line",))],
    "samples.jsonl": [("lib/report/text_samples.cc", ("text_sample_line",))],
    "run.json": [(MANIFEST, ("manifest_json",))],
}
# {row of the table "Objects of run.json": the function that writes its fields}
OBJECTS = {"`build`": "build_json", "`machine`": "machine_json", "`model`, each of `data`":
           "input_json", "each of `restarts`": "restarts_json"}
# An element of an object: json["name"] = ..., or {"name", value} in an initializer.
ELEMENT = re.compile(r'(?:\b(?:line|json)\[|(?<=[{,] )\{|(?<=\{)\{|(?<=\n) +\{)"(\w+)"')
# The first column of a table of fields.
ROW = re.compile(r'^ +\{"(\w+)"', re.M)
# Elements of objects in objects, which have tables of their own: counters and the best evaluation.
INNER = {"manifest_json": {"metric", "value", "step"}}
COUNTER = re.compile(r'counters(?:\[|\.push_back\(\{)"(\w+)"')
COUNTER_NAME = re.compile(r'constexpr const char\* k(?:\w+Counter|FirstStart) = "(\w+)"')


def body_of(source, function):
    """Returns the body of a function, or the rows of a table, that is defined at the margin."""
    match = re.search(rf"^[\w:<> ]+[ ]{function}(?:\([^;{{]*|\[\] = )\{{\n(.*?)^\}}", source,
                      re.M | re.S)
    assert match, f"no function or table {function}"
    return match.group(1)


def written_names(source, functions):
    """Returns the names of the elements that functions and tables of a source write."""
    return {name for function in functions
            for name in (ROW if re.match("k[A-Z]", function) else ELEMENT).findall(
                body_of(source, function))} - {
                    name for function in functions for name in INNER.get(function, ())}


def table_rows(page, heading):
    """Returns the rows of the first table below a heading, each as a list of cells."""
    match = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", page, re.M | re.S)
    assert match, f"{PAGE} has no heading {heading}"
    table = re.search(r"^\|.*?\n(?!\|)", match.group(1) + "\n", re.M | re.S)
    assert table, f"{PAGE} has no table below {heading}"
    return [[cell.strip() for cell in row.strip("|").split("|")]
            for row in table.group().strip().split("\n")[2:]]


def listed_names(page, heading):
    """Returns the names in the first column of the table below a heading."""
    return [re.fullmatch(r"`(\w+)`", row[0]).group(1) for row in table_rows(page, heading)]


def differences(heading, listed, written):
    """Yields what is wrong with the names listed below a heading."""
    for name in sorted(set(written) - set(listed)):
        yield f"{PAGE}: {heading}: `{name}` is written, but not listed"
    for name in sorted(set(listed) - set(written)):
        yield f"{PAGE}: {heading}: `{name}` is listed, but not written"
    for name in sorted({name for name in listed if list(listed).count(name) > 1}):
        yield f"{PAGE}: {heading}: `{name}` is listed twice"


def counters_written(root):
    """Returns the names of the counters of a step, and of those of a run."""
    of_step, of_run = set(), set()
    for path in sorted((root / "lib").rglob("*.cc")):
        text = path.read_text()
        for found in COUNTER.finditer(text):
            (of_step if "push_back" in found.group() else of_run).add(found.group(1))
        of_run |= set(COUNTER_NAME.findall(text))
    return of_step, of_run


def faults(root):
    page = (root / PAGE).read_text()
    for heading, sources in WRITERS.items():
        written = set().union(*(written_names((root / path).read_text(), functions)
                                for path, functions in sources))
        yield from differences(heading, listed_names(page, heading), written)
    manifest = (root / MANIFEST).read_text()
    rows = {row[0]: row[1] for row in table_rows(page, "Objects of run.json")}
    for row, function in OBJECTS.items():
        listed = set(re.findall(r"`(\w+)`", rows[row]))
        for name in sorted(written_names(manifest, (function,)) - listed):
            yield f"{PAGE}: Objects of run.json: {row}: `{name}` is written, but not listed"
    of_step, of_run = counters_written(root)
    yield from differences("Counters of a step", listed_names(page, "Counters of a step"), of_step)
    yield from differences("Counters of a run", listed_names(page, "Counters of a run"), of_run)


def self_check():
    """Checks that the check can fail, in each of its ways."""
    source = ('void add(Json& line) {\n  line["a"] = 1;\n  line["b"]["c"] = x["d"];\n}\n'
              'std::string text(int64_t step) {\n  Json json{\n      {"e", step}, {"f", 1}};\n'
              '  json["g"] = {{"h", 1}};\n}\n')
    assert written_names(source, ("add",)) == {"a", "b"}, written_names(source, ("add",))
    assert written_names(source, ("text",)) == {"e", "f", "g", "h"}, (
        written_names(source, ("text",)))
    source = 'constexpr Field kFields[] = {\n    {"a", "b", 1},\n    {"c",\n     "d", 2},\n};\n'
    assert written_names(source, ("kFields",)) == {"a", "c"}, written_names(source, ("kFields",))
    page = "## One\ntext\n\n| field | x |\n|---|---|\n| `a` | 1 |\n| `b` | 2 |\n\n## Two\n"
    assert listed_names(page, "One") == ["a", "b"], listed_names(page, "One")
    assert [fault.rsplit(": ", 1)[1] for fault in differences("One", ["a", "b", "b"], {"a", "c"})
            ] == ["`c` is written, but not listed", "`b` is listed, but not written",
                  "`b` is listed twice"]


def main():
    self_check()
    all_faults = list(faults(ROOT))
    of_page = (ROOT / PAGE).read_text()
    count = sum(len(listed_names(of_page, heading)) for heading in WRITERS)
    print("\n".join(all_faults) or f"run folder: {count} fields, no fault")
    sys.exit(1 if all_faults else 0)


main()
