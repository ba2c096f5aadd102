"""The pages of the documentation, and the blocks of commands in them, as tests run them."""

import re
import typing

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
HEREDOC = re.compile(r"<<'(\w+)'$")


class Block(typing.NamedTuple):
    """A fenced block of a page: its first line's number, its label (sh: commands) and its text."""

    page: str
    line: int
    label: str
    text: str

    def __str__(self):
        return f"{self.page}:{self.line}"


def pages(source):
    """Returns the paths, relative to the repository, of all pages to which its readers are sent."""
    docs = sorted(path.relative_to(source).as_posix() for path in (source / "docs").glob("*.md"))
    return ["README.md", "CONTRIBUTING.md", *docs]


def blocks(source, page):
    """Yields all fenced blocks of a page, in order."""
    text = (source / page).read_text()
    for found in BLOCK.finditer(text):
        line = text.count("\n", 0, found.start()) + 2
        yield Block(page, line, found[1], found[2])


def command_blocks(source, page):
    """Returns the texts of a page's blocks of commands, in order."""
    return [block.text for block in blocks(source, page) if block.label == "sh"]


def commands(text):
    """Returns the commands of a block, each with its continuation lines and its here-document."""
    found, end = [], None
    for line in text.splitlines():
        if end is None and not (found and found[-1].endswith("\\")):
            found.append(line)
        else:
            found[-1] += f"\n{line}"
        if end is None:
            opened = HEREDOC.search(line)
            end = opened[1] if opened else None
        elif line == end:
            end = None
    assert end is None, f"no line {end} in\n{text}"
    return [command for command in found if command.strip()]
