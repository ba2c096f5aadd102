"""Ranks that run a part of the layers each, as a user meets them: with every schedule they train what one process trains,
leave checkpoints and an export that hold whole tensors, go on bit by bit on their own layout and with the same losses on any
other, tell how long each stage waited; a rank that is lost is named; what cannot be cut is refused with its arithmetic before a
rank starts. tests/exec/pipeline_test.cc trains the product of meshes, stages and schedules in one process."""
import json
import re
import signal
import tempfile

import numpy as np

from runner import (ShardedJob, case, checkpoints, exported, ftrun, manifest, metrics, must, near, run_cases, same_run, start, steps,
                    stored_boxes, tiny_data)

VOCABULARY = 500
MANY = 20000


def whole_state(out):
    """{(tensor, kind): the whole array} of a run's last checkpoint, each element of which is there once."""
    whole, seen = {}, {}
    for piece, place, values in stored_boxes(out / "checkpoints" / checkpoints(out)[-1]):
        key = (piece["tensor"], piece["kind"])
        whole.setdefault(key, np.zeros(piece["shape"], dtype=values.dtype))[place] = values
        seen.setdefault(key, np.zeros(piece["shape"], dtype=int))[place] += 1
    assert whole and all((counted == 1).all() for counted in seen.values()), "an element is missing or was written twice"
    return whole


def losses(out):
    return [m["loss"] for m in steps(out)]


with tempfile.TemporaryDirectory() as scratch:
    job = ShardedJob(scratch, vocab_size=VOCABULARY, num_hidden_layers=6, tie_word_embeddings=True)
    job.data = tiny_data(job.data, vocabulary=VOCABULARY)
    words = {"model": {"type": "BPE", "vocab": {f"w{i}": i for i in range(VOCABULARY)}}, "decoder": {"type": "ByteLevel"}}
    (job.model / "tokenizer.json").write_text(json.dumps(words))
    text = tiny_data(job.scratch / "validation.bin", tokens=32 * 12 + 1, seed=5, vocabulary=VOCABULARY)
    ONE = {"pipeline": 1}
    MESHES = {"1f1b": {"pipeline": 2}, "gpipe-4": {"pipeline": 4, "schedule": "gpipe"},
              "zb-h1": {"pipeline": 2, "data": 2, "stage": 3, "schedule": "zb-h1"},
              "interleaved": {"pipeline": 2, "schedule": "interleaved", "virtual_stages": 3, "stage": 1},
              "zbv": {"pipeline": 2, "schedule": "zbv", "stage": 2, "data": 2},
              "3d": {"pipeline": 2, "tensor": 2, "data": 2, "stage": 1}}

    def settings(pipeline=1, tensor=1, data=1, stage=0, schedule="1f1b", virtual_stages=None, total=4, layers=None, **changes):
        """Of the same global batch on every mesh."""
        accumulation = changes.pop("accumulation", 12 // data)
        given = job.settings(data, stage=stage, accumulation=accumulation, **changes)
        given["train"] = {"steps": total, "generate": {"prompt_tokens": 8, "tokens": 16, "temperature": 0}} | changes.get("train", {})
        given["parallel"] = {"data": data, "tensor": tensor, "pipeline": pipeline}
        if pipeline > 1:
            given["parallel"] |= {"schedule": schedule}
        if virtual_stages:
            given["parallel"]["virtual_stages"] = virtual_stages
        if layers:
            given["parallel"]["pipeline_layers"] = layers
        given["data"] = {"validation": str(text), "token_dtype": "uint16"} | changes.get("data", {})
        return given

    def ranks_of(mesh):
        return mesh.get("pipeline", 1) * mesh.get("tensor", 1) * mesh.get("data", 1)

    def trained(name, *arguments, **mesh):
        if name not in job.done:
            job.done[name] = job.run(name, *arguments, **settings(**mesh))
        return job.out(name)

    def as_one_process(out, one):
        near("loss", losses(out), losses(one), 1e-5)
        near("gradient norm", [m["grad_norm"] for m in steps(out)], [m["grad_norm"] for m in steps(one)], 5e-5)

    def refused(config, *arguments):
        """What `ftrun check` and the start say, which is the same."""
        told = set()
        for command in (("check", "-q"), ()):
            process = must(ftrun(*command, "--config", config, *arguments), 2)
            told.add(process.stderr[process.stderr.index("ftrun: "):])
        assert len(told) == 1, told
        return told.pop().replace(str(config), "CONFIG")

    # --- what is trained ---------------------------------------------------------------------

    @case
    def stages_train_as_one_process():
        one = trained("one", **ONE)
        validation = [m["validation_loss"] for m in metrics(one) if "validation_loss" in m]
        expected = exported(one)
        for name, mesh in MESHES.items():
            out = trained(name, **mesh)
            as_one_process(out, one)
            near("validation", [m["validation_loss"] for m in metrics(out) if "validation_loss" in m], validation, 1e-5)
            assert [(m["samples"], m["tokens"]) for m in steps(out)] == [(m["samples"], m["tokens"]) for m in steps(one)]
            found = exported(out)
            assert found.keys() == expected.keys()
            for tensor, weights in expected.items():
                assert found[tensor].shape == weights.shape and np.abs(found[tensor] - weights).max() < 1e-5, (name, tensor)

    @case
    def the_sample_of_text_is_the_same():
        found = {name: re.search(r"continued by the model\):\n(?:\[rank 0\] )?((?:w\d+)+ >>>(?:w\d+)+)\n", job.done[name].stdout)
                 for name in ("one", *MESHES)}
        for name, sample in found.items():
            assert sample, (name, job.done[name].stdout, job.done[name].stderr)
        assert len({sample[1] for sample in found.values()}) == 1, found

    @case
    def each_stage_tells_how_long_it_waited():
        for name, mesh in MESHES.items():
            rows = re.findall(r"^\[rank 0\] stage (\d+) +([\d.]+) % +([\d.]+) %", job.done[name].stdout, re.M)
            assert [int(row[0]) for row in rows] == list(range(mesh["pipeline"])), (name, job.done[name].stdout)
            record = manifest(job.out(name))["pipeline"]
            assert sorted(record) == [f"stage {stage}" for stage in range(mesh["pipeline"])], record
            for shares in record.values():
                assert all(0 <= shares[which] < 1_000_000 for which in ("idle_per_million", "schedule_idle_per_million")), record
        assert "pipeline" not in manifest(job.out("one")), manifest(job.out("one"))

    @case
    def what_is_planned_is_what_is_used_and_sent():
        for name, mesh in MESHES.items():
            record = manifest(job.out(name))
            config = job.config(f"plan-{name}", **settings(**mesh))
            planned, sent = [], []
            for rank in range(ranks_of(mesh)):
                table = must(ftrun("plan", "--config", config, "--rank", rank)).stdout
                planned.append(int(re.search(r"^device +all +(\d+) ", table, re.M)[1]))
                sent.append(int(re.search(r"^  sum, .* (\d+) B$", table, re.M)[1]))
                theory = [int(size) for size in re.findall(r" (-?\d+) B$", table[table.index("  theory: "):], re.M)]
                assert sum(theory) == sent[-1], table
            assert planned[0] == record["memory"]["predicted"]["device_total"], (planned, record["memory"])
            line = steps(job.out(name))
            assert line[-1]["counters"]["bytes_sent"] - line[-2]["counters"]["bytes_sent"] == sent[0], (name, sent)
            traffic = record["traffic"]["communication"]
            assert traffic["program"] == 4 * sum(sent), (traffic, sent)
            given, used = record["memory"]["allocated"]["device_total"], record["memory"]["touched"]["device_total"]
            assert planned[0] <= given <= planned[0] + (1 << 20) and used <= given, record["memory"]

    @case
    def verify_inspect_and_convert_read_their_checkpoints():
        for name in ("zbv", "3d"):
            out = job.out(name)
            mesh = MESHES[name]
            assert must(ftrun("verify", out)).stdout == f"{out}: every file is complete and undamaged\n"
            shown = must(ftrun("inspect", out / "checkpoints" / checkpoints(out)[-1])).stdout
            assert re.search(rf"^topology .*pipeline {mesh['pipeline']}\b", shown, re.M), shown
            must(ftrun("convert", out, "--out", job.scratch / f"converted-{name}"))
            converted = (job.scratch / f"converted-{name}" / "model.safetensors").read_bytes()
            assert converted == (out / "export" / "model" / "model.safetensors").read_bytes()

    @case
    def over_gloo():
        trained("gloo", **MESHES["zb-h1"], comm={"backend": "gloo"})
        as_one_process(job.out("gloo"), job.out("one"))

    # --- going on ----------------------------------------------------------------------------

    @case
    def on_their_own_layout_they_go_on_bit_by_bit():
        for name in ("zb-h1", "3d"):
            cut = f"{name}-cut"
            trained(cut, **MESHES[name], total=2)
            run = job.run(cut, "--resume", "auto", **settings(**MESHES[name]))
            assert f"resumed from {job.out(cut)}/checkpoints/step-00000002" in run.stdout, run.stdout
            straight, again = job.out(name), job.out(cut)
            assert steps(again) and losses(again) == losses(straight)
            assert [m["grad_norm"] for m in steps(again)] == [m["grad_norm"] for m in steps(straight)]
            first, second = whole_state(straight), whole_state(again)
            assert first.keys() == second.keys() and all(np.array_equal(first[key], second[key]) for key in first)

    @case
    def on_other_layouts_they_go_on_with_the_same_losses():
        job.run("straight", **settings(**ONE, total=8))
        path = [MESHES["1f1b"], {"data": 2, "stage": 3}, MESHES["gpipe-4"], MESHES["3d"]]
        for part, mesh in enumerate(path):
            run = job.run("moved", *(("--resume", "auto") if part else ()), **settings(**mesh, total=2 * part + 2))
            if part:
                assert f"resumed from {job.out('moved')}/checkpoints/step-0000000{2 * part}" in run.stdout, run.stdout
        as_one_process(job.out("moved"), job.out("straight"))
        found, expected = whole_state(job.out("moved")), whole_state(job.out("straight"))
        assert found.keys() == expected.keys()
        for key, values in expected.items():
            assert np.abs(found[key] - values).max() < 1e-5, key

    @case
    def deepspeeds_words_are_no_other_run():
        changes = settings(**MESHES["1f1b"])
        changes["parallel"] = {"data": 1}
        job.run("words", **changes, pipeline={"stages": 2})
        assert losses(job.out("words")) == losses(job.out("1f1b"))

    @case
    def a_signal_saves_and_they_go_on():
        for target in (None, 1):
            name = f"stopped-{target}"
            running = start("--config", job.config(name, **settings(**MESHES["zb-h1"] | {"total": MANY})))
            running.await_line("step 3/")
            running.kill(signal.SIGTERM, running.ranks()[target] if target else None)
            running.wait(143)
            done = len(steps(job.out(name)))
            assert manifest(job.out(name))["exit_reason"] == f"stopped by SIGTERM after step {done}"
            assert checkpoints(job.out(name)) == [f"step-{done:08}"]
        job.run(name, "--resume", "auto", **settings(**MESHES["zb-h1"] | {"total": done + 2}))
        job.run("not-stopped", **settings(**MESHES["zb-h1"] | {"total": done + 2}))
        same_run(job.out(name), job.out("not-stopped"))

    @case
    def a_stage_that_is_lost_is_named():
        running = start("--config", job.config("lost", **settings(**MESHES["gpipe-4"] | {"total": MANY})))
        running.await_line("step 3/")
        running.kill(signal.SIGKILL, running.ranks()[2])
        told = running.wait(None)
        assert told != 0 and "rank 2" in running.text(), running.text()

    # --- what is refused ---------------------------------------------------------------------

    @case
    def a_model_that_cannot_be_cut_is_refused_with_the_arithmetic():
        told = refused(job.config("deep", **settings(pipeline=8)))
        assert "6 decoder layers" in told and "8 parts" in told and "nothing was started" in told, told
        told = refused(job.config("sum", **settings(pipeline=2, layers=[3, 4])))
        assert "3 + 4 = 7 ≠ the model's 6 decoder layers" in told, told
        told = refused(job.config("whole", **settings(pipeline=2), partition={"unit": "model"}))
        assert "partition.unit" in told and "pipeline" in told, told
        assert not job.out("deep").exists()

    @case
    def an_export_with_the_optimizers_state_on_the_host():
        changes = settings(pipeline=2, data=2, stage=1, zero={"offload_optimizer": {"device": "cpu"}})
        job.run("offloaded", **changes)
        as_one_process(job.out("offloaded"), job.out("one"))
        expected = exported(job.out("one"))
        for tensor, weights in exported(job.out("offloaded")).items():
            assert np.abs(weights - expected[tensor]).max() < 1e-5, tensor

    @case
    def layers_by_hand():
        trained("by-hand", pipeline=2, layers=[1, 5])
        as_one_process(job.out("by-hand"), job.out("one"))

    run_cases()
