"""Ranks started by SLURM: tasks of a step on one node and on two, a batch script, a failure, the warning
before a time limit; and the scripts that people submit (scripts/slurm): time limit, pre-emption, a node that fails, an array.
Runs on a SLURM of its own; left out (exit 77) where the machine has none to start."""
import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

from runner import (BINARY, Job, await_that, bad_data, case, checkpoints, environment, ftrun, manifest, must, refuse_traces, require_in_time,
                    run_cases, same_run, skip, steps, tiny_model, tiny_weights, waiting)
from slurm_rig import Slurm, missing

FEW = {"train": {"steps": 4}}
SCRIPTS = pathlib.Path(sys.argv[1]) / "scripts" / "slurm"
PAGE = pathlib.Path(sys.argv[1]) / "docs" / "clusters.md"
# Of n1 to n8: a script's jobs of one case do not meet those of another; the page's are on n7 and n8, in a partition of their own.
LIMITED, PREEMPTED, SPARE = "n1,n2", "n3", "n4,n5,n6"
ELSEWHERE = {LIMITED: "n[3-8]", SPARE: "n[1-3,7-8]"}

if why := missing():
    skip(why)

with tempfile.TemporaryDirectory() as scratch, tempfile.TemporaryDirectory() as slurm_folder, Slurm(slurm_folder, nodes=8) as slurm:
    job = Job(scratch)
    job.run("supervised", "--nproc", 2, **FEW)

    def step(config, *options, code=0, **more):
        done = slurm.run("srun", *options, BINARY, "--config", config, **more)
        refuse_traces(done.stdout + done.stderr)
        must(done, code)
        return done

    def text_of(name):
        return (pathlib.Path(scratch) / f"{name}.out").read_text()

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
        done = step(job.config("nameless", **FEW, comm={"timeout": 3}), "-N2", "-n2", "-w", LIMITED, code=6)
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
        slurm.await_state(slurm.submit(script, "-N1", "-n4", "-o", f"{scratch}/batch.out"), "COMPLETED")
        assert "2 ranks: --nproc 2\n" in text_of("batch"), text_of("batch")
        same_run(job.out("supervised"), job.out("batch"))

    @case
    def warning_before_the_time_limit():
        # What a job asks for with --signal=USR1@120: every rank of the step gets it.
        script = pathlib.Path(scratch) / "warned.sh"
        config = job.config("warned", train={"steps": 20000}, checkpoint={"every": 0})
        script.write_text(f"#!/bin/sh\nsrun -n2 {BINARY} --config {config} &\n"
                          f"until grep -q '\"step\":3' {job.out('warned')}/metrics.jsonl; do sleep 0.1; done 2>/dev/null\n"
                          "scancel --signal=USR1 $SLURM_JOB_ID.0\nwait $!\n")
        ended = slurm.await_state(slurm.submit(script, "-N1", "-n2", "-o", f"{scratch}/warned.out"), "FAILED")
        text = text_of("warned")
        assert ended["ExitCode"] == "75:0", f"{ended}\n{text[-3000:]}"
        count = len(steps(job.out("warned")))
        assert checkpoints(job.out("warned")) == [f"step-{count:08}"], text[-2000:]
        assert manifest(job.out("warned"))["exit_reason"] == f"stopped by SIGUSR1 after step {count}"

    # --- scripts/slurm ---------------------------------------------------------------------------

    def long_config(name):
        """Steps enough for a signal to come in time; a resume may ask for fewer."""
        return job.config(name, train={"steps": 100000, "log": {"every": 1000}}, device="cpu")

    def submit(script, name, *options, **variables):
        """The scripts as they are shipped; what a cluster has otherwise is given beside them."""
        return slurm.submit(SCRIPTS / script, "--cpus-per-task=1", "-o", f"{scratch}/{name}.out", *options, FTRUN=BINARY,
                            MASTER_ADDR="127.0.0.1", **variables)

    def hold(number, out, rank=1):
        """Stops a rank of the job after some steps; the others wait for it without computing."""
        def trained():
            with contextlib.suppress(FileNotFoundError):
                return len(steps(out)) >= 3

        await_that(trained, f"{out} has trained", pause=0.05)
        [pid] = slurm.pids(number, f"ftrun-rank-{rank}")
        os.kill(pid, signal.SIGSTOP)
        return pid

    def go_on_when_warned(pid):
        """Lets a rank go on once SIGUSR1 has reached it."""
        def warned():
            status = pathlib.Path(f"/proc/{pid}/status").read_text()
            return int(re.search(r"ShdPnd:\s*(\w+)", status)[1], 16) >> (signal.SIGUSR1 - 1) & 1

        await_that(warned, f"rank {pid} has been sent SIGUSR1", pause=0.05)
        os.kill(pid, signal.SIGCONT)

    def finish_after_requeue(number, name, config, straight, **changes):
        """The job was saved and queued again. It starts once more, and is three steps longer than it was."""
        slurm.await_state(number, "PENDING", restarts=1)
        done = len(steps(job.out(name)))
        reason = manifest(job.out(name))["exit_reason"]
        text = config.read_text()
        config.write_text(text.replace('"steps": 100000', f'"steps": {done + 3}'))
        slurm.start_again(number)
        slurm.await_state(number, "COMPLETED", restarts=1)
        assert "step-%08d" % (done + 3) in checkpoints(job.out(name)), text_of(name)[-3000:]
        job.run(straight, "--nproc", 2, train={"steps": done + 3, "log": {"every": 1000}}, device="cpu", **changes)
        same_run(job.out(straight), job.out(name))
        return reason

    @waiting
    def failed_node_queues_the_job_again_on_others():
        settings = {"train": {"steps": 40, "log": {"every": 1000}}, "device": "cpu", "checkpoint": {"every": 1, "background": False}}
        config = job.config("failed-node", **settings)
        number = submit("many_nodes.sbatch", "failed-node", "--nodes=2", "--ntasks-per-node=1", "--gpus-per-node=1",
                        "-x", ELSEWHERE[SPARE], CONFIG=config)
        hold(number, job.out("failed-node"))
        nodes = slurm.fields(number)["NodeList"]
        slurm.fail_node(slurm.run("scontrol", "show", "hostnames", nodes).stdout.split()[-1])
        slurm.start_again(number)
        ended = slurm.await_state(number, "COMPLETED", restarts=1)
        assert ended["NodeList"] != nodes, ended
        job.run("no-failed-node", "--nproc", 2, **settings)
        same_run(job.out("no-failed-node"), job.out("failed-node"))

    @waiting
    def time_limit_saves_and_queues_many_nodes_again():
        # SLURM looks at time limits twice a minute, and counts them in minutes.
        config = long_config("limited")
        number = submit("many_nodes.sbatch", "limited", "--nodes=2", "--ntasks-per-node=1", "--gpus-per-node=1", "--time=1",
                        "--signal=B:USR1@60", "-x", ELSEWHERE[LIMITED], CONFIG=config)
        go_on_when_warned(hold(number, job.out("limited")))
        reason = finish_after_requeue(number, "limited", config, "unlimited")
        assert reason.startswith("stopped by SIGUSR1 after step "), reason
        text = text_of("limited")
        assert f"job {number}, start 0: exit code 75\n" in text and f"job {number}, start 1: exit code 0\n" in text, text[-3000:]
        assert manifest(job.out("limited"))["counters"]["stop_lead_milliseconds"] == 120000

    # --- what stands in the way of a run on several nodes ----------------------------------------

    def on_second_node(command, instead):
        """A script for srun: the second of the nodes runs something else."""
        script = job.scratch / f"on-second-{len(list(job.scratch.glob('on-second-*')))}.sh"
        script.write_text(f"#!/bin/sh\n[ $SLURM_NODEID = 1 ] && exec {instead}\nexec {command}\n")
        script.chmod(0o755)
        return script

    def refused(config, instead, *expected):
        script = on_second_node(f"{BINARY} --config {config}", instead)
        done = must(slurm.run("srun", "-N2", "-n2", "-w", LIMITED, script, variables={"MASTER_ADDR": "127.0.0.1"}), 2)
        refuse_traces(done.stdout + done.stderr)
        for text in ("ftrun: the nodes differ:\n", *expected):
            assert re.search(text, done.stderr), f"no {text!r} in:\n{done.stderr}"

    @waiting
    def node_with_another_binary_is_refused_by_name():
        copy = job.scratch / "other"
        (copy / "bin").mkdir(parents=True)
        (copy / "lib").symlink_to(pathlib.Path(BINARY).parent.parent / "lib")
        (copy / "bin" / "ftrun").write_bytes(pathlib.Path(BINARY).read_bytes() + b" ")
        (copy / "bin" / "ftrun").chmod(0o755)
        config = job.config("other-binary", **FEW)
        refused(config, f"{copy}/bin/ftrun --config {config}",
                r"\n  n2 \(rank 1\): the ftrun binary is (\d+) bytes, xxh3 \w+; on n1 \(rank 0\): (?!\1)\d+ bytes")

    @waiting
    def node_with_other_weights_and_data_is_refused_by_name():
        # Each node sees a file system of its own below the same paths.
        if subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode:
            return
        config = job.config("other-files", **FEW)
        weights, data = job.scratch / "weights.safetensors", job.scratch / "data.bin"
        weights.write_bytes((job.model / "model.safetensors").read_bytes()[:-4] + b"\0\0\0\0")
        data.write_bytes(b"\1\0" + job.data.read_bytes()[2:])
        mounts = f"mount --bind {weights} {job.model}/model.safetensors; mount --bind {data} {job.data}"
        refused(config, f"unshare --mount sh -c '{mounts}; exec {BINARY} --config {config}'",
                r"\n  n2 \(rank 1\): model.path model.safetensors is ", r"\n  n2 \(rank 1\): data.train is 128 sequences, ")

    @waiting
    def tensor_ranks_on_two_nodes_are_warned_of():
        rows = 212  # that two ranks can share
        path = tiny_model(job.scratch / "even", tiny_weights(vocabulary=rows), vocab_size=rows)
        model = {"model": {"path": str(path)}, "parallel": {"tensor": 2}, **FEW}
        config = job.config("apart", **model)
        done = step(config, "-N2", "-n2", "-w", LIMITED, variables={"MASTER_ADDR": "127.0.0.1"})
        told = re.search(r"warning: tensor ranks are on different nodes: ranks 0, 1 on n1, n2. (.*) a step pass between nodes", done.stderr)
        assert told, done.stderr
        # All of the two ranks' traffic is that of their tensor group; its bytes are counted where they pass.
        counted = manifest(job.out("apart"))["traffic"]
        a_step = counted["communication"]["transport"] / counted["steps"]["counted"]
        planned = must(ftrun("plan", "--config", config, "--nproc", 2, "--nodes", 2)).stdout
        assert f"ranks 0, 1 on node 0, node 1. {told[1]} a step pass" in planned, planned
        number, unit = told[1].split()
        assert abs(float(number) * {"KiB": 1024, "MiB": 1 << 20}[unit] / a_step - 1) < 0.02, (told[1], a_step)
        together = step(job.config("together", **model), "-N1", "-n2", "-w", "n1")
        assert "different nodes" not in together.stderr, together.stderr

    @waiting
    def preemption_saves_and_queues_one_node_again():
        config = long_config("preempted")
        number = submit("single_node.sbatch", "preempted", "--gpus-per-node=2", "-w", PREEMPTED, CONFIG=config)
        pid = hold(number, job.out("preempted"))
        script = job.scratch / "urgent.sh"
        script.write_text("#!/bin/sh\n")
        urgent = slurm.submit(script, "-p", "urgent", "-w", PREEMPTED, "--exclusive", "-o", "/dev/null")
        go_on_when_warned(pid)
        slurm.await_state(urgent, "COMPLETED")
        reason = finish_after_requeue(number, "preempted", config, "not-preempted")
        assert reason.startswith("stopped by SIGUSR1 after step "), reason

    @waiting
    def array_trains_a_config_a_task_and_queues_each_by_itself():
        first, second = long_config("array-0"), job.config("array-1", **FEW, device="cpu")
        number = submit("array.sbatch", "array-%a", "--array=0-2", "--gpus-per-node=0", "-x", ELSEWHERE[LIMITED],
                        CONFIGS=f"{first} {second}", RANKS="2")
        held = slurm.await_state(f"{number}_0", "RUNNING")["JobId"]
        pid = hold(held, job.out("array-0"))
        must(slurm.run("scancel", "--batch", "--signal=USR1", held))
        go_on_when_warned(pid)
        finish_after_requeue(held, "array-0", first, "no-array")
        slurm.await_state(f"{number}_1", "COMPLETED")
        same_run(job.out("supervised"), job.out("array-1"))
        slurm.await_state(f"{number}_2", "FAILED")
        assert text_of("array-2") == "error: --array: task 2 has no config, CONFIGS has 2, counted from 0\n", text_of("array-2")

    # --- docs/clusters.md ------------------------------------------------------------------------

    class Shell:
        """A shell that runs the page's blocks one after the other, in a folder that holds what the page speaks of."""

        def __init__(self, folder):
            self.process = subprocess.Popen(["bash", "-e"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                            text=True, cwd=folder, env=environment({
                                                **slurm.variables, "SBATCH_PARTITION": "rest", "MASTER_ADDR": "127.0.0.1",
                                                "FTRUN": BINARY}))

        def run(self, block):
            """What the block prints; fails where a command of it does."""
            self.process.stdin.write(block + "\necho \"the block has ended: $job\"\n")
            self.process.stdin.flush()
            text = ""
            while not (ended := re.search(r"^the block has ended: (\d*)$", text, re.MULTILINE)):
                line = self.process.stdout.readline()
                assert line, f"{block}\nended with {self.process.wait()}:\n{text}"
                text += line
            self.job = ended[1]
            return text

        def close(self):
            self.process.stdin.close()
            self.process.wait()

    def page_folder():
        """The page's repository: the scripts, the binary, and configs of the small model."""
        folder = job.scratch / "page"
        (folder / "build" / "release").mkdir(parents=True)
        (folder / "scripts").symlink_to(SCRIPTS.parent)
        (folder / "build" / "release" / "bin").symlink_to(pathlib.Path(BINARY).parent)
        for name in ("train", "first", "second"):
            config = job.config(f"page-{name}", train={"steps": 3, "log": {"every": 1000}}, device="cpu")
            value = json.loads(config.read_text()) | {"output_dir": f"runs/{name}"}
            (folder / f"{name}.yaml").write_text(json.dumps(value))
        return folder

    @waiting
    def commands_of_the_page_go_from_a_workstation_to_a_job_that_was_pre_empted():
        blocks = re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
        assert len(blocks) == 7, f"{PAGE}: {len(blocks)} blocks"
        workstation, one_node, two_nodes, warn, start_again, look, array = blocks
        folder = page_folder()
        runs = folder / "runs"
        shell = Shell(folder)
        text = shell.run(workstation)
        assert "the config is good" in text and checkpoints(runs / "train") == ["step-00000003"], text
        number = re.search(r"Submitted batch job (\d+)", shell.run(one_node))[1]
        slurm.await_state(number, "COMPLETED")
        assert (folder / f"ftrun-{number}.out").read_text().endswith(f"job {number}, start 0: exit code 0\n")
        assert [line["samples"] for line in steps(runs / "one-node")] == [8, 16, 24]
        shell.run(two_nodes)
        pid = hold(shell.job, runs / "two-nodes")
        shell.run(warn)
        go_on_when_warned(pid)
        slurm.await_startable(shell.job)
        assert "JobState=PENDING" in (text := shell.run(start_again)) and "Restarts=1" in text, text
        slurm.await_state(shell.job, "COMPLETED", restarts=1)
        text = shell.run(look)
        assert f"job {shell.job}, start 0: exit code 75\njob {shell.job}, start 1: exit code 0\n" in text, text
        assert len(steps(runs / "two-nodes")) == 1500
        number = re.search(r"Submitted batch job (\d+)", shell.run(array))[1]
        for task in (0, 1):
            slurm.await_state(f"{number}_{task}", "COMPLETED")
        same_run(runs / "first", runs / "second")
        shell.close()

    @case
    def scripts_share_what_needs_no_edit():
        texts = {path.name: path.read_text() for path in sorted(SCRIPTS.glob("*.sbatch"))}
        assert set(texts) == {"array.sbatch", "many_nodes.sbatch", "single_node.sbatch"}, texts.keys()
        assert len({text.split("# ---- The rest needs no edit", 1)[1] for text in texts.values()}) == 1
        for name, text in texts.items():
            told = [line for line in text.split("#SBATCH", 1)[0].splitlines()[1:] if line]
            assert len(told) <= 6 and all(line.startswith("# ") for line in told), f"{name}: {told}"
            lead = re.search(r"--signal=B:USR1@(\d+)", text)[1]
            assert re.search(rf"^LEAD={lead}\b", text, re.MULTILINE), f"{name}: --signal and LEAD differ"

    run_cases()
