"""Tests signals: the first one lets all ranks finish their step, save and exit; a second one ends
the run at once; and a rank that is killed ends the others and is named as the cause."""
import contextlib
import os
import pathlib
import pty
import signal
import subprocess
import sys
import tempfile
import time

from runner import (ATTEMPTS, BINARY, TIMEOUT, Job, Running, await_gone, await_that, case,
                    checkpoints, children, environment, evaluations, manifest, needs, preload,
                    require_exit, require_in_time, require_same_run, run_cases, start, steps,
                    steps_so_far, tiny_data, tiny_model, waiting_case)

MANY = {"train": {"steps": 20000}, "data": {"sequence_length": 128},
        "train_micro_batch_size_per_gpu": 4}
CODES = {signal.SIGHUP: 129, signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGUSR1: 75}

with tempfile.TemporaryDirectory() as scratch:
    preload()
    job = Job(scratch)
    stopped = {}  # by the run's name: its ranks, and the step after which a signal stopped it

    def start_until_step_3(name, ranks, *arguments, **changes):
        running = start("--config", job.config(name, **MANY | changes), "--nproc", ranks,
                        "--restarts", 0, *arguments)
        running.await_line("step 3/")
        return running

    def ends_within(running, seconds):
        with contextlib.suppress(subprocess.TimeoutExpired):
            running.process.wait(seconds)
        return running.process.poll() is not None

    def stopped_step(running, name, number):
        """Checks what a run left that a signal stopped; returns the step after which it stopped."""
        out = job.out(name)
        last_step = len(steps(out))
        reason = f"stopped by {number.name} after step {last_step}"
        assert running.text().count(f"notice: {reason}; continue with --resume auto") == 1, (
            running.text()[-2000:])
        assert checkpoints(out) == [f"step-{last_step:08}"], checkpoints(out)
        record = manifest(out)
        assert (record["exit_code"], record["exit_reason"]) == (CODES[number], reason), (
            record["exit_reason"])
        return last_step

    def check_signal(number, ranks, target):
        name = f"{number.name}-{ranks}-{target}"
        running = start_until_step_3(name, ranks)
        running.kill(number, running.ranks()[target] if target is not None else None)
        running.wait(CODES[number])
        assert "exit code" not in running.text(), running.text()[-2000:]
        stopped[name] = (ranks, stopped_step(running, name, number))

    @waiting_case
    def a_signal_stops_a_single_process():
        for number in CODES:
            check_signal(number, 1, None)

    @waiting_case
    def a_signal_to_the_supervisor_stops_the_run():
        for number in CODES:
            check_signal(number, 2, None)

    @waiting_case
    def a_signal_to_one_rank_stops_the_run():
        for number in CODES:
            check_signal(number, 2, 1)
        check_signal(signal.SIGTERM, 2, 0)

    @waiting_case
    def a_requeue_signal_ends_with_its_code_before_training_begins():
        for ranks in (1, 2):
            # while outputs are checked, LibTorch is loaded (done already here), and ranks begin
            for wait in (0, 0.1, 0.2, 0.3):
                running = start("--config", job.config(f"early-{ranks}-{wait}", **MANY), "--nproc",
                                ranks, env={})
                running.await_line("rank" if ranks == 1 else "ranks: ")
                time.sleep(wait)
                running.kill(signal.SIGUSR1)
                running.wait(75)

    @needs("pids")
    def signals_before_training_begins_end_the_first_process_of_a_container():
        for ranks in (1, 2):
            for number in CODES:
                for wait in (0, 0.2):
                    out = f"first-{ranks}-{number.name}-{wait}"
                    running = Running(["unshare", "--pid", "--fork", "--kill-child", "--mount-proc",
                                       BINARY, "--config", job.config(out, **MANY),
                                       "--nproc", ranks, "--restarts", 0])
                    running.await_line("1 rank: " if ranks == 1 else "2 ranks: ")
                    time.sleep(wait)
                    (first,) = children(running.process.pid)
                    running.kill(number, first)
                    running.wait(CODES[number])

    @waiting_case
    def a_model_whose_file_is_cut_short_while_it_trains_is_saved():
        for ranks in (1, 2):
            model = tiny_model(job.scratch / f"cut-{ranks}-model")
            running = start_until_step_3(f"cut-{ranks}", ranks, model={"path": str(model)})
            os.truncate(model / "model.safetensors", 0)
            running.kill(signal.SIGTERM)
            running.wait(143)
            stopped_step(running, f"cut-{ranks}", signal.SIGTERM)

    @waiting_case
    def a_folder_that_another_run_made_again_is_left_to_it():
        first = start_until_step_3("again", 1, checkpoint={"every": 0})
        # This is the last thing that a run writes at its beginning.
        await_that(lambda: manifest(job.out("again"))["data"]["train"].get(
            "fingerprint"), "the data's fingerprint is written", first)
        # A visible file may not be synced yet, and the sync fails if its folder has vanished. After
        # the next step it is synced, because the training thread does both.
        step_count = len(steps_so_far(job.out("again")))
        await_that(lambda: len(steps_so_far(job.out("again"))) >= step_count + 2,
                   "two steps are recorded", first)
        job.out("again").rename(job.out("again-as-it-was"))
        second = start_until_step_3("again", 1, train={"steps": 20000, "seed": 7},
                                    checkpoint={"every": 0})
        first.wait(5)
        assert ("was removed while this run wrote into it, and another run has it now"
                in first.text()), first.text()[-2000:]
        second.kill(signal.SIGTERM)
        second.wait(143)
        stopped_step(second, "again", signal.SIGTERM)
        assert manifest(job.out("again"))["config"]["train"]["seed"] == 7

    @waiting_case
    def a_lost_terminal_stops_nothing_under_nohup():
        for ranks in (1, 2):
            name = f"nohup-{ranks}"
            running = Running(["nohup", BINARY, "--config", job.config(name, **MANY), "--nproc",
                               ranks])
            running.await_line("step 3/")
            for pid in [running.process.pid, *children(running.process.pid)]:
                running.kill(signal.SIGHUP, pid)
            step_count = len(steps_so_far(job.out(name)))
            running.await_line(f"step {step_count + 20}/")
            running.kill(signal.SIGTERM)
            running.wait(143)
            stopped_step(running, name, signal.SIGTERM)

    @case
    def a_terminal_that_is_closed_saves_the_run():
        # The supervisor's own terminal disappears, and with it everything that reads its output.
        out = job.out("terminal")
        pid, terminal = pty.fork()
        if pid == 0:
            os.execve(BINARY, [BINARY, "--config", str(job.config("terminal", **MANY)), "--nproc",
                               "2"], environment())
        while len(steps_so_far(out)) < 3:
            os.read(terminal, 1 << 16)
        os.close(terminal)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert status == 129, status
        last_step = len(steps(out))
        assert (checkpoints(out) == [f"step-{last_step:08}"]
                and manifest(out)["exit_reason"] == f"stopped by SIGHUP after step {last_step}")

    @waiting_case
    def ranks_are_waited_for_where_the_end_of_children_is_inherited_ignored():
        ignoring = ("import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); "
                    "os.execv(sys.argv[1], sys.argv[1:])")
        few = MANY | {"train": {"steps": 2}}
        running = Running([sys.executable, "-c", ignoring, BINARY, "--config",
                           job.config("children", **few), "--nproc", 2])
        running.wait(0)
        assert len(steps(job.out("children"))) == 2

    @case
    def stopped_runs_continue_bitwise():
        for name in ("SIGUSR1-1-None", "SIGHUP-2-None", "SIGINT-2-None", "SIGTERM-2-1"):
            ranks, last_step = stopped[name]
            few = MANY | {"train": {"steps": last_step + 3}}
            job.run(name, "--nproc", ranks, "--resume", "auto", **few)
            job.run(f"straight-{name}", "--nproc", ranks, **few)
            require_same_run(job.out(name), job.out(f"straight-{name}"))

    @waiting_case
    def stopped_run_saves_before_anything_else():
        # A validation of eight rounds is due at every step. The one during which the signal arrives
        # is skipped, unless it was in its last round; few runs end that way, and not all five.
        text = str(tiny_data(job.scratch / "validation.bin", tokens=4097, seed=5))
        every = {"train": {"steps": 20000, "evaluation": {"every": 1, "samples": 32}}}
        for attempt in range(5):
            name = f"validating-{attempt}"
            running = start_until_step_3(name, 1, **every,
                                         data={**MANY["data"], "validation": text,
                                               "token_dtype": "uint16"})
            running.kill(signal.SIGTERM)
            running.wait(143)
            last_step = stopped_step(running, name, signal.SIGTERM)
            validated = [m["step"] for m in evaluations(job.out(name))]
            if validated == list(range(last_step)):
                return
            assert validated == list(range(last_step + 1)), (validated, last_step)
        raise AssertionError("every validation was finished before the run stopped")

    @waiting_case
    def second_signal_ends_at_once():
        # Stopped ranks cannot finish their step, so only the second signal can end the run.
        running = start_until_step_3("second", 2)
        ranks = running.ranks()
        running.kill(signal.SIGSTOP, ranks[1])
        begin = time.monotonic()
        running.kill(signal.SIGINT)
        time.sleep(1.2)
        assert running.process.poll() is None, "the first signal did not wait for the step"
        # A second signal within a second after the supervisor has read the first one counts as the
        # same.
        await_that(lambda: running.kill(signal.SIGINT)
                   or ends_within(running, 1.2), "the run has ended")
        running.wait(130)
        require_in_time(begin, 30, "the second signal, with a stopped rank,")
        await_gone(ranks.values())
        assert "second signal: the ranks are killed" in running.text(), running.text()[-2000:]

    @waiting_case
    def second_signal_ends_a_single_process_at_once():
        running = start_until_step_3("second-single", 1)
        for number in (signal.SIGSTOP, signal.SIGINT, signal.SIGTERM, signal.SIGCONT):
            running.kill(number)  # it is stopped, so both signals are pending
        assert running.wait() in (130, 143)
        assert checkpoints(job.out("second-single")) == [], (
            "the run saved a checkpoint after the second signal")

    @waiting_case
    def signal_to_the_child_and_then_to_its_group_is_one():
        # timeout(1) does this; the run saves before it exits. Signals within a second are one. On a
        # busy machine more time may pass between them, and then the attempt is repeated.
        for ranks in (1, 2):
            for attempt in range(ATTEMPTS):
                name = f"twice-{ranks}-{attempt}"
                running = start_until_step_3(name, ranks)
                begin = time.monotonic()
                running.kill(signal.SIGTERM)
                time.sleep(0.01)
                running.kill(signal.SIGTERM)
                took = time.monotonic() - begin
                code = running.wait()
                if took < 0.5:
                    break
            require_exit(code, 143, running.text()[-3000:])
            stopped_step(running, name, signal.SIGTERM)

    @waiting_case
    def killed_rank_is_the_cause():
        for victim in (0, 1):
            running = start_until_step_3(f"killed-{victim}", 2)
            ranks = running.ranks()
            begin = time.monotonic()
            running.kill(signal.SIGKILL, ranks[victim])
            running.wait(137)
            require_in_time(begin, 20, "the end of a run whose rank was killed")
            await_gone(ranks.values())
            cause = (f"rank {victim}: killed by signal 9 (Killed; the kernel does this when memory "
                     "runs out), ")
            assert running.text().count(cause) == 1, running.text()[-2000:]
            assert (running.text().index(cause) < running.text().find("then rank", 0)
                    or "then rank" not in running.text())
            assert f"then rank {victim}" not in running.text(), running.text()[-2000:]
            log = job.out(f"killed-{victim}") / "logs" / f"rank-{victim}.log"
            assert (running.text().count(f"\n  its log: {log}") == 1
                    and log.exists()), running.text()[-2000:]
            assert "raise comm.timeout" not in running.text(), running.text()[-2000:]
            record = manifest(job.out(f"killed-{victim}"))
            assert (record["exit_code"], record["exit_rank"]) == (137, victim), record
            assert (record["exit_reason"].startswith("killed by signal 9 (Killed; ")
                    and record["ended"]), record["exit_reason"]

    @waiting_case
    def killed_rank_is_the_cause_over_gloo():
        # Of three ranks, each communicates only with some of the others, and nothing waits for
        # comm.timeout.
        for victim in (0, 1, 2):
            name = f"killed-gloo-{victim}"
            running = start_until_step_3(name, 3, comm={"backend": "gloo"},
                                         zero_optimization={"stage": 2, "overlap_comm": True})
            ranks = running.ranks()
            running.kill(signal.SIGKILL, ranks[victim])
            running.wait(137)
            await_gone(ranks.values())
            assert running.text().count(f"error: rank {victim}: killed by signal 9 ") == 1, (
                running.text()[-2000:])
            assert ("raise comm.timeout" not in running.text()
                    and "waited" not in running.text()), running.text()[-2000:]
            assert manifest(job.out(name))["exit_rank"] == victim

    @waiting_case
    def killed_supervisor_leaves_no_orphans():
        running = start_until_step_3("orphans", 2)
        ranks = children(running.process.pid)
        assert len(ranks) == 2, ranks
        running.kill(signal.SIGKILL)
        running.process.wait(TIMEOUT)
        await_gone(ranks)

    @waiting_case
    def rank_that_stops_answering_is_named():
        running = start_until_step_3("silent", 2, comm={"timeout": 3})
        ranks = running.ranks()
        running.kill(signal.SIGSTOP, ranks[1])
        running.wait(6)
        assert "rank 1" in running.text() and "is stopped" in running.text(), running.text()[-2000:]
        assert manifest(job.out("silent"))["exit_rank"] == 1, (
            "the rank that was waited for is the cause")
        await_gone(ranks.values())

    @waiting_case
    def a_disk_that_holds_up_rank_0_is_named_as_where_it_is():
        # The first write to this file blocks until somebody reads it.
        folder = job.scratch / "tracked" / "slow"
        folder.mkdir(parents=True)
        os.mkfifo(folder / "Train_Samples_train_loss.csv", 0o600)
        config = job.config("slow-disk", comm={"timeout": 3}, csv_monitor={
            "enabled": True, "output_path": str(folder.parent), "job_name": "slow"}, **MANY)
        running = start("--config", config, "--nproc", 2, "--restarts", 0)
        running.wait(6)
        assert "recording step 1" in running.text(), running.text()[-2000:]

    @waiting_case
    def a_pause_of_rank_0_is_survived():
        # Rank 0 serves the store: the others' heartbeats, and their next exchange, wait for it.
        running = start_until_step_3("pause", 2, checkpoint={"every": 1, "keep_last": 1})
        ranks = running.ranks()
        running.kill(signal.SIGSTOP, ranks[0])
        time.sleep(6)
        running.kill(signal.SIGCONT, ranks[0])
        running.await_line(f"step {len(steps_so_far(job.out('pause'))) + 10}/")
        running.kill(signal.SIGTERM)
        running.wait(143)

    @waiting_case
    def only_the_loopback_interface_is_listened_on():
        running = start_until_step_3("listen", 2)
        inodes = set()
        for pid in [running.process.pid, *children(running.process.pid)]:
            for fd in pathlib.Path(f"/proc/{pid}/fd").iterdir():
                try:
                    link = str(fd.readlink())
                except FileNotFoundError:
                    continue
                if link.startswith("socket:["):
                    inodes.add(link[8:-1])
        listening = []
        for table in ("/proc/net/tcp", "/proc/net/tcp6"):
            for line in pathlib.Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and fields[9] in inodes:
                    listening.append(fields[1].split(":")[0])
        assert listening and set(listening) == {"0100007F"}, listening
        running.kill(signal.SIGTERM)
        running.wait(143)

    run_cases()
