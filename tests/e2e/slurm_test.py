"""Tests ranks started by SLURM: tasks of a step on one node and on two, a batch script, a failure,
the warning before a time limit, nodes that differ, and tensor ranks on two nodes. Uses a private
SLURM; skipped (exit 77) if the machine has none to start."""

import pathlib
import re
import sys
import tempfile
import time

from runner import (
    BINARY,
    Job,
    await_that,
    case,
    checkpoints,
    data_with_unknown_token,
    ftrun,
    manifest,
    must,
    needs,
    refuse_traces,
    require_in_time,
    require_same_run,
    run_cases,
    skip,
    steps,
    steps_so_far,
    tiny_model,
    tiny_weights,
    waiting_case,
)
from private_slurm import Slurm, slurm_problem

FEW = {"train": {"steps": 4}}
SCRIPTS = pathlib.Path(sys.argv[1]) / "scripts" / "slurm"
NODES = "n1,n2"

if why := slurm_problem():
    skip(why)

with tempfile.TemporaryDirectory() as scratch, tempfile.TemporaryDirectory() as slurm_folder, Slurm(
    slurm_folder, nodes=2, warns=False
) as slurm:
    job = Job(scratch)
    job.run("supervised", "--nproc", 2, **FEW)

    def step(config, *options, code=0, **more):
        result = slurm.run("srun", *options, BINARY, "--config", config, **more)
        refuse_traces(result.stdout + result.stderr)
        must(result, code)
        return result

    def text_of(name):
        return (pathlib.Path(scratch) / f"{name}.out").read_text()

    @case
    def two_tasks_train_on_one_node():
        result = step(job.config("one-node", **FEW), "-N1", "-n2")
        assert "2 ranks: the launcher started 2 ranks\n" in result.stderr, result.stderr
        require_same_run(job.out("supervised"), job.out("one-node"))
        shown = manifest(job.out("one-node"))["environment"]
        assert shown["SLURM_PROCID"] == "0" and shown["SLURM_NTASKS"] == "2", shown

    @case
    def two_nodes_train_one_model():
        step(job.config("two-nodes", **FEW), "-N2", "-n2", variables={"MASTER_ADDR": "127.0.0.1"})
        require_same_run(job.out("supervised"), job.out("two-nodes"))

    @case
    def host_that_cannot_be_found():
        result = step(job.config("nameless", **FEW, comm={"timeout": 3}), "-N2", "-n2", code=6)
        unknown = 'cannot resolve the rendezvous address "n1": Name or service not known'
        for line in (f"ftrun: {unknown}\n", "  remedy: set MASTER_ADDR to a name or address of the "
                                            "machine of rank 0\n",
                     f"warning: rank 1: {unknown}; trying for 3.0s\n",
                     f" within 3.0s: {unknown}\n"):
            assert line in result.stderr, f"no {line!r} in:\n{result.stderr}"

    @case
    def rank_that_fails_is_named():
        # Without --kill-on-bad-exit SLURM stops nobody, so rank 0 has to notice the failure itself.
        # srun returns the largest code.
        bad = data_with_unknown_token(job.scratch / "bad.bin")
        begin = time.monotonic()
        result = step(job.config("failed", **FEW, data=bad), "-N1", "-n2", code=6)
        require_in_time(begin, 60, "a job whose rank fails")
        message = "id 5000 is outside the model's vocabulary of 211 ids"
        assert message in result.stderr, result.stderr
        record = manifest(job.out("failed"))
        assert ((record["exit_code"], record["exit_rank"]) == (6, -1)
                and "rank 1" in record["exit_reason"]), record

    @case
    def batch_script_starts_ranks_itself():
        # Without a started step, SLURM_NTASKS says how many tasks could run, not that they do.
        script = pathlib.Path(scratch) / "batch.sh"
        script.write_text(f"#!/bin/sh\nexec {BINARY} --config {job.config('batch', **FEW)} --nproc "
                          "2\n")
        slurm.await_state(
            slurm.submit(script, "-N1", "-n4", "-o", f"{scratch}/batch.out"), "COMPLETED"
        )
        assert "2 ranks: --nproc 2\n" in text_of("batch"), text_of("batch")
        require_same_run(job.out("supervised"), job.out("batch"))

    @case
    def a_warning_before_the_time_limit_saves_the_run():
        # A job asks for this with --signal=USR1@120: every rank of the step gets the signal.
        script = pathlib.Path(scratch) / "warned.sh"
        config = job.config("warned", train={"steps": 20000}, checkpoint={"every": 0})
        script.write_text(f"#!/bin/sh\nsrun -n2 {BINARY} --config {config} &\n"
                          f"until grep -q '\"step\":3' {job.out('warned')}/metrics.jsonl; do sleep "
                          "0.1; done 2>/dev/null\nscancel --signal=USR1 $SLURM_JOB_ID.0\nwait $!\n")
        ended = slurm.await_state(
            slurm.submit(script, "-N1", "-n2", "-o", f"{scratch}/warned.out"), "FAILED"
        )
        text = text_of("warned")
        assert ended["ExitCode"] == "75:0", f"{ended}\n{text[-3000:]}"
        count = len(steps(job.out("warned")))
        assert checkpoints(job.out("warned")) == [f"step-{count:08}"], text[-2000:]
        assert manifest(
            job.out("warned"))["exit_reason"] == f"stopped by SIGUSR1 after step {count}"

    @case
    def preemption_without_a_warning_is_queued_again_too():
        # SLURM sends SIGTERM only to the ranks, which save; the script asks SLURM why.
        config = job.config("preempted", train={"steps": 100000, "log": {"every": 1000}})
        number = slurm.submit(
            SCRIPTS / "single_node.sbatch",
            *("--gpus-per-node=0", "--cpus-per-task=2", "-w", "n1", "-o",
              f"{scratch}/preempted.out"),
            **{"FTRUN": BINARY, "CONFIG": config, "RANKS": "2"},
        )
        out = job.out("preempted")
        await_that(
            lambda: len(steps_so_far(out)) >= 3,
            "the job has trained",
            pause=0.05,
        )
        script = pathlib.Path(scratch) / "urgent.sh"
        script.write_text("#!/bin/sh\n")
        options = ("-p", "urgent", "-w", "n1", "--exclusive", "-o", "/dev/null")
        slurm.await_state(slurm.submit(script, *options), "COMPLETED")
        slurm.await_state(number, "PENDING", restarts=1)
        count = len(steps(out))
        assert manifest(out)["exit_reason"] == f"stopped by SIGTERM after step {count}"
        assert checkpoints(out) == [f"step-{count:08}"]
        must(slurm.run("scancel", number))

    # --- what stands in the way of a run on several nodes ----------------------------------------

    def on_second_node(command, instead):
        """Writes a script for srun with which the second node runs another command."""
        script = job.scratch / f"on-second-{len(list(job.scratch.glob('on-second-*')))}.sh"
        script.write_text(f"#!/bin/sh\n[ $SLURM_NODEID = 1 ] && exec {instead}\nexec {command}\n")
        script.chmod(0o755)
        return script

    def refused(config, instead, *expected):
        script = on_second_node(f"{BINARY} --config {config}", instead)
        result = must(
            slurm.run(
                "srun", "-N2", "-n2", "-w", NODES, script, variables={"MASTER_ADDR": "127.0.0.1"}
            ),
            2,
        )
        refuse_traces(result.stdout + result.stderr)
        for text in ("ftrun: the nodes differ:\n", *expected):
            assert re.search(text, result.stderr), f"no {text!r} in:\n{result.stderr}"

    @waiting_case
    def node_with_another_binary_is_refused_by_name():
        copy = job.scratch / "other"
        (copy / "bin").mkdir(parents=True)
        (copy / "lib").symlink_to(pathlib.Path(BINARY).parent.parent / "lib")
        (copy / "bin" / "ftrun").write_bytes(pathlib.Path(BINARY).read_bytes() + b" ")
        (copy / "bin" / "ftrun").chmod(0o755)
        config = job.config("other-binary", **FEW)
        refused(
            config,
            f"{copy}/bin/ftrun --config {config}",
            r"\n  n2 \(rank 1\): the ftrun binary is (\d+) bytes, xxh3 \w+; on n1 \(rank 0\): "
            r"(?!\1)\d+ bytes",
        )

    @needs("mount")
    def node_with_other_weights_and_data_is_refused_by_name():
        # Each node has its own file system below the same paths.
        config = job.config("other-files", **FEW)
        weights, data = job.scratch / "weights.safetensors", job.scratch / "data.bin"
        weights.write_bytes((job.model / "model.safetensors").read_bytes()[:-4] + b"\0\0\0\0")
        data.write_bytes(b"\1\0" + job.data.read_bytes()[2:])
        mounts = (
            f"mount --bind {weights} {job.model}/model.safetensors; mount --bind {data} {job.data}"
        )
        refused(
            config,
            f"unshare --mount sh -c '{mounts}; exec {BINARY} --config {config}'",
            r"\n  n2 \(rank 1\): model.path model.safetensors is ",
            r"\n  n2 \(rank 1\): data.train is 128 sequences, ",
        )

    @waiting_case
    def tensor_ranks_on_two_nodes_are_warned_of():
        rows = 212  # divisible by two ranks
        path = tiny_model(job.scratch / "even", tiny_weights(vocabulary=rows), vocab_size=rows)
        model = {"model": {"path": str(path)}, "parallel": {"tensor": 2}, **FEW}
        config = job.config("apart", **model)
        result = step(config, "-N2", "-n2", "-w", NODES, variables={"MASTER_ADDR": "127.0.0.1"})
        match = re.search(
            r"warning: tensor ranks are on different nodes: ranks 0, 1 on n1, n2. Each step "
            r"sends (.*) between nodes",
            result.stderr,
        )
        assert match, result.stderr
        # All traffic of the two ranks belongs to their tensor group; its bytes are counted where
        # they are transferred.
        counted = manifest(job.out("apart"))["traffic"]
        a_step = counted["communication"]["transport"] / counted["steps"]["counted"]
        planned = must(ftrun("plan", "--config", config, "--nproc", 2, "--nodes", 2)).stdout
        assert f"on node 0, node 1. Each step sends {match[1]} between" in planned, planned
        number, unit = match[1].split()
        assert abs(float(number) * {"KiB": 1024, "MiB": 1 << 20}[unit] / a_step - 1) < 0.02, (
            match[1],
            a_step,
        )
        together = step(job.config("together", **model), "-N1", "-n2", "-w", "n1")
        assert "different nodes" not in together.stderr, together.stderr

    run_cases()
