"""Replaces only outputs that ftrun or its scripts wrote and that nobody has changed since.

A folder is marked by a file in it that lists every other file with its size and checksum
(docs/checkpoint.md has the format; lib/checkpoint/output_mark.h is the same in C++)."""
import contextlib
import ctypes
import errno
import fcntl
import json
import os
import re
import secrets
import shutil
import stat
import sys

import xxhash

from script_errors import UserError, with_filename

MARK = "ftrun-output.json"
RENAME_NOREPLACE, RENAME_EXCHANGE = 1, 2
UNSUPPORTED = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)  # the file system has no such call


def file_xxh3(path):
    """Returns the checksum of a file in hexadecimal."""
    digest = xxhash.xxh3_64()
    with open(path, "rb") as file:
        while chunk := file.read(1 << 22):
            digest.update(chunk)
    return digest.hexdigest()


def is_unchanged(path, size, xxh3):
    """Returns whether a path is a regular file of this size and checksum."""
    status = os.lstat(path)
    return stat.S_ISREG(status.st_mode) and status.st_size == size and file_xxh3(path) == xxh3


def sync(file):
    """Writes the buffered data of an open file to the disk."""
    file.flush()
    os.fsync(file.fileno())


def sync_folder(folder):
    """Syncs a folder if the file system supports that. File systems that do not support it keep the
    order of renames themselves. SMB servers return EBADF."""
    descriptor = os.open(folder or ".", os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (*UNSUPPORTED, errno.EBADF):
            raise
    finally:
        os.close(descriptor)


def _id():
    """Returns 8 random hexadecimal digits, at least one of them a letter, so that the id cannot be
    confused with a date."""
    while not re.search("[a-f]", digits := secrets.token_hex(4)):
        pass
    return digits


def write_synced(path, text):
    """Writes a file atomically: after a failure or a crash at any moment, it holds either the whole
    new text or the old text."""
    temporary = f"{path}.tmp-{_id()}"
    with open(temporary, "x", encoding="utf-8") as file:
        file.write(text)
        sync(file)
    os.replace(temporary, path)
    sync_folder(os.path.dirname(path))


def resolve_output(folder):
    """Returns the path of the folder with links resolved."""
    if os.path.islink(folder) and not os.path.exists(folder):
        raise UserError(f"{folder}: is a link to {os.readlink(folder)}, which does not exist")
    target = os.path.realpath(folder)
    if os.path.exists(target) and not os.path.isdir(target):
        raise UserError(f"{folder}: is not a folder")
    return target


# ---- a folder that is written and replaced as a whole ----


def _write_mark(folder, complete):
    records = [{"name": name, "bytes": os.path.getsize(os.path.join(folder, name)),
                "xxh3": file_xxh3(os.path.join(folder, name))}
               for name in sorted(os.listdir(folder)) if name != MARK]
    mark = {"format": "ftrun-output", "version": 1, "complete": complete, "files": records}
    write_synced(os.path.join(folder, MARK), json.dumps(mark, indent=2) + "\n")


def _recorded_name(record):
    """Returns the file name in a record. A name that is not UTF-8 is recorded as hexadecimal
    digits, too, which are used then."""
    return os.fsdecode(
        bytes.fromhex(record["name_hex"])) if "name_hex" in record else record["name"]


def _read_mark(folder):
    """Returns (bytes, xxh3) of each file by name; None if there is no mark that can be read."""
    try:
        with open(os.path.join(folder, MARK), encoding="utf-8") as file:
            mark = json.load(file)
        if mark["format"] != "ftrun-output":
            return None
        return {_recorded_name(record): (record["bytes"], record["xxh3"])
                for record in mark["files"]}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def holds_all(folder):
    """Returns whether these scripts or ftrun wrote a folder, and it still has all its files."""
    written = _read_mark(folder)
    return written is not None and all(os.path.isfile(os.path.join(folder, name))
                                       for name in written)


def refuse_foreign_folder(target):
    """Raises an error unless the folder is absent, empty, or exactly as it was written. The error
    names the files that differ."""
    names = sorted(os.listdir(target)) if os.path.isdir(target) else []
    if not names:
        return
    written = _read_mark(target)
    if written is None:
        raise UserError(f"{target}: is not replaced: it holds no {MARK}, so ftrun did not write "
                        "it; choose another --out, or move it away")
    changes = [f"{name} was added" for name in names if name != MARK and name not in written]
    changes += [f"{name} was changed" for name in names
                if name in written and not is_unchanged(os.path.join(target, name), *written[name])]
    changes += [f"{name} was removed" for name in written if name not in names]
    if changes:
        raise UserError(f"{target}: is not replaced: since it was written, "
                        f"{', '.join(changes[:5])}; choose another --out, or move it away")


def _renameat2(source, target, flags):
    """Renames with flags; returns False if the file system does not support that."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    at_cwd = -100  # AT_FDCWD
    if renameat2(at_cwd, os.fsencode(source), at_cwd, os.fsencode(target), flags) == 0:
        return True
    number = ctypes.get_errno()
    if number in UNSUPPORTED:
        return False
    raise OSError(number, os.strerror(number), target)


def _exchange(a, b):
    """Swaps two names; returns False if the file system does not support that."""
    return _renameat2(a, b, RENAME_EXCHANGE)


def move_into_place(source, target):
    """Moves a file to a name that must not exist; raises FileExistsError if it does. Uses the first
    of these that the file system supports: a rename that does not replace; a hard link; making an
    empty file first and replacing it."""
    if _renameat2(source, target, RENAME_NOREPLACE):
        return
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in (*UNSUPPORTED, errno.EPERM):
            raise
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
        os.replace(source, target)


def _move_aside(source, target):
    """Moves the old folder aside and the new folder to its place; returns the new path of the old
    folder."""
    old = f"{target}.replaced-{_id()}"
    os.rename(target, old)
    try:
        os.rename(source, target)
    except OSError:
        os.rename(old, target)
        raise
    return old


def _put_in_place(source, target):
    old = None
    if not os.path.exists(target):
        os.rename(source, target)
    else:
        old = source if _exchange(source, target) else _move_aside(source, target)
    sync_folder(os.path.dirname(target))
    if old:
        _discard(old, target)


def _discard(old, target):
    """Removes the old folder. It gets a temporary name first, because the rest of an interrupted
    removal must not look like a complete folder. A failure is only a warning: a network file system
    keeps a folder as long as a process reads a file in it."""
    try:
        leftover = old
        if old.startswith(f"{target}.replaced-"):
            leftover = f"{target}.tmp-{_id()}"
            os.rename(old, leftover)
        _remove(leftover)
    except OSError as error:
        print(f"warning: {target}: the replaced folder could not be removed: {error}",
              file=sys.stderr)


def _remove(folder):
    """Removes a folder, and its mark last, so that the leftovers of an interrupted removal can
    still be recognized."""
    for entry in os.scandir(folder):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        elif entry.name != MARK:
            os.remove(entry.path)
    shutil.rmtree(folder)


def _lock(descriptor):
    """Locks a folder; returns False if another process has locked it. Returns True on a file system
    without locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


@contextlib.contextmanager
def _opened(folder):
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _is_held(folder):
    with _opened(folder) as descriptor:
        return not _lock(descriptor)


def recover(target):
    """Recovers after a kill: restores a folder that was moved aside if nothing took its place, and
    removes other leftovers. Does not touch a folder that another process is writing."""
    parent, name = os.path.split(target)
    if not os.path.isdir(parent):
        return
    for entry in os.listdir(parent):
        match = re.fullmatch(re.escape(name) + r"\.(tmp|replaced)-(?=\d*[a-f])[0-9a-f]{8}", entry)
        path = os.path.join(parent, entry)
        if not match or os.path.islink(path) or not os.path.isdir(path) or _is_held(path):
            continue
        # The mark is the first file in a folder, and is written under a temporary name first.
        if _read_mark(path) is None and not all(n.startswith(MARK + ".tmp")
                                                for n in os.listdir(path)):
            continue
        if match.group(1) == "replaced" and not os.path.exists(target):
            os.rename(path, target)
        else:
            _discard(path, target)


@contextlib.contextmanager
def new_folder(out):
    """Yields a folder to fill. At the end it has the name `out`, complete and synced; if an error
    occurs, nothing has changed. Refuses to replace files that were not written by these scripts or
    ftrun; checks this before and after."""
    target = resolve_output(out)
    recover(target)
    refuse_foreign_folder(target)
    temporary = f"{target}.tmp-{_id()}"
    os.makedirs(temporary)
    with with_filename(out), _opened(temporary) as descriptor:
        _lock(descriptor)
        try:
            _write_mark(temporary, complete=False)
            yield temporary
            for name in os.listdir(temporary):
                with open(os.path.join(temporary, name), "rb") as file:
                    os.fsync(file.fileno())
            _write_mark(temporary, complete=True)
            refuse_foreign_folder(target)  # again: filling the folder may have taken long
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        _put_in_place(temporary, target)
