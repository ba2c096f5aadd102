"""Checks evaluations of a run: several named sets with the same numbers on every layout; the best
checkpoint outside the rotation, through stops, resumes and background saves; early stopping; and
the texts that are generated at evaluations."""
import json
import math
import tempfile

import numpy as np

from runner import (Job, case, checkpoints, evaluations, exported_weights, ftrun, manifest, metrics,
                    must, preload, require_near, run_cases, steps, tiny_data, tiny_model,
                    tiny_weights)

ROWS = 6


def best_record(out):
    return json.loads((out / "checkpoints" / "best").read_text())


with tempfile.TemporaryDirectory() as scratch:
    preload()
    job = Job(scratch)
    words = {"model": {"type": "BPE", "vocab": {f"w{i}": i for i in range(211)}},
             "decoder": {"type": "ByteLevel"}}
    (job.model / "tokenizer.json").write_text(json.dumps(words))
    like = tiny_data(job.scratch / "like.bin", tokens=32 * ROWS + 1, seed=5)
    halves = [tiny_data(job.scratch / f"half-{i}.bin", tokens=32 * 3 + 1, seed=6 + i)
              for i in range(2)]
    # These ids are random: what the model learns from the other data makes its loss on these worse.
    noise = job.scratch / "noise.bin"
    np.random.default_rng(8).integers(0, 211, 32 * ROWS + 1).astype(np.uint16).tofile(noise)
    SETS = {"like": str(like), "halves": [str(path) for path in halves], "noise": str(noise)}

    def settings(total=12, every=2, sets=SETS, **changes):
        return {"train": {"steps": total, "evaluation": {"every": every, "samples": 0}}
                | changes.pop("train", {}),
                "data": {"validation": sets, "token_dtype": "uint16"},
                "checkpoint": {"every": 0, "keep_last": 2}
                | changes.pop("checkpoint", {})} | changes

    @case
    def each_set_has_its_lines():
        result = job.run("sets", **settings(total=5))
        out = job.out("sets")
        for name, tokens in (("like", 32 * ROWS), ("halves", 32 * 6), ("noise", 32 * ROWS)):
            lines = evaluations(out, name)
            assert [line["step"] for line in lines] == [0, 2, 4, 5], lines
            for line in lines:
                assert line["tokens"] == tokens and 0 <= line["accuracy"] <= 1, line
                assert math.isclose(line["perplexity"], math.exp(line["loss"]), rel_tol=1e-12), line
                assert line["accuracy"] * tokens == round(line["accuracy"] * tokens), line
            last = manifest(out)["evaluations"][name]
            assert last["step"] == 5 and last["loss"] == lines[-1]["loss"], (last, lines)
        assert "step 4/5  loss " in result.stdout and "  noise loss " in result.stdout, (
            result.stdout)
        assert "training loss  like loss  halves loss  noise loss  tokens/s" in result.stdout, (
            result.stdout)
        roles = manifest(out)["data"]
        assert roles["validation.halves"]["details"]["rows"] == "6", roles
        # A set of two files must have the same numbers as one file with the contents of both.
        both = job.scratch / "both.bin"
        both.write_bytes(b"".join(path.read_bytes() for path in halves))
        job.run("one", **settings(total=5, sets=str(like)))
        assert [line | {"evaluation": "like", "seconds": 0}
                for line in evaluations(job.out("one"))] \
            == [line | {"seconds": 0} for line in evaluations(out, "like")]

    @case
    def the_clock_asks_for_evaluations_too():
        """Three milliseconds have passed after most steps, so there are evaluations between the
        first and the last step that no step number asks for; an hour has not passed."""
        for name, ranks, minutes in (("clock", 2, 0.00005), ("hour", 1, 60)):
            job.run(name, "--nproc", ranks, train_batch_size=8, gradient_accumulation_steps=None,
                    **settings(total=12, every=0, sets=str(like),
                               train={"steps": 12,
                                      "evaluation": {"every": 0, "every_minutes": minutes,
                                                     "samples": 2}}))
            at = [line["step"] for line in evaluations(job.out(name))]
            assert at == sorted(set(at)) and at[0] == 0 and at[-1] == 12, at
            assert (len(at) > 2) == (name == "clock"), (name, at)

    @case
    def all_layouts_find_the_same():
        wide = tiny_model(job.scratch / "wide", vocab_size=212, num_key_value_heads=4,
                          weights=tiny_weights(kv_heads=4, vocabulary=212))
        found = {}
        for name, ranks, changes in (("one", 1, {}),
                                     ("zero3", 2, {"zero_optimization": {"stage": 3}}),
                                     ("zero1", 2, {"zero_optimization": {"stage": 1}}),
                                     ("tensor", 2, {"parallel": {"tensor": 2}}),
                                     ("pipeline", 2, {"parallel": {"pipeline": 2}}),
                                     ("bf16", 1, {"bf16": {"enabled": True}})):
            layout = f"layout-{name}"
            batch = {"train_batch_size": 8, "gradient_accumulation_steps": None}
            job.run(layout, "--nproc", ranks, model={"path": str(wide)}, **settings(total=2),
                    **batch, **changes)
            found[name] = [(line["loss"], line["accuracy"]) for line in metrics(job.out(layout))
                           if "evaluation" in line]
            assert len(found[name]) == 6, found[name]
        for name in ("zero3", "zero1", "tensor", "pipeline"):
            require_near(name, [loss for loss, _ in found[name]],
                         [loss for loss, _ in found["one"]], 1e-5)
            # Before the first step, no rounding has differed yet, except in almost equal logits.
            assert [a for _, a in found[name][:3]] == [a for _, a in found["one"][:3]], (
                found[name], found["one"])
            require_near(name, [1 + a for _, a in found[name]],
                         [1 + a for _, a in found["one"]], 0.02)
        assert max(a for _, a in found["one"]) > 0

    KEEP = {"keep_best": {"metric": "noise.loss"}}

    @case
    def the_best_is_kept_outside_the_rotation_and_exported():
        for background in (True, False):
            name = f"best-{background}"
            result = job.run(name,
                             **settings(checkpoint=KEEP | {"every": 3, "background": background},
                                        export={"which": "best"},
                                        optimizer={"type": "AdamW", "params": {"lr": 2e-2}}))
            out = job.out(name)
            losses = {line["step"]: line["loss"] for line in evaluations(out, "noise")
                      if line["step"] > 0}
            step = min(losses, key=losses.get)
            assert step < 9, f"the best is among the last ones anyway: {losses}"
            assert best_record(out) == {"checkpoint": f"step-{step:08d}", "metric": "noise.loss",
                                        "value": losses[step]}
            assert checkpoints(out) == [f"step-{step:08d}", "step-00000009", "step-00000012"], (
                checkpoints(out))
            assert manifest(out)["best"] == {"metric": "noise.loss", "value": losses[step],
                                             "step": step}
            assert f"export/model (of step {step}, the best by noise.loss: " in result.stdout, (
                result.stdout)
            must(ftrun("convert", out / "checkpoints" / f"step-{step:08d}", "--out",
                       out / "given" / "export" / "model"))
            given, shipped = exported_weights(out / "given"), exported_weights(out)
            assert (given.keys() == shipped.keys()
                    and all((given[key] == shipped[key]).all() for key in given))
            assert (out / "checkpoints" / "latest").read_text() == "step-00000012"

    @case
    def more_can_be_better():
        job.run("more", **settings(total=4, checkpoint={"keep_best": {"metric": "like.accuracy"}},
                                   export={"enabled": False}))
        values = {line["step"]: line["accuracy"] for line in evaluations(job.out("more"), "like")
                  if line["step"] > 0}
        best = best_record(job.out("more"))
        assert best["value"] == max(values.values()), values
        # Only strictly better values count: of equal ones the first is the best.
        assert best["checkpoint"] == f"step-{max(values, key=values.get):08d}", values

    STOPPING = {"train": {"early_stopping": {"metric": "noise.loss", "patience": 2}}}
    FAST = {"optimizer": {"type": "AdamW", "params": {"lr": 2e-2}}}

    @case
    def a_run_that_does_not_improve_stops():
        result = job.run("early", **settings(total=100, checkpoint=KEEP, **STOPPING, **FAST))
        out = job.out("early")
        losses = {line["step"]: line["loss"] for line in evaluations(out, "noise")
                  if line["step"] > 0}
        lowest, ended = min(losses, key=losses.get), max(losses)
        assert ended == lowest + 4 == steps(out)[-1]["step"] < 100, losses
        reason = (f"done, stopped early after step {ended} of 100: noise.loss has not improved in "
                  f"2 evaluations (best {losses[lowest]!r} after step {lowest})")
        assert manifest(out)["exit_reason"] == reason, manifest(out)["exit_reason"]
        assert manifest(out)["exit_code"] == 0 and reason in result.stdout, result.stdout
        resumed = job.run("early", "--resume", "auto",
                          **settings(total=100, checkpoint=KEEP, **STOPPING, **FAST))
        assert (f"nothing is left to train: step {ended} of 100; stopped early: noise.loss has "
                "not" in resumed.stdout), resumed.stdout
        assert steps(out)[-1]["step"] == ended
        # With more patience the run continues.
        more = STOPPING["train"]["early_stopping"] | {"patience": 3}
        job.run("early", "--resume", "auto",
                **settings(total=100, checkpoint=KEEP, train={"early_stopping": more}, **FAST))
        assert steps(out)[-1]["step"] > ended

    @case
    def small_gains_are_no_improvement():
        job.run("delta",
                **settings(total=40, every=1,
                           train={"early_stopping": {"metric": "like.loss", "patience": 3,
                                                     "min_delta": 100}}))
        assert steps(job.out("delta"))[-1]["step"] == 4, (
            "the first counts as the best, three after it do not beat it by 100")

    @case
    def a_resume_knows_the_best_and_the_patience():
        wish = dict(checkpoint=KEEP, **STOPPING, **FAST)
        straight = job.out("early-straight")
        job.run("early-straight", **settings(total=100, **wish))
        for cut in (1, 3, 4):
            name = f"early-cut-{cut}"
            out = job.out(name)
            job.run(name, **settings(total=cut, **wish, **{"export": {"enabled": False}}))
            job.run(name, "--resume", "auto", **settings(total=100, **wish))
            want = [line for line in evaluations(straight, "noise")]
            have = {line["step"]: line["loss"] for line in evaluations(out, "noise")}
            assert all(have[line["step"]] == line["loss"] for line in want), (want, have)
            if cut % 2 == 0:
                assert steps(out)[-1]["step"] == steps(straight)[-1]["step"]
                assert best_record(out) == best_record(straight)
                assert manifest(out)["exit_reason"] == manifest(straight)["exit_reason"]

    @case
    def a_best_checkpoint_that_is_missing_is_reported():
        wish = settings(total=6, checkpoint=KEEP | {"every": 0}, **FAST)
        job.run("gone", **wish)
        out = job.out("gone")
        folder = out / "checkpoints" / best_record(out)["checkpoint"]
        if folder.name == "step-00000006":
            raise AssertionError(
                "the best evaluation is the last one; this case needs an earlier one")
        folder.rename(out / "elsewhere")
        resumed = job.run("gone", "--resume", "auto",
                          **settings(total=8, checkpoint=KEEP | {"every": 0}, **FAST))
        assert (f"{folder}: the best checkpoint is missing; the one before it or a later one "
                "replaces it" in resumed.stdout + resumed.stderr)

    @case
    def what_cannot_be_is_refused_before_the_first_step():
        names = "choose one of: like.loss, like.perplexity, like.accuracy, halves.loss"
        for changes, message in (
                ({"checkpoint": {"keep_best": {"metric": "noise.f1"}}},
                 'checkpoint.keep_best.metric: there is no metric "noise.f1"'),
                ({"train": {"early_stopping": {"metric": "loss"}}},
                 'train.early_stopping.metric: there is no metric "loss"')):
            refused = must(ftrun("--config", job.config("refused", **settings(**changes))), 2)
            assert message in refused.stderr and names in refused.stderr, refused.stderr
        refused = must(ftrun("--config",
                             job.config("refused", **settings(export={"which": "best"}))), 2)
        assert "export.which is best, but checkpoint.keep_best is not set" in refused.stderr, (
            refused.stderr)
        for name in ("train", "a/b"):
            refused = must(ftrun("--config",
                                 job.config("refused", **settings(sets={name: str(like)}))), 2)
            assert f'data.validation: a set cannot be called "{name}"' in refused.stderr, (
                refused.stderr)
        refused = must(ftrun("--config",
                             job.config("refused", **settings(sets=None, checkpoint=KEEP))), 2)
        assert "nothing is evaluated without one" in refused.stderr, refused.stderr
        assert not job.out("refused").exists()

    @case
    def a_run_without_a_finite_evaluation_has_no_best():
        broken = tiny_weights()
        broken["lm_head.weight"] = broken["lm_head.weight"] * np.float32(1e38)
        model = tiny_model(job.scratch / "broken", broken)
        # The losses are finite in fp32, their perplexities are not.
        keep = {"keep_best": {"metric": "noise.perplexity"}}
        out = job.out("broken-run")
        result = job.run("broken-run", code=7, model={"path": str(model)},
                         **settings(total=2, every=1, checkpoint=keep, export={"which": "best"}))
        assert (not (out / "checkpoints" / "best").exists()
                and "best" not in manifest(out)), evaluations(out, "noise")
        reason = ("no evaluation after a step gave a finite noise.perplexity: there is no best "
                  "checkpoint, and nothing was exported")
        assert (f"ftrun: {reason}\n" in result.stderr
                and manifest(out)["exit_reason"] == reason), result.stderr
        assert not (out / "export").exists()

    # The learning rate destroys the model in its third step; what the kernels then add up is a NaN
    # with the sign bit set on some machines.
    DESTROYED = {"optimizer": {"type": "AdamW", "params": {"lr": 1e30}},
                 "scheduler": {"type": "WarmupLR",
                               "params": {"warmup_num_steps": 3, "warmup_max_lr": 1e30,
                                          "warmup_type": "linear"}}}

    @case
    def a_model_that_is_destroyed_is_never_the_best_nor_exported():
        def destroyed(name, ranks=1, code=0, resume=(), **changes):
            wish = settings(total=6, every=1, sets=str(like), train={"max_nonfinite_steps": 50}
                            | changes.pop("train", {}), **DESTROYED, **changes)
            result = job.run(name, "--nproc", ranks, *resume, code=code, train_batch_size=8,
                             gradient_accumulation_steps=None, **wish)
            lines = {line["step"]: line for line in evaluations(job.out(name))}
            assert lines[0]["loss"] != "NaN" and lines[6]["loss"] == "NaN", lines
            assert all(line["accuracy"] == 0 for line in lines.values() if line["loss"] == "NaN"), (
                lines)
            finite = [step for step, line in lines.items() if step > 0
                      and line["loss"] not in ("NaN", "Infinity")]
            return result, lines, finite

        for metric, ranks in (("accuracy", 1), ("loss", 2)):
            name = f"destroyed-{metric}"
            done, lines, finite = destroyed(name, ranks,
                                            checkpoint={"keep_best":
                                                        {"metric": f"validation.{metric}"}},
                                            export={"which": "best"})
            assert finite, lines
            chosen = best_record(job.out(name))
            step = int(chosen["checkpoint"][5:])
            assert step in finite and chosen["value"] == lines[step][metric], (chosen, lines)
            assert ("the loss on validation after step 6 is not finite: the export has the weights "
                    f"of step {step}, the best by validation.{metric}"
                    in done.stderr), done.stderr
            assert all(np.isfinite(tensor).all()
                       for tensor in exported_weights(job.out(name)).values())
        # The last weights are not exported; the command that the message gives exports them
        # nevertheless, and a resume prints the same again.
        out = job.out("destroyed-last")
        problem = ("the loss on validation after step 6 is not finite: the weights are not "
                   "exported as a good model")
        for resume in ((), ("--resume", "auto")):
            done, _, _ = destroyed("destroyed-last", code=7, resume=resume)
            assert f"ftrun: {problem}\n  remedy: " in done.stderr, done.stderr
            assert (manifest(out)["exit_code"] == 7
                    and manifest(out)["exit_reason"] == problem), manifest(out)
            assert "training loss" in done.stdout and not (out / "export").exists(), done.stdout
        line = done.stderr.split("the weights anyway: ")[1].split("\n")[0].split(" ")
        assert line[:2] == ["ftrun", "convert"], line
        must(ftrun(*line[1:]))
        assert np.abs(exported_weights(out)["lm_head.weight"]).max() > 1e20
        # Values that are not finite count as no improvement.
        wish = settings(total=20, every=1, sets=str(like),
                        train={"steps": 20, "max_nonfinite_steps": 50,
                               "evaluation": {"every": 1, "samples": 0},
                               "early_stopping": {"metric": "validation.accuracy", "patience": 4}},
                        **DESTROYED)
        done = job.run("destroyed-early", code=7, **wish)
        ended = max(line["step"] for line in evaluations(job.out("destroyed-early")))
        assert (ended < 12 and f"stopped early after step {ended} of 20: validation.accuracy has "
                               "not improved in 4" in done.stdout), done.stdout
        # Without an evaluation, the loss of the last step shows it.
        wish = settings(total=6, sets=None, train={"max_nonfinite_steps": 50}, **DESTROYED)
        wish["data"] = {"validation": None}
        for resume in ((), ("--resume", "auto")):
            done = job.run("destroyed-blind", *resume, code=7, **wish)
            assert ("ftrun: the loss of step 6, the last one, is not finite: the weights are not "
                    "exported" in done.stderr), done.stderr

    @case
    def texts_are_written_at_each_evaluation():
        for name, ranks, changes in (("texts", 1, {}),
                                     ("texts-3", 2, {"zero_optimization": {"stage": 3}})):
            wish = settings(total=5,
                            train={"generate": {"prompt_tokens": 4, "tokens": 6, "prompts": 2}},
                            **changes)
            result = job.run(name, "--nproc", ranks, **wish, train_batch_size=8,
                             gradient_accumulation_steps=None)
            lines = [json.loads(line)
                     for line in (job.out(name) / "samples.jsonl").read_text().splitlines()]
            assert [line["step"] for line in lines] == [0, 0, 2, 2, 4, 4, 5, 5], lines
            prompts = [line["prompt"] for line in lines]
            assert (prompts[:2] * 4 == prompts and prompts[0] != prompts[1]
                    and prompts[0].count("w") == 4), prompts
            assert lines[-2]["prompt"] + " >>>" + lines[-2]["answer"] in result.stdout, (
                result.stdout)
        assert (job.out("texts") / "samples.jsonl").read_text().splitlines()[:2] \
            == (job.out("texts-3") / "samples.jsonl").read_text().splitlines()[:2]

    run_cases()
