"""Errors of the scripts, with the exit codes of docs/errors.md, and functions that end a script."""
import contextlib
import errno
import os
import sys
import traceback

DEBUG = "--debug"
# Remedies by errno.
REMEDIES = {
    errno.ENOSPC: "free some space there, or name a place on another disk",
    errno.EDQUOT: "the quota is used up: free some space there, or name another place",
    errno.EFBIG: "files may not be that large here: see ulimit -f and the file system's own limit",
    errno.EACCES: "see the permissions of the file and of its folders, or name another place",
    errno.EPERM: "see the permissions of the file and of its folders, or name another place",
    errno.EROFS: "name a place that can be written to",
    errno.ENOENT: "see whether the path is right",
    errno.ENOTDIR: "a part of the path is a file; name another place",
    errno.EISDIR: "name a file; this is a folder",
    errno.EMFILE: "more open files are needed: see ulimit -n",
    errno.ENFILE: "the machine has too many open files: end other programs",
    errno.ENOMEM: "more memory is needed: end other programs, or see ulimit -v",
    errno.EAGAIN: "more processes are needed: see ulimit -u, or use fewer",
    errno.ENAMETOOLONG: "use shorter names",
    errno.ELOOP: "links lead in a circle; name the file itself",
    errno.EIO: "the disk or its network failed: see the system's log (dmesg)",
    errno.ESTALE: "the network file system lost the file: mount it again",
    errno.ENODEV: "the file system does not offer this; name a place on another one",
}


class UserError(Exception):
    """An error that the user can correct; shown without a stack trace."""

    exit_code = 4


class UsageError(UserError):
    """An error of the command line."""

    exit_code = 2


class MissingPackage(UserError):
    """An error of a Python package that is not installed."""

    exit_code = 5


class MachineError(UserError):
    """An error of the machine, such as missing space; the input is not at fault."""

    exit_code = 5


class BadDocument(UserError):
    """An error of one document. Other documents may still be usable."""


# ---- streams ----


class Stream:
    """Standard output or standard error that never makes a script fail. Characters that it cannot
    show are escaped. Once its reader has gone or its disk is full, further output is lost."""

    def __init__(self, stream):
        self._stream, self.lost = stream, None

    def __getattr__(self, name):
        return getattr(self._stream, name)

    def write(self, text):
        return self._attempt(lambda: self._stream.write(printable(text)), len(text))

    def flush(self):
        self._attempt(self._stream.flush, None)

    def _attempt(self, work, otherwise):
        try:
            return work()
        except UnicodeEncodeError:  # a stream that cannot escape characters
            return otherwise
        except (OSError, ValueError) as error:
            if not isinstance(error, BrokenPipeError):  # the reader has gone and needs no error
                self.lost = self.lost or error
            self._discard()
            return otherwise

    def _discard(self):
        """Discards the rest of the buffer, because writing it would fail again when Python
        exits."""
        try:
            void = os.open(os.devnull, os.O_WRONLY)
            os.dup2(void, self._stream.fileno())
            os.close(void)
        except (OSError, ValueError):
            pass


def prepare_streams():
    """Prepares standard output and error for any encoding, and for streams that are closed."""
    # If a standard stream is closed, the next file that is opened would get its number.
    while (free := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(free)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            stream = open(os.devnull, "w", encoding="utf-8")
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
        if not isinstance(stream, Stream):
            setattr(sys, name, Stream(stream))


def printable(text):
    """Returns a text that can be encoded in UTF-8. Bytes of file names that Python could not decode
    are shown as they are, or escaped."""
    if text.isascii():
        return text
    try:
        return text.encode("utf-8",
                           errors="surrogateescape").decode("utf-8", errors="backslashreplace")
    except UnicodeEncodeError:
        return text.encode("utf-8", errors="backslashreplace").decode("utf-8")


@contextlib.contextmanager
def with_filename(path):
    """Adds the name of `path` to errors of the machine that name no file, such as those of
    writing."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = path
        raise


# ---- ends ----


def run(name, work):
    """Runs `work` of the script `name` and returns its exit code. An error is printed as one line,
    with --debug after its stack trace."""
    prepare_streams()
    try:
        code = attempt(name, work)
    finally:
        sys.stdout.flush()
        if sys.stdout.lost:
            print(f"{name}: warning: a part of the output could not be written: {sys.stdout.lost}",
                  file=sys.stderr)
        sys.stderr.flush()
    return code


def attempt(name, work):
    """Runs `work` and returns its exit code; an error is printed."""
    try:
        work()
    except BaseException as error:
        if isinstance(error, SystemExit):
            raise
        if DEBUG in sys.argv:
            traceback.print_exc()
        line, code = explain(error)
        print(f"{name}: {line}", file=sys.stderr)
        return code
    return 0


def explain(error):
    """Returns (line to print, exit code) for an error."""
    if isinstance(error, UserError):
        return f"error: {error}", error.exit_code
    if isinstance(error, KeyboardInterrupt):
        return "stopped", 130
    if isinstance(error, MemoryError):
        return f"error: out of memory; {REMEDIES[errno.ENOMEM]}", 5
    if isinstance(error, OSError):
        place = f"{error.filename}: " if error.filename else ""
        remedy = REMEDIES.get(error.errno)
        return f"error: {place}{error.strerror or error}" + (f"; {remedy}" if remedy else ""), 5
    if isinstance(error, ImportError):
        return f"error: {error}; run scripts/setup.sh, which installs the packages again", 5
    line = f"{type(error).__name__}: {error}".splitlines()[0]
    return (f"error: a defect of this script: {line}; please report it with the output of {DEBUG}",
            1)


def install_excepthook(name):
    """Makes errors before run(), such as a package that cannot be imported, end the script in the
    same way."""
    def hook(kind, error, trace):
        prepare_streams()
        if DEBUG in sys.argv:
            traceback.print_exception(kind, error, trace)
        line, code = explain(error)
        print(f"{name}: {line}", file=sys.stderr, flush=True)
        sys.stdout.flush()
        os._exit(code)

    sys.excepthook = hook
    prepare_streams()


def add_debug(parser):
    """Adds the option --debug to a command line."""
    parser.add_argument(DEBUG, action="store_true", help="show the stack trace of an error")
