"""Tests the scripts that people submit (scripts/slurm), on a SLURM of eight nodes that are all this
machine: time limit, pre-emption, a failing node, a canceled job, an array; and the commands of
docs/clusters.md. Skipped (exit 77) if the machine has no SLURM to start."""

import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from pages import command_blocks
from runner import (
    BINARY,
    Job,
    await_that,
    case,
    checkpoints,
    environment,
    manifest,
    must,
    run_cases,
    require_same_run,
    skip,
    steps,
    waiting_case,
)
from private_slurm import Slurm, slurm_problem

FEW = {"train": {"steps": 4}}
SOURCE = pathlib.Path(sys.argv[1])
SCRIPTS = SOURCE / "scripts" / "slurm"
# The jobs of one case use other nodes than those of another. The page's jobs are on n7 and n8, in a
# separate partition.
LIMITED, PREEMPTED, SPARE = "n1,n2", "n3", "n4,n5,n6"
ELSEWHERE = {LIMITED: "n[3-8]", SPARE: "n[1-3,7-8]"}

if why := slurm_problem():
    skip(why)
SRUN = shutil.which("srun")

with contextlib.ExitStack() as until_the_end:
    scratch, slurm_folder = (
        until_the_end.enter_context(tempfile.TemporaryDirectory()) for _ in range(2)
    )
    slurm = until_the_end.enter_context(Slurm(slurm_folder, nodes=8))
    job = Job(scratch)

    def text_of(name):
        return (pathlib.Path(scratch) / f"{name}.out").read_text()

    def long_config(name):
        """Writes a config with enough steps for a signal to come in time; a resume may set
        fewer."""
        return job.config(name, train={"steps": 100000, "log": {"every": 1000}}, device="cpu")

    def submit(script, name, *options, **variables):
        """Submits a script as it is shipped, with options for what differs on this cluster."""
        return slurm.submit(
            SCRIPTS / script,
            "--cpus-per-task=1",
            "-o",
            f"{scratch}/{name}.out",
            *options,
            FTRUN=BINARY,
            MASTER_ADDR="127.0.0.1",
            **variables,
        )

    def stop_rank_of(number, out, rank=1):
        """Stops a rank of the job after some steps, so that the others wait for it without
        computing."""

        def trained():
            with contextlib.suppress(FileNotFoundError):
                return len(steps(out)) >= 3

        await_that(trained, f"{out} has trained", pause=0.05)
        [pid] = slurm.pids(number, f"ftrun-rank-{rank}")
        os.kill(pid, signal.SIGSTOP)
        return pid

    def continue_when_warned(pid):
        """Continues a stopped rank once SIGUSR1 has reached it."""

        def warned():
            status = pathlib.Path(f"/proc/{pid}/status").read_text()
            return int(re.search(r"ShdPnd:\s*(\w+)", status)[1], 16) >> (signal.SIGUSR1 - 1) & 1

        await_that(warned, f"rank {pid} has been sent SIGUSR1", pause=0.05)
        os.kill(pid, signal.SIGCONT)

    def finish_after_requeue(number, name, config, straight, **changes):
        """Checks that the job was saved and requeued, starts it again with three more steps, and
        waits for its end; returns why it was requeued."""
        slurm.await_state(number, "PENDING", restarts=1)
        last_step = len(steps(job.out(name)))
        reason = manifest(job.out(name))["exit_reason"]
        text = config.read_text()
        config.write_text(text.replace('"steps": 100000', f'"steps": {last_step + 3}'))
        slurm.start_again(number)
        slurm.await_state(number, "COMPLETED", restarts=1)
        assert "step-%08d" % (last_step + 3) in checkpoints(job.out(name)), text_of(name)[-3000:]
        job.run(
            straight,
            "--nproc",
            2,
            train={"steps": last_step + 3, "log": {"every": 1000}},
            device="cpu",
            **changes,
        )
        require_same_run(job.out(straight), job.out(name))
        return reason

    @waiting_case
    def failed_node_queues_the_job_again_on_others():
        settings = {
            "train": {"steps": 40, "log": {"every": 1000}},
            "device": "cpu",
            "checkpoint": {"every": 1, "background": False},
        }
        config = job.config("failed-node", **settings)
        number = submit(
            "many_nodes.sbatch",
            "failed-node",
            "--nodes=2",
            "--ntasks-per-node=1",
            "--gpus-per-node=1",
            "-x",
            ELSEWHERE[SPARE],
            CONFIG=config,
        )
        stop_rank_of(number, job.out("failed-node"))
        nodes = slurm.fields(number)["NodeList"]
        slurm.fail_node(slurm.run("scontrol", "show", "hostnames", nodes).stdout.split()[-1])
        slurm.start_again(number)
        ended = slurm.await_state(number, "COMPLETED", restarts=1)
        assert ended["NodeList"] != nodes, ended
        job.run("no-failed-node", "--nproc", 2, **settings)
        require_same_run(job.out("no-failed-node"), job.out("failed-node"))

    @waiting_case
    def time_limit_saves_and_queues_many_nodes_again():
        # SLURM checks time limits twice a minute, and counts them in minutes.
        config = long_config("limited")
        number = submit(
            "many_nodes.sbatch",
            "limited",
            "--nodes=2",
            "--ntasks-per-node=1",
            "--gpus-per-node=1",
            "--time=1",
            "--signal=B:USR1@60",
            "-x",
            ELSEWHERE[LIMITED],
            CONFIG=config,
        )
        continue_when_warned(stop_rank_of(number, job.out("limited")))
        reason = finish_after_requeue(number, "limited", config, "unlimited")
        assert reason.startswith("stopped by SIGUSR1 after step "), reason
        # A start that uses its whole time is warned like the first one, and requeued once more.
        starts = re.findall(rf"^job {number}, start (\d+): exit code (\d+)$",
                            text_of("limited"), re.MULTILINE)
        assert ([int(start) for start, _ in starts] == list(range(len(starts)))
                and len(starts) >= 2 and {code for _, code in starts[:-1]} == {"75"}
                and starts[-1][1] == "0"), (starts, text_of("limited")[-3000:])
        assert manifest(job.out("limited"))["counters"]["stop_lead_milliseconds"] == 120000

    @waiting_case
    def preemption_saves_and_queues_one_node_again():
        config = long_config("preempted")
        number = submit(
            "single_node.sbatch", "preempted", "--gpus-per-node=2", "-w", PREEMPTED, CONFIG=config
        )
        pid = stop_rank_of(number, job.out("preempted"))
        script = job.scratch / "urgent.sh"
        script.write_text("#!/bin/sh\n")
        urgent = slurm.submit(
            script, "-p", "urgent", "-w", PREEMPTED, "--exclusive", "-o", "/dev/null"
        )
        continue_when_warned(pid)
        slurm.await_state(urgent, "COMPLETED")
        reason = finish_after_requeue(number, "preempted", config, "not-preempted")
        assert reason.startswith("stopped by SIGUSR1 after step "), reason

    @waiting_case
    def canceled_job_is_saved_and_stays_canceled():
        number = submit(
            "single_node.sbatch",
            "canceled",
            "--gpus-per-node=0",
            "-x",
            ELSEWHERE[LIMITED],
            CONFIG=long_config("canceled"),
            RANKS="2",
        )
        os.kill(stop_rank_of(number, job.out("canceled")), signal.SIGCONT)
        must(slurm.run("scancel", number))
        ended = slurm.await_state(number, "CANCELLED")
        await_that(
            lambda: manifest(job.out("canceled")).get("exit_code") == 143, "the run has ended"
        )
        count = len(steps(job.out("canceled")))
        assert ended["Restarts"] == "0" and checkpoints(job.out("canceled")) == [
            f"step-{count:08}"
        ], ended
        assert text_of("canceled").endswith(f"job {number}, start 0: exit code 143\n"), text_of(
            "canceled"
        )[-2000:]

    def handles_warnings(number, program="slurm_script", word=""):
        """Returns whether a program of the job, with this word in its command line, has a handler
        for SIGUSR1."""
        for pid in slurm.pids(number, program):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if word not in pathlib.Path(f"/proc/{pid}/cmdline").read_text():
                    continue
                status = pathlib.Path(f"/proc/{pid}/status").read_text()
                caught = int(re.search(r"SigCgt:\s*(\w+)", status)[1], 16)
                return caught >> (signal.SIGUSR1 - 1) & 1
        return False

    @waiting_case
    def warning_while_the_ranks_are_started_is_not_lost():
        # srun drops a signal that arrives before its tasks are launched, on each node separately.
        for script, options in (
            ("single_node.sbatch", ["--gpus-per-node=2"]),
            ("many_nodes.sbatch", ["--nodes=2", "--ntasks-per-node=1", "--gpus-per-node=1"]),
        ):
            for wait in (0, 0.1):
                name = f"early-{script}-{wait}"
                config = long_config(name)
                number = submit(script, name, *options, "-x", ELSEWHERE[LIMITED], CONFIG=config)
                await_that(
                    lambda: handles_warnings(number), f"script {number} has begun", pause=0.005)
                time.sleep(wait)
                must(slurm.run("scancel", "--batch", "--signal=USR1", number))
                slurm.await_state(number, "PENDING", restarts=1)
                must(slurm.run("scancel", number))

    @waiting_case
    def warning_while_the_step_of_the_ranks_is_pending_is_not_lost():
        # A warned srun cancels a step that SLURM has not created yet. Here another step of the job
        # uses its core.
        folder = pathlib.Path(scratch) / "pending"
        folder.mkdir()
        (folder / "srun").write_text(
            f"""#!/bin/bash
"{SRUN}" --ntasks=1 bash -c 'touch "{folder}/busy"; sleep 600' &
until [ -e "{folder}/busy" ]; do sleep 0.05; done
exec "{SRUN}" "$@"
"""
        )
        (folder / "srun").chmod(0o755)
        config = long_config("pending")
        number = submit(
            "single_node.sbatch",
            "pending",
            "--gpus-per-node=0",
            "-x",
            ELSEWHERE[LIMITED],
            CONFIG=config,
            RANKS="2",
            PATH=f"{folder}:{os.environ['PATH']}",
        )
        # srun handles the signal while it waits for the step.
        await_that(
            lambda: handles_warnings(number, "srun", str(config)), "the step is pending", pause=0.05
        )
        must(slurm.run("scancel", "--batch", "--signal=USR1", number))
        slurm.await_state(number, "PENDING", restarts=1)
        assert "pending job step with signal 10" in text_of("pending"), text_of("pending")
        must(slurm.run("scancel", number))

    @waiting_case
    def array_trains_a_config_a_task_and_queues_each_by_itself():
        first, second = long_config("array-0"), job.config("array-1", **FEW, device="cpu")
        number = submit(
            "array.sbatch",
            "array-%a",
            "--array=0-2",
            "--gpus-per-node=0",
            "-x",
            ELSEWHERE[LIMITED],
            CONFIGS=f"{first} {second}",
            RANKS="2",
        )
        held = slurm.await_state(f"{number}_0", "RUNNING")["JobId"]
        pid = stop_rank_of(held, job.out("array-0"))
        must(slurm.run("scancel", "--batch", "--signal=USR1", held))
        continue_when_warned(pid)
        finish_after_requeue(held, "array-0", first, "no-array")
        slurm.await_state(f"{number}_1", "COMPLETED")
        job.run("not-in-an-array", "--nproc", 2, **FEW, device="cpu")
        require_same_run(job.out("not-in-an-array"), job.out("array-1"))
        slurm.await_state(f"{number}_2", "FAILED")
        assert (
            text_of("array-2")
            == "error: --array: task 2 has no config, CONFIGS has 2, counted from 0\n"
        ), text_of("array-2")

    # --- docs/clusters.md ------------------------------------------------------------------------

    class Shell:
        """A shell that runs the page's blocks one after the other, in a folder that holds
        everything that the page mentions."""

        def __init__(self, folder):
            self.process = subprocess.Popen(
                ["bash", "-e"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                cwd=folder,
                env=environment(
                    {
                        **slurm.variables,
                        "SBATCH_PARTITION": "rest",
                        "MASTER_ADDR": "127.0.0.1",
                        "FTRUN": BINARY,
                    }
                ),
            )

        def run(self, block):
            """Runs the block; returns its output. Fails if one of its commands fails."""
            self.process.stdin.write(block + '\necho "the block has ended: $job"\n')
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
        """Makes the page's repository: the scripts, the binary, and configs with the small
        model."""
        folder = job.scratch / "page"
        (folder / "build" / "release").mkdir(parents=True)
        (folder / "scripts").symlink_to(SCRIPTS.parent)
        (folder / "build" / "release" / "bin").symlink_to(pathlib.Path(BINARY).parent)
        for name in ("train", "first", "second"):
            config = job.config(
                f"page-{name}", train={"steps": 3, "log": {"every": 1000}}, device="cpu"
            )
            value = json.loads(config.read_text()) | {"output_dir": f"runs/{name}"}
            (folder / f"{name}.yaml").write_text(json.dumps(value))
        return folder

    @waiting_case
    def commands_of_the_page_go_from_a_workstation_to_a_job_that_was_pre_empted():
        blocks = command_blocks(SOURCE, "docs/clusters.md")
        assert len(blocks) == 7, f"{len(blocks)} blocks"
        workstation, one_node, two_nodes, warn, start_again, look, array = blocks
        folder = page_folder()
        runs = folder / "runs"
        shell = Shell(folder)
        text = shell.run(workstation)
        assert "the config is good" in text and checkpoints(runs / "train") == [
            "step-00000003"
        ], text
        number = re.search(r"Submitted batch job (\d+)", shell.run(one_node))[1]
        slurm.await_state(number, "COMPLETED")
        assert (
            (folder / f"ftrun-{number}.out")
            .read_text()
            .endswith(f"job {number}, start 0: exit code 0\n")
        )
        assert [line["samples"] for line in steps(runs / "one-node")] == [8, 16, 24]
        shell.run(two_nodes)
        pid = stop_rank_of(shell.job, runs / "two-nodes")
        shell.run(warn)
        continue_when_warned(pid)
        slurm.await_startable(shell.job)
        assert "JobState=PENDING" in (text := shell.run(start_again)) and "Restarts=1" in text, text
        slurm.await_state(shell.job, "COMPLETED", restarts=1)
        text = shell.run(look)
        assert (
            f"job {shell.job}, start 0: exit code 75\njob {shell.job}, start 1: exit code 0\n"
            in text
        ), text
        assert len(steps(runs / "two-nodes")) == 1500
        number = re.search(r"Submitted batch job (\d+)", shell.run(array))[1]
        for task in (0, 1):
            slurm.await_state(f"{number}_{task}", "COMPLETED")
        require_same_run(runs / "first", runs / "second")
        shell.close()

    @case
    def scripts_share_what_needs_no_edit():
        texts = {path.name: path.read_text() for path in sorted(SCRIPTS.glob("*.sbatch"))}
        assert set(texts) == {
            "array.sbatch",
            "many_nodes.sbatch",
            "single_node.sbatch",
        }, texts.keys()
        assert (
            len({text.split("# ---- The rest needs no edit", 1)[1] for text in texts.values()}) == 1
        )
        for name, text in texts.items():
            comments = [line for line in text.split("#SBATCH", 1)[0].splitlines()[1:] if line]
            assert len(comments) <= 6 and all(line.startswith("# ") for line in comments), (
                f"{name}: {comments}")
            lead = re.search(r"--signal=B:USR1@(\d+)", text)[1]
            assert re.search(
                rf"^LEAD={lead}\b", text, re.MULTILINE
            ), f"{name}: --signal and LEAD differ"

    run_cases()
