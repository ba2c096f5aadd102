"""Tests ranks started by Open MPI's mpirun: a run, a failure, signals. Skipped (exit 77) if there
is no mpirun."""
import os
import shutil
import signal
import tempfile

from runner import (BINARY, Job, Running, case, checkpoints, data_with_unknown_token, free_port,
                    manifest, require_same_run, run_cases, skip, steps)

FEW = {"train": {"steps": 4}}
# One core may hold both ranks, and containers run as root.
MPIRUN = ["mpirun", "--oversubscribe", *(["--allow-run-as-root"] if os.geteuid() == 0 else []),
          "-n", 2]

if shutil.which("mpirun") is None:
    skip("no mpirun (Debian: openmpi-bin; scripts/test.sh --with-launchers installs it)")

with tempfile.TemporaryDirectory() as scratch:
    job = Job(scratch)
    job.run("supervised", "--nproc", 2, **FEW)

    def mpirun(config, *options):
        return Running([*MPIRUN, *options, BINARY, "--config", config],
                       {"OMPI_MCA_rmaps_base_oversubscribe": "1"})

    @case
    def mpirun_starts_two_ranks_on_this_machine():
        running = mpirun(job.config("plain", **FEW))
        running.wait(0)
        assert running.text().count("2 ranks: the launcher started 2 ranks") == 1, running.text()
        # mpirun puts a terminal between itself and the ranks, although its own output is a pipe.
        assert ("\nstep 4/4  loss " in running.text()
                and "\x1b" not in running.text()), running.text()
        require_same_run(job.out("supervised"), job.out("plain"))

    @case
    def the_address_may_come_from_the_user():
        mpirun(job.config("addressed", **FEW), "-x", "MASTER_ADDR=127.0.0.1", "-x",
               f"MASTER_PORT={free_port()}").wait(0)
        require_same_run(job.out("supervised"), job.out("addressed"))

    @case
    def rank_that_fails_is_named():
        data = data_with_unknown_token(job.scratch / "bad.bin")
        running = mpirun(job.config("failed", **FEW, data=data))
        # mpirun ends with the code of the rank whose end it sees first: the failed rank, or the
        # other one, which lost its peer.
        assert running.wait() in (4, 6), running.text()
        text = running.text()
        assert "id 5000 is outside the model's vocabulary of 211 ids" in text, text

    @case
    def sigusr1_saves_and_stops_the_run():
        # mpirun passes this signal on and waits. On SIGTERM it kills the ranks itself a second
        # later.
        running = mpirun(job.config("stopped", train={"steps": 20000},
                                    data={"sequence_length": 128}))
        running.await_line("step 3/")
        running.kill(signal.SIGUSR1)
        running.wait(75)
        last_step = len(steps(job.out("stopped")))
        assert checkpoints(job.out("stopped")) == [f"step-{last_step:08}"], running.text()[-2000:]
        record = manifest(job.out("stopped"))
        assert record["exit_code"] == 75, record
        assert record["exit_reason"] == f"stopped by SIGUSR1 after step {last_step}", record

    run_cases()
