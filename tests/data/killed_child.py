"""A script that is killed in the midst of its work, for the tests of what it leaves."""
import os


def ends_before(at, prepare, run):
    """Runs `run`, which returns an exit code, in a child that ends, as if by SIGKILL, before the
    `at`-th call of what `prepare(ending)` has wrapped; returns whether it ran to its end."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    calls = 0

    def ending(function):
        def call(*a, **k):
            nonlocal calls
            calls += 1
            return os._exit(9) if calls > at else function(*a, **k)
        return call

    prepare(ending)
    os._exit(run())
