"""Checks that failed ranks are started again from the newest checkpoint: whichever rank is killed,
and when, the run ends with the bits of an undisturbed one. What would fail again is not tried
again, and a stop is not a failure."""
import pathlib
import re
import signal
import subprocess
import tempfile
import time

from runner import (BINARY, TIMEOUT, TORCHRUN, Job, Running, await_gone, await_that, case,
                    fail_by_timeout, free_port, ftrun, manifest, must, preload,
                    preload_torchrun, require_same_run, run_cases, start, steps, waiting_case)

STEPS = 120
LONG = {"train": {"steps": STEPS, "log": {"every": 1}}, "data": {"sequence_length": 128},
        "train_micro_batch_size_per_gpu": 4}
SAVING = LONG | {"checkpoint": {"every": 20, "keep_last": 3}}
ENDLESS = {"train": {"steps": 20000}}


def await_end(agent, code=None):
    """Waits for the end of a torchrun agent; returns its exit code. The agent may print its own
    stack traces about ranks that were killed."""
    try:
        exit_code = agent.process.wait(TIMEOUT)
    except subprocess.TimeoutExpired:
        fail_by_timeout(f"the agent goes on after {TIMEOUT} s\n{agent.text()[-3000:]}")
    agent.reader.join(10)
    assert code in (None, exit_code), f"exit {exit_code}, expected {code}\n{agent.text()[-3000:]}"
    return exit_code


def require_each_step_once(out, last=STEPS):
    step_numbers = [line["step"] for line in steps(out)]
    assert step_numbers == list(range(1, last + 1)), f"steps doubled or missing: {step_numbers}"


with tempfile.TemporaryDirectory() as scratch:
    preload()
    preload_torchrun()
    job = Job(scratch)

    @case
    def undisturbed_runs_train_for_comparison():
        """All following cases are compared with these runs."""
        job.run("straight-1", **SAVING)
        job.run("straight-2", "--nproc", 2, **SAVING)
        job.run("straight", "--nproc", 3, **SAVING)

    @waiting_case
    def whichever_rank_is_killed_the_run_ends_with_the_same_bits():
        running = start("--config", job.config("killed", **SAVING), "--nproc", 3)
        # (rank, what it is killed after): while ranks start, in a step, right after a save, near
        # the end.
        kills = ((1, None), (0, "step 3/"), (2, "saved "), (0, "saved "), (1, "step 65/"),
                 (2, f"step {STEPS - 35}/"))
        next_line, slowest = 0, 0.0
        for number, (victim, moment) in enumerate(kills, 1):
            if moment:
                next_line = running.await_line(moment, next_line)
            running.kill(signal.SIGKILL, running.await_ranks(3)[victim])
            killed = time.monotonic()
            next_line = running.await_line(f"restart {number} (", next_line)
            assert f": rank {victim}: killed by signal 9" in running.lines[next_line - 1], (
                running.lines[next_line - 1])
            if moment:
                next_line = running.await_line(
                    "resumed from" if number > 2 else "from the beginning", next_line)
                next_line = running.await_line("step ", next_line)
                slowest = max(slowest, time.monotonic() - killed)
        print(f"  from the kill to the first new step: {slowest:.1f} s at most", flush=True)
        running.wait(0)
        require_each_step_once(job.out("killed"))
        require_same_run(job.out("straight"), job.out("killed"))
        record = manifest(job.out("killed"))
        assert record["exit_code"] == 0 and record["exit_rank"] == -1, record
        # The first kill came before the run folder was written, so there was nothing to resume.
        restarts = record["restarts"][-5:]
        assert [restart["rank"] for restart in restarts] == [victim for victim, _ in kills[1:]], (
            restarts)
        for restart in restarts:
            assert restart["reason"].startswith("killed by signal 9") and restart["time"], restart
            assert (restart["to_step"] % 20 == 0
                    and restart["from_step"] >= restart["to_step"]), restart
        counters = record["counters"]
        assert (0 < counters["counted_steps_milliseconds"]
                < counters["since_first_start_milliseconds"]), counters
        share = counters["effective_training_time_per_million"] / 1e4
        assert f"effective training time: {share:.1f} % of " in running.text(), (
            share, running.text()[-2000:])
        restart_lines = [line for line in running.lines if "restarted at 20" in line]
        assert len(restart_lines) >= 5, restart_lines
        assert (f"after step {restarts[-1]['from_step']}, from step {restarts[-1]['to_step']}: "
                "rank 2: killed by signal 9" in restart_lines[-1]), restart_lines

    @waiting_case
    def a_rank_that_always_dies_is_given_up_with_its_first_failure():
        running = start("--config", job.config("hopeless", **ENDLESS), "--nproc", 2)
        next_line = 0
        for number in range(4):
            next_line = running.await_line("step 1/", next_line)
            ranks = running.await_ranks(2)
            running.kill(signal.SIGKILL if number == 0 else signal.SIGFPE, ranks[1])
        running.wait(137)
        await_gone(ranks.values())
        text = running.text()
        assert text.count(" without a new checkpoint) in ") == 3, text[-3000:]
        assert ([line for line in running.lines if "restart 3 (3 of 3 without a new checkpoint) in "
                                                   "4.0s, from the start: rank 1: " in line]), text
        assert re.search(r"error: rank 1: killed by signal 9 .*(\n.*)*\n  gave up after 3 "
                         r"restarts without a new checkpoint; the last "
                         r"failure: rank 1: killed by signal 8", text), text[-3000:]

    @waiting_case
    def failures_that_would_repeat_are_not_retried():
        bad = job.scratch / "bad.bin"
        bad.write_bytes(b"\xff" * 8194)
        failed = must(ftrun("--config",
                            job.config("ids", **ENDLESS | {"data": {"train": str(bad)}}), "--nproc",
                            2), 4)
        assert "restart" not in failed.stdout + failed.stderr, failed.stderr
        # The exit code is 5, but nothing of this run has begun: the folder belongs to another run.
        holder = start("--config", job.config("held", **ENDLESS), "--nproc", 1)
        holder.await_line("step 1/")
        busy = must(ftrun("--config", job.config("held", **ENDLESS), "--nproc", 2), 5)
        assert ("another run is using it" in busy.stderr and "restart" not in busy.stdout
                + busy.stderr), busy.stderr
        holder.kill(signal.SIGTERM)
        holder.wait(143)

    @waiting_case
    def a_stop_ends_the_wait_for_a_restart_and_the_run_can_be_resumed():
        running = start("--config", job.config("stopped", **SAVING), "--nproc", 3)
        running.await_line("saved ")
        running.kill(signal.SIGKILL, running.await_ranks(3)[0])
        running.await_line("restart 1 (1 of 3 ")
        running.kill(signal.SIGTERM)
        running.wait(143)
        assert ("stopped by SIGTERM before the restart; continue with --resume auto"
                in running.text()), running.text()[-2000:]
        assert ("restart 2" not in running.text()
                and "resumed" not in running.text()), running.text()[-2000:]
        job.run("stopped", "--nproc", 3, "--resume", "auto", **SAVING)
        require_each_step_once(job.out("stopped"))
        require_same_run(job.out("straight"), job.out("stopped"))

    @waiting_case
    def without_restarts_a_failure_is_the_end_and_one_rank_may_have_them():
        running = start("--config", job.config("once", **ENDLESS), "--nproc", 2, "--restarts", 0)
        running.await_line("step 1/")
        running.kill(signal.SIGKILL, running.await_ranks(2)[1])
        running.wait(137)
        assert "restart 1" not in running.text(), running.text()[-2000:]
        running = start("--config", job.config("single", **SAVING), "--restarts", 1)
        next_line = running.await_line("saved ")
        running.kill(signal.SIGKILL, running.await_ranks(1)[0])
        running.await_line("resumed from", next_line)
        running.wait(0)
        require_each_step_once(job.out("single"))
        require_same_run(job.out("straight-1"), job.out("single"))

    @waiting_case
    def workers_of_torchrun_go_on_from_the_newest_checkpoint():
        command = [TORCHRUN, "--no-python", "--nproc-per-node", 2, "--max-restarts", 1,
                   "--monitor-interval", 0.1,
                   "--master-port", free_port(), BINARY, "--config",
                   job.config("elastic", **SAVING)]
        running = Running(command, {"OMP_NUM_THREADS": "1"})
        running.await_line("saved ")
        running.kill(signal.SIGKILL, running.await_ranks(2)[1])
        await_end(running, 0)
        assert "resumed from" in running.text(), running.text()[-3000:]
        require_each_step_once(job.out("elastic"))
        require_same_run(job.out("straight-2"), job.out("elastic"))
        assert len(manifest(job.out("elastic"))["restarts"]) == 1
        # A folder of another run is not mistaken for that of the first attempt.
        once = job.config("straight-2", **SAVING)
        refused = Running([*command[:-2], "--config", once], {"OMP_NUM_THREADS": "1"})
        assert await_end(refused) != 0
        assert ("the folder is not empty" in refused.text()
                and "resumed" not in refused.text()), refused.text()[-3000:]

    @waiting_case
    def an_agent_that_serves_no_store_is_known_by_its_process():
        command = [TORCHRUN, "--no-python", "--standalone", "--nproc-per-node", 1, "--max-restarts",
                   1, "--monitor-interval", 0.1, BINARY,
                   "--config", job.config("storeless", **SAVING)]
        running = Running(command,
                          {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"})
        running.await_line("saved ")
        running.kill(signal.SIGKILL, running.await_ranks(1)[0])
        await_end(running, 0)
        assert "resumed from" in running.text(), running.text()[-3000:]
        require_each_step_once(job.out("storeless"))
        require_same_run(job.out("straight-1"), job.out("storeless"))

    @waiting_case
    def two_agents_that_count_restarts_each_for_itself_start_one_run():
        endpoint = free_port()
        command = [TORCHRUN, "--no-python", "--nnodes", 2, "--nproc-per-node", 1, "--max-restarts",
                   3, "--monitor-interval", 0.1,
                   "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{endpoint}", BINARY,
                   "--config", job.config("agents", **SAVING)]
        agents = [Running(command, {"OMP_NUM_THREADS": "1"}) for _ in range(2)]

        def rank_of(agent):
            return list(agent.await_ranks(1).values())[0]

        # One rank ends while the other waits for it, which only the first one's agent counts; then
        # one ends in the middle of the run.
        agents[1].kill(signal.SIGKILL, rank_of(agents[1]))
        await_that(lambda: any("." not in path.name
                               for path
                               in pathlib.Path(job.out("agents")).glob("checkpoints/step-*")),
                   "a checkpoint is saved", *agents)
        agents[0].kill(signal.SIGKILL, rank_of(agents[0]))
        for agent in agents:
            await_end(agent, 0)
        texts = "\n".join(agent.text()[-3000:] for agent in agents)
        assert any("resumed from" in agent.text() for agent in agents), texts
        require_each_step_once(job.out("agents"))
        require_same_run(job.out("straight-2"), job.out("agents"))

    run_cases()
