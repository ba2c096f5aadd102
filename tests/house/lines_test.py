"""Fails on a line of C++, CUDA, Python, CMake or a page's prose that is longer than 100 columns.

    lines_test.py SOURCE

Tables of C++ that stand between `// clang-format off` and `// clang-format on` may have longer
lines, fewer than 100 in all of the repository. Tables and code blocks of pages may have any, and
so may pages that programs write.
"""
import pathlib
import sys
import tempfile

ROOT = pathlib.Path(sys.argv[1])
COLUMNS = 100
IN_TABLES = 100
CPP = (".cc", ".h", ".cu", ".cuh", ".inc")
TOP = ("lib", "apps", "tests", "scripts")
CMAKE = ("CMakeLists.txt", "third_party/*", *(f"{top}/**/*" for top in TOP))
PAGES = ("*.md", "docs/*.md", "apps/**/*.md", "lib/**/*.md", "tests/**/*.md")
WRITTEN = ("docs/config.md", "docs/lattice.md", "docs/models.md")


def sources(root):
    for top in TOP:
        for path in sorted((root / top).rglob("*")):
            if path.suffix in CPP or path.suffix == ".py":
                yield path


def cmake_files(root):
    for pattern in CMAKE:
        for path in sorted(root.glob(pattern)):
            if path.name == "CMakeLists.txt" or path.suffix == ".cmake":
                yield path


def long_lines(path):
    """Yields (line number, columns, whether it is in a table) of each line that is too long."""
    in_table = False
    for number, line in enumerate(path.read_text().split("\n"), 1):
        if path.suffix in CPP and line.strip() in ("// clang-format off", "// clang-format on"):
            in_table = line.strip().endswith("off")
        if len(line) > COLUMNS:
            yield number, len(line), in_table


def pages(root):
    for pattern in PAGES:
        for path in sorted(root.glob(pattern)):
            if str(path.relative_to(root)) not in WRITTEN:
                yield path


def long_prose(path):
    """Yields (line number, columns) of each line of prose that is too long. A line of one word,
    such as a link, cannot be shorter."""
    in_code = False
    for number, line in enumerate(path.read_text().split("\n"), 1):
        text = line.strip()
        if text.startswith("```"):
            in_code = not in_code
        elif len(line) > COLUMNS and not in_code and not text.startswith("|") and " " in text:
            yield number, len(line)


def faults(root):
    for path in pages(root):
        for number, columns in long_prose(path):
            yield f"{path.relative_to(root)}:{number}: {columns} columns, {COLUMNS} at most"
    tables = 0
    for path in (*sources(root), *cmake_files(root)):
        for number, columns, in_table in long_lines(path):
            if in_table:
                tables += 1
            else:
                yield f"{path.relative_to(root)}:{number}: {columns} columns, {COLUMNS} at most"
    if tables >= IN_TABLES:
        yield f"{tables} lines of tables are longer than {COLUMNS} columns; fewer than {IN_TABLES}"


def self_check(folder):
    """Checks that the check can fail, in each of its ways."""
    (folder / "lib").mkdir()
    long = "x" * (COLUMNS + 1)
    (folder / "lib" / "a.cc").write_text(
        f"{long[1:]}\n// clang-format off\n{long}\n// clang-format on\n{'×' * COLUMNS}\n{long}\n")
    (folder / "lib" / "b.py").write_text(f"# clang-format off\n# {long}\n")
    (folder / "lib" / "c.md").write_text(
        f"```sh\n{long} {long}\n```\n| {long} |\n{long}\nand {long}\n")
    (folder / "third_party").mkdir()
    for name in ("CMakeLists.txt", "lib/CMakeLists.txt", "third_party/d.cmake", "lib/d.txt"):
        (folder / name).write_text(f"# {long}\n")
    (folder / "docs").mkdir()
    (folder / "docs" / "config.md").write_text(f"{long} {long}\n")
    expected = ["lib/c.md:6: 105 columns, 100 at most", "lib/a.cc:6: 101 columns, 100 at most",
                "lib/b.py:2: 103 columns, 100 at most",
                "CMakeLists.txt:1: 103 columns, 100 at most",
                "third_party/d.cmake:1: 103 columns, 100 at most",
                "lib/CMakeLists.txt:1: 103 columns, 100 at most"]
    assert list(faults(folder)) == expected, list(faults(folder))
    (folder / "lib" / "d.inc").write_text("// clang-format off\n" + f"{long}\n" * (IN_TABLES - 1))
    assert list(faults(folder))[len(expected):] == [
        "100 lines of tables are longer than 100 columns; fewer than 100"], list(faults(folder))


def main():
    with tempfile.TemporaryDirectory() as folder:
        self_check(pathlib.Path(folder))
    all_faults = list(faults(ROOT))
    print("\n".join(all_faults) or f"lines: {sum(1 for _ in sources(ROOT))} sources, "
                             f"{sum(1 for _ in cmake_files(ROOT))} files of CMake, "
                             f"{sum(1 for _ in pages(ROOT))} pages, no fault")
    sys.exit(1 if all_faults else 0)


main()
