"""Checks that every optimizer trains to the same numbers on any number of ranks, at any ZeRO stage
and on any tier, is resumed bit for bit, and is known by the names of other programs."""
import pathlib
import tempfile

import numpy as np

from safetensors.numpy import load_file

from runner import (ShardedJob, case, copy_without_last_save, exported_weights, ftrun, must,
                    preload, require_same_run, run_cases, steps)

# The settings with which each optimizer shows its effect in a few steps.
OPTIMIZERS = {
    "Lion": {"lr": 1e-3, "betas": [0.9, 0.99], "weight_decay": 0.1},
    "Adagrad": {"lr": 1e-2, "lr_decay": 0.1, "initial_accumulator_value": 0.01,
                "weight_decay": 0.01},
    "AdamW8bit": {"lr": 1e-3, "weight_decay": 0.01, "min_8bit_size": 2000},
}
CPU = {"device": "cpu"}

with tempfile.TemporaryDirectory() as scratch:
    preload()
    NVME = {"device": "nvme", "nvme_path": str(pathlib.Path(scratch) / "nvme")}
    job = ShardedJob(scratch, vocab_size=500)

    def settings_of(name, **changes):
        return {"optimizer": {"type": name, "params": OPTIMIZERS[name]}} | changes

    def near_weights(one, other, bound):
        a, b = exported_weights(one), exported_weights(other)
        assert a.keys() == b.keys()
        for tensor in a:
            difference = np.linalg.norm(a[tensor].astype(np.float64) - b[tensor])
            assert difference <= bound * np.linalg.norm(b[tensor]), (tensor, difference)

    @case
    def layouts_train_as_one_process():
        layouts = {
            "stage-0": {"ranks": 2}, "stage-1": {"ranks": 3, "stage": 1},
            "stage-3": {"ranks": 3, "stage": 3},
            "tensor": {"ranks": 2, "parallel": {"tensor": 2}, "accumulation": 1},
            "pipeline": {"ranks": 2, "parallel": {"pipeline": 2}, "accumulation": 3},
        }
        for name in OPTIMIZERS:
            one_process = job.train(f"{name}-one", 1, **settings_of(name))
            before = load_file(job.model / "model.safetensors")
            assert (all(np.abs(after - before[tensor]).max() > 1e-4
                        for tensor, after in exported_weights(one_process).items())), name
            for layout, given in layouts.items():
                given = dict(given)
                ranks = given.pop("ranks")
                if "parallel" in given:  # all samples are on one data-parallel rank
                    given["train_micro_batch_size_per_gpu"] = job.SAMPLES // given["accumulation"]
                    given["gradient_accumulation_steps"] = given.pop("accumulation")
                layout_run = job.train(f"{name}-{layout}", ranks, **settings_of(name, **given))
                for a, b in zip(steps(one_process), steps(layout_run)):
                    assert abs(a["loss"] - b["loss"]) <= 2e-5 * a["loss"], (
                        name, layout, a["loss"], b["loss"])
                near_weights(layout_run, one_process,
                             {"Lion": 2e-2, "AdamW8bit": 2e-3}.get(name, 1e-4))
            for tier, zero in {"host": {"offload_optimizer": CPU},
                               "disk": {"offload_optimizer": NVME}}.items():
                away = job.train(f"{name}-{tier}", 3, **settings_of(name, stage=3, zero=zero))
                require_same_run(job.out(f"{name}-stage-3"), away)

    @case
    def a_first_step_follows_from_the_gradient():
        """The gradient is computed from SGD's first step. The tier of states, and the number of
        their parts, must not change their initial values."""
        once = {"train": {"steps": 1}, "scheduler": {"type": "constant"}}
        job.train("gradient", 1, **once, optimizer={"type": "SGD", "params": {"lr": 1.0}})
        before = load_file(job.model / "model.safetensors")
        gradient = {name: before[name] - after
                    for name, after in exported_weights(job.out("gradient")).items()}
        first = {
            "Lion": lambda w, g, p: w * (1 - p["lr"] * p["weight_decay"]) - p["lr"] * np.sign(g),
            "Adagrad": lambda w, g, p: w - p["lr"] * (g + p["weight_decay"] * w) / np.sqrt(
                p["initial_accumulator_value"] + (g + p["weight_decay"] * w) ** 2),
            # Moments are encoded after the step.
            "AdamW8bit": lambda w, g, p: w * (1 - p["lr"] * p["weight_decay"]) - p["lr"]
            * g / (np.abs(g) + 1e-8),
        }
        homes = {"whole": (1, {}), "sharded": (3, {"stage": 3}),
                 "host": (3, {"stage": 3, "zero": {"offload_optimizer": CPU}}),
                 "disk": (2, {"stage": 1, "zero": {"offload_optimizer": NVME}})}
        for name, formula in first.items():
            for home, (ranks, given) in homes.items():
                found = exported_weights(job.train(f"{name}-first-{home}", ranks,
                                                   **settings_of(name, **once, **given)))
                for tensor, weights in found.items():
                    # The sign of an almost zero gradient is uncertain.
                    sure = np.abs(gradient[tensor]) > 1e-5
                    expected = formula(before[tensor], gradient[tensor], OPTIMIZERS[name])
                    assert sure.mean() > 0.2, (tensor, sure.mean())
                    assert np.allclose(weights[sure], expected[sure], rtol=0, atol=2e-6), (
                        name, home, tensor)

    @case
    def a_resumed_run_equals_an_unstopped_one_bit_for_bit():
        for name in OPTIMIZERS:
            saving = settings_of(name, stage=1, checkpoint={"every": 1, "keep_last": 0})
            whole = job.train(f"{name}-saving", 2, **saving)
            copy_without_last_save(whole, job.out(f"{name}-resumed"), 4)
            job.train(f"{name}-resumed", 2, "--resume", "auto", **saving)
            require_same_run(whole, job.out(f"{name}-resumed"))

    @case
    def codes_are_kept_in_checkpoints_which_other_layouts_read():
        """Large tensors have codes and a scale for each 256 elements, small ones have fp32 moments;
        one process resumes from a checkpoint of three ranks."""
        saving = settings_of("AdamW8bit", checkpoint={"every": 1, "keep_last": 0})
        three = job.train("codes-three", 3, **saving, stage=2)
        copy_without_last_save(three, job.out("codes-one"), 4)
        one = job.train("codes-one", 1, "--resume", "auto", **saving)
        assert abs(steps(one)[-1]["loss"] - steps(three)[-1]["loss"]) < 2e-5 * steps(
            one)[-1]["loss"]
        states = {}
        for path in (one / "checkpoints" / "step-00000004").glob("rank-*.safetensors"):
            states.update(load_file(path))
        tensors = {entry.removesuffix(".param"): values.size for entry, values in states.items()
                   if entry.endswith(".param")}
        assert min(tensors.values()) < 2000 <= max(tensors.values())
        for tensor, elements in tensors.items():
            for moment in ("exp_avg", "exp_avg_sq"):
                kept, scales = states[f"{tensor}.{moment}"], states.get(f"{tensor}.{moment}_absmax")
                assert kept.size == elements
                if elements < 2000:
                    assert kept.dtype == np.float32 and scales is None, tensor
                    continue
                assert (kept.dtype == np.uint8 and scales.dtype == np.float32
                        and scales.size == -(-elements // 256)), tensor
                codes = np.concatenate([kept.ravel(),
                                        np.full(-elements % 256, 127, np.uint8)]).reshape(-1, 256)
                # The largest number of a block has the code of 1, or the code next to that of -1.
                reached = (codes == 255).any(1) | ((codes == 0).any(1) & (moment == "exp_avg"))
                assert (reached | (scales.ravel() == 0)).all(), (tensor, moment)

    @case
    def names_of_other_programs_are_read():
        for alias, name in {"lion_32bit": "Lion", "adamw_torch": "AdamW",
                            "ADAMW_TORCH_FUSED": "AdamW", "lion": "Lion",
                            "adamw_bnb_8bit": "AdamW8bit", "paged_adamw_8bit": "AdamW8bit"}.items():
            shown = must(ftrun("check", "--config",
                               job.config(f"alias-{alias}",
                                          optimizer={"type": alias, "params": {"lr": 1e-3}})))
            assert f"type: {name}" in shown.stdout, (alias, shown.stdout)

    @case
    def a_parameter_of_another_optimizer_is_refused():
        refused = ftrun("check", "--config",
                        job.config("foreign", optimizer={"type": "Lion", "params": {"eps": 1e-8}}))
        assert refused.returncode != 0
        assert ("optimizer.params.eps: Lion has no such parameter\n  remedy: use one of its "
                "parameters: lr, betas, weight_decay" in refused.stderr), refused.stderr

    run_cases()
