"""What the scripts refuse, each with the exit code of docs/errors.md."""


class UserError(Exception):
    """Something the user can put right; shown without a stack trace."""

    exit_code = 4


class UsageError(UserError):
    exit_code = 2


class MissingPackage(UserError):
    exit_code = 5


class BadDocument(UserError):
    """One document that cannot be used; the others may be."""
