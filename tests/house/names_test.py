"""Fails if a page names something that the sources do not have: a function in backticks (`name()`),
a constant or enumerator (`kName`), or a member (`Type::member`). A name with a file beside it,
`name` (`path/file.h`), or with "in" or "of" between the two, must occur in that file.

    names_test.py SOURCE
"""
import pathlib
import re
import sys
import tempfile

from sources import SUFFIXES, without_comments

ROOT = pathlib.Path(sys.argv[1])
FENCE = re.compile(r"^```.*?^```", re.M | re.S)
CODE = re.compile(r"`([^`\n]+)`")
FUNCTION = re.compile(r"(\w+)\(\)")
CONSTANT = re.compile(r"(?<![\w:])k[A-Z]\w*")
MEMBER = re.compile(r"\b([A-Z]\w*)::(\w+)")
# A name in backticks with the file beside it.
NAME_AND_FILE = re.compile(
    r"`(?:\w+ )?([A-Za-z_][\w:.]*)(?:\(\))?`\s+(?:\(|in |of )`([\w./-]+\.\w+)`")
# Names with a word for which the reader puts another one: add_NAME().
PLACEHOLDER = re.compile(r"(?:^|_)[A-Z]{2,}(?:_|$)")
# The guide's example of how constants are named.
EXAMPLES = {"kConstant"}
TYPE = re.compile(r"\b(?:class|struct|union|enum(?: class)?)\s+(\w+)(?:\s+final)?"
                  r"(?:\s*:\s*([^;{}()]*))?\s*\{")
WORD = re.compile(r"\w+")


def pages(root):
    yield root / "CONTRIBUTING.md"
    yield from sorted((root / "docs").glob("*.md"))
    for top in ("lib", "apps"):
        yield from sorted((root / top).rglob("README.md"))


def code_of(root):
    """Returns the code of all sources of C++ without comments, and that of all Python files."""
    cpp, python = [], []
    for top in ("lib", "apps", "tests", "scripts"):
        for path in sorted((root / top).rglob("*")):
            if path.suffix in SUFFIXES:
                cpp.append(without_comments(path.read_text()))
            elif path.suffix == ".py":
                python.append(path.read_text())
    return "\n".join(cpp), "\n".join(python)


def body_at(text, begin):
    """Returns the text from `begin` up to the brace that closes the one before it."""
    depth = 1
    for brace in re.finditer(r"[{}]", text[begin:]):
        depth += 1 if brace.group() == "{" else -1
        if depth == 0:
            return text[begin:begin + brace.start()]
    return text[begin:]


class Names:
    """Holds the names that the code of a folder has."""

    def __init__(self, root):
        self.cpp, python = code_of(root)
        self.words = set(WORD.findall(self.cpp))
        self.functions = set(re.findall(r"\b(\w+)\s*(?:<[\w:, ]*>)?\(", self.cpp))
        self.functions |= set(re.findall(r"\b(\w+) = \[", self.cpp))
        self.functions |= set(re.findall(r"^\s*def (\w+)\(", python, re.M))
        self.wanted, self.members, self.bases = set(), {}, {}

    def read_types(self, wanted):
        """Reads the words in the bodies of these types, and of those that they derive from."""
        for match in TYPE.finditer(self.cpp):
            name = match.group(1)
            self.bases.setdefault(name, set()).update(WORD.findall(match.group(2) or ""))
        todo = set(wanted)
        while todo:
            self.wanted |= todo
            todo = set().union(*(self.bases.get(name, set()) for name in todo)) - self.wanted
        for match in TYPE.finditer(self.cpp):
            if match.group(1) in self.wanted:
                self.members.setdefault(match.group(1), set()).update(
                    WORD.findall(body_at(self.cpp, match.end())))

    def has_member(self, name, member):
        if member in self.members.get(name, ()):
            return True
        if any(self.has_member(base, member) for base in self.bases.get(name, ())
               if base != name and base in self.wanted):
            return True
        return re.search(rf"\b{name}::{member}\b", self.cpp) is not None


def words_of_file(path):
    """Returns the words of a source, without comments if it is of C++."""
    text = path.read_text()
    return set(WORD.findall(without_comments(text) if path.suffix in SUFFIXES else text))


def faults_of_files(root, texts):
    """Yields the names that do not occur in the file that a page writes beside them."""
    files = {}
    for top in ("lib", "apps", "tests", "scripts"):
        for path in sorted((root / top).rglob("*.*")):
            files.setdefault(path.name, []).append(path)
    for page, text in texts.items():
        for name, place in NAME_AND_FILE.findall(text):
            words = set(re.split(r"::|\.", name))
            found = [path for path in files.get(pathlib.PurePath(place).name, [])
                     if f"/{path.relative_to(root)}".endswith(f"/{place}")]
            if found and not any(words <= words_of_file(path) for path in found):
                yield f"{page.relative_to(root)}: `{name}`: does not occur in {place}"


def faults(root):
    plain = {page: FENCE.sub("", page.read_text()) for page in pages(root)}
    yield from faults_of_files(root, plain)
    texts = {page: CODE.findall(text) for page, text in plain.items()}
    names = Names(root)
    names.read_types({name for codes in texts.values() for code in codes
                      for name, _ in MEMBER.findall(code)})
    for page, codes in texts.items():
        for code in codes:
            for what in faults_of(names, code):
                yield f"{page.relative_to(root)}: `{code}`: {what}"


def faults_of(names, code):
    """Yields what is wrong with a text in backticks."""
    for function in FUNCTION.findall(code):
        if not PLACEHOLDER.search(function) and function not in names.functions:
            yield f"no source has a function {function}()"
    for constant in CONSTANT.findall(code):
        if constant not in EXAMPLES and constant not in names.words:
            yield f"no source has {constant}"
    for name, member in MEMBER.findall(code):
        if not PLACEHOLDER.search(member) and not names.has_member(name, member):
            yield f"no source has a member {member} of {name}"


def self_check(folder):
    """Checks that the check can fail, in each of its ways."""
    (folder / "docs").mkdir()
    (folder / "lib").mkdir()
    (folder / "lib" / "a.h").write_text(
        "struct Base { int inherited = 0; };\n"
        "class Named final : public Base {\n public:\n  int made();  // unmade()\n"
        "  enum class Kind { kOne };\n};\n"
        "int outer(Named named) { return Far::away(named); }\n")
    (folder / "lib" / "README.md").write_text(
        "`made()` `unmade()` `kOne` `kTwo` `Named::made()` `Named::Kind` `Named::inherited` "
        "`Named::outer` `Far::away` `add_NAME()` `outer(named)`\n```\n`gone()`\n```\n")
    (folder / "docs" / "page.md").write_text("`x.outer()` and `Base::made`\n")
    (folder / "docs" / "places.md").write_text(
        "`made()` (`lib/a.h`), `int made`\n(`a.h`), `Named::made` in `a.h`, `kOne` (`b.h`), "
        "`outer()` (`lib/a.h`), `away()` (`lib/b.h`), `made()` of `lib/b.h`\n")
    (folder / "lib" / "b.h").write_text("int away();  // kOne\n")
    (folder / "CONTRIBUTING.md").write_text("`kConstant`\n")
    found = list(faults(folder))
    assert found == ["docs/places.md: `kOne`: does not occur in b.h",
                     "docs/places.md: `made`: does not occur in lib/b.h",
                     "docs/page.md: `Base::made`: no source has a member made of Base",
                     "lib/README.md: `unmade()`: no source has a function unmade()",
                     "lib/README.md: `kTwo`: no source has kTwo",
                     "lib/README.md: `Named::outer`: no source has a member outer of Named"], found


def main():
    with tempfile.TemporaryDirectory() as folder:
        self_check(pathlib.Path(folder))
    all_faults = list(faults(ROOT))
    print("\n".join(all_faults) or f"names: {len(list(pages(ROOT)))} pages, no fault")
    sys.exit(1 if all_faults else 0)


main()
