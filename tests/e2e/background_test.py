"""Checks checkpoints that are written while training continues: they equal those that are written
while training waits; and a save that is killed, fails or comes too often loses nothing but
itself."""
import json
import signal
import tempfile

from runner import (ATTEMPTS, Job, await_save, case, checkpoints, ftrun, manifest, must, preload,
                    reproducible_metrics, require_same_run, run_cases, start, steps)

ADAMW = {"type": "AdamW", "params": {"lr": 3e-3, "weight_decay": 0.1}}
FEW = {"train": {"steps": 12}, "scheduler": {"type": "cosine", "params": {"warmup_num_steps": 3}},
       "optimizer": ADAMW,
       "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2}
DISK = {"device": "nvme"}


def save_settings(**keys):
    return {"checkpoint": {"every": 2, "keep_last": 0} | keys}


def checkpoint_hashes(out):
    """Returns hashes of all files of all checkpoints."""
    found = {}
    for name in checkpoints(out):
        text = json.loads((out / "checkpoints" / name / "checkpoint.json").read_text())
        found[name] = [(file["file"], file["xxh3"]) for file in text["files"]]
    return found


with tempfile.TemporaryDirectory() as scratch:
    preload()
    job = Job(scratch)

    def disk(name):
        folder = job.scratch / f"swap-{name}"
        return {"stage": 3, "offload_optimizer": DISK | {"nvme_path": str(folder)},
                "offload_param": DISK | {"nvme_path": str(folder)}}

    def compare_background_saves(name, ranks, **keys):
        for background in (True, False):
            job.run(f"{name}-{background}", "--nproc", ranks, **FEW,
                    **save_settings(background=background), **keys)
        waited, beside = job.out(f"{name}-False"), job.out(f"{name}-True")
        require_same_run(waited, beside)
        hashes = checkpoint_hashes(waited)
        assert list(hashes) == [f"step-{step:08d}" for step in range(2, 13, 2)], hashes
        assert hashes == checkpoint_hashes(beside)
        record = manifest(beside)
        assert record["counters"]["checkpoints_saved"] == 6, record["counters"]
        used = record["memory"]["touched"].get("host_snapshot",
                                               0) + record["memory"]["allocated"].get(
                                                   "nvme_snapshot", 0)
        planned = record["memory"]["predicted"].get("host_snapshot",
                                                    0) + record["memory"]["predicted"].get(
                                                        "nvme_snapshot", 0)
        assert planned > 0 and 0 <= used - planned <= 4096, (planned, used)
        assert "host_snapshot" not in manifest(waited)["memory"]["predicted"], (
            "nothing is copied where training waits")

    @case
    def background_saves_write_the_same_bytes_on_one_rank():
        compare_background_saves("one", 1)

    @case
    def background_saves_write_the_same_bytes_in_bf16_on_three_ranks_of_stage_2():
        compare_background_saves("three", 3, bf16={"enabled": True}, zero_optimization={"stage": 2})

    @case
    def background_saves_write_the_same_bytes_from_the_disk_tier():
        compare_background_saves("disk", 2, zero_optimization=disk("same"))

    def kill_while_writing(name, ranks, which, **keys):
        """Kills a run with -9 while its `which`-th checkpoint is being written; returns False if
        the kill came too late."""
        running = start("--config", job.config(name, **FEW, **save_settings(), **keys),
                        "--nproc", ranks)
        awaited_checkpoint = f"step-{2 * which:08d}"
        await_save(running, job.out(name), 60, awaited_checkpoint)
        if running.process.poll() is None:
            running.kill_all()
        return awaited_checkpoint not in checkpoints(job.out(name))

    @case
    def killed_while_a_checkpoint_is_written():
        for ranks, keys in ((1, {}), (2, {"zero_optimization": disk("killed")})):
            straight = f"straight-{ranks}"
            job.run(straight, "--nproc", ranks, **FEW, **keys)
            caught, attempt = 0, 0
            while attempt < 2 or (caught == 0 and attempt < ATTEMPTS):
                name = f"killed-{ranks}-{attempt}"
                caught += kill_while_writing(name, ranks, 1 + attempt % 5, **keys)
                attempt += 1
                job.run(name, "--nproc", ranks, "--resume", "auto",
                        **FEW, **save_settings(), **keys)
                require_same_run(job.out(straight), job.out(name))
                left = list((job.out(name) / "checkpoints").glob("*.tmp-*"))
                assert not left, left
            assert caught >= 1, f"none of {attempt} kills met a checkpoint that was being written"

    @case
    def a_failed_save_costs_only_itself():
        # The run is stopped (SIGSTOP) before its folder is made unusable and continued after, and
        # it trains until another checkpoint exists, even if this test is slow.
        long = FEW | {"train": {"steps": 100000}}
        running = start("--config",
                        job.config("failing", **long, checkpoint={"every": 20, "keep_last": 2}))
        running.await_line("saved")
        root = job.out("failing") / "checkpoints"
        aside = root.with_name("aside")
        with running.paused():
            root.rename(aside)
            root.write_text("in the way")
        next_line = running.await_line("was not written")
        with running.paused():
            root.unlink()
            aside.rename(root)
        running.await_line("saved", next_line)
        running.kill(signal.SIGTERM)
        running.wait(128 + signal.SIGTERM)
        last_step = len(steps(job.out("failing")))
        text = running.text()
        assert "training continues, and the next checkpoint is written when it is due" in text, text
        record = manifest(job.out("failing"))
        assert record["counters"]["checkpoints_failed"] >= 1, record["counters"]
        assert f"step-{last_step:08d}" in checkpoints(job.out("failing"))
        must(ftrun("verify", job.out("failing")))

    @case
    def a_save_that_is_due_too_early_waits_or_is_skipped():
        each = {"every": 1, "keep_last": 0}
        job.run("waiting", **FEW, checkpoint=each)
        assert len(checkpoints(job.out("waiting"))) == 12
        job.run("skipping", **FEW | {"train": {"steps": 40}}, checkpoint=each | {"if_busy": "skip"})
        skipped = manifest(job.out("skipping"))["counters"]["checkpoints_skipped"]
        names = checkpoints(job.out("skipping"))
        assert (skipped > 0 and len(names) == 40 - skipped
                and names[-1] == "step-00000040"), (skipped, names)
        assert (reproducible_metrics(job.out("skipping"))[:3]
                == reproducible_metrics(job.out("waiting"))[:3])

    @case
    def checkpoints_are_saved_by_the_clock():
        # The run has few steps: on a machine that is slower than the clock, each of them is saved.
        job.run("clock", "--nproc", 2, **FEW | {"train": {"steps": 80}},
                checkpoint={"every": 0, "every_minutes": 0.001, "keep_last": 0})
        names = checkpoints(job.out("clock"))
        intervals = manifest(job.out("clock"))["counters"]["since_first_start_milliseconds"] / 60
        assert 2 <= len(names) <= intervals + 3 and names[-1] == "step-00000080", (intervals, names)
        # A skipped checkpoint is due again after the same time has passed, not after each step.
        job.run("ticks", **FEW | {"train": {"steps": 200}},
                checkpoint={"every": 0, "every_minutes": 0.001, "if_busy": "skip", "keep_last": 2})
        record = manifest(job.out("ticks"))["counters"]
        intervals = record["since_first_start_milliseconds"] / 60
        assert record["checkpoints_saved"] + record["checkpoints_skipped"] <= intervals + 3, record

    @case
    def a_signal_while_a_checkpoint_is_written():
        long = FEW | {"train": {"steps": 4000}}
        keys = {"checkpoint": {"every": 1, "keep_last": 2}}
        running = start("--config", job.config("signal", **long, **keys), "--nproc", 2)
        running.await_line("saved")
        running.kill(signal.SIGTERM)
        running.wait(128 + signal.SIGTERM)
        last_step = len(steps(job.out("signal")))
        assert checkpoints(job.out("signal"))[-1] == f"step-{last_step:08d}", (
            last_step, checkpoints(job.out("signal")))
        assert any("saved" in line and f"step-{last_step:08d}" in line for line in running.lines), (
            running.text()[-2000:])
        shorter = FEW | {"train": {"steps": last_step + 3}}
        job.run("signal", "--nproc", 2, "--resume", "auto", "--allow", "config", **shorter, **keys)
        assert [m["step"] for m in steps(job.out("signal"))] == list(range(1, last_step + 4))

    run_cases()
