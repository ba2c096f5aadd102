"""Checks that a run that was stopped and resumed equals, bit for bit, the run that was not stopped,
and what may and may not change at a resume."""
import json
import shutil
import tempfile

from runner import (ATTEMPTS, Job, case, checkpoints, ftrun, manifest, must, preload,
                    reproducible_metrics, require_near, require_same_run, run_cases, start, steps,
                    tiny_data, tiny_model, tiny_weights)

COSINE = {"type": "cosine", "params": {"warmup_num_steps": 3}}
ADAMW = {"type": "AdamW", "params": {"lr": 3e-3, "weight_decay": 0.1}}
SGD = {"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9, "nesterov": True}}
TWELVE = {"train": {"steps": 12}, "scheduler": COSINE}

with tempfile.TemporaryDirectory() as scratch:
    preload()
    job = Job(scratch)
    FEW = {**TWELVE, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2}

    def interrupted(name, ranks, optimizer):
        """Trains until step 5 is saved, kills the run there, and resumes it."""
        saving = {**FEW, "checkpoint": {"every": 5, "keep_last": 0}, "optimizer": optimizer}
        # The whole run takes a tenth of a second, so the kill may come too late.
        for _ in range(ATTEMPTS):
            shutil.rmtree(job.out(name), ignore_errors=True)
            running = start("--config", job.config(name, **saving), "--nproc", ranks)
            running.await_line("saved")
            running.kill_all()
            if "step-00000012" not in checkpoints(job.out(name)):
                break
        resumed = job.run(name, "--nproc", ranks, "--resume", "auto", **saving)
        assert "resumed from" in resumed.stdout, resumed.stdout

    def check_interrupted(ranks, optimizer, name):
        straight = f"straight-{name}-{ranks}"
        job.run(straight, "--nproc", ranks, **FEW, optimizer=optimizer)
        cut = f"cut-{name}-{ranks}"
        interrupted(cut, ranks, optimizer)
        require_same_run(job.out(straight), job.out(cut))
        record = manifest(job.out(cut))
        assert record["exit_code"] == 0 and len(record["restarts"]) == 1, record["restarts"]
        restart = record["restarts"][0]
        assert restart["reason"] == "the previous run ended without recording a reason", restart
        assert restart["to_step"] in (5, 10) and restart["from_step"] >= restart["to_step"], restart

    @case
    def no_run_starts_over_where_checkpoints_are_missing():
        out = job.out("gone")
        job.run("gone", **FEW)
        lines = (out / "metrics.jsonl").read_text()
        for gone in ("step-00000012", "latest"):
            path = out / "checkpoints" / gone
            shutil.rmtree(path) if path.is_dir() else path.unlink()
            refused = job.run("gone", "--resume", "auto", code=4, **FEW)
            message = (f"{out}/run.json: the run saved checkpoints, but {out}/checkpoints "
                       "contains none\n"
                       "  remedy: restore a checkpoint folder there, or start again in another "
                       "output_dir\n")
            assert message in refused.stderr, refused.stderr
        assert (out / "metrics.jsonl").read_text() == lines

    @case
    def a_killed_run_of_adamw_on_one_rank_resumes():
        check_interrupted(1, ADAMW, "adamw")

    @case
    def a_killed_run_of_adamw_on_two_ranks_resumes():
        check_interrupted(2, ADAMW, "adamw")

    @case
    def a_killed_run_of_sgd_on_one_rank_resumes():
        check_interrupted(1, SGD, "sgd")

    @case
    def a_killed_run_of_sgd_on_two_ranks_resumes():
        check_interrupted(2, SGD, "sgd")

    @case
    def same_run_twice_is_bitwise_equal():
        job.run("again", "--nproc", 2, **FEW, optimizer=ADAMW)
        require_same_run(job.out("straight-adamw-2"), job.out("again"))

    @case
    def a_run_resumes_at_an_explicit_step():
        job.run("explicit", **FEW, optimizer=ADAMW, checkpoint={"every": 4, "keep_last": 0})
        assert checkpoints(job.out("explicit")) == ["step-00000004", "step-00000008",
                                                    "step-00000012"]
        resumed = job.run("explicit", "--resume", "4", **FEW, optimizer=ADAMW,
                          checkpoint={"every": 4, "keep_last": 0})
        assert "step-00000004" in resumed.stdout and "step 5/12" in resumed.stdout, resumed.stdout
        require_same_run(job.out("straight-adamw-1"), job.out("explicit"))

    @case
    def a_run_resumes_on_another_number_of_ranks():
        four = {"train_batch_size": 8, "train_micro_batch_size_per_gpu": 2,
                "gradient_accumulation_steps": None}
        cosine = {"type": "cosine", "params": {"warmup_num_steps": 3, "total_num_steps": 12}}
        whole = {**TWELVE, **four, "optimizer": ADAMW, "scheduler": cosine}
        job.run("straight-8", "--nproc", 1, **whole)
        job.run("moved", "--nproc", 2, **whole | {"train": {"steps": 6}})
        moved = job.run("moved", "--nproc", 1, "--resume", "auto", **whole)
        assert ("notice: the resumed run has another topology.data: was 2, is now 1"
                in moved.stderr), moved.stderr
        require_near("loss", [m["loss"] for m in steps(job.out("moved"))],
                     [m["loss"] for m in steps(job.out("straight-8"))], 1e-6)

    @case
    def a_mix_of_data_sets_goes_on_with_the_same_samples():
        """A run is stopped and resumed, on the same ranks and on others. With other weights of the
        mix, the resume is refused, because it would be a different run."""
        few = tiny_data(job.scratch / "few.bin", tokens=600, seed=3)
        mix = {"train": [{"path": str(job.data), "weight": 1}, {"path": str(few), "weight": 0.5}],
               "token_dtype": "uint16"}
        base = {"train_batch_size": 8, "train_micro_batch_size_per_gpu": 2,
                "gradient_accumulation_steps": None, "data": mix,
                "optimizer": ADAMW}
        straight = job.run("mixed", "--nproc", 2, **base, train={"steps": 12})
        assert ("data set 1 of 2: 66.7% of the tokens trained on, seen 1 times per epoch\n"
                in straight.stdout), straight.stdout
        assert ("data set 2 of 2: 33.3% of the tokens trained on, seen 3.56 times per epoch\n"
                in straight.stdout)
        for name, ranks in (("mixed-2", 2), ("mixed-1", 1)):
            job.run(name, "--nproc", 2, **base, train={"steps": 5})
            job.run(name, "--nproc", ranks, "--resume", "auto", **base, train={"steps": 12})
        require_same_run(job.out("mixed"), job.out("mixed-2"))
        require_near("loss", [m["loss"] for m in steps(job.out("mixed-1"))],
                     [m["loss"] for m in steps(job.out("mixed"))], 1e-6)
        mix["train"][1]["weight"] = 2
        refused = job.run("mixed-2", "--nproc", 2, "--resume", "auto", code=2, **base,
                          train={"steps": 14})
        assert "config.data.train_weights" in refused.stderr, refused.stderr

    @case
    def more_steps_need_no_permission():
        short = {**FEW, "optimizer": ADAMW, "scheduler": None}
        job.run("longer", **short | {"train": {"steps": 4}})
        longer = job.run("longer", "--resume", "auto", **short | {
            "train": {"steps": 8, "log": {"every": 2}, "evaluation": {"samples": 4}},
            "checkpoint": {"every": 3, "keep_last": 1}, "comm": {"timeout": 60}, "threads": 2})
        for change in ("config.train.steps: was 4, is now 8",
                       "config.checkpoint.every: was 0, is now 3",
                       "config.comm.timeout: was 0, is now 60", "config.threads: was 1, is now 2"):
            assert f"notice: the resumed run has another {change}" in longer.stderr, longer.stderr
        job.run("eight", **short | {"train": {"steps": 8}})
        assert reproducible_metrics(job.out("longer")) == reproducible_metrics(job.out("eight"))

    @case
    def more_steps_of_a_decaying_schedule_need_permission():
        refused = job.run("straight-adamw-1", "--resume", "auto", code=2,
                          **FEW | {"train": {"steps": 14}}, optimizer=ADAMW)
        assert ("1 thing differs:\n  config.scheduler.params.total_num_steps: was 12, is now 14\n"
                in refused.stderr), refused.stderr

    @case
    def finished_run_resumed_does_nothing_and_says_so():
        resumed = job.run("longer", "--resume", "auto",
                          **{**FEW, "optimizer": ADAMW, "scheduler": None, "train": {"steps": 8}})
        assert "nothing is left to train: step 8 of 8" in resumed.stdout, resumed.stdout
        assert len(steps(job.out("longer"))) == 8

    @case
    def resuming_a_step_of_a_run_that_does_not_exist_makes_no_folder():
        for ranks in (1, 2):
            refused = job.run("lnoger", "--resume", 5, "--nproc", ranks, code=2, **FEW)
            assert (f"output_dir {job.out('lnoger')} contains no run to resume "
                    f"(did you mean \"{job.out('longer')}\"?)") in refused.stderr, refused.stderr
            assert not job.out("lnoger").exists(), list(job.out("lnoger").rglob("*"))

    @case
    def folder_of_another_run_is_refused():
        refused = job.run("longer", code=2, **FEW)
        out = job.out("longer")
        assert refused.stderr.splitlines()[-2:] == [
            f"ftrun: output_dir {out}: the folder is not empty (it holds checkpoints, config.yaml, "
            "data-fingerprint.json and 6 more)",
            "  remedy: continue the run that is there with --resume auto, or choose another "
            "output_dir"], refused.stderr

    @case
    def changed_key_is_refused_by_name_and_allowed_by_name():
        base = {**FEW, "optimizer": ADAMW, "scheduler": None, "train": {"steps": 4}}
        job.run("guarded", **base)
        changed = {**base, "train": {"steps": 6, "seed": 7},
                   "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "weight_decay": 0.1}}}
        refused = job.run("guarded", "--resume", "auto", code=2, **changed)
        assert refused.stderr[refused.stderr.index("ftrun: "):] == (
            f"ftrun: {job.out('guarded')}/run.json: this is not the run that was started there; 2 "
            "things differ:\n  config.optimizer.params.lr: was 0.003, is now 0.001\n"
            "  config.train.seed: was 42, is now 7\n"
            "  remedy: undo the change to continue that run, or admit it with --allow "
            "config.optimizer.params.lr (once for each field; --allow config.train admits "
            "all of train), or start a new one in another output_dir\n"), refused.stderr
        assert len(steps(job.out("guarded"))) == 4, "a refused resume changed the run"
        allowed = ("--allow", "config.optimizer.params.lr", "--allow", "config.train")
        job.run("guarded", "--resume", "auto", *allowed, **changed)
        lines = steps(job.out("guarded"))
        assert len(lines) == 6 and abs(lines[-1]["lr"] - 1e-3) < 1e-9, lines[-1]

    def without_run_json(name, **changes):
        """Trains and saves four steps, then removes run.json."""
        job.run(name, **{**FEW, "optimizer": ADAMW, "scheduler": None, "train": {"steps": 4}}
                | changes)
        (job.out(name) / "run.json").unlink()

    EIGHT = {**FEW, "optimizer": ADAMW, "scheduler": None, "train": {"steps": 8}}

    @case
    def a_missing_run_json_is_replaced_by_the_checkpoints_record():
        without_run_json("lost")
        changed = {**EIGHT, "train": {"steps": 8, "seed": 7},
                   "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "weight_decay": 0.1}}}
        refused = job.run("lost", "--resume", "auto", code=2, **changed)
        out = job.out("lost")
        assert (f"warning: {out}/run.json: is missing; the run is compared with what its "
                "checkpoint records\n" in refused.stderr)
        assert refused.stderr[refused.stderr.index("ftrun: "):] == (
            f"ftrun: {out}/checkpoints/step-00000004/checkpoint.json: this is not the run that was "
            "started there; 2 things differ:\n  config.optimizer.params.lr: was 0.003, is now "
            "0.001\n  config.train.seed: was 42, is now 7\n"
            "  remedy: undo the change to continue that run, or admit it with --allow "
            "config.optimizer.params.lr (once for each field; --allow config.train admits "
            "all of train), or start a new one in another output_dir\n"), refused.stderr
        assert not (out / "run.json").exists(), "a refused resume changed the run"
        on_two = job.run("lost", "--nproc", 2, "--resume", "auto", code=2, **changed)
        assert "  config.train.seed: was 42, is now 7\n" in on_two.stderr, on_two.stderr
        resumed = job.run("lost", "--resume", "auto", **EIGHT)
        assert ("notice: the resumed run has another config.train.steps: was 4, is now 8"
                in resumed.stderr), resumed.stderr
        assert manifest(out)["start"] == f"{out}/checkpoints/step-00000004"
        straight = job.run("eight-straight", **EIGHT)
        assert manifest(job.out("eight-straight"))["start"] == "the model's weights", (
            straight.stderr)
        require_same_run(job.out("eight-straight"), out)

    @case
    def without_run_json_another_model_or_data_are_refused():
        meta = {"token_dtype": "uint16"}
        without_run_json("swapped", data=meta)
        data = tiny_data(job.scratch / "swapped.bin", seed=9)
        refused = job.run("swapped", "--resume", "auto", code=2,
                          **EIGHT | {"data": {"train": str(data), **meta}})
        assert ("/step-00000004/checkpoint.json: this is not the run that was started there; "
                "1 thing differs:\n"
                "  data.train.fingerprint: was ") in refused.stderr, refused.stderr
        other_model = tiny_model(job.scratch / "other-model", tiny_weights(seed=3))
        (other_model / "note").write_text("")
        config = json.loads((other_model / "config.json").read_text())
        (other_model / "config.json").write_text(json.dumps(
            config | {"architectures": config["architectures"], "note": 1}))
        refused = job.run("swapped", "--resume", "auto", code=2,
                          **EIGHT | {"model": {"path": str(other_model)}, "data": meta})
        assert "\n  model.fingerprint: was " in refused.stderr, refused.stderr

    @case
    def damaged_run_json_is_not_passed_over_and_not_replaced():
        job.run("damaged", **EIGHT | {"train": {"steps": 4}})
        path = job.out("damaged") / "run.json"
        path.write_text(path.read_text()[:100])
        refused = job.run("damaged", "--resume", "auto", code=4, **EIGHT)
        assert refused.stderr.endswith(
            f"ftrun: {path}: it is not JSON\n"
            "  remedy: restore this file, which ftrun wrote, from a copy, or move it away; a "
            "resume then compares the run with what its checkpoint records\n"), refused.stderr
        assert len(path.read_text()) == 100

    @case
    def resume_in_a_folder_without_a_run_is_reported_as_a_warning():
        typo = job.run("damgaed", "--resume", "auto", **EIGHT | {"train": {"steps": 1}})
        out = job.out("damgaed")
        assert (f"warning: --resume auto: output_dir {out} held no run: training starts "
                f"from the beginning, with the model's weights "
                f"(did you mean \"{job.out('damaged')}\"?)\n") in typo.stderr, (
            typo.stderr)
        assert (manifest(out)["start"] == "the model's weights: --resume found no run in "
                                          "output_dir"), manifest(out)["start"]

    @case
    def step_without_a_checkpoint_is_refused():
        refused = job.run("explicit", "--resume", "3", code=4, **FEW, optimizer=ADAMW)
        assert refused.stderr.endswith(
            f"ftrun: {job.out('explicit')}/checkpoints: holds no checkpoint of step 3\n"
            "  remedy: give one of the saved steps: 4, 8, 12; or --resume auto for the newest good "
            "one\n"), refused.stderr
        nonsense = must(ftrun("--config", job.config("guarded", **FEW), "--resume", "last"), 2)
        assert nonsense.stderr == ("ftrun: --resume last: not a step\n"
                                   "  remedy: give --resume auto, or the number of a saved "
                                   "step\n"), nonsense.stderr

    @case
    def killed_before_the_first_checkpoint_starts_anew():
        # The whole run takes a tenth of a second, so the kill may come too late.
        for _ in range(ATTEMPTS):
            shutil.rmtree(job.out("early"), ignore_errors=True)
            running = start("--config", job.config("early", **FEW, optimizer=ADAMW))
            running.await_line("step 1/")
            if running.process.poll() is None:
                running.kill_all()
            if not list(job.out("early").glob("checkpoints/step-????????")):
                break
        resumed = job.run("early", "--resume", "auto", **FEW, optimizer=ADAMW)
        assert ("no checkpoint was saved yet: training starts from the beginning"
                in resumed.stdout), resumed.stdout
        require_same_run(job.out("straight-adamw-1"), job.out("early"))

    @case
    def run_that_failed_before_its_first_checkpoint_may_change():
        bad = job.scratch / "bad.bin"
        bad.write_bytes(b"\xff\x7f" * 4097)
        wrong = {"data": {"train": str(bad), "token_dtype": "uint16"}, "optimizer": ADAMW}
        job.run("mended", code=4, **FEW, **wrong)
        assert manifest(job.out("mended"))["exit_code"] == 4
        mended = job.run("mended", "--resume", "auto", **FEW, optimizer=ADAMW)
        restart = manifest(job.out("mended"))["restarts"][0]
        assert restart["rank"] == 0 and "is outside the model's" in restart["reason"], restart
        assert "training starts from the beginning" in mended.stdout, mended.stdout
        require_same_run(job.out("straight-adamw-1"), job.out("mended"))

    run_cases()
