"""Checks that a run whose state is sharded, in 16 bits or on another tier continues bit for bit
after a stop: on its own layout, and on others if the layout itself changes no bit. Its checkpoints
are complete, and transformers can use its export. tests/engine/model_state_test.cc saves and loads
all combinations of stages and tiers in one process."""
import json
import os
import re
import shutil
import tempfile
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
from safetensors.numpy import load_file

from runner import (ShardedJob, case, checkpoints, evaluations, exported_weights, ftrun, must,
                    preload, require_near, require_same_run, run_cases, start, steps, stored_arrays,
                    tiny_data)

CPU = {"device": "cpu"}
ROUNDED = {"bf16": {"enabled": True, "bf16_optimizer_states": True,
                    "bf16_master_weights_and_grads": True}}
# The second step overflows, so that the stop after the third one is in the middle of a window.
OVERFLOWING = {"fp16": {"enabled": True, "initial_scale_power": 21, "loss_scale_window": 2,
                        "hysteresis": 1}}
HYBRID = {"parallel": {"data": 4, "data_replicate": 2}}


def checkpoint_arrays(out, step):
    """Returns the arrays of a checkpoint in fp64 (stored_arrays())."""
    return stored_arrays(out / "checkpoints" / f"step-{step:08d}", framework="pt")


def require_same_arrays(a, b, step):
    first, second = checkpoint_arrays(a, step), checkpoint_arrays(b, step)
    assert first.keys() == second.keys(), first.keys() ^ second.keys()
    for key in first:
        assert np.array_equal(first[key], second[key]), key


with tempfile.TemporaryDirectory() as scratch:
    preload()
    job = ShardedJob(scratch)
    NVME = {"device": "nvme", "nvme_path": f"{scratch}/nvme"}
    TIERS = {"device": {}, "host": {"offload_optimizer": CPU},
             "host-both": {"offload_optimizer": CPU, "offload_param": CPU},
             "half": {"offload_optimizer": CPU | {"ratio": 0.5}},
             "disk": {"offload_optimizer": NVME},
             "disk-both": {"offload_optimizer": NVME, "offload_param": NVME}}

    def settings(stage=0, tier="device", steps=6, **changes):
        return {"stage": stage, "zero": TIERS[tier], "train": {"steps": steps}, **changes}

    def train_half(name, ranks, **changes):
        """Trains three of six steps into a separate folder."""
        return job.train(name, ranks, **settings(steps=3, **changes))

    def resume(name, ranks, **changes):
        run = job.run(name, "--nproc", ranks, "--resume", "auto",
                      **job.settings(ranks, **settings(**changes)))
        assert f"resumed from {job.out(name)}/checkpoints/step-00000003" in run.stdout, run.stdout
        return run

    def require_as_uninterrupted(straight, ranks, layouts, **precision):
        """Checks that every layout, stopped after three steps and resumed, equals the uninterrupted
        run of stage 0."""
        job.train(straight, ranks, **settings(**precision))
        for stage, tier in layouts:
            name = f"{straight}-{stage}-{tier}"
            train_half(name, ranks, stage=stage, tier=tier, **precision)
            resume(name, ranks, stage=stage, tier=tier, **precision)
            require_same_run(job.out(straight), job.out(name))
            require_same_arrays(job.out(straight), job.out(name), 6)

    @case
    def fp32_goes_on_wherever_state_lies():
        require_as_uninterrupted("fp32", 3, [(1, "host"), (3, "half"), (3, "disk-both")])

    @case
    def bf16_goes_on_wherever_state_lies():
        require_as_uninterrupted("bf16", 2, [(1, "disk"), (3, "host-both")], precision="bf16")

    @case
    def fp16_goes_on_with_its_loss_scale():
        require_as_uninterrupted("fp16", 2, [(0, "device"), (2, "disk")], **OVERFLOWING)
        scales = [m["loss_scale"] for m in steps(job.out("fp16"))]
        skipped = [m.get("skipped", False) for m in steps(job.out("fp16"))]
        assert (True in skipped[:3] and False in skipped[:3]
                and len(set(scales[3:])) > 1), (scales, skipped)

    @case
    def stochastic_rounding_goes_on():
        """Stochastic rounding depends on seed, step and element, and not on when a run was
        stopped."""
        job.train("rounded", 2, **settings(stage=1, **ROUNDED))
        train_half("rounded-cut", 2, stage=3, tier="disk-both", **ROUNDED)
        resume("rounded-cut", 2, stage=3, tier="disk-both", **ROUNDED)
        require_same_run(job.out("rounded"), job.out("rounded-cut"))
        require_same_arrays(job.out("rounded"), job.out("rounded-cut"), 6)

    @case
    def replicas_go_on():
        job.train("hybrid", 4, **settings(stage=3, **HYBRID))
        train_half("hybrid-cut", 4, stage=3, **HYBRID)
        resume("hybrid-cut", 4, stage=3, **HYBRID)
        require_same_run(job.out("hybrid"), job.out("hybrid-cut"))
        require_same_arrays(job.out("hybrid"), job.out("hybrid-cut"), 6)

    # --- on another layout -------------------------------------------------------------------

    @case
    def another_stage_tier_and_recompute_change_no_bit():
        train_half("moved", 3, stage=3)
        moves = {"whole": {"stage": 0}, "states": {"stage": 1, "tier": "disk"},
                 "elsewhere": {"stage": 3, "tier": "disk-both", "recompute": "full",
                               "aio": {"queue_depth": 4},
                               "activation_checkpointing": {"cpu_checkpointing": True}}}
        for name, changes in moves.items():
            shutil.copytree(job.out("moved"), job.out(name))
            run = resume(name, 3, **changes)
            if changes["stage"] != 3:
                assert ("notice: the resumed run has another config.zero_optimization.stage: was "
                        f"3, is now {changes['stage']}"
                        in run.stderr), run.stderr
            require_same_run(job.out("fp32"), job.out(name))
            require_same_arrays(job.out("fp32"), job.out(name), 6)

    @case
    def states_are_kept_in_another_precision():
        """Moments in bf16 and master weights of an fp32 checkpoint are rounded from it; converted
        back, they are unchanged."""
        train_half("wide", 2, stage=1, precision="bf16")
        shutil.copytree(job.out("wide"), job.out("narrow"))
        run = resume("narrow", 2, stage=3, **ROUNDED)
        folder = job.out("narrow") / "checkpoints" / "step-00000003"
        assert (f"notice: {folder}: holds exp_avg, exp_avg_sq, param in F32; this run keeps them "
                "in BF16, each value rounded to the nearest" in run.stderr), run.stderr
        back = job.run("narrow", "--nproc", 2, "--resume", "auto",
                       **job.settings(2, **settings(stage=2, steps=7, precision="bf16")))
        assert (f"notice: {folder.with_name('step-00000006')}: holds exp_avg, exp_avg_sq, param in "
                "BF16; this run keeps them in F32, no value changes" in back.stderr), back.stderr
        job.train("not-converted", 2, **settings(stage=1, steps=7, precision="bf16"))
        require_near("loss", [m["loss"] for m in steps(job.out("narrow"))],
                     [m["loss"] for m in steps(job.out("not-converted"))], 1e-2)

    @case
    def another_number_of_ranks_changes_rounding_only():
        for name, ranks, changes in (("on-1", 1, {"stage": 0}), ("on-2", 2, {"stage": 3}),
                                     ("on-4", 4, {"stage": 2}),
                                     ("on-2x2", 4, {"stage": 3, "tier": "host-both", **HYBRID})):
            shutil.copytree(job.out("moved"), job.out(name))
            run = resume(name, ranks, **changes)
            assert (f"notice: the resumed run has another topology.data: was 3, is now {ranks}"
                    in run.stderr), run.stderr
            found, expected = steps(job.out(name)), steps(job.out("fp32"))
            assert found[:3] == steps(job.out("moved")), "the steps before the stop changed"
            require_near("loss", [m["loss"] for m in found], [m["loss"] for m in expected], 1e-5)
            require_near("gradient norm", [m["grad_norm"] for m in found],
                         [m["grad_norm"] for m in expected], 5e-5)

    # --- what the folder holds ---------------------------------------------------------------

    @case
    def shards_are_shared_out():
        """Every rank writes only its own part; together the parts hold each element once."""
        folder = job.out("fp32-3-half") / "checkpoints" / "step-00000006"
        sizes = [file["bytes"]
                 for file in json.loads((folder / "checkpoint.json").read_text())["files"]]
        assert len(sizes) == 3 and max(sizes) < 0.5 * sum(sizes), sizes

    @case
    def verify_and_inspect_read_shards():
        out = job.out("fp32-3-half")
        folder = out / "checkpoints" / "step-00000006"
        verified = must(ftrun("verify", out))
        assert verified.stdout == f"{out}: every file is complete and undamaged\n", verified.stdout
        shown = must(ftrun("inspect", folder)).stdout
        assert (re.search(r"^topology +data 3, data_replicate 1, tensor 1, world_size 3, "
                          r"zero_stage 3$", shown, re.M)), shown
        assert re.search(r"^exp_avg_sq F32 +30 tensors, 193\.3 k elements, ", shown, re.M), shown
        broken = job.out("broken")
        shutil.copytree(out, broken)
        part = broken / "checkpoints" / "step-00000006" / "rank-00001.safetensors"
        data = bytearray(part.read_bytes())
        data[-5] ^= 1
        part.write_bytes(data)
        result = must(ftrun("verify", broken), 4)
        assert (f"{part}: " in result.stdout + result.stderr and "tensor" in result.stdout
                + result.stderr), result.stdout + result.stderr
        # The previous checkpoint is complete, and the run continues from there to the same end.
        run = job.run("broken", "--nproc", 3, "--resume", "auto",
                      **job.settings(3, **settings(stage=3, tier="half")))
        assert ("checkpoints/step-00000003" in run.stdout
                and str(part) in run.stderr), run.stdout + run.stderr
        require_same_run(job.out("fp32"), broken)

    @case
    def a_run_that_is_killed_while_saving_resumes():
        saving = {"checkpoint": {"every": 1, "keep_last": 0}}
        cut = None
        for attempt in range(20):  # a save takes milliseconds
            shutil.rmtree(job.out("killed"), ignore_errors=True)
            running = start("--config",
                            job.config("killed", **job.settings(3, **settings(stage=3, **saving))),
                            "--nproc", 3)
            running.await_line(
                f"saved {job.out('killed')}/checkpoints/step-0000000{1 + attempt % 3}")
            folder = job.out("killed") / "checkpoints"
            end = time.monotonic() + 1
            while time.monotonic() < end and not (cut := [p.name for p in folder.glob("*.tmp-*")
                                                          if p.is_dir()]):
                pass
            running.kill_all()
            cut = [p.name for p in folder.glob("*.tmp-*")]
            if cut:
                break
        assert cut, "no kill came while a checkpoint was written"
        whole = checkpoints(job.out("killed"))
        must(ftrun("verify",
                   job.out("killed") / "checkpoints" / [name for name in whole
                                                        if ".tmp-" not in name][-1]))
        job.run("killed", "--nproc", 3, "--resume", "auto",
                **job.settings(3, **settings(stage=3, **saving)))
        assert not list(folder.glob("*.tmp-*")), checkpoints(job.out("killed"))
        require_same_run(job.out("fp32"), job.out("killed"))
        require_same_arrays(job.out("fp32"), job.out("killed"), 6)

    # --- the export --------------------------------------------------------------------------

    @case
    def exports_are_the_same_on_every_layout():
        expected = exported_weights(job.out("fp32"))
        moved = exported_weights(job.out("on-2x2"))
        assert expected.keys() == moved.keys() == load_file(job.model / "model.safetensors").keys()
        for name, weights in expected.items():
            assert (weights.shape == moved[name].shape
                    and np.abs(weights - moved[name]).max() < 1e-5), name

    @case
    def transformers_finds_the_same_loss():
        import torch
        import transformers
        transformers.utils.logging.disable_progress_bar()
        text = tiny_data(job.scratch / "validation.bin", tokens=32 * 12 + 1, seed=5, vocabulary=499)
        for name, changes in (("fp32", {}), ("disk", {"tier": "disk-both"}),
                              ("bf16", {"precision": "bf16"})):
            name = f"validated-{name}"
            job.train(name, 3, **settings(stage=3, steps=4, **changes),
                      data={"validation": str(text), "token_dtype": "uint16"})
            found = [m["loss"] for m in evaluations(job.out(name))][-1]
            dtype = torch.bfloat16 if "bf16" in name else torch.float32
            model = transformers.AutoModelForCausalLM.from_pretrained(
                job.out(name) / "export" / "model", dtype=dtype)
            ids = torch.from_numpy(np.fromfile(text, dtype=np.uint16).astype(np.int64))
            rows = torch.stack([ids[i * 32:i * 32 + 33] for i in range(12)])
            with torch.no_grad():
                logits = model(input_ids=rows[:, :-1], use_cache=False).logits.float()
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1),
                                                     rows[:, 1:].flatten()).item()
            require_near(f"validation loss ({name})", [found], [loss],
                         1e-5 if dtype == torch.float32 else 2e-3)

    run_cases()
