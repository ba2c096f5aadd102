"""Checks that a run writes metrics, TensorBoard events, manifest, config, logs, report,
checkpoints, and a Hugging Face folder that gives the loss with which the run ended."""
import csv
import fcntl
import json
import os
import pathlib
import pty
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import termios

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
from safetensors.numpy import load_file

from runner import (BINARY, TIMEOUT, VOCABULARY, Job, case, checkpoints, environment, evaluations,
                    exported_weights, free_port, ftrun, manifest, metrics, must, needs, preload,
                    reproducible_metrics, require_near, run_cases, same_tensors, start, steps,
                    tiny_data, tiny_model, tiny_weights)

SEQUENCE, VALIDATION_ROWS = 32, 10


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def fields(data):
    """Yields the fields of a protobuf message as (number, value)."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = varint(data, at)
        elif kind == 2:
            size, at = varint(data, at)
            value, at = data[at:at + size], at + size
        else:
            size = 8 if kind == 1 else 4
            value, at = data[at:at + size], at + size
        yield key >> 3, value


def crc32c(data):
    crc = 0xffffffff
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82f63b78 if crc & 1 else 0)
    crc ^= 0xffffffff
    return ((crc >> 15 | crc << 17) + 0xa282ead8) & 0xffffffff


def events(path):
    """Returns the scalars of an event file as {(tag, step): value}; checks both checksums of each
    record."""
    data, at, found = path.read_bytes(), 0, {}
    while at < len(data):
        (size,) = struct.unpack_from("<Q", data, at)
        body = data[at + 12:at + 12 + size]
        assert struct.unpack_from("<I", data, at + 8)[0] == crc32c(data[at:at + 8])
        assert struct.unpack_from("<I", data, at + 12 + size)[0] == crc32c(body)
        at += 16 + size
        event = dict(fields(body))
        for number, summary in fields(body):
            if number == 5:
                for _, value in fields(summary):
                    parts = dict(fields(value))
                    found[parts[1].decode(), event.get(2, 0)] = struct.unpack("<f", parts[2])[0]
    return found


with tempfile.TemporaryDirectory() as scratch:
    preload()
    job = Job(scratch)
    validation = tiny_data(job.scratch / "validation.bin", tokens=SEQUENCE * 12 + 1, seed=5)
    (job.model / "tokenizer.json").write_text("{}")
    (job.model / "tokenizer_config.json").write_text('{"a": 1}')
    FULL = {"train": {"steps": 6, "evaluation": {"every": 4, "samples": VALIDATION_ROWS}},
            "data": {"validation": str(validation), "token_dtype": "uint16"},
            "checkpoint": {"every": 3, "keep_last": 2},
            "steps_per_print": 3, "wall_clock_breakdown": True,
            "csv_monitor": {"enabled": True, "job_name": "tiny"}}

    def validations(out):
        return {m["step"]: m["loss"] for m in evaluations(out)}

    @case
    def a_run_prints_its_progress():
        result = job.run("run", **FULL)
        lines = result.stdout.splitlines()
        for line_start in ("validation on 10 of 12 sequences (train.evaluation.samples)",
                           "step 6/6  loss ", f"saved {job.out('run')}/checkpoints/step-00000003 (",
                           f"exported {job.out('run')}/export/model", "memory of rank 0",
                           "step  training loss",
                           "step=3, skipped=0, lr=[0.003], mom=[[0.9, 0.95]]", "time (ms) | "):
            assert any(line.startswith(line_start) for line in lines), (
                f"no line {line_start!r}:\n{result.stdout}")
        # Each decision is printed once, on stderr.
        assert result.stderr.count("default: scheduler = constant") == 1, result.stderr
        assert (len([line for line in lines if line.startswith("step ") and "/6  loss" in line])
                == 6), result.stdout

    @case
    def closed_descriptors_do_not_affect_the_run():
        """The kernel would give closed numbers to the first files that are opened, and output would
        be written into these files."""
        few = {"train": {"steps": 3}}
        job.run("open", **few)
        lock = [line.split(" ")[0] for line in (job.out("open") / ".lock").read_text().splitlines()]
        for closed in ("<&- >&- 2>&-", ">&- 2>&-", "2>&-", "<&-"):
            for ranks in (1, 2) if closed.startswith("<&- >") else (1,):
                name = f"closed-{closed.count('-')}{closed[0] == '<'}-{ranks}"
                command = ["sh", "-c", f'exec "$@" {closed}', "sh", BINARY, "--config",
                           job.config(name, **few), "--nproc", ranks]
                result = subprocess.run(list(map(str, command)), capture_output=True, text=True,
                                        env=environment(), timeout=TIMEOUT)
                assert result.returncode == 0, (closed, ranks, result)
                assert " >&-" not in f" {closed}" or result.stdout == "", (closed, ranks, result)
                assert [m["step"] for m in metrics(job.out(name))] == [1, 2, 3], (closed, ranks)
                assert ([line.split(" ")[0]
                         for line in (job.out(name) / ".lock").read_text().splitlines()] == lock), (
                    closed, ranks)

    @case
    def output_that_cannot_be_written_is_reported():
        config = job.config("unsaid", train={"steps": 3})
        remedy = ("  remedy: free space on the disk of the output, or redirect the output to "
                  "another file\n")
        first = "ftrun: not all of the output could be written to standard output"

        def run_into_full(*arguments):
            with open("/dev/full", "w") as full:
                return subprocess.run([BINARY, *map(str, arguments)], stdout=full,
                                      stderr=subprocess.PIPE, text=True, env=environment())

        for command in (["--version"], ["--help"], ["schema"], ["schema", "--markdown"],
                        ["plan", "--config", config],
                        ["check", "--config", config], ["inspect", job.model],
                        ["verify", job.out("run")], ["report", job.out("run")]):
            done = run_into_full(*command)
            assert (done.returncode == 5 and done.stderr.startswith(first)
                    and done.stderr.endswith(remedy)), (command, done)
        assert run_into_full("inspect",
                             job.model).stderr == f"{first}: No space left on device\n{remedy}"
        # A reader that closes the pipe early is not reported.
        left, end = os.pipe()
        os.close(left)
        done = subprocess.run([BINARY, "schema"], stdout=end, stderr=subprocess.PIPE, text=True,
                              env=environment(), restore_signals=False)
        os.close(end)
        assert (done.returncode, done.stderr) == (0, ""), done
        # The results of training are elsewhere.
        for ranks in (1, 2):
            done = run_into_full("--config", config, "--nproc", ranks, "--set",
                                 f"output_dir={job.out(f'unsaid-{ranks}')}")
            assert (done.returncode == 0
                    and "warning: " + first.removeprefix("ftrun: ") in done.stderr), done
            assert len(steps(job.out(f"unsaid-{ranks}"))) == 3

    @case
    def run_folder_is_for_its_owner_alone():
        os.umask(0o022)
        job.run("own", **FULL)
        out = job.out("own")
        modes = {path.relative_to(out): path.lstat().st_mode & 0o7777
                 for path in [out, *out.rglob("*")]}
        wrong = {str(path): oct(mode) for path, mode in modes.items()
                 if mode != (0o700 if (out / path).is_dir() else 0o600)}
        assert not wrong, wrong
        expected = {".lock", "run.json", "config.yaml", "metrics.jsonl", "report.html",
                    "logs/rank-0.log", "checkpoints/latest",
                    "checkpoints/step-00000006/checkpoint.json", "export/model/model.safetensors",
                    "export/model/tokenizer.json"}
        assert expected <= {str(path) for path in modes}, modes
        assert not [path for path in modes if ".tmp" in str(path)], modes
        must(ftrun("convert", out, "--out", job.scratch / "given-away"))
        given = job.scratch / "given-away"
        assert ({oct(path.stat().st_mode & 0o777) for path in [given, *given.iterdir()]}
                == {"0o755", "0o644"}), list(given.iterdir())

    @case
    def metrics_have_their_fields():
        lines = metrics(job.out("run"))
        assert [m["step"] for m in lines] == [0, 1, 2, 3, 4, 4, 5, 6, 6]
        assert (set(lines[0]) == {"step", "evaluation", "loss", "perplexity", "accuracy", "tokens",
                                  "seconds"}), lines[0]
        for line in steps(job.out("run")):
            assert {"step", "samples", "loss", "grad_norm", "lr", "tokens", "tokens_per_second",
                    "step_seconds",
                    "data_wait_seconds", "exposed_communication_seconds", "counters",
                    "memory"} <= set(line), line
            assert line["samples"] == 4 * line["step"] and line["tokens"] == 4 * SEQUENCE
            assert (line["step_seconds"] >= line["data_wait_seconds"] >= 0
                    and line["tokens_per_second"] > 0)
            require_near("tokens per second", [line["tokens_per_second"]],
                         [line["tokens"] / line["step_seconds"]], 1e-9)
            assert {"parameters", "optimizer", "temporary"} <= set(line["memory"]), line["memory"]
        assert list(validations(job.out("run"))) == [0, 4, 6]

    @case
    def tensorboard_holds_the_same_numbers():
        (path,) = (job.out("run") / "tensorboard").iterdir()
        found = events(path)
        for line in steps(job.out("run")):
            require_near("train/loss", [found["train/loss", line["step"]]], [line["loss"]], 1e-6)
        tags = {tag for tag, _ in found}
        assert (any(tag.startswith("validation/") for tag in tags)
                and any(tag.startswith("time/") for tag in tags)), tags

    @case
    def csv_monitor_holds_the_same_numbers():
        folder = pathlib.Path(job.out("run"), "tiny")  # without output_path: in the run folder
        path = folder / "Train_Samples_train_loss.csv"
        rows = list(csv.reader(path.read_text().splitlines()))
        assert rows[0] == ["step", "train_loss"]
        expected = [[str(m["samples"]), m["loss"]] for m in steps(job.out("run"))]
        assert [[step, float(loss)] for step, loss in rows[1:]] == expected, rows
        assert (folder / "Train_Samples_lr.csv").exists()

    @case
    def each_sink_has_each_step_once_after_a_kill_and_from_an_earlier_checkpoint():
        changes = {"train": {"steps": 6, "evaluation": {"every": 2, "samples": 2}},
                   "data": FULL["data"],
                   "checkpoint": {"every": 2, "keep_last": 0}, "csv_monitor": {"enabled": True},
                   "export": {"enabled": False}}
        running = start("--config", job.config("once", **changes))
        running.await_line("step-00000002 (")
        running.kill_all()
        out = job.out("once")
        with open(out / "metrics.jsonl", "a") as file:
            file.write('{"step": 6, "lo')
        with open(out / "DeepSpeedJobName" / "Train_Samples_lr.csv", "a") as file:
            file.write("24,0.0")
        for resume in ("auto", "4", "2"):
            job.run("once", "--resume", resume, **changes)
            assert [m["step"] for m in steps(out)] == [1, 2, 3, 4, 5, 6], steps(out)
            for name in ("train_loss", "lr"):
                rows = (
                    out / "DeepSpeedJobName" / f"Train_Samples_{name}.csv").read_text().splitlines()
                assert ([row.split(",")[0] for row in rows]
                        == ["step", *(str(m["samples"]) for m in steps(out))]), rows
            scalars = [key for path in sorted((out / "tensorboard").iterdir())
                       for key in events(path)]
            assert len(scalars) == len(set(scalars)), "a scalar of a step was written twice"
            assert [step for tag, step in scalars if tag == "train/loss"] == [1, 2, 3, 4, 5, 6], (
                scalars)
            assert [step for tag, step in scalars if tag == "validation/loss"] == [0, 2, 4, 6], (
                scalars)

    @case
    def manifest_tells_what_ran():
        record = manifest(job.out("run"))
        assert (record["exit_code"] == 0 and record["exit_reason"] == "done"
                and record["ended"] >= record["started"])
        assert (record["build"]["version"] and record["machine"]["cores"] > 0
                and record["seed"] == 42)
        assert record["exit_rank"] == -1 and record["restarts"] == []
        assert (record["topology"] == {"data": 1, "tensor": 1}
                and record["counters"]["ready_milliseconds"] > 0)
        resident, anonymous = (record["counters"][name]
                               for name in ("peak_resident_bytes", "anonymous_and_shared_bytes"))
        assert 2**24 < anonymous < resident < 2**31, record["counters"]
        weights = job.model / "model.safetensors"
        assert (record["model"]["path"] == str(job.model)
                and record["model"]["bytes"] == weights.stat().st_size)
        assert (len(record["model"]["fingerprint"]) == 16
                and record["model"]["details"]["family"] == "llama")
        for role, path in (("train", job.data), ("validation", validation)):
            data = record["data"][role]
            assert data["path"] == str(path) and data["bytes"] == path.stat().st_size, data
            assert (len(data["fingerprint"]) == 16
                    and data["details"]["tokens"] == str(path.stat().st_size // 2)), data
        assert (record["config"]["train"]["steps"] == 6
                and record["config"]["data"]["token_dtype"] == "uint16")

    @case
    def peak_memory_is_that_of_the_largest_rank():
        # The kernel reports it a second time when a process is waited for.
        config = job.config("largest", train={"steps": 4})
        place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        ranks = [subprocess.Popen([BINARY, "--config", config], stdout=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL,
                                  env=environment({"RANK": str(rank), **place}))
                 for rank in range(2)]
        ends = [os.wait4(rank.pid, 0) for rank in ranks]
        assert [status for _, status, _ in ends] == [0, 0], ends
        largest = max(usage.ru_maxrss for _, _, usage in ends) * 1024
        recorded = manifest(job.out("largest"))["counters"]["peak_resident_bytes"]
        # The kernel counts in batches of pages that each CPU keeps for a while.
        assert 0.9 * largest <= recorded <= largest + 2**20, (recorded, largest)

    @case
    def fingerprint_follows_the_content():
        moved = job.scratch / "moved.bin"
        moved.write_bytes(job.data.read_bytes())
        other_data = tiny_data(job.scratch / "other.bin", seed=9)
        few = {"train": {"steps": 2}}
        job.run("moved", **few, data={"train": str(moved), "token_dtype": "uint16"})
        job.run("other", **few, data={"train": str(other_data), "token_dtype": "uint16"})
        prints = [manifest(job.out(name))["data"]["train"]["fingerprint"]
                  for name in ("run", "moved", "other")]
        assert prints[0] == prints[1] != prints[2], prints
        # Other data under the old name are noticed at each resume, and nothing of them is recorded.
        moved.write_bytes(other_data.read_bytes())
        for ranks, background in ((1, True), (1, False), (2, True)):
            config = job.config("moved", train={"steps": 400},
                                data={"train": str(moved), "token_dtype": "uint16"},
                                checkpoint={"every": 1, "background": background},
                                gradient_accumulation_steps=2 // ranks)
            refused = must(ftrun("--config", config, "--resume", "auto", "--nproc", ranks), 2)
            assert (f"  data.train.fingerprint: was {prints[0]}, is now {prints[2]}\n"
                    in refused.stderr), refused.stderr
            assert checkpoints(job.out("moved")) == ["step-00000002"], checkpoints(job.out("moved"))
            assert manifest(job.out("moved"))["data"]["train"]["fingerprint"] == prints[0]
        moved.write_bytes(job.data.read_bytes())
        job.run("moved", "--resume", "auto", data={"train": str(moved), "token_dtype": "uint16"},
                train={"steps": 4})

    @case
    def written_config_reads_back():
        path = job.out("run") / "config.yaml"
        checked = must(ftrun("check", "--config", path))
        assert checked.stdout.endswith("the config is good\n"), checked.stdout
        assert (f"warning: a run without --resume would not start: output_dir {job.out('run')}: "
                "the folder is not empty (it holds " in checked.stdout
                and "  remedy: continue the run that is there with --resume auto, or choose "
                    "another output_dir\n" in checked.stdout), checked.stdout
        new = must(ftrun("check", "--config", path, "--set", f"output_dir={job.out('not-yet')}"))
        assert "would not start" not in new.stdout and not job.out("not-yet").exists(), new.stdout
        job.run("again", "--set", f"output_dir={job.out('again')}", **FULL)
        must(ftrun("--config", path, "--set", f"output_dir={job.out('from-yaml')}"))
        expected = reproducible_metrics(job.out("run"))
        assert reproducible_metrics(job.out("again")) == expected
        assert reproducible_metrics(job.out("from-yaml")) == expected

    @case
    def every_rank_has_a_log():
        job.run("two", "--nproc", 2, **FULL)
        for rank in (0, 1):
            log = (job.out("two") / "logs" / f"rank-{rank}.log").read_text()
            assert f"rank {rank} of 2, ftrun " in log and "step 6: loss " in log, log

    @case
    def transformers_loads_the_export_and_finds_the_same_loss():
        import torch
        import transformers
        transformers.utils.logging.disable_progress_bar()
        model = transformers.AutoModelForCausalLM.from_pretrained(
            job.out("run") / "export" / "model", dtype=torch.float32)
        ids = torch.from_numpy(np.fromfile(validation, dtype=np.uint16).astype(np.int64))
        rows = torch.stack([ids[i * SEQUENCE:(i + 1) * SEQUENCE + 1]
                            for i in range(VALIDATION_ROWS)])
        with torch.no_grad():
            logits = model(rows[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, VOCABULARY),
                                                 rows[:, 1:].reshape(-1)).item()
        require_near("validation loss", [validations(job.out("run"))[6]], [loss], 1e-5)
        last = evaluations(job.out("run"))[-1]
        right = int((logits.argmax(-1) == rows[:, 1:]).sum())
        assert (last["tokens"] == rows[:, 1:].numel()
                and last["accuracy"] == right / last["tokens"] > 0), (last, right)
        require_near("perplexity", [last["perplexity"]], [np.exp(last["loss"])], 1e-12)
        folder = job.out("run") / "export" / "model"
        assert ((folder / "tokenizer_config.json").read_text() == '{"a": 1}'
                and (folder / "tokenizer.json").exists())

    @case
    def validation_does_not_depend_on_the_ranks():
        # 10 rows in micro-batches of 2 need padding on 2 and on 3 ranks.
        losses = {}
        for ranks in (1, 2, 3):
            name = f"ranks-{ranks}"
            job.run(name, "--nproc", ranks, **FULL | {"csv_monitor": None}, train_batch_size=12,
                    gradient_accumulation_steps=None)
            losses[ranks] = list(validations(job.out(name)).values())
        require_near("2 ranks", losses[2], losses[1], 1e-6)
        require_near("3 ranks", losses[3], losses[1], 1e-6)

    @case
    def inspect_verify_and_convert_read_checkpoints():
        out = job.out("run")
        assert checkpoints(out) == ["step-00000003", "step-00000006"]
        assert (out / "checkpoints" / "latest").read_text().strip() == "step-00000006"
        shown = must(ftrun("inspect", out)).stdout
        assert "step-00000006" in shown and "step-00000003" in shown, shown
        assert "every file is complete and undamaged" in must(ftrun("verify", out)).stdout
        for source, step in ((out, 6), (out / "checkpoints" / "step-00000003", 3)):
            target = job.scratch / f"converted-{step}"
            must(ftrun("convert", source, "--model", job.model, "--out", target))
            assert (target / "config.json").exists() and (target / "tokenizer_config.json").exists()
        stdout = must(ftrun("convert", out, "--out", job.scratch / "converted-alone")).stdout
        assert stdout == (f"model: {job.model} (from {out}/run.json)\n"
                          f"wrote {job.scratch}/converted-alone from "
                          f"{out}/checkpoints/step-00000006\n"), stdout
        for file in ("model.safetensors", "config.json", "tokenizer_config.json"):
            assert ((job.scratch / "converted-alone" / file).read_bytes()
                    == (out / "export/model" / file).read_bytes()), file
        last = exported_weights(out)
        from safetensors.numpy import load_file
        converted = load_file(job.scratch / "converted-6" / "model.safetensors")
        assert (set(converted) == set(last) and all(np.array_equal(converted[n], last[n])
                                                    for n in last))
        earlier = load_file(job.scratch / "converted-3" / "model.safetensors")
        assert any(not np.array_equal(earlier[n], last[n]) for n in last)

    @case
    def convert_wants_the_model_of_the_run():
        step = job.out("run") / "checkpoints" / "step-00000006"
        other_model = tiny_model(job.scratch / "other-model", num_hidden_layers=3,
                                 intermediate_size=64)
        target = job.scratch / "converted-wrong"
        refused = must(ftrun("convert", step, "--model", other_model, "--out", target), 4).stderr
        assert (refused.startswith(f"ftrun: {step}: its weights are not those of "
                                   f"{other_model}/config.json:\n")), refused
        assert ("  tensor model.layers.0.mlp.gate_proj.weight has shape [48, 32]; expected [64, "
                "32]\n" in refused), refused
        assert ("  tensor model.layers.2.input_layernorm.weight is missing; expected shape [32]\n"
                in refused), refused
        assert (refused.endswith("  remedy: give the model folder that training began from "
                                 "(--model)\n")), refused
        fewer = tiny_model(job.scratch / "fewer-layers", num_hidden_layers=1)
        refused = must(ftrun("convert", step, "--model", fewer, "--out", target), 4).stderr
        assert ("  tensor model.layers.1.input_layernorm.weight is not a parameter of a llama "
                "model\n" in refused), refused
        # Without --model, convert uses the run's model as long as it exists.
        alone = job.scratch / "alone" / "checkpoints"
        alone.mkdir(parents=True)
        shutil.copytree(step, alone / step.name)
        remedy = "  remedy: give the folder that training began from with --model\n"
        assert must(ftrun("convert", alone.parent, "--out", target), 4).stderr == (
            f"ftrun: {alone.parent}/run.json: does not exist, so the model that was trained is "
            f"unknown\n{remedy}")
        record = manifest(job.out("run"))
        record["model"]["path"] = "/gone/model"
        (alone.parent / "run.json").write_text(json.dumps(record))
        assert must(ftrun("convert", alone.parent, "--out", target), 4).stderr == (
            f'ftrun: {alone.parent}/run.json: the model folder that it names, "/gone/model", '
            f'does not exist\n{remedy}')
        # A relative path means another file when seen from another folder.
        elsewhere = job.scratch / "elsewhere"
        twin = tiny_model(elsewhere / "model", rope_theta=500000.0)
        record["model"]["path"] = "model"
        (alone.parent / "run.json").write_text(json.dumps(record))
        assert must(ftrun("convert", alone.parent, "--out", target, cwd=elsewhere), 4).stderr == (
            f'ftrun: {alone.parent}/run.json: the model folder that it names, "model", is not the '
            'one that training began from: '
            f"{twin} has another config.json or other tensors\n{remedy}")
        assert not target.exists()

    def contents(folder):
        return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*")
                if p.is_file()}

    def convert_refused(target, message, *arguments):
        out, before = job.out("run"), contents(job.scratch)
        refused = must(ftrun("convert", out, "--model", job.model, "--out", target, *arguments),
                       4).stderr
        assert refused == f"ftrun: {message}\n", refused
        assert contents(job.scratch) == before

    @case
    def convert_replaces_its_own_output_and_nothing_else():
        out, target = job.out("run"), job.scratch / "as-hf-twice"
        convert = ("convert", out, "--model", job.model, "--out", target)
        must(ftrun(*convert))
        first = contents(target)
        must(ftrun(*convert, "--dtype", "bf16"))
        assert set(contents(target)) == set(first) and contents(target) != first
        must(ftrun(*convert))
        assert contents(target) == first and "ftrun-output.json" in first
        remedy = "\n  remedy: choose another folder, or move this one away"
        (target / "README.md").write_text("what I found")
        convert_refused(target, f"{target}: is not replaced: since ftrun wrote it, README.md was "
                                f"added{remedy}")
        (target / "README.md").unlink()
        (target / "tokenizer_config.json").write_text("mine")
        convert_refused(target, f"{target}: is not replaced: since ftrun wrote it, "
                                f"tokenizer_config.json was changed{remedy}")
        user_model = tiny_model(job.scratch / "a-model-of-mine")
        convert_refused(user_model, f"{user_model}: is not replaced: it holds no "
                                    f"ftrun-output.json, so ftrun did not write it{remedy}")

    @case
    def a_model_in_fp16_comes_back_in_fp16():
        halves = {name: weight.astype(np.float16) for name, weight in tiny_weights().items()}
        model = {"path": str(tiny_model(job.scratch / "model-fp16", halves, torch_dtype="float16"))}
        templates = job.scratch / "model-fp16/additional_chat_templates"
        templates.mkdir()
        (templates / "tools.jinja").write_text("{{ tools }}")
        job.run("fp16", model=model, train={"steps": 2}, checkpoint={"every": 2})
        written = job.out("fp16") / "export/model"
        assert json.loads((written / "config.json").read_text())["torch_dtype"] == "float16"
        for target, dtype in (("fp16-as-fp32", "fp32"), ("fp16-as-fp16", "auto")):
            must(ftrun("convert", job.out("fp16"), "--out", job.scratch / target, "--dtype", dtype))
        trained = load_file(job.scratch / "fp16-as-fp32/model.safetensors")
        for folder in (written, job.scratch / "fp16-as-fp16"):
            tensors = load_file(folder / "model.safetensors")
            assert {weight.dtype for weight in tensors.values()} == {np.dtype(np.float16)}
            assert same_tensors(tensors,
                                {name: weight.astype(np.float16)
                                 for name, weight in trained.items()})
            assert (folder / "additional_chat_templates/tools.jinja").read_text() == "{{ tools }}"

    @case
    def export_dtype_is_that_of_the_written_weights():
        for what, changes in (("model", {}),
                              ("adapter", {"adapter": {"r": 2, "init_lora_weights": False}})):
            for dtype, stored in (("fp32", "F32"), ("bf16", "BF16"), ("fp16", "F16")):
                job.run(f"written-{what}-{dtype}", train={"steps": 2}, export={"dtype": dtype},
                        checkpoint={"every": 0}, **changes)
                name = f"{'adapter_' if changes else ''}model.safetensors"
                folder = job.out(f"written-{what}-{dtype}") / "export" / what
                with open(folder / name, "rb") as file:
                    header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
                assert ({entry["dtype"] for name, entry in header.items() if name != "__metadata__"}
                        == {stored}), (what, dtype)

    @case
    def a_file_system_that_lacks_calls_is_written_and_read_all_the_same():
        """The file system cannot swap or lock folders, bypass the kernel's page cache, or map
        shared memory: docs/checkpoint.md."""
        wrapper = (sys.executable, pathlib.Path(__file__).with_name("refused_calls.py"))
        unlocked = ("its file system has no locks (No locks available); a second run into it would "
                    "not be noticed\n")
        config = job.config("lacking", train={"steps": 4}, checkpoint={"every": 2})
        for arguments in ((), ("--resume", "auto", "--set", "train.steps=6")):
            result = must(ftrun("--config", config, "--nproc", 2, *arguments, wrapper=wrapper))
            assert result.stderr.count(unlocked) == 1, result.stderr
        plain = job.config("not-lacking", train={"steps": 6}, checkpoint={"every": 2})
        must(ftrun("--config", plain, "--nproc", 2))
        assert checkpoints(job.out("lacking")) == checkpoints(job.out("not-lacking"))
        assert (reproducible_metrics(job.out("lacking"))
                == reproducible_metrics(job.out("not-lacking")))
        assert contents(job.out("lacking") / "export") == contents(
            job.out("not-lacking") / "export")
        target = job.scratch / "lacking-as-hf"
        for dtype in ("fp32", "bf16"):
            must(ftrun("convert", job.out("lacking"), "--out", target, "--dtype", dtype,
                       wrapper=wrapper))
        must(ftrun("convert", job.out("not-lacking"), "--out", job.scratch / "not-lacking-as-hf",
                   "--dtype", "bf16"))
        assert contents(target) == contents(job.scratch / "not-lacking-as-hf")
        must(ftrun("verify", job.out("lacking"), wrapper=wrapper))
        left = [path for path in job.scratch.rglob("*") if ".tmp-" in path.name
                or ".replaced-" in path.name]
        assert not left, left

    @case
    def convert_never_touches_what_it_reads():
        out, alias = job.out("run"), job.scratch / "alias"
        alias.symlink_to("model")
        remedy, step = "\n  remedy: choose another folder", out / "checkpoints" / "step-00000006"
        for target in (job.model, alias, job.scratch / "run" / ".." / "model"):
            convert_refused(target, f"{job.model}: the export is refused: it contains the model "
                                    f"that the export reads, {job.model}{remedy}")
        for target in (out, out / "checkpoints", step, step / "as-hf"):
            convert_refused(target, f"{target}: the export is refused: it would change "
                                    f"{step}{remedy}")
        inside = out / "checkpoints" / "as-hf"
        convert_refused(inside, f"{inside}: the export is refused: it would change "
                                f"{out}/checkpoints{remedy}")

    @case
    def an_export_to_which_something_was_done_stops_the_run_before_it_starts():
        few = {"train": {"steps": 2}}
        job.run("kept", **few)
        folder = job.out("kept") / "export" / "model"
        (folder / "README.md").write_text("what I found")
        more, before = job.config("kept", train={"steps": 4}), contents(job.out("kept"))
        message = (f"ftrun: {folder}: is not replaced: since ftrun wrote it, README.md was added\n"
                   "  remedy: choose another folder, or move this one away\n")
        for command in (("check", "-q"), ("--resume", "auto"), ("--resume", "auto", "--nproc", 2)):
            refused = must(ftrun(*command, "--config", more), 4)
            assert refused.stderr.endswith(message), refused.stderr
            assert contents(job.out("kept")) == before
        (folder / "README.md").unlink()
        must(ftrun("check", "-q", "--config", more))
        must(ftrun("--resume", "auto", "--config", more))
        names = {name.removeprefix("export/model/") for name in before
                 if name.startswith("export/model/")}
        assert set(contents(folder)) == names - {"README.md"}
        assert contents(folder)["model.safetensors"] != before["export/model/model.safetensors"]

    @case
    def a_model_of_links_trains_and_is_exported_as_files():
        """Hub caches have this layout: every file of a snapshot is a link to a blob."""
        hub = job.scratch / "hub" / "models--me--tiny"
        snapshot = hub / "snapshots" / "0123456789abcdef"
        shutil.copytree(job.model, hub / "blobs")
        snapshot.mkdir(parents=True)
        for blob in (hub / "blobs").iterdir():
            (snapshot / blob.name).symlink_to(f"../../blobs/{blob.name}")
        changes = FULL | {"csv_monitor": None, "model": {"path": str(snapshot)}}
        job.run("linked", **changes)
        assert reproducible_metrics(job.out("linked")) == reproducible_metrics(job.out("run"))
        converted = job.scratch / "converted-linked"
        must(ftrun("convert", job.out("linked"), "--out", converted))
        for folder in (job.out("linked") / "export" / "model", converted):
            assert not any(p.is_symlink() for p in folder.iterdir())
            assert (folder / "tokenizer.json").read_bytes() == (
                job.model / "tokenizer.json").read_bytes()
        (hub / "blobs" / "tokenizer.json").unlink()
        message = (f"ftrun: {snapshot}: files that the exported model needs cannot be read:\n"
                   "  tokenizer.json: it is a link to ../../blobs/tokenizer.json, which does not "
                   "exist\n  remedy: restore them (in the Hub's cache: download the model again), "
                   "or remove them from the folder\n")
        config = job.config("dead-link", **changes)
        for command in (("check", "-q", "--config", config), ("--config", config),
                        ("convert", job.out("linked"), "--out", converted)):
            refused = must(ftrun(*command), 4).stderr
            assert refused.endswith(message), refused
        assert not job.out("dead-link").exists()

    @case
    def inspect_shows_models_and_data():
        assert "llama" in must(ftrun("inspect", job.model)).stdout.lower()
        assert "4097" in must(ftrun("inspect", job.data)).stdout.replace(",", "").replace(" ", "")
        missing = must(ftrun("inspect", job.scratch / "nothing"), 4)
        assert "nothing" in missing.stderr, missing.stderr

    def on_a_terminal(*arguments, columns=72, output=None):
        """Returns what a run writes to a terminal; with `output`, its stdout goes to this file
        instead."""
        pid, terminal = pty.fork()
        if pid == 0:
            if output:
                os.dup2(os.open(output, os.O_CREAT | os.O_WRONLY), 1)
            os.execve(BINARY, [BINARY, *map(str, arguments)],
                      environment({"TERM": "xterm", "LANG": "C", "LC_ALL": "C"}))
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        text = b""
        try:
            while more := os.read(terminal, 65536):
                text += more
        except OSError:  # the terminal's other end is closed
            pass
        os.close(terminal)
        assert os.waitpid(pid, 0)[1] == 0, text.decode()
        return text.decode()

    @needs("terminal")
    def terminal_has_a_live_line_and_a_file_has_lines():
        for ranks in (1, 2):
            config = job.config(f"live-{ranks}", train={"steps": 40}, checkpoint={"every": 20})
            screen = on_a_terminal("--config", config, "--nproc", ranks)
            drawn = [re.sub(r"\x1b\[[0-9;]*[mK]", "", line) for line in re.split("[\r\n]+", screen)]
            live = [line for line in drawn if line.startswith("step ") and "%" in line]
            assert len(live) >= 2 and live[-1].startswith("step 40/40"), screen
            assert all(len(line) < 72 for line in live), live
            assert not any("grad_norm" in line for line in drawn), screen
            # Messages that are printed meanwhile are on separate lines.
            saved = [line for line in drawn if "saved " in line]
            assert (len(saved) == 2 and all(re.match(r"(\[rank 0\] )?saved ", line)
                                            for line in saved)), saved
        path = job.scratch / "redirected.txt"
        screen = on_a_terminal("--config", job.config("redirected", train={"steps": 5}), "--nproc",
                               2, output=path)
        assert "step" not in screen.replace("steps", ""), screen
        assert (len(re.findall(r"^\[rank 0\] step \d/5  loss .*  grad_norm ", path.read_text(),
                               re.M)) == 5), path.read_text()

    @needs("terminal")
    def warnings_above_the_live_line_are_in_log_and_report():
        screen = on_a_terminal("--config", job.config("warned", train={"steps": 40},
                                                      fp16={"enabled": True,
                                                            "initial_scale_power": 40}))
        assert "warning: step 1: " in screen, screen
        assert " W warning: step 1: " in (job.out("warned") / "logs/rank-0.log").read_text()
        assert "W warning: step 1: " in (job.out("warned") / "report.html").read_text()

    @case
    def plan_shows_the_program():
        config = job.config("planned", **FULL)
        text = must(ftrun("plan", "--program", "--config", config, "--nproc", 2, "--rank",
                          1)).stdout
        for part in ("rank 1 of 2", "forward", "backward", "all_reduce", "update"):
            assert part in text, f"no {part!r} in:\n{text}"
        assert not job.out("planned").exists()

    run_cases()
