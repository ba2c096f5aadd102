"""Runs scripts that are killed in the middle of their work, to test what they leave."""
import os


def survives_kill_at(call_number, prepare, run):
    """Runs `run`, which returns an exit code, in a child process. The child ends, as if by SIGKILL,
    before call `call_number` of the functions that `prepare(ending)` has wrapped. Returns whether
    `run` reached its end."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    calls = 0

    def ending(function):
        def call(*a, **k):
            nonlocal calls
            calls += 1
            return os._exit(9) if calls > call_number else function(*a, **k)
        return call

    prepare(ending)
    os._exit(run())
