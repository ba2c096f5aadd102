"""A share of what preempt.py counts: stop signals at random instants over phases and layouts, each of which ends the run in time;
what goes on has the bits of an undisturbed run. The seed is another one each day."""
import tempfile
import time

from preempt import Contract
from runner import case, preload, run_cases

with tempfile.TemporaryDirectory() as scratch:
    preload()

    @case
    def stops_at_random_instants_resume_bitwise():
        print(Contract(scratch, int(time.time()) // 86400).make(6), flush=True)

    run_cases()
