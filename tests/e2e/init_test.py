"""Tests `ftrun init`, which writes, without questions and with reasons, a config for a model and
data that passes `ftrun check` and trains: all weights if they fit, otherwise an adapter, otherwise
an adapter on a quantized base."""
import json
import os
import re
import tempfile

from machines import two_cores
from runner import Job, case, ftrun, manifest, must, preload, run_cases, tiny_data, tiny_model

preload()

with tempfile.TemporaryDirectory() as scratch:
    job = Job(scratch, tiny_model(f"{scratch}/model"))
    data = job.scratch / "data"
    data.mkdir()
    for split, tokens in (("train", 40001), ("validation", 4097)):
        tiny_data(data / f"{split}.bin", tokens=tokens)
    (data / "meta.json").write_text('{"dtype": "uint16"}')
    cache = {"XDG_CACHE_HOME": f"{scratch}/cache"}

    def machine(memory):
        path = job.scratch / f"{memory.replace(' ', '')}.yaml"
        path.write_text(two_cores(memory))
        return path

    def init(out, *arguments, code=0, where=None):
        return must(ftrun("init", job.model, data, "--out", job.scratch / out, *arguments,
                          env=cache, cwd=where or job.scratch), code)

    def trained(out):
        config = job.scratch / out
        must(ftrun("check", "--config", config, cwd=job.scratch))
        must(ftrun("--config", config, "--set", "train.steps=2", "--set",
                   f"output_dir={job.scratch / 'run'}-{config.stem}",
                   cwd=job.scratch))
        return manifest(job.scratch / f"run-{config.stem}")

    @case
    def a_config_for_this_machine_is_written_and_trains():
        stdout = init("here.yaml").stdout
        lines = stdout.splitlines()
        assert lines[0] == f"wrote {job.scratch / 'here.yaml'}" and len(lines) == 6, stdout
        assert (re.match(r"Data: \d+ sequences of \d+ tokens; \d+ steps: 1 epoch at "
                         r"\d+ sequences? per step\.", lines[1])), stdout
        assert lines[2] == ("Trains all weights: the whole model fits, and full training usually "
                            "gives the lowest loss; learning rate 2e-05."), stdout
        assert "rates: assumed, not measured; run ftrun bench machine --quick" in lines[4], stdout
        text = (job.scratch / "here.yaml").read_text()
        assert text.startswith("".join(f"# {line}\n" for line in lines[1:])), text
        assert f'validation: ["{data / "validation"}"]' in text, text
        trained("here.yaml")

    @case
    def names_of_files_and_machines_are_not_changed():
        path = job.scratch / "named.yaml"
        path.write_text(two_cores("1 GB").replace(
            "machine: two", 'machine: "two\\noutput_dir: elsewhere"'))
        stdout = init("MYFILE.yaml", "--machine", path).stdout
        out = job.scratch / "MYFILE.yaml"
        assert stdout.splitlines()[-1] == (f"Check it with ftrun check --config {out}, train with "
                                           f"ftrun --config {out}."), stdout
        written = out.read_text()
        assert len(re.findall("^output_dir: runs/", written, re.M)) == 1, written
        assert not re.search("^output_dir: elsewhere", written, re.M), written

    @case
    def a_batch_is_shared_out_among_any_number_of_gpus():
        path = job.scratch / "gpus.yaml"
        path.write_text("machine: six\ndevice: gpu\ndevices: 6\nmemory: 16 GB\nrates:\n"
                        "  - ranks: 1\n    memory: 1 TB/s\n"
                        "    products: {fp32: 20 TFLOP/s, bf16: 100 TFLOP/s}\n"
                        "links: {node: {latency: 10 us, bandwidth: 50 GB/s}}\n")
        init("six.yaml", "--machine", path)
        text = (job.scratch / "six.yaml").read_text()
        assert int(re.search(r"^train_batch_size: (\d+)", text, re.M)[1]) % 6 == 0, text
        assert "offload" not in text, text
        path.write_text(path.read_text().replace("memory: 16 GB\n", ""))
        stderr = init("never.yaml", "--machine", path, code=2).stderr
        assert "the key memory is missing, so ftrun cannot tell which model fits" in stderr, stderr

    @case
    def a_model_that_does_not_fit_gets_an_adapter_and_a_quantized_base():
        full = json.loads(must(ftrun("plan", "--search", "--config", job.scratch / "here.yaml",
                                     "--machine", machine("1 GB"), "--json",
                                     cwd=job.scratch)).stdout)["result"]["search"]["layouts"]
        assert full, "no layout is found that trains all weights in this memory"
        # A small model's adapter is almost as large as the model, so in the end only the base can
        # shrink.
        kinds, last = [], None
        for kib in (int(1600 * 0.8**k) for k in range(20)):
            result = ftrun("init", job.model, data, "--out", job.scratch / f"fit-{kib}.yaml",
                           "--machine", machine(f"{kib} KB"), env=cache,
                           cwd=job.scratch)
            if result.returncode == 5:
                assert (
                    "none of" in result.stderr and "the smallest layout needs" in result.stderr
                ), result.stderr
                last = result.stderr
                break
            kind = re.search(r"^Trains (all weights|a LoRA adapter on a base|a LoRA adapter)",
                             must(result).stdout, re.M)[1]
            if kind not in kinds:
                trained(f"fit-{kib}.yaml")
                kinds.append(kind)
        order = ["all weights", "a LoRA adapter", "a LoRA adapter on a base"]
        assert (kinds[0] == "all weights" and len(kinds) > 1
                and [kind for kind in order if kind in kinds] == kinds), kinds
        assert last, "init found a way to train in every memory, even the smallest"

    @case
    def mistakes_are_reported_before_a_file_is_written():
        for arguments, code, word in (((job.scratch / "nowhere", data), 4,
                                       "there is no such folder"),
                                      ((job.model, job.scratch / "nowhere"), 4, "nowhere"),
                                      ((job.model, job.model), 4,
                                       "contains no training data (train.bin or train.jsonl)"),
                                      ((job.model, data, "--machine", job.scratch / "none.yaml"), 4,
                                       "none.yaml")):
            result = must(ftrun("init", *arguments, "--out", job.scratch / "new.yaml", env=cache),
                          code)
            assert (word in result.stderr
                    and not os.path.exists(job.scratch / "new.yaml")), (word, result.stderr)
        result = init("here.yaml", code=2).stderr
        assert "--out" in result and "already exists, and is not overwritten" in result, result

    run_cases()
