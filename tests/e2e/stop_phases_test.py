"""Sends a signal in each phase that is not a step: validation, export, and the sample of text. All
ranks must exit together, nothing may be left incomplete, and a resumed run must end like one that
was never stopped."""
import contextlib
import json
import pathlib
import signal
import tempfile
import time

import numpy as np
from safetensors.numpy import load_file

from runner import (VOCABULARY, Job, await_that, checkpoints, evaluations, exported_weights, ftrun,
                    is_alive, manifest, metrics, must, preload, require_in_time, require_same_run,
                    run_cases, start, steps, tiny_data, tiny_model, waiting_case)

# STEP_2_LINE is printed between step 2 and the validation after it; the step's line of metrics is
# written after that validation.
PRINT_EVERY_STEP, STEP_2_LINE = {"steps_per_print": 1}, "step=2, "
CODES = {signal.SIGHUP: 129, signal.SIGTERM: 143, signal.SIGUSR1: 75}


def processes(running, ranks):
    return list(running.ranks().values()) if ranks > 1 else [running.process.pid]


def catches(pid, number):
    """Returns whether the process has a handler for the signal."""
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def await_training(running, ranks, number):
    """Waits until the ranks have reported and handle the signal."""
    def ready():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found = processes(running, ranks)
            return "rank" in running.text() and len(found) == ranks and all(catches(pid, number)
                                                                            for pid in found)

    await_that(ready, "the training has begun", running, pause=0.002)


with tempfile.TemporaryDirectory() as scratch:
    preload()
    job = Job(scratch)
    text = str(tiny_data(job.scratch / "validation.bin", tokens=1025, seed=5))
    long_text = job.scratch / "long.bin"
    np.random.default_rng(3).integers(VOCABULARY, size=2_000_000, dtype=np.uint16).tofile(long_text)
    # The model's export takes a moment before its first weight, because it has a large file to
    # copy.
    heavy = tiny_model(job.scratch / "heavy")
    with open(heavy / "notes.txt", "wb") as notes:
        notes.truncate(256 << 20)

    # The model can generate words, and has no token that ends a text.
    writer = tiny_model(job.scratch / "writer", eos_token_id=None)
    words = {"model": {"type": "BPE", "vocab": {f"w{i}": i for i in range(VOCABULARY)}},
             "decoder": {"type": "ByteLevel"}}
    (writer / "tokenizer.json").write_text(json.dumps(words))

    def validating(every, samples=1_000_000):
        """Returns settings of a validation that takes seconds, in thousands of rounds."""
        return {"train": {"steps": 6, "evaluation": {"every": every, "samples": samples}},
                "data": {"sequence_length": 32, "validation": str(long_text),
                         "token_dtype": "uint16"}}

    @waiting_case
    def a_stop_in_the_sample_of_text_leaves_it_out():
        for ranks, stage, number in ((1, 0, signal.SIGUSR1), (2, 0, signal.SIGTERM),
                                     (2, 3, signal.SIGHUP)):
            name = f"text-{ranks}-{stage}"
            out = job.out(name)
            # Unless parameters are sharded, only rank 0 generates the text, here for longer than
            # the others' comm.timeout.
            alone = ranks > 1 and stage < 3
            comm = {"timeout": 15} if alone else {}

            def writing(tokens):
                return dict(model={"path": str(writer)}, zero_optimization={"stage": stage},
                            comm=comm,
                            train={"steps": 2, "generate": {"prompt_tokens": 4, "tokens": tokens},
                                   "evaluation": {"samples": 4}},
                            data={"validation": text, "token_dtype": "uint16"})

            # A stop in the sample before the first step, which is then trained and saved.
            running = start("--config", job.config(name, **writing(100_000_000)), "--nproc", ranks)
            running.await_line("step 0/2  validation loss ")
            running.kill(number)
            running.wait(CODES[number])
            assert running.text().count(f"no sample of text: {number.name} ended it") == 1, (
                running.text()[-2000:])
            assert manifest(out)["exit_reason"] == f"stopped by {number.name} after step 1"
            # A stop in the sample at the end.
            job.run(name, "--nproc", ranks, "--resume", "auto", **writing(4))
            running = start("--config", job.config(name, **writing(100_000_000)), "--nproc", ranks,
                            "--resume", "auto")
            running.await_line(f"exported {out}/export/model")
            pids = processes(running, ranks)
            time.sleep(18 if alone else 1)
            assert (running.process.poll() is None
                    and all(is_alive(pid) for pid in pids)), running.text()[-2000:]
            running.kill(number)
            running.wait(0)
            assert running.text().count(f"no sample of text: {number.name} ended it") == 1, (
                running.text()[-2000:])
            record = manifest(out)
            assert (record["exit_code"], record["exit_reason"]) == (0, "done"), (
                record["exit_reason"])

    @waiting_case
    def a_stop_before_the_first_step_leaves_the_validation():
        for ranks, number in ((1, signal.SIGTERM), (2, signal.SIGHUP)):
            name = f"first-{ranks}"
            running = start("--config", job.config(name, **validating(every=2)), "--nproc", ranks)
            await_training(running, ranks, number)
            running.kill(number)
            running.wait(CODES[number])
            assert (manifest(job.out(name))["exit_reason"] == f"stopped by {number.name} after "
                    "step 0"), running.text()
            # Nothing was trained, so there is nothing to save.
            assert metrics(job.out(name)) == [] and checkpoints(job.out(name)) == []

    @waiting_case
    def a_stop_in_a_validation_that_is_due_saves_its_step():
        for ranks, number, to_rank in ((1, signal.SIGUSR1, None), (2, signal.SIGTERM, None),
                                       (2, signal.SIGTERM, 1)):
            name = f"due-{ranks}-{to_rank}"
            # The first validation is short, and the one after step 2 is long, because it has other
            # data.
            settings = validating(every=2, samples=4)
            job.run(name, "--nproc", ranks,
                    **settings | {"train": settings["train"] | {"steps": 1}})
            running = start("--config", job.config(name, **validating(every=2), **PRINT_EVERY_STEP),
                            "--nproc", ranks, "--resume", "auto")
            running.await_line(STEP_2_LINE)
            running.kill(number, processes(running, ranks)[to_rank] if to_rank is not None
                         else None)
            running.wait(CODES[number])
            out = job.out(name)
            lines = metrics(out)
            assert [m["step"] for m in steps(out)] == [1, 2], lines
            assert "evaluation" not in lines[-1], lines[-1]
            assert (running.text().count(f"the evaluation after step 2 stopped by {number.name}\n")
                    == 1), running.text()[-2000:]
            assert "step-00000002" in checkpoints(out), checkpoints(out)
            assert manifest(out)["exit_reason"] == f"stopped by {number.name} after step 2"
            job.run(name, "--nproc", ranks, "--resume", "auto", **settings)
            assert len(steps(out)) == 6

    @waiting_case
    def a_validation_of_the_last_step_that_was_stopped_is_made_once_by_a_resume():
        for ranks in (1, 2):
            name = f"last-{ranks}"
            out = job.out(name)
            short = validating(every=0, samples=4) | {"export": {"enabled": False}}
            short["train"]["steps"] = 2
            endless = validating(every=0) | {"export": {"enabled": False}}
            endless["train"]["steps"] = 2
            job.run(name, "--nproc", ranks, **short | {"train": short["train"] | {"steps": 1}})
            running = start("--config", job.config(name, **endless, **PRINT_EVERY_STEP), "--nproc",
                            ranks, "--resume", "auto")
            running.await_line(STEP_2_LINE)
            running.kill(signal.SIGTERM)
            running.wait(CODES[signal.SIGTERM])
            assert running.text().count("the evaluation after step 2 stopped by SIGTERM\n") == 1, (
                running.text()[-2000:])
            for _ in range(2):
                resumed = job.run(name, "--nproc", ranks, "--resume", "auto", **short)
                assert "nothing is left to train: step 2 of 2" in resumed.stdout, resumed.stdout
                late = [m for m in evaluations(out) if m["step"] == 2]
                assert len(late) == 1 and len(steps(out)) == 2, metrics(out)
            job.run(f"straight-{name}", "--nproc", ranks, **short)
            expected = [m for m in evaluations(job.out(f"straight-{name}")) if m["step"] == 2][0]
            assert late[0]["loss"] == expected["loss"], (late, expected)

    @waiting_case
    def a_stop_while_the_data_are_read_for_their_fingerprint_saves_at_once():
        huge = job.scratch / "huge.bin"
        with open(huge, "wb") as file:
            file.truncate(64 << 30)  # a hole: no disk space, and tens of seconds to read
        for ranks, to_rank in ((1, None), (2, 1)):
            name = f"reading-{ranks}"
            running = start("--config",
                            job.config(name, train={"steps": 2},
                                       data={"train": str(huge), "token_dtype": "uint16"}),
                            "--nproc", ranks)
            running.await_line("reading the rest of the data for its fingerprint, for 60 s at most")
            asked = time.monotonic()
            running.kill(signal.SIGTERM, processes(running, ranks)[to_rank] if to_rank is not None
                         else None)
            running.wait(CODES[signal.SIGTERM])
            require_in_time(asked, 30, "a stop while the data are read, which would take 60 s "
                                       "more,")
            out = job.out(name)
            assert checkpoints(out) == ["step-00000002"], checkpoints(out)
            saved = json.loads(
                (out / "checkpoints" / "step-00000002" / "checkpoint.json").read_text())
            assert not saved.get("data_fingerprint"), saved["data_fingerprint"]
            assert manifest(out)["exit_reason"] == "stopped by SIGTERM after step 2"

    def exporting(ranks, stage):
        return {"train": {"steps": 3}, "model": {"path": str(heavy)},
                "zero_optimization": {"stage": stage}}

    @waiting_case
    def a_stop_in_the_export_leaves_nothing_half_written():
        for ranks, stage, number in ((1, 0, signal.SIGTERM), (2, 1, signal.SIGUSR1),
                                     (2, 3, signal.SIGTERM)):
            name = f"export-{ranks}-{stage}"
            out = job.out(name)
            running = start("--config", job.config(name, **exporting(ranks, stage)), "--nproc",
                            ranks)
            await_that(
                lambda: list(
                    (out / "export").glob("model*")), "the export has begun", running, pause=0.002)
            running.kill(number)
            running.wait(CODES[number])
            assert list((out / "export").glob("*")) == [], list((out / "export").iterdir())
            assert checkpoints(out) == ["step-00000003"] and len(steps(out)) == 3
            reason = f"stopped by {number.name} after step 3"
            assert manifest(out)["exit_reason"] == reason
            message = (f"notice: {reason}; only the export is missing; --resume auto writes it, "
                       f"or: ftrun convert {out} --out {out}/export/model")
            assert running.text().count(message) == 1, running.text()[-2000:]
            # Both ways give the same files as a run that was never stopped.
            must(ftrun("convert", out, "--out", job.scratch / f"converted-{name}"))
            job.run(name, "--nproc", ranks, "--resume", "auto", **exporting(ranks, stage))
            job.run(f"straight-{name}", "--nproc", ranks, **exporting(ranks, stage))
            require_same_run(out, job.out(f"straight-{name}"))
            tensors = exported_weights(out)
            converted = load_file(job.scratch / f"converted-{name}" / "model.safetensors")
            assert (tensors.keys() == converted.keys()
                    and all((tensors[key] == converted[key]).all() for key in tensors))

    run_cases()
