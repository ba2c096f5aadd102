"""Fails on a broken reference in a page: a relative link whose file or heading is missing, or a
path in backticks that names no file of the repository. In a README of lib or apps, a bare name like
`error.h` needs a file, too.

    links_test.py SOURCE
"""
import pathlib
import re
import sys
import tempfile

ROOT = pathlib.Path(sys.argv[1])
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`\n]+)`")
FENCE = re.compile(r"^```.*?^```", re.M | re.S)
# Endings that a source path may leave out, as in `kernels/device`.
ENDINGS = ("", ".h", ".cc", ".cu", ".inc", ".py", "_test.cc", "_test.py")
TOP = ("lib", "apps", "tests", "docs", "scripts", "configs", "third_party")
SOURCE_NAME = re.compile(r"[\w-]+\.(?:h|cc|cu|cuh|inc|py|sh)")
# Placeholders (KIND, NAME, *), and paths that a build creates.
NOT_A_FILE = re.compile(r"(?<![A-Za-z])(?!README|CONTRIBUTING|SECURITY|CHANGELOG)[A-Z]{2,"
                        r"}(?![a-z])|[*<>$…]|\blib/libftrun")


def pages(root):
    paths = [root / "README.md", root / "CONTRIBUTING.md", *sorted((root / "docs").glob("*.md"))]
    for top in ("lib", "apps", "tests", "scripts"):
        paths += sorted((root / top).rglob("README.md"))
    return [page for page in paths if page.exists()]


def headings(text):
    """Yields names of a page's headings, as GitHub links to them."""
    for line in re.findall(r"^#+ (.*)$", FENCE.sub("", text), re.M):
        yield re.sub(r"[^\w\- ]", "", line.strip().lower()).replace(" ", "-")


def link_fault(page, target):
    """Returns what is wrong with a link of the page; None if it resolves."""
    if re.match(r"\w+:", target):
        return None
    path, _, heading = target.partition("#")
    file = (page.parent / path) if path else page
    if not file.exists():
        return f"link to {target}: no such file"
    if heading and file.suffix == ".md" and heading not in headings(file.read_text()):
        return f"link to {target}: no such heading"
    return None


def exists(*places):
    return any(pathlib.Path(f"{place}{ending}").exists() for place in places for ending in ENDINGS)


def path_fault(root, page, text):
    """Returns what is wrong with a text in backticks; None if it is no path of the repository, or
    names an existing one."""
    path = text.rstrip("/").split("::")[0]
    if NOT_A_FILE.search(path) or not re.fullmatch(r"[\w./-]+", path):
        return None
    first, _, rest = path.partition("/")
    of_folder = page.is_relative_to(root / "lib") or page.is_relative_to(root / "apps")
    if not rest:
        if of_folder and SOURCE_NAME.fullmatch(path) and not any(page.parent.rglob(path)):
            return f"`{text}`: no such file in this folder"
        return None
    if not first.strip("."):
        return None
    of_lib = (root / "lib" / first).is_dir() and ("." not in rest
                                                  or SOURCE_NAME.fullmatch(rest.split("/")[-1]))
    if first in TOP or of_lib or (of_folder and (page.parent / first).is_dir()):
        if not exists(root / path, root / "lib" / path, page.parent / path):
            return f"`{text}`: no such path"
    return None


def faults(root):
    for page in pages(root):
        text = page.read_text()
        for target in LINK.findall(FENCE.sub("", text)):
            if fault := link_fault(page, target):
                yield f"{page.relative_to(root)}: {fault}"
        for code in CODE.findall(FENCE.sub("", text)):
            if fault := path_fault(root, page, code):
                yield f"{page.relative_to(root)}: {fault}"


def self_check(folder):
    """Checks that the check can fail, in each of its ways."""
    (folder / "docs").mkdir()
    (folder / "lib" / "base").mkdir(parents=True)
    (folder / "lib" / "base" / "file.h").touch()
    (folder / "lib" / "base" / "README.md").write_text("`file.h` `gone.h` `base/file` "
                                                       "[up](../../README.md#one-two)\n")
    (folder / "README.md").write_text("# One two\n[a](docs/a.md) [b](#three) [c](https://x.y) "
                                      "`lib/base/file.h` `base/none.h` `lib/KIND/x.cc`\n```\n"
                                      "[d](docs/d.md) `lib/e.cc`\n```\n")
    assert list(faults(folder)) == [
        "README.md: link to docs/a.md: no such file", "README.md: link to #three: no such heading",
        "README.md: `base/none.h`: no such path",
        "lib/base/README.md: `gone.h`: no such file in this folder"], list(faults(folder))


def main():
    with tempfile.TemporaryDirectory() as folder:
        self_check(pathlib.Path(folder))
    all_faults = list(faults(ROOT))
    for folder in sorted(path for path in (ROOT / "lib").iterdir() if path.is_dir()):
        readme = folder / "README.md"
        lines = len(readme.read_text().splitlines()) if readme.exists() else 0
        if not 0 < lines <= 30:
            all_faults.append(f"lib/{folder.name}: its README.md has {lines} lines; one of 1 to 30 "
                              "belongs to each folder")
    print("\n".join(all_faults) or f"links: {len(pages(ROOT))} pages, no fault")
    sys.exit(1 if all_faults else 0)


main()
