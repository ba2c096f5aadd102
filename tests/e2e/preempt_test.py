"""Makes a part of preempt.py's stops: signals at random instants over phases and layouts, each of
which must end the run in time; the resumed run must have the bits of an undisturbed one. The seed
changes every day. Also checks the lead of `--stop-lead`, which a run compares with its
measurements."""

import tempfile
import time

from preempt import PreemptionTrial
from runner import Job, case, manifest, preload, run_cases

with tempfile.TemporaryDirectory() as scratch:
    preload()

    @case
    def stops_at_random_instants_resume_bitwise():
        print(PreemptionTrial(scratch, int(time.time()) // 86400).send_signals(6), flush=True)

    @case
    def lead_that_is_too_short_is_warned_of_and_kept_with_the_run():
        job = Job(scratch)
        few = {"train": {"steps": 3}, "checkpoint": {"every": 1, "background": False}}
        long_enough = job.run("lead", "--nproc", 2, "--stop-lead", 120, **few)
        assert "--stop-lead" not in long_enough.stderr, long_enough.stderr
        counters = manifest(job.out("lead"))["counters"]
        step, save = counters["longest_step_milliseconds"], counters["longest_save_milliseconds"]
        assert (
            counters["stop_lead_milliseconds"] == 120000 and 0 < step < 120000 and 0 < save < 120000
        ), counters
        few["train"]["steps"] = 5
        short = job.run("lead", "--nproc", 2, "--resume", "auto", "--stop-lead", "0.001", **few)
        costs = f"2 x {step / 1e3:.1f} s (longest step) + {save / 1e3:.1f} s (longest save) = "
        warned = [
            line
            for line in short.stderr.splitlines()
            if "--stop-lead 0.0 s is too short: a stop may take " in line
        ]
        # The warning comes before the first step, from what the previous start had measured.
        assert warned and costs in warned[0], f"no {costs!r} in {warned}\n{short.stderr}"
        few["train"]["steps"] = 6
        kept = job.run("lead", "--nproc", 2, "--resume", "auto", **few)
        assert "--stop-lead 0.0 s is too short" in kept.stderr, kept.stderr
        assert manifest(job.out("lead"))["counters"]["stop_lead_milliseconds"] == 1
        refused = job.run("no-lead", "--stop-lead", "0", code=2, **few)
        assert "--stop-lead" in refused.stderr, refused.stderr

    run_cases()
