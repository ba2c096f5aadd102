"""Runs of one model and one global batch on several meshes of ranks, and what each must have in
common with one process: the shared part of the tests of tensor ranks and of pipelines."""
import json
import re
import signal

import numpy as np
from safetensors.numpy import load_file

from runner import (ShardedJob, checkpoints, evaluations, exported_weights, ftrun, losses, manifest,
                    must, require_near, require_same_run, start, steps, stored_arrays,
                    tiny_data, tiny_model)

VOCABULARY = 503  # the last of 2 ranks, and of 4, has a row of padding
MANY = 20000


def whole_state(out):
    """Returns the arrays of a run's last checkpoint (stored_arrays())."""
    return stored_arrays(out / "checkpoints" / checkpoints(out)[-1])


def require_as_one_process(out, one):
    require_near("loss", losses(out), losses(one), 1e-5)
    require_near("gradient norm", [m["grad_norm"] for m in steps(out)],
                 [m["grad_norm"] for m in steps(one)], 5e-5)


def validation_losses(out):
    return [m["loss"] for m in evaluations(out)]


def refusal_of(config, *arguments):
    """Returns the message with which `ftrun check` and the start refuse a config; the two must be
    equal."""
    messages = set()
    for command in (("check", "-q"), ()):
        process = must(ftrun(*command, "--config", config, *arguments), 2)
        messages.add(process.stderr[process.stderr.index("ftrun: "):])
    assert len(messages) == 1, messages
    return messages.pop().replace(str(config), "CONFIG")


class MeshJob(ShardedJob):
    """A job on several meshes. A test sets `settings_of`, which returns the settings for a mesh,
    built with `on_mesh`."""

    def __init__(self, scratch, **model):
        super().__init__(scratch, vocab_size=VOCABULARY, **model)
        self.data = tiny_data(self.data, vocabulary=VOCABULARY)
        words = {"model": {"type": "BPE", "vocab": {f"w{i}": i for i in range(VOCABULARY)}},
                 "decoder": {"type": "ByteLevel"}}
        (self.model / "tokenizer.json").write_text(json.dumps(words))
        self.text = tiny_data(self.scratch / "validation.bin", tokens=32 * 12 + 1, seed=5,
                              vocabulary=VOCABULARY)

    def on_mesh(self, parallel, total=4, stage=0, **changes):
        """Returns settings for the same global batch on a mesh."""
        given = self.settings(parallel["data"], stage=stage, **changes)
        given["train"] = {"steps": total, "generate": {"prompt_tokens": 8, "tokens": 16,
                                                       "temperature": 0}} | changes.get("train", {})
        given["parallel"] = parallel
        given["data"] = {"validation": str(self.text),
                         "token_dtype": "uint16"} | changes.get("data", {})
        return given

    def train_once(self, name, *arguments, **mesh):
        if name not in self.done:
            self.done[name] = self.run(name, *arguments, **self.settings_of(**mesh))
        return self.out(name)

    def start_run(self, name, **mesh):
        running = start("--config", self.config(name, **self.settings_of(total=MANY, **mesh)),
                        "--restarts", 0)
        running.await_line("step 3/")
        return running

    # --- what every mesh must do ---------------------------------------------------------------

    def require_training_as_one_process(self, name, mesh, one):
        out = self.train_once(name, **mesh)
        require_as_one_process(out, one)
        require_near("validation", validation_losses(out), validation_losses(one), 1e-5)
        # Ranks that read the same sequences count once.
        assert [(m["samples"], m["tokens"])
                for m in steps(out)] == [(m["samples"], m["tokens"]) for m in steps(one)]
        for line in steps(out):
            assert (abs(line["tokens_per_second"] * line["step_seconds"] / line["tokens"] - 1)
                    < 1e-3), line
        self.require_same_export(out, one, name)

    def require_same_export(self, out, one, name):
        found, expected = exported_weights(out), exported_weights(one)
        assert found.keys() == expected.keys()
        for tensor, weights in expected.items():
            assert (found[tensor].shape == weights.shape
                    and np.abs(found[tensor] - weights).max() < 1e-5), (name, tensor)

    def require_same_samples(self, names):
        found = {name: re.search(r"continued by the model\):\n(?:\[rank 0\] )?((?:w\d+)+ "
                                 r">>>(?:w\d+)+)\n", self.done[name].stdout)
                 for name in names}
        for name, sample in found.items():
            assert sample, (name, self.done[name].stdout, self.done[name].stderr)
        assert len({sample[1] for sample in found.values()}) == 1, found

    def require_planned_use(self, name, mesh, ranks):
        """Checks that the run uses the planned memory and traffic; returns the plan of the last
        rank."""
        record = manifest(self.out(name))
        config = self.config(f"plan-{name}", **self.settings_of(**mesh))
        planned, sent = [], []
        for rank in range(ranks):
            table = must(ftrun("plan", "--config", config, "--rank", rank)).stdout
            planned.append(int(re.search(r"^device +all +(\d+) ", table, re.M)[1]))
            sent.append(int(re.search(r"^  sum, .* (\d+) B$", table, re.M)[1]))
            theory = [int(size) for size in re.findall(r" (-?\d+) B$",
                                                       table[table.index("  theory: "):], re.M)]
            assert sum(theory) == sent[-1], table
            for more in ("--memory", "--program", "--evaluation"):
                must(ftrun("plan", "--config", config, "--rank", rank, more))
        assert planned[0] == record["memory"]["predicted"]["device_total"], (
            planned, record["memory"])
        line = steps(self.out(name))
        assert line[-1]["counters"]["bytes_sent"] - line[-2]["counters"]["bytes_sent"] == sent[0], (
            name, sent)
        traffic = record["traffic"]["communication"]
        assert traffic["program"] == 4 * sum(sent), (traffic, sent)
        given, used = (record["memory"]["allocated"]["device_total"],
                       record["memory"]["touched"]["device_total"])
        assert planned[0] <= given <= planned[0] + (1 << 20) and used <= given, record["memory"]
        return table

    def require_conversion_equals_export(self, name):
        out = self.out(name)
        assert must(ftrun("verify", out)).stdout == f"{out}: every file is complete and undamaged\n"
        must(ftrun("convert", out, "--out", self.scratch / f"converted-{name}"))
        converted = (self.scratch / f"converted-{name}" / "model.safetensors").read_bytes()
        assert converted == (out / "export" / "model" / "model.safetensors").read_bytes()

    def require_resume_bit_for_bit(self, name, mesh):
        cut = f"{name}-cut"
        self.train_once(cut, **mesh, total=2)
        run = self.run(cut, "--resume", "auto", **self.settings_of(**mesh))
        assert f"resumed from {self.out(cut)}/checkpoints/step-00000002" in run.stdout, run.stdout
        # The validation at the end of the first part is not in the whole run.
        straight, resumed = self.out(name), self.out(cut)
        assert steps(resumed) and losses(resumed) == losses(straight)
        assert [m["grad_norm"] for m in steps(resumed)] == [m["grad_norm"] for m in steps(straight)]
        first, second = whole_state(straight), whole_state(resumed)
        assert (first.keys() == second.keys() and all(np.array_equal(first[key], second[key])
                                                      for key in first))

    def resume_on_each_mesh(self, path, one):
        """Trains two steps on each mesh, and resumes on the next one; returns the output of the
        last part."""
        self.run("straight", **self.settings_of(**one, total=2 * len(path)))
        for part, mesh in enumerate(path):
            run = self.run("moved", *(("--resume", "auto") if part else ()),
                           **self.settings_of(**mesh, total=2 * part + 2))
            if part:
                assert (f"resumed from {self.out('moved')}/checkpoints/step-0000000{2 * part}"
                        in run.stdout), run.stdout
        require_as_one_process(self.out("moved"), self.out("straight"))
        found, expected = whole_state(self.out("moved")), whole_state(self.out("straight"))
        assert found.keys() == expected.keys()
        for key, values in expected.items():
            assert np.abs(found[key] - values).max() < 1e-5, key
        return run

    def model_with_nan(self, tensor, place):
        """Returns the setting `model` for a copy of the model where one element is NaN."""
        weights = load_file(self.model / "model.safetensors")
        weights[tensor][place] = np.nan
        shape = json.loads((self.model / "config.json").read_text())
        return {"path": str(tiny_model(self.scratch / f"poisoned-{tensor}", weights, **shape))}

    def require_save_and_resume_after_signal(self, of, mesh):
        for target in (None, 1):  # all ranks, and one that writes no files of the run folder
            name = f"stopped-{of}-{target}"
            running = self.start_run(name, **mesh)
            running.kill(signal.SIGTERM, running.ranks()[target] if target else None)
            running.wait(143)
            last_step = len(steps(self.out(name)))
            assert manifest(
                self.out(name))["exit_reason"] == f"stopped by SIGTERM after step {last_step}"
            assert checkpoints(self.out(name)) == [f"step-{last_step:08}"]
        self.run(name, "--resume", "auto", **self.settings_of(**mesh, total=last_step + 2))
        self.run(f"not-stopped-{of}", **self.settings_of(**mesh, total=last_step + 2))
        require_same_run(self.out(name), self.out(f"not-stopped-{of}"))
