"""Writes the files of a data set: Megatron's pair, the loss mask, and the record of both; and
decides which files they may replace (docs/data.md has the formats)."""
import contextlib
import fcntl
import json
import os
import re
import shutil
import struct
import tempfile

import numpy as np
import xxhash

from output_mark import file_xxh3, is_unchanged, sync, sync_folder
from script_errors import UserError, with_filename

EXTENSIONS = (".bin", ".idx", ".mask", ".html", ".json")  # of a data set
MEGATRON_CODES = {"uint16": 8, "int32": 4}
FORMAT, UNFINISHED = "ftrun-data", "ftrun-data-unfinished"

# ---- what may be replaced ----


def read_sidecar(prefix):
    """Returns the record of the data set in PREFIX.json; None if the file is missing or another
    program wrote it."""
    try:
        with open(prefix + ".json", encoding="utf-8") as file:
            sidecar = json.load(file)
        known = sidecar["format"] in (FORMAT, UNFINISHED)
        complete = all({"name", "bytes", "xxh3"} <= record.keys()
                       for record in own_records(sidecar))
        return sidecar if known and complete else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def own_records(sidecar):
    """Returns the records of all files that the data set may consist of. A run that was killed
    while it moved its files into place leaves some new and some old files."""
    report = [sidecar["report"]] if "report" in sidecar else []
    return sidecar["files"] + sidecar.get("replaced", []) + report


def refuse_foreign(prefix):
    """Refuses to replace a file that this script did not write, or that was changed since."""
    existing = [e for e in EXTENSIONS if os.path.lexists(prefix + e)]
    sidecar = read_sidecar(prefix)
    for extension in existing:
        path = prefix + extension
        if extension == ".json" and sidecar is not None and not os.path.islink(path):
            continue
        records = [] if sidecar is None else [r for r in own_records(sidecar)
                                           if r["name"] == os.path.basename(path)]
        if any(is_unchanged(path, r["bytes"], r["xxh3"]) for r in records):
            continue
        why = ("was changed since this script wrote it"
               if records else "was not written by this script")
        raise UserError(f"{path}: {why}, so it is not replaced; choose another --out, or move it "
                        "away")


def refuse_own_inputs(inputs, prefixes):
    """Refuses an output that would replace an input, also through hard links, symbolic links, and
    paths with ".."."""
    outputs = [prefix + extension for prefix in prefixes for extension in EXTENSIONS]
    for path in inputs:
        for output in outputs:
            if os.path.realpath(path) == os.path.realpath(output) or (
                    os.path.exists(path) and os.path.exists(output)
                    and os.path.samefile(path, output)):
                raise UserError(f"{path}: is an input and would be replaced by the output "
                                f"{output}; choose another --out")


@contextlib.contextmanager
def staging_folder(out):
    """Yields a temporary folder in OUT in which the files are written. Its lock is held as long as
    the process lives, so that the folder of a killed run is recognized, and two runs cannot mix
    their files."""
    for name in os.listdir(out):
        path = os.path.join(out, name)
        if re.fullmatch(r"\.ftrun-[a-z0-9_]{8}\.tmp", name) and not os.path.islink(path):
            remove_stale(out, path)
    staging = tempfile.mkdtemp(prefix=".ftrun-", suffix=".tmp", dir=out)
    try:
        with with_filename(out), open(os.path.join(staging, "lock"), "w") as lock:
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # not inherited by children
            yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def remove_stale(out, folder):
    """Removes the temporary folder of a killed run; raises an error if its run still lives."""
    try:
        with open(os.path.join(folder, "lock"), "r+") as lock:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        raise UserError(f"{out}: another prepare_data.py is writing there; wait for it") from None
    except OSError:
        # Another program made the folder, or it was made this moment, or the file system has no
        # locks. In these cases it is not known whether the folder is in use.
        return
    # The lock file is closed first, because a network file system keeps an open file, and the
    # folder with it.
    shutil.rmtree(folder, ignore_errors=True)


# ---- writing ----


class DataSetWriter:
    """Writes a data set to a temporary folder. finish() completes it, and move_into_place() moves
    its files to their final names."""

    def __init__(self, folder, prefix, dtype):
        self.prefix, self.dtype = prefix, dtype
        self.staged_prefix = os.path.join(folder, os.path.basename(prefix))
        self.lengths, self.trained_tokens, self.tokens = [], 0, 0
        self.documents_without_labels = 0  # no token after their first one is trained on
        self.conversations = 0  # documents that are chats, or prompts with their answers
        self.min_id, self.max_id = None, -1
        self.longest_conversation = 0  # tokens
        self.page = None
        self.bin = open(self.staged_prefix + ".bin", "xb")
        self.mask = open(self.staged_prefix + ".mask", "xb")
        self.mask.write(bytes(24))  # the header, written last
        self.spare_bits = np.zeros(0, dtype=bool)

    def add(self, ids, trained, conversation):
        """Adds a document. `trained` says which tokens are trained on; `conversation` whether the
        document is a chat, or a prompt with its answer."""
        if ids.size == 0:
            return
        if conversation:
            self.conversations += 1
            self.longest_conversation = max(self.longest_conversation, int(ids.size))
        self.bin.write(ids.astype(np.dtype(self.dtype).newbyteorder("<")).tobytes())
        self.lengths.append(ids.size)
        self.tokens += int(ids.size)
        self.trained_tokens += int(trained.sum())
        self.documents_without_labels += not trained[1:].any()
        low, high = int(ids.min()), int(ids.max())
        self.min_id = low if self.min_id is None else min(self.min_id, low)
        self.max_id = max(self.max_id, high)
        bits = np.concatenate([self.spare_bits, trained])
        complete = bits.size // 8 * 8
        self.mask.write(np.packbits(bits[:complete], bitorder="little").tobytes())
        self.spare_bits = bits[complete:]

    def add_page(self, text):
        """Writes the HTML report. It is not part of the data, so no fingerprint depends on it."""
        with open(self.staged_prefix + ".html", "x", encoding="utf-8") as file:
            file.write(text)
            sync(file)
        self.page = file_record("report", self.staged_prefix + ".html")

    def finish(self, facts):
        """Completes the files. `facts` are further entries of the record in PREFIX.json."""
        self.mask.write(np.packbits(self.spare_bits, bitorder="little").tobytes())
        self.mask.seek(0)
        self.mask.write(b"FTRMASK\0" + struct.pack("<QQ", 1, self.tokens))
        self._write_index()
        for file in (self.bin, self.mask):
            close_synced(file)
        masked = self.trained_tokens < self.tokens
        parts = [("tokens", ".bin"), ("index", ".idx")] + ([("mask", ".mask")] if masked else [])
        files = [file_record(role, self.staged_prefix + extension) for role, extension in parts]
        self.sidecar = {"format": FORMAT, "version": 1, "dtype": self.dtype, "tokens": self.tokens,
                        "documents": len(self.lengths), "conversations": self.conversations,
                        "trained_tokens": self.trained_tokens,
                        "min_id": self.min_id or 0, "max_id": self.max_id,
                        "longest_conversation": self.longest_conversation,
                        **facts, "files": files, "fingerprint": fingerprint(files)}
        if self.page:
            self.sidecar["report"] = self.page

    def close(self):
        """Closes the files; files that are not finished are lost."""
        for file in (self.bin, self.mask):
            file.close()

    def _write_index(self):
        lengths = np.array(self.lengths, dtype="<i4")
        item = np.dtype(self.dtype).itemsize
        ends = np.cumsum(lengths, dtype=np.int64) * item
        begins = np.concatenate([np.zeros(1, np.int64), ends])[:lengths.size].astype("<i8")
        with open(self.staged_prefix + ".idx", "xb") as file:
            file.write(b"MMIDIDX\0\0" + struct.pack("<QB", 1, MEGATRON_CODES[self.dtype]))
            file.write(struct.pack("<QQ", lengths.size, lengths.size + 1))
            file.write(lengths.tobytes() + begins.tobytes())
            file.write(np.arange(lengths.size + 1, dtype="<i8").tobytes())
            sync(file)

    def move_into_place(self):
        """Moves the files to their names. PREFIX.json is written first, and lists all files, old
        and new, that may exist until all have been moved."""
        refuse_foreign(self.prefix)
        old = read_sidecar(self.prefix)
        replaced = own_records(old) if old else []
        self._write_sidecar({**self.sidecar, "format": UNFINISHED, "replaced": replaced})
        names = {record["name"] for record in own_records(self.sidecar)}
        for extension in EXTENSIONS[:-1]:
            path = self.prefix + extension
            if os.path.basename(path) in names:
                os.replace(self.staged_prefix + extension, path)
            elif os.path.lexists(path):
                os.remove(path)  # such as a mask, if the new data set has none
        sync_folder(os.path.dirname(self.prefix))
        self._write_sidecar(self.sidecar)

    def _write_sidecar(self, sidecar):
        with open(self.staged_prefix + ".json", "w", encoding="utf-8") as file:
            json.dump(sidecar, file, indent=2)
            file.write("\n")
            sync(file)
        os.replace(self.staged_prefix + ".json", self.prefix + ".json")
        sync_folder(os.path.dirname(self.prefix))


def close_synced(file):
    """Closes a file after its data are on the disk."""
    sync(file)
    file.close()


def file_record(role, path):
    """Returns the record of a file: its role, name, size, time and checksum."""
    status = os.stat(path)
    return {"role": role, "name": os.path.basename(path), "bytes": status.st_size,
            "modified_ns": status.st_mtime_ns, "xxh3": file_xxh3(path)}


def fingerprint(files):
    """Returns the fingerprint of a data set: a checksum of the records of its files."""
    lines = "".join(f"{f['role']} {f['bytes']} {f['xxh3']}\n" for f in files)
    return xxhash.xxh3_64(lines.encode()).hexdigest()
