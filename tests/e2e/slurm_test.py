"""Ranks started by SLURM: tasks of a step on one node and on two, a batch script, a failure, the warning
before a time limit. Runs on a SLURM of its own; left out (exit 77) where the machine has none to start."""
import pathlib
import tempfile
import time

from runner import BINARY, Job, bad_data, case, checkpoints, manifest, must, refuse_traces, require_in_time, run_cases, same_run, skip, steps
from slurm_rig import Slurm, missing

FEW = {"train": {"steps": 4}}

if why := missing():
    skip(why)

with tempfile.TemporaryDirectory() as scratch, tempfile.TemporaryDirectory() as slurm_folder, Slurm(slurm_folder) as slurm:
    job = Job(scratch)
    job.run("supervised", "--nproc", 2, **FEW)

    def step(config, *options, code=0, **more):
        done = slurm.run("srun", *options, BINARY, "--config", config, **more)
        refuse_traces(done.stdout + done.stderr)
        must(done, code)
        return done

    @case
    def two_tasks_on_one_node():
        done = step(job.config("one-node", **FEW), "-N1", "-n2")
        assert "2 ranks: the launcher started 2 ranks\n" in done.stderr, done.stderr
        same_run(job.out("supervised"), job.out("one-node"))
        shown = manifest(job.out("one-node"))["environment"]
        assert shown["SLURM_PROCID"] == "0" and shown["SLURM_NTASKS"] == "2", shown

    @case
    def two_nodes():
        step(job.config("two-nodes", **FEW), "-N2", "-n2", variables={"MASTER_ADDR": "127.0.0.1"})
        same_run(job.out("supervised"), job.out("two-nodes"))

    @case
    def host_that_cannot_be_found():
        done = step(job.config("nameless", **FEW, comm={"timeout": 3}), "-N2", "-n2", code=6)
        unknown = 'cannot resolve the rendezvous address "n1": Name or service not known'
        for line in (f"ftrun: {unknown}\n", "  remedy: set MASTER_ADDR to a name or address of the machine of rank 0\n",
                     f"warning: rank 1: {unknown}; trying for 3.0s\n", f" within 3.0s: {unknown}\n"):
            assert line in done.stderr, f"no {line!r} in:\n{done.stderr}"

    @case
    def rank_that_fails_is_named():
        # Without --kill-on-bad-exit SLURM stops nobody: rank 0 has to notice by itself. srun gives the largest code.
        bad = bad_data(job.scratch / "bad.bin")
        begin = time.monotonic()
        done = step(job.config("failed", **FEW, data=bad), "-N1", "-n2", code=6)
        require_in_time(begin, 60, "a job whose rank fails")
        assert "id 5000 is outside the model's 211 rows" in done.stderr, done.stderr
        record = manifest(job.out("failed"))
        assert (record["exit_code"], record["exit_rank"]) == (6, -1) and "rank 1" in record["exit_reason"], record

    @case
    def batch_script_starts_ranks_itself():
        # Where no step was started SLURM_NTASKS says how many tasks could be, not that they are.
        script = pathlib.Path(scratch) / "batch.sh"
        script.write_text(f"#!/bin/sh\nexec {BINARY} --config {job.config('batch', **FEW)} --nproc 2\n")
        done = slurm.run("sbatch", "--wait", "-N1", "-n4", "-o", f"{scratch}/batch.out", script)
        text = (pathlib.Path(scratch) / "batch.out").read_text()
        assert done.returncode == 0 and "2 ranks: --nproc 2\n" in text, f"{done}\n{text}"
        same_run(job.out("supervised"), job.out("batch"))

    @case
    def warning_before_the_time_limit():
        # What a job asks for with --signal=USR1@120: every rank of the step gets it.
        script = pathlib.Path(scratch) / "warned.sh"
        config = job.config("warned", train={"steps": 20000}, checkpoint={"every": 0})
        script.write_text(f"#!/bin/sh\nsrun -n2 {BINARY} --config {config} &\n"
                          f"until grep -q '\"step\":3' {job.out('warned')}/metrics.jsonl; do sleep 0.1; done 2>/dev/null\n"
                          "scancel --signal=USR1 $SLURM_JOB_ID.0\nwait $!\n")
        done = slurm.run("sbatch", "--wait", "-N1", "-n2", "-o", f"{scratch}/warned.out", script)
        text = (pathlib.Path(scratch) / "warned.out").read_text()
        assert done.returncode == 75, f"{done}\n{text[-3000:]}"
        count = len(steps(job.out("warned")))
        assert checkpoints(job.out("warned")) == [f"step-{count:08}"], text[-2000:]
        assert manifest(job.out("warned"))["exit_reason"] == f"stopped by SIGUSR1 after step {count}"

    run_cases()
