"""What the scripts refuse, each with the exit code of docs/errors.md."""


import sys


class UserError(Exception):
    """Something the user can put right; shown without a stack trace."""

    exit_code = 4


class UsageError(UserError):
    exit_code = 2


class MissingPackage(UserError):
    exit_code = 5


class BadDocument(UserError):
    """One document that cannot be used; the others may be."""


def run(name, work):
    """What `work` of the script `name` refuses, and what the machine does, as a line and an exit code; 0 where
    it comes to its end."""
    try:
        work()
    except UserError as error:
        print(f"{name}: error: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        print(f"{name}: error: {place}{error.strerror or error}", file=sys.stderr)
        return 5
    except KeyboardInterrupt:
        print(f"{name}: stopped", file=sys.stderr)
        return 130
    return 0
