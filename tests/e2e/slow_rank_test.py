"""Checks that a slow rank is named during the run, with the phase in which it is slow, and that
other ranks are not."""
import re
import signal
import tempfile
import threading
import time

from runner import ShardedJob, case, manifest, run_cases, start

with tempfile.TemporaryDirectory() as scratch:
    job = ShardedJob(scratch)

    def settings(steps, **changes):
        # The steps are long enough that half a step is distinguishable from noise.
        return job.settings(2, stage=1, train_micro_batch_size_per_gpu=8,
                            gradient_accumulation_steps=8,
                            train={"steps": steps}, scheduler=None, export={"enabled": False},
                            **changes)

    @case
    def a_rank_that_stands_still_half_of_the_time_is_named():
        running = start("--config", job.config("held-up", **settings(4000)), "--nproc", 2)
        running.await_line("step 15/")
        slow = running.ranks()[1]
        over = threading.Event()

        def hold_up():
            while not over.is_set():
                running.kill(signal.SIGSTOP, slow)
                time.sleep(0.1)
                running.kill(signal.SIGCONT, slow)
                time.sleep(0.03)

        holder = threading.Thread(target=hold_up)
        holder.start()
        try:
            running.await_line("is slow and delays the others")
        finally:
            over.set()
            holder.join()
        running.await_line("is no longer slow")
        running.kill(signal.SIGTERM)
        running.wait(128 + signal.SIGTERM)
        lines = [line for line in running.lines if " slow" in line]
        assert "warning: rank 1 is slow" in lines[0], lines
        # The stops meet the computation, but on a busy machine also the wait for the data.
        assert re.search(r"spent (computing|waiting for its data) \(steps ", lines[0]), lines
        assert manifest(job.out("held-up"))["counters"]["slow_rank_warnings"] >= 2

    run_cases()
