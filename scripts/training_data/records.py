"""Reads documents: finds the input files, detects their formats, and yields the objects or texts in
them."""
import collections
import contextlib
import glob
import gzip
import importlib.util
import io
import json
import os
import re
import stat
import zlib

from script_errors import BadDocument, MissingPackage, UserError
from text_files import (HEAD_BYTES, check_encoding, decode_text, read_text, refuse_pointers,
                        unicode_family, utf16_or_32_encoding)

TEXT_EXTENSIONS = (".txt", ".text", ".md")
LINE_EXTENSIONS = (".jsonl", ".ndjson")
ARROW_EXTENSIONS = (".arrow", ".feather")
COMPRESSIONS = {".gz": "gzip", ".gzip": "gzip", ".zst": "zstd", ".zstd": "zstd"}
MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
# Names of files in a folder that are not data, and words in names that say to which split a file
# belongs (as the Hub interprets them).
CARD = re.compile("(readme|licen[cs]e|copying|notice|citation|changelog|contributing|"
                  "code_of_conduct|security|datasheet|dataset_card|data_card)",
                  re.IGNORECASE)
SPLIT_WORDS = {**dict.fromkeys(("train", "training"), "train"),
               **dict.fromkeys(("validation", "valid", "val", "dev"), "validation"),
               **dict.fromkeys(("test", "testing", "eval", "evaluation"), "test")}
ARROW_ROWS = 256  # rows that are Python objects at a time

# A document before it is tokenized: its file, its location in the file, its size in bytes for the
# progress bar, and its content: a text, an object, a line that is not parsed yet (bytes), or a
# BadDocument.
Document = collections.namedtuple("Document", "path location size content")


# ---- which files ----


def input_files(patterns):
    """Returns (the files, a sentence for each kind of file in the folders that is not read)."""
    paths, left_out = [], []
    for pattern in patterns:
        if os.path.isdir(pattern):
            files, sentences = folder_files(pattern)
            paths, left_out = paths + files, left_out + sentences
            continue
        matches = [pattern] if os.path.exists(pattern) else sorted(glob.glob(pattern))
        if not matches:
            raise UserError(f"{pattern}: no such file")
        paths += matches
    for path in paths:
        if not os.path.exists(path):
            raise UserError(f"{path}: is a link to {os.readlink(path)}, and there is no such file"
                            if os.path.islink(path) else
                            f"{path}: no such file")
        if not stat.S_ISREG(os.stat(path).st_mode) and not os.path.isdir(path):
            raise UserError(f"{path}: is a pipe or a device, which can be read only once; write it "
                            "to a file first")
    refuse_pointers(paths)
    return paths, left_out


def folder_files(folder):
    """Returns (the training files of a folder, a sentence for each kind of file that is not
    read)."""
    if os.path.isfile(os.path.join(folder, "dataset_dict.json")):
        return split_files(folder), []
    if os.path.isfile(os.path.join(folder, "state.json")):
        return arrow_folder_files(folder), []
    paths = sorted(glob.glob(os.path.join(glob.escape(folder), "**", "*"), recursive=True))
    by_use = collections.defaultdict(list)
    for path in paths:
        if os.path.isfile(path) or not os.path.exists(path):
            by_use[purpose_of_file(os.path.relpath(path, folder))].append(path)
    splits = [split for split in ("validation", "test") if by_use[split]]
    if not by_use["train"] and splits:
        raise UserError(f"{folder}: holds {' and '.join(splits)} files only; name the files to "
                        "train on")
    if not by_use["train"]:
        raise UserError(f"{folder}: holds no {', '.join(TEXT_EXTENSIONS)}, .jsonl or .parquet "
                        "file; name files of other kinds to read them")
    left_out = [f"{folder}: its {split} files are left out: {shortened_list(by_use[split], folder)}"
                for split in splits]
    if by_use["card"]:
        left_out.append(f"{folder}: cards and licenses are left out: "
                        f"{shortened_list(by_use['card'], folder)}")
    if by_use["other"]:
        left_out.append(f"{folder}: files of other kinds are left out unless they are named: "
                        f"{shortened_list(by_use['other'], folder)}")
    return by_use["train"], left_out


def purpose_of_file(name):
    """Returns the purpose of a file in a folder, by its name: train, validation, test, card or
    other."""
    extension = name_and_compression(name)[1]
    if extension not in (*TEXT_EXTENSIONS, *LINE_EXTENSIONS, ".parquet"):
        return "card" if CARD.match(os.path.basename(name)) else "other"
    if extension in TEXT_EXTENSIONS and CARD.match(os.path.basename(name)):
        return "card"
    for part in reversed(name.split(os.sep)):
        for word in re.split("[^a-z]+", part.lower()):
            if word in SPLIT_WORDS:
                return SPLIT_WORDS[word]
    return "train"


def shortened_list(paths, folder, max_names=5):
    """Returns the names of files in a folder for a message; names after the first are counted."""
    names = [os.path.relpath(path, folder) for path in paths]
    more = f" and {len(names) - max_names} more" if len(names) > max_names else ""
    return ", ".join(names[:max_names]) + more


def split_files(folder):
    """Returns the files of a DatasetDict that the package datasets saved."""
    splits = read_json(os.path.join(folder, "dataset_dict.json")).get("splits", [])
    if len(splits) != 1:
        raise UserError(f"{folder}: holds the splits {', '.join(splits)}; name one of them, such "
                        f"as {os.path.join(folder, splits[0] if splits else 'train')}")
    return arrow_folder_files(os.path.join(folder, splits[0]))


def arrow_folder_files(folder):
    """Returns the files, in their order, of a Dataset that the package datasets saved."""
    state = read_json(os.path.join(folder, "state.json"))
    if state.get("_indices_data_files"):
        raise UserError(f"{folder}: its rows are selected by a list of indices, which is not "
                        "supported; call flatten_indices() and save the data set again")
    names = [entry["filename"] for entry in state.get("_data_files", [])]
    paths = [os.path.join(folder, name) for name in names]
    for path in paths:
        if not os.path.isfile(path):
            raise UserError(f"{path}: is missing, though {folder}/state.json lists it")
    if not paths:
        raise UserError(f"{folder}/state.json: lists no data files")
    return paths


def read_json(path):
    """Returns the object of a small JSON file; an empty object if the file does not exist."""
    if not os.path.isfile(path):
        return {}
    try:
        value = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise UserError(f"{path}:{error.lineno}:{error.colno}: {error.msg}") from None
    except (RecursionError, ValueError) as error:
        raise UserError(f"{path}: is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise UserError(f"{path}: expected an object, found a {type(value).__name__}")
    return value


# ---- the format of a file ----


def name_and_compression(path):
    """Returns (the compression according to the name, the extension before that of the
    compression)."""
    stem, extension = os.path.splitext(path.lower())
    if extension in COMPRESSIONS:
        return COMPRESSIONS[extension], os.path.splitext(stem)[1]
    return None, extension


def compression_of(path):
    """Returns the compression of a file, detected by its content, because the name may be wrong."""
    with open(path, "rb") as file:
        head = file.read(4)
    return next((kind for magic, kind in MAGIC.items() if head.startswith(magic)), None)


def kind_of(path, as_text=False):
    """Returns the format of a file: lines, json, parquet, arrow or text. It is detected by name, or
    else by the first bytes."""
    extension = name_and_compression(path)[1]
    for kind, extensions in (("lines", LINE_EXTENSIONS), ("json", (".json",)),
                             ("parquet", (".parquet",)),
                             ("arrow", ARROW_EXTENSIONS), ("text", TEXT_EXTENSIONS)):
        if extension in extensions:
            return kind
    if as_text:
        return "text"
    with open_decompressed(path) as file:
        head = file.read(64)
    for kind, begin in (("parquet", b"PAR1"), ("arrow", b"ARROW1")):
        if head.startswith(begin):
            return kind
    detected = utf16_or_32_encoding(head)
    text = head.decode(detected[1] if detected else "utf-8",
                       errors="replace").removeprefix("\ufeff").lstrip()
    if text[:1] in ("{", "["):
        return "json"
    raise UserError(f"{path}: {', '.join(TEXT_EXTENSIONS)}, .jsonl, .json, .parquet and .arrow "
                    "files are read (also .gz and .zst of them); --as-text reads any other file "
                    "as plain text")


def open_decompressed(path):
    """Opens a file for reading its uncompressed bytes."""
    kind = compression_of(path)
    if kind == "gzip":
        return gzip.open(path, "rb")
    if kind == "zstd":
        return io.BufferedReader(ZstdFile(path, import_package("zstandard", path,
                                                        "a file compressed with zstd")), 1 << 20)
    return open(path, "rb")


class ZstdFile(io.RawIOBase):
    """Reads the zstd frames of a file one after another. Raises EOFError if the last frame is
    truncated; the package's own reader would treat that as the end of the file."""

    def __init__(self, path, zstandard):
        self.file, self.decompressor = open(path, "rb"), zstandard.ZstdDecompressor()
        self.frame, self.ready, self.rest = None, b"", b""

    def readable(self):
        """Returns True: RawIOBase would otherwise refuse to read."""
        return True

    def close(self):
        """Closes the file."""
        self.file.close()
        super().close()

    def readinto(self, buffer):
        """Reads decompressed bytes into a buffer; returns their number, 0 at the end."""
        while not self.ready and self._decompress():
            pass
        part, self.ready = self.ready[:len(buffer)], self.ready[len(buffer):]
        buffer[:len(part)] = part
        return len(part)

    def _decompress(self):
        compressed = self.rest or self.file.read(1 << 17)
        self.rest = b""
        if not compressed:
            if self.frame is not None:
                raise EOFError("the last frame has no end")
            return False
        if self.frame is None:
            self.frame = self.decompressor.decompressobj()
        self.ready = self.frame.decompress(compressed)
        if self.frame.eof:
            self.frame, self.rest = None, self.frame.unused_data
        return True


def import_package(name, path, what):
    """Imports a package that is needed to read `what`; `path` is named if it is not installed."""
    if importlib.util.find_spec(name) is None:
        raise MissingPackage(f"{path}: reading {what} needs the Python package {name}, which is "
                             "not installed; run scripts/setup.sh")
    return importlib.import_module(name)


def decompression_errors():
    """Returns the errors that a damaged or truncated compressed file raises."""
    errors = [EOFError, zlib.error, gzip.BadGzipFile]
    if importlib.util.find_spec("zstandard"):
        errors.append(importlib.import_module("zstandard").ZstdError)
    return tuple(errors)


# ---- documents ----


def documents(paths, encoding, as_text=False):
    """Yields the documents of files, in order."""
    texts = {"lines": line_documents, "json": json_documents, "text": text_documents}
    tables = {"parquet": parquet_documents, "arrow": arrow_documents}
    damage_errors = decompression_errors()
    for path in paths:
        try:
            kind = kind_of(path, as_text)
            if kind in texts:
                yield from texts[kind](path, encoding)
                continue
            if unicode_family(encoding) != "UTF-8":
                raise UserError(f"{path}: --encoding {encoding} applies only to text files; "
                                "tables are always UTF-8; prepare it without that option")
            yield from tables[kind](path)
        except damage_errors as error:
            raise UserError(
                f"{path}: cannot be decompressed: {error}; it is damaged or was cut short"
            ) from None


def text_documents(path, encoding):
    """Yields the document of a text file, unless the file is empty."""
    with open_decompressed(path) as file:
        raw = file.read()
    text = checked_text(path, raw, encoding).replace("\r\n", "\n")
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        yield Document(path, path, len(raw), BadDocument(f"{path}:{line}: {NUL}"))
        return
    if text.strip():
        yield Document(path, path, len(raw), text)


def checked_text(path, raw, encoding):
    """Returns the text of a file, without a byte order mark."""
    check_encoding(path, raw[:HEAD_BYTES], encoding)
    try:
        return decode_text(raw, encoding)
    except UnicodeError as error:
        raise UserError(f"{path}: byte {getattr(error, 'start', 0)} is not {encoding}; "
                        "name the file's encoding with --encoding, such as latin-1") from None


def lines_of(path, encoding):
    """Yields the lines of a file as UTF-8, without byte order marks. A file that was concatenated
    from several files may have a mark at the beginning of any part."""
    with open_decompressed(path) as file:
        check_encoding(path, file.read(HEAD_BYTES), encoding)
    number, as_bytes = 0, unicode_family(encoding) == "UTF-8"
    with open_decompressed(path) as raw, (
            contextlib.nullcontext(raw) if as_bytes
            else io.TextIOWrapper(raw, encoding, newline="\n")) as file:
        try:
            for line in file:
                number += 1
                yield (line if isinstance(line, bytes)
                       else line.encode("utf-8", "surrogatepass")).removeprefix(b"\xef\xbb\xbf")
        except UnicodeError:
            raise UserError(f"{path}: the text after line {number} is not {encoding}; name the "
                            "file's encoding with --encoding") from None


def line_documents(path, encoding):
    """Yields a document for each line that is not empty; the line is not parsed yet."""
    with contextlib.closing(lines_of(path, encoding)) as lines:
        for number, line in enumerate(lines, 1):
            if number == 1 and line.lstrip().startswith(b"["):
                raise UserError(f"{path}: is a JSON array, where each line should be an object; "
                                "rename it to .json")
            if line.strip():
                yield Document(path, f"{path}:{number}", len(line), line)


NUL = ("holds NUL bytes, which no text has; if UTF-16 was appended to a UTF-8 file, convert the "
       "whole file to UTF-8")


def line_content(line, location):
    """Returns the object of a line, or a BadDocument."""
    if b"\0" in line:
        return BadDocument(f"{location}: {NUL}")
    try:
        # The line end is removed, because otherwise the JSON error of a truncated line would name
        # the next line.
        text = line.decode("utf-8").rstrip()
    except UnicodeDecodeError as error:
        return BadDocument(f"{location}: byte {error.start} of the line is not UTF-8; name the "
                           "file's encoding with --encoding, such as latin-1")
    try:
        return object_or_bad(json.loads(text), location)
    except json.JSONDecodeError as error:
        return BadDocument(f"{location}: column {error.colno}: {json_problem(error)}")
    except (RecursionError, ValueError) as error:
        return BadDocument(f"{location}: {error}")


def json_problem(error):
    """Returns the message of a JSON error, which says so if the text was cut short."""
    if error.msg.startswith("Unterminated string"):
        return "the string that begins here has no end"
    at_end = error.pos >= len(error.doc.rstrip())
    return f"{error.msg}, but the text ends here" if at_end else error.msg


def object_or_bad(content, location):
    """Returns an object, or a BadDocument for any other JSON value."""
    if isinstance(content, dict):
        return content
    return BadDocument(f"{location}: expected an object, found {type(content).__name__}")


def json_documents(path, encoding):
    """Yields the documents of an array of objects, or of a file with one object for each line."""
    with open_decompressed(path) as file:
        raw = file.read()
    text = checked_text(path, raw, encoding)
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        if any(isinstance(line_content(line, path), dict) for line in first_lines(text)):
            yield from line_documents(path, encoding)
            return
        raise UserError(
            f"{path}:{error.lineno}: column {error.colno}: {json_problem(error)}; a .json file "
            "must hold an array of objects, or one object per line") from None
    except (RecursionError, ValueError) as error:
        raise UserError(f"{path}: {error}") from None
    if not isinstance(content, (list, dict)):
        raise UserError(f"{path}: a .json file must hold an array of objects, or one object per "
                        f"line; found {type(content).__name__}")
    items = content if isinstance(content, list) else [content]
    for number, item in enumerate(items, 1):
        location = f"{path}: item {number}"
        yield Document(path, location, len(raw) // len(items), object_or_bad(item, location))


def first_lines(text):
    """Returns the first two lines that are not empty: if one is bad, the other may be good."""
    lines = text[:1 << 24].split("\n")
    return [line.encode("utf-8", "surrogatepass") for line in lines if line.strip()][:2]


def parquet_documents(path):
    """Yields a document for each row of a Parquet file."""
    if compression_of(path):
        raise UserError(f"{path}: is a compressed Parquet file, which cannot be read in place; "
                        "decompress it first")
    pyarrow = import_package("pyarrow", path, "Parquet")
    parquet = importlib.import_module("pyarrow.parquet")
    try:
        with parquet.ParquetFile(path) as file:
            yield from row_documents(path, file.iter_batches(batch_size=ARROW_ROWS))
    except pyarrow.ArrowException as error:
        raise UserError(f"{path}: cannot be read as Parquet: {first_line(error)}") from None


def arrow_documents(path):
    """Yields the documents of an Arrow stream, as the package datasets saves it, or of an Arrow
    file with an index (Feather)."""
    if compression_of(path):
        raise UserError(f"{path}: is a compressed Arrow file, which cannot be mapped into memory; "
                        "decompress it first")
    pyarrow = import_package("pyarrow", path, "Arrow")
    ipc = importlib.import_module("pyarrow.ipc")
    with open(path, "rb") as file:
        indexed = file.read(6) == b"ARROW1"
    try:
        with pyarrow.memory_map(path) as mapped:
            if indexed:
                with ipc.open_file(mapped) as reader:
                    yield from row_documents(path,
                                             (reader.get_batch(i)
                                              for i in range(reader.num_record_batches)))
            else:
                with ipc.open_stream(mapped) as reader:
                    yield from row_documents(path, reader)
    except pyarrow.ArrowException as error:
        raise UserError(f"{path}: cannot be read as Arrow: {first_line(error)}") from None


def first_line(error):
    """Returns the first line of an error's message."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def row_documents(path, record_batches):
    """Yields a document for each row of Arrow record batches."""
    number = 0
    for batch in record_batches:
        for begin in range(0, batch.num_rows, ARROW_ROWS):
            part = batch.slice(begin, ARROW_ROWS)
            size = part.nbytes // max(part.num_rows, 1)
            for row in part.to_pylist():
                number += 1
                yield Document(path, f"{path}: row {number}", size, without_nulls(row))


def without_nulls(value):
    """Removes the nulls that Arrow stores for missing keys. Arrow gives all structs of a column the
    same keys, so the arguments of a call would also have the keys of other tools."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value
