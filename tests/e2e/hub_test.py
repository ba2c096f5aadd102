"""Models and adapters by their names on the Hugging Face Hub, found in the local cache as huggingface_hub lays it out (which reads
the same cache here): trained, exported, merged, resumed after the cache moved on, and what is missing said with the line that
brings it."""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

from huggingface_hub import snapshot_download
from safetensors.numpy import load_file

from runner import (Job, case, environment, exported, free_port, ftrun, manifest, must, run_cases, same_tensors, start, tiny_model,
                    tiny_weights)

SOURCE = pathlib.Path(sys.argv[1])
FIRST, SECOND = "1" * 40, "2" * 40
LORA = {"type": "lora", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"]}

with tempfile.TemporaryDirectory() as scratch:
    scratch = pathlib.Path(scratch)
    job = Job(scratch)
    cache = scratch / "hub"
    variables = {"HF_HUB_CACHE": str(cache)}

    def publish(name, folder, commit, kind="models", ref="main"):
        """A snapshot of `folder` in the cache: blobs, relative links to them, and a ref that names the commit."""
        repository = cache / f"{kind}--{name.replace('/', '--')}"
        for part in ("blobs", "refs", f"snapshots/{commit}"):
            (repository / part).mkdir(parents=True, exist_ok=True)
        for path in pathlib.Path(folder).iterdir():
            blob = f"{commit[:8]}-{path.name}"
            shutil.copy(path, repository / "blobs" / blob)
            (repository / "snapshots" / commit / path.name).symlink_to(f"../../blobs/{blob}")
        (repository / "refs" / ref).write_text(commit)
        return repository

    def by_name(name, out, *arguments, code=0, cwd=None, **changes):
        config = job.config(out, model={"path": name}, train={"steps": 2, "weight_decay_exempt": "none"}, **changes)
        return must(ftrun("--config", config, *arguments, env=variables, cwd=cwd), code)

    small = publish("acme/small", job.model, FIRST)

    @case
    def a_model_is_trained_by_its_name():
        assert snapshot_download("acme/small", cache_dir=cache, local_files_only=True) == str(small / "snapshots" / FIRST)
        by_name("acme/small", "named")
        by_name(str(job.model), "by-path")
        record = manifest(job.out("named"))["model"]
        assert (record["path"], record["commit"]) == ("acme/small", FIRST), record
        assert "commit" not in manifest(job.out("by-path"))["model"]
        assert same_tensors(exported(job.out("named")), exported(job.out("by-path")))
        for command in ("check", "plan"):
            must(ftrun(command, "--config", job.config("named", model={"path": "acme/small"}), env=variables), 0)
        assert "llama" in must(ftrun("inspect", "acme/small", env=variables), 0).stdout.lower()

    @case
    def an_adapter_names_its_base_and_is_merged_and_resumed_by_names():
        by_name("acme/small@main", "lora", adapter=LORA, checkpoint={"every": 1})
        folder = job.out("lora") / "export" / "adapter"
        said = json.loads((folder / "adapter_config.json").read_text())
        assert (said["base_model_name_or_path"], said["revision"]) == ("acme/small", "main"), said
        publish("acme/tuned", folder, FIRST)
        by_name("acme/small", "more", adapter="acme/tuned")
        must(ftrun("convert", folder, "--merge", "--out", scratch / "merged-folder", env=variables), 0)
        # The run goes on from the commit that it began with when the cache has a newer one.
        publish("acme/small", tiny_model(scratch / "newer", weights=tiny_weights(seed=5)), SECOND)
        try:
            must(ftrun("convert", job.out("lora"), "--merge", "--out", scratch / "merged-run", env=variables), 0)
            assert same_tensors(*(load_file(scratch / merged / "model.safetensors") for merged in ("merged-folder", "merged-run")))
            refused = by_name("acme/small@main", "lora", "--resume", "auto", code=4, adapter=LORA, checkpoint={"every": 1})
            assert "model" in refused.stderr, refused.stderr
            by_name(f"acme/small@{FIRST}", "lora", "--resume", "auto", adapter=LORA, checkpoint={"every": 1})
        finally:
            (small / "refs" / "main").write_text(FIRST)

    @case
    def a_folder_of_the_name_wins_and_is_told():
        place = scratch / "place"
        shutil.copytree(job.model, place / "acme" / "small")
        told = by_name("acme/small", "folder", cwd=place)
        assert "the folder acme/small is read; the Hugging Face cache holds a model of that name too" in told.stderr, told.stderr
        assert "commit" not in manifest(job.out("folder"))["model"]

    @case
    def nodes_whose_caches_hold_other_weights_are_refused():
        other = scratch / "other-hub"
        shutil.copytree(cache, other, symlinks=True)
        weights = other / "models--acme--small" / "blobs" / f"{FIRST[:8]}-model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-4] + b"\0\0\0\0")
        config, port = job.config("nodes", model={"path": "acme/small"}, train={"steps": 2}), str(free_port())
        nodes = [start("--config", config, env={"HF_HUB_CACHE": str(folder), "RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
                                                "MASTER_PORT": port}) for rank, folder in enumerate((cache, other))]
        for node in nodes:
            node.wait(2)
        assert any("model.path model.safetensors is " in node.text() for node in nodes), [node.text() for node in nodes]

    @case
    def what_is_missing_is_said_with_the_line_that_brings_it():
        def refused(name, *words, **changes):
            said = by_name(name, "missing", code=4, **changes).stderr
            for word in words:
                assert word in said, f"{word!r} is not in\n{said}"
        refused("acme/none", ":3:11: error: acme/none: there is no such folder", "hf download acme/none brings it")
        refused("acme/small@v2", "has no revision v2 of it (it holds main)", "hf download acme/small --revision v2 brings it")
        publish("acme/part", job.model, FIRST)
        (cache / "models--acme--part" / "snapshots" / FIRST / "model.safetensors").unlink()
        refused("acme/part", "has neither model.safetensors", f"hf download acme/part --revision {FIRST} brings what is missing")
        said = must(ftrun("--config", job.config("no-adapter", adapter="acme/none"), env=variables), 2).stderr
        assert "adapter: acme/none: there is no such folder" in said and "hf download acme/none" in said, said

    @case
    def data_are_prepared_by_names():
        sys.path[:0] = [str(SOURCE / "tests" / "data"), str(SOURCE / "scripts")]
        from prepare_data_test import write_tokenizer
        for folder in ("tokenizer", "texts"):
            (scratch / folder).mkdir()
        write_tokenizer(str(scratch / "tokenizer"))
        (scratch / "texts" / "train.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
        publish("acme/tokens", scratch / "tokenizer", FIRST)
        publish("acme/texts", scratch / "texts", SECOND, kind="datasets")

        def prepare(*words):
            return subprocess.run([sys.executable, SOURCE / "scripts" / "prepare_data.py", *words], env=environment(variables),
                                  capture_output=True, text=True)
        done = prepare("--tokenizer", "acme/tokens", "--out", scratch / "prepared", "acme/texts")
        assert done.returncode == 0 and f"acme/texts: commit {SECOND} in the Hugging Face cache" in done.stdout, done.stdout + done.stderr
        assert (scratch / "prepared" / "train.bin").stat().st_size > 0
        gone = prepare("--tokenizer", "acme/tokens", "--out", scratch / "other", "acme/nothing@v1")
        assert gone.returncode == 4 and "hf download acme/nothing --repo-type dataset --revision v1 brings it" in gone.stderr, gone.stderr

    run_cases()
