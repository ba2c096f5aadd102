"""Checks that ranks which keep failing leave, with their replica, if the config allows it: the run
continues with fewer data-parallel ranks and the same global batch, and its losses equal those of an
undisturbed run, except for rounding."""
import pathlib
import resource
import signal
import tempfile

from runner import (Job, await_gone, ftrun, manifest, must, preload, require_near, run_cases, start,
                    steps, waiting_case)

STEPS = 60
SAVING = {"train": {"steps": STEPS, "log": {"every": 1}}, "data": {"sequence_length": 128},
          "checkpoint": {"every": 20, "keep_last": 3}}


def kill_rank(running, rank, count):
    """Kills rank `rank` of `count` ranks once all have started."""
    ranks = running.await_ranks(count)
    running.kill(signal.SIGKILL, ranks[rank])
    return ranks


def losses(out):
    assert [line["step"] for line in steps(out)] == list(range(1, STEPS + 1)), steps(out)
    return [line["loss"] for line in steps(out)]


def require_same_losses(job, straight, disturbed):
    require_near(disturbed, losses(job.out(disturbed)), losses(job.out(straight)), 1e-5)


with tempfile.TemporaryDirectory() as scratch:
    preload()
    job = Job(scratch)

    @waiting_case
    def a_rank_that_keeps_failing_leaves_and_the_losses_stay():
        # There are 16 sequences in a step: three ranks cannot divide them equally, two can.
        batch = SAVING | {"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 1,
                          "parallel": {"data": 4}}
        job.run("straight", **batch)
        running = start("--config", job.config("shrunk", elastic={"min_ranks": 2}, **batch))
        next_line = running.await_line("saved ")
        kill_rank(running, 3, 4)
        next_line = running.await_line("resumed from", next_line)
        kill_rank(running, 3, 4)
        next_line = running.await_line("rank 3 failed twice without a new checkpoint; continuing "
                                       "with 2 data-parallel ranks of 4, global batch unchanged: "
                                       "train_batch_size 16 = micro 4 × accumulation 2 × "
                                       "data-parallel 2",
                                       next_line)
        next_line = running.await_line("restart 2 (1 of 3 without a new checkpoint) in 1.0s, from "
                                       "step-000000", next_line)
        running.wait(0)
        require_same_losses(job, "straight", "shrunk")
        record = manifest(job.out("shrunk"))
        assert record["topology"]["data"] == 2 and len(record["restarts"]) == 2, record
        first, second = record["restarts"]
        assert ((first["rank"], second["rank"]) == (3, 3)
                and (first["ranks"], second["ranks"]) == (4, 2)), record["restarts"]
        assert "left_ranks" not in first and second["left_ranks"] == [2, 3], record["restarts"]
        why = "rank 3 failed twice without a new checkpoint: killed by signal 9"
        assert second["left_reason"].startswith(why), second
        assert ", with 2 ranks (removed: ranks 2, 3): rank 3: killed" in running.text(), (
            running.text()[-2000:])
        message = "continues with 2 data-parallel ranks of 4 since " + why
        for name in ("logs/rank-0.log", "report.html"):
            assert message in (pathlib.Path(job.out("shrunk")) / name).read_text(), name
        # All ranks may resume the run again.
        job.run("shrunk", "--resume", "auto", elastic={"min_ranks": 2},
                **batch | {"train": {"steps": STEPS + 1}})

    @waiting_case
    def whole_replicas_leave_and_the_model_degrees_stay():
        mesh = SAVING | {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1,
                         "parallel": {"data": 2, "pipeline": 2}}
        job.run("straight-mesh", **mesh)
        running = start("--config", job.config("mesh", elastic={"min_ranks": 2}, **mesh),
                        "--restarts", 1)
        next_line = running.await_line("step 1/")
        kill_rank(running, 0, 4)
        next_line = running.await_line("step 1/", next_line)
        kill_rank(running, 0, 4)
        running.await_line("rank 0 failed twice without a new checkpoint; continuing with 1 "
                           "data-parallel rank of 2, global batch unchanged", next_line)
        running.wait(0)
        require_same_losses(job, "straight-mesh", "mesh")
        assert manifest(job.out("mesh"))["topology"]["pipeline"] == 2

    @waiting_case
    def elasticity_of_deepspeed_lets_ranks_leave_down_to_min_gpus():
        section = {"enabled": True, "max_train_batch_size": 12, "micro_batch_sizes": [1, 2],
                   "min_gpus": 2, "version": 0.1}
        elastic = SAVING | {"elasticity": section, "train_micro_batch_size_per_gpu": None,
                            "gradient_accumulation_steps": None}
        job.run("straight-elastic", "--nproc", 3, **elastic)
        running = start("--config", job.config("elastic", **elastic), "--nproc", 3)
        running.await_line("notice: ranks that keep failing may be removed, down to 2 of 3: "
                           "elasticity.min_gpus is 2")
        next_line = running.await_line("step 1/")
        kill_rank(running, 1, 3)
        next_line = running.await_line("step 1/", next_line)
        kill_rank(running, 1, 3)
        next_line = running.await_line("continuing with 2 data-parallel ranks of 3, global batch "
                                       "unchanged: train_batch_size 12", next_line)
        running.wait(0)
        require_same_losses(job, "straight-elastic", "elastic")

    @waiting_case
    def fewer_than_the_config_allows_are_not_tried():
        batch = SAVING | {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1,
                          "train": {"steps": 20000},
                          # no checkpoint before the kill, however late it is
                          "checkpoint": SAVING["checkpoint"] | {"every": 10000}}
        running = start("--config", job.config("enough", elastic={"min_ranks": 2}, **batch),
                        "--nproc", 2, "--restarts", 1)
        next_line = 0
        for _ in range(2):
            next_line = running.await_line("step 1/", next_line)
            ranks = kill_rank(running, 1, 2)
        running.wait(137)
        await_gone(ranks.values())
        assert ("rank 1 failed twice without a new checkpoint; all ranks stay: elastic.min_ranks "
                "is 2\n" in running.text()), running.text()[-3000:]

    @waiting_case
    def the_last_data_rank_stays_which_is_reported_once():
        batch = SAVING | {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1,
                          "train": {"steps": 20000},
                          # no checkpoint before the kill, however late it is
                          "checkpoint": SAVING["checkpoint"] | {"every": 10000}}
        running = start("--config", job.config("last", elastic={"min_ranks": 1}, **batch),
                        "--nproc", 2, "--restarts", 3)
        seen = 0
        for ranks in (2, 2, 1, 1, 1):
            seen = running.await_line("step 1/", seen)
            kill_rank(running, ranks - 1, ranks)
        running.wait(137)
        assert running.text().count("; all ranks stay: ") == 1, running.text()[-3000:]
        assert ("rank 0 failed twice without a new checkpoint; all ranks stay: there must be "
                "at least 1 data-parallel rank\n" in running.text())

    @waiting_case
    def a_refused_file_drops_no_rank():
        batch = SAVING | {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1,
                          "train": {"steps": 20000, "log": {"every": 1}}}
        running = start("--config", job.config("refused", elastic={"min_ranks": 1}, **batch),
                        "--nproc", 2, "--restarts", 2)
        running.await_line("step 1/")
        # Rank 0's next line of metrics is refused, as by a full disk, and so is the output of the
        # next starts.
        resource.prlimit(running.ranks()[0], resource.RLIMIT_FSIZE, (0, 0))
        running.await_line("restart 1 (1 of 2 without a new checkpoint)")
        nowhere = job.scratch / "link-to-nowhere"
        nowhere.symlink_to(job.scratch / "nowhere")
        nowhere.replace(job.out("refused") / "metrics.jsonl")
        running.wait(5)
        text = running.text()
        assert "failed twice" not in text and "continuing with" not in text, text[-3000:]
        # It does not matter which rank reports first.
        assert ([line for line in running.lines if "restart 2 (" in line
                 and "rank 0: writing the run folder: rank 0: " in line]), text
        assert ("gave up after 2 restarts without a new checkpoint; the last failure: rank 0: "
                "writing the run folder: rank 0:" in text), text

    @waiting_case
    def min_ranks_without_effect_is_reported_with_the_reason():
        batch = SAVING | {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1,
                          "train": {"steps": 1},
                          "elastic": {"min_ranks": 1}}
        job_config = job.config("told", **batch)
        none = must(ftrun("--config", job_config, "--nproc", 2, "--restarts", 0))
        assert ("notice: elastic.min_ranks 1 has no effect: --restarts 0 forbids restarts"
                in none.stderr), none.stderr
        checked = must(ftrun("check", "-q", "--config", job_config, "--nproc", 2))
        assert "has no effect" not in checked.stdout, checked.stdout
        checked = must(ftrun("check", "-q", "--config", job_config, "--nproc", 1))
        assert ("notice: elastic.min_ranks 1 has no effect: there must be at least 1 "
                "data-parallel rank" in checked.stdout), checked.stdout
        launcher = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2",
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": "1"}
        checked = must(ftrun("check", "-q", "--config", job_config, "--nproc", 2, env=launcher))
        assert ("notice: elastic.min_ranks 1 has no effect: torchrun starts the ranks, and ftrun "
                "restarts only ranks that it has started itself") in checked.stdout, (
            checked.stdout)
        # The config of a run that continued with fewer ranks may be used with fewer ranks from the
        # start.
        fewer = must(ftrun("check", "-q", "--config", job_config, "--nproc", 1, "--set",
                           "elastic.min_ranks=2"))
        assert "elastic.min_ranks 2 > the 1 rank of this run, so no rank" in fewer.stdout, (
            fewer.stdout)

    run_cases()
