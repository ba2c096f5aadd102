"""Checks input files: the encoding of a text, and whether a file is only a pointer to the real file
(Git LFS)."""
import codecs
import os
import shlex

from script_errors import UserError

LFS_HEAD = b"version https://git-lfs.github.com/spec/v1"
# UTF-32 comes first, because its little-endian mark begins with that of UTF-16.
MARKS = ((codecs.BOM_UTF32_LE, "UTF-32", "utf-32-le"), (codecs.BOM_UTF32_BE, "UTF-32", "utf-32-be"),
         (codecs.BOM_UTF16_LE, "UTF-16", "utf-16-le"), (codecs.BOM_UTF16_BE, "UTF-16", "utf-16-be"),
         (codecs.BOM_UTF8, "UTF-8", "utf-8"))
HEAD_BYTES = 1 << 12


def refuse_pointer(path, head):
    """Raises an error if the first bytes show that the file is a Git LFS pointer."""
    if head.startswith(LFS_HEAD):
        folder, name = os.path.split(os.path.abspath(path))
        raise UserError(f"{path}: is a pointer of Git LFS, and the file itself was not fetched; "
                        f"fetch it: git -C {shlex.quote(folder)} lfs pull --include "
                        f"{shlex.quote(name)}")


def head_of(path, size=HEAD_BYTES):
    """Returns the first bytes of a file."""
    with open(path, "rb") as file:
        return file.read(size)


def refuse_pointers(paths):
    """Raises an error if one of the files is a Git LFS pointer."""
    for path in paths:
        if os.path.isfile(path):
            refuse_pointer(path, head_of(path, len(LFS_HEAD)))


def bom_encoding(head):
    """Returns (name, Python's name) of the encoding whose byte order mark begins a text; None if it
    has no mark."""
    return next(((name, codec) for mark, name, codec in MARKS if head.startswith(mark)), None)


def utf16_or_32_encoding(head):
    """Returns (name, Python's name) of the encoding of a text in UTF-16 or UTF-32, detected by its
    mark or by its content; None for any other text."""
    by_mark = bom_encoding(head)
    if by_mark:
        return by_mark if by_mark[0] != "UTF-8" else None
    nuls = head.count(0)
    if not nuls or (nuls < len(head) // 5 and is_utf8(head)):
        return None  # text in an 8-bit encoding contains no NUL
    candidates = [(count_ascii(head, codec), name, codec) for _, name, codec in MARKS[:-1]]
    best = max(candidates, key=lambda candidate: candidate[0])
    return best[1:] if best[0] else None


def count_ascii(head, codec):
    """Returns the number of ASCII characters of a text in an encoding; 0 if it cannot be
    decoded."""
    width = 4 if "32" in codec else 2
    try:
        text = codecs.getincrementaldecoder(codec)().decode(head[:len(head) // width * width])
    except UnicodeDecodeError:
        return 0
    unprintable = sum(not (c.isprintable() or c in "\r\n\t\f\v") for c in text)
    return sum(c.isascii() for c in text) if 50 * unprintable <= len(text) else 0


def unicode_family(encoding):
    """Returns UTF-8, UTF-16, UTF-32, or Python's name of any other encoding."""
    name = codecs.lookup(encoding).name
    return next((family for family in ("utf-8", "utf-16", "utf-32") if name.startswith(family)),
                name).upper()


def check_encoding(path, head, encoding):
    """Refuses a text whose first bytes show that its encoding is not the expected one."""
    detected = utf16_or_32_encoding(head) or bom_encoding(head)
    expected = codecs.lookup(encoding).name
    if detected is None:
        has_wide_units = unicode_family(encoding) in ("UTF-16", "UTF-32")
        if has_wide_units and head and b"\0" not in head and is_utf8(head):
            raise UserError(f"{path}: is UTF-8 or ASCII, not {unicode_family(encoding)}; leave out "
                            f"--encoding {encoding}")
        return
    name, codec = detected
    has_mark = bom_encoding(head) is not None
    # Python assumes the byte order of the machine if there is no byte order mark
    by_machine = expected == name.lower() and not has_mark and codec.endswith("-be")
    is_expected = expected in (name.lower(), f"{name.lower()}-sig", codec)
    if unicode_family(encoding) == name and is_expected and not by_machine:
        return
    order = {"-le": "little-endian, ", "-be": "big-endian, "}.get(codec[-3:], "")
    remedy = (f"leave out --encoding {encoding}" if name == "UTF-8"
              else f"give --encoding {name.lower() if has_mark else codec}")
    evidence = "by its byte order mark" if has_mark else "without a byte order mark"
    raise UserError(f"{path}: is {name} ({order}{evidence}), expected {encoding}; {remedy}")


def is_utf8(head):
    """Returns whether bytes are the beginning of a UTF-8 text."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False
    return True


def decode_text(raw, encoding):
    """Returns the text of bytes, without a byte order mark. Raises UnicodeError."""
    return raw.decode(encoding).removeprefix("\ufeff")


def read_text(path):
    """Reads a whole UTF-8 text, such as the JSON of a model folder. Raises UserError."""
    with open(path, "rb") as file:
        raw = file.read()
    refuse_pointer(path, raw)
    detected = utf16_or_32_encoding(raw[:HEAD_BYTES])
    if detected:
        name, codec = detected
        raise UserError(f"{path}: is {name}, expected UTF-8; convert it to UTF-8, for example: "
                        f"iconv -f {codec.upper()} -t UTF-8 OLD > NEW")
    try:
        return decode_text(raw, "utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}: byte {error.start} is not UTF-8; convert the file to UTF-8") from None
