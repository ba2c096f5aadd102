"""Checks models, adapters and data sets that are named as on the Hugging Face Hub and found in the
local cache, in huggingface_hub's layout (which reads the same cache here): they are trained,
exported, merged, and resumed after the cache got a newer commit; for what is missing, the message
has the command that downloads it."""
import functools
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

from huggingface_hub import snapshot_download
from safetensors.numpy import load_file

from runner import (Job, case, environment, exported_weights, free_port, ftrun, manifest, must,
                    publish_on_hub, run_cases, same_tensors, start, tiny_model, tiny_weights)

SOURCE = pathlib.Path(sys.argv[1])
FIRST, SECOND = "1" * 40, "2" * 40
LORA = {"type": "lora", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"]}

with tempfile.TemporaryDirectory() as scratch:
    scratch = pathlib.Path(scratch)
    job = Job(scratch)
    cache = scratch / "hub"
    variables = {"HF_HUB_CACHE": str(cache)}

    publish = functools.partial(publish_on_hub, cache)

    def train_by_name(name, out, *arguments, code=0, cwd=None, **changes):
        config = job.config(out, **{"model": {"path": name},
                                    "train": {"steps": 2, "weight_decay_exempt": "none"}} | changes)
        return must(ftrun("--config", config, *arguments, env=variables, cwd=cwd), code)

    small = publish("acme/small", job.model, FIRST)

    @case
    def a_model_is_trained_by_its_name():
        assert snapshot_download("acme/small", cache_dir=cache,
                                 local_files_only=True) == str(small / "snapshots" / FIRST)
        train_by_name("acme/small", "named")
        train_by_name(str(job.model), "by-path")
        record = manifest(job.out("named"))["model"]
        assert (record["path"], record["commit"]) == ("acme/small", FIRST), record
        assert "commit" not in manifest(job.out("by-path"))["model"]
        assert same_tensors(exported_weights(job.out("named")),
                            exported_weights(job.out("by-path")))
        for command in ("check", "plan"):
            must(ftrun(command, "--config", job.config("named", model={"path": "acme/small"}),
                       env=variables), 0)
        assert "llama" in must(ftrun("inspect", "acme/small", env=variables), 0).stdout.lower()

    @case
    def an_adapter_names_its_base_and_is_merged_and_resumed_by_names():
        train_by_name("acme/small@main", "lora", adapter=LORA, checkpoint={"every": 1})
        folder = job.out("lora") / "export" / "adapter"
        adapter_config = json.loads((folder / "adapter_config.json").read_text())
        assert adapter_config["base_model_name_or_path"] == "acme/small", adapter_config
        assert adapter_config["revision"] == "main", adapter_config
        publish("acme/tuned", folder, FIRST)
        train_by_name("acme/small", "more", adapter="acme/tuned")
        must(ftrun("convert", "acme/tuned", "--merge", "--out", scratch / "merged-folder",
                   env=variables), 0)
        # The run continues with the commit that it began with, although the cache has a newer one.
        publish("acme/small", tiny_model(scratch / "newer", weights=tiny_weights(seed=5)), SECOND)
        try:
            must(ftrun("convert", job.out("lora"), "--merge", "--out", scratch / "merged-run",
                       env=variables), 0)
            assert same_tensors(*(load_file(scratch / merged / "model.safetensors")
                                  for merged in ("merged-folder", "merged-run")))
            other = train_by_name(f"acme/small@{SECOND}", "lora", "--resume", "auto", code=4,
                                  adapter=LORA, checkpoint={"every": 1})
            assert "its weights differ from the base model that" in other.stderr, other.stderr
            resumed = train_by_name("acme/small@main", "lora", "--resume", "auto", adapter=LORA,
                                    checkpoint={"every": 1})
            assert (f"notice: model.path: acme/small@main is commit {SECOND} in the Hugging Face "
                    f"cache by now; the run continues with {FIRST}, which it began with\n  remedy: "
                    f"write acme/small@{SECOND} to continue with the newer one"
                    ) in resumed.stderr, resumed.stderr
            assert manifest(job.out("lora"))["model"]["commit"] == FIRST
            # adapter_config.json names the commit that the adapter fits, because the name now leads
            # to another one.
            adapter_config = json.loads((folder / "adapter_config.json").read_text())
            assert adapter_config["base_model_name_or_path"] == "acme/small", adapter_config
            assert adapter_config["revision"] == FIRST, adapter_config
            (small / "snapshots" / FIRST).rename(scratch / "gone")
            gone = train_by_name("acme/small@main", "lora", "--resume", "auto", code=4,
                                 adapter=LORA, checkpoint={"every": 1})
            (scratch / "gone").rename(small / "snapshots" / FIRST)
            assert (f"error: acme/small@main: the run began with commit {FIRST}, which the Hugging "
                    f"Face cache no longer has (it has {SECOND})\n  remedy: download it: hf "
                    f"download acme/small --revision {FIRST}; or write acme/small@{SECOND}, "
                    "which is then compared with what the run was trained on\n") in gone.stderr, (
                gone.stderr)
        finally:
            (small / "refs" / "main").write_text(FIRST)

    @case
    def an_adapter_is_found_by_the_path_of_its_section():
        train_by_name("acme/small", "section", adapter=LORA)
        publish("acme/section", job.out("section") / "export" / "adapter", SECOND)
        train_by_name("acme/small", "on", adapter=LORA | {"path": "acme/section"})
        written = (job.out("on") / "config.yaml").read_text()
        assert f"path: \"acme/section@{SECOND}\"" in written, written
        config = job.config("again", model={"path": "acme/small"}, adapter=f"acme/section@{SECOND}")
        assert f"path: \"acme/section@{SECOND}\"" in must(ftrun("check", "--config", config,
                                                                env=variables)).stdout

    @case
    def tokens_are_found_by_their_name():
        (scratch / "split").mkdir()
        for split in ("train", "validation"):
            shutil.copy(job.data, scratch / "split" / f"{split}.bin")
        texts = publish("acme/split", scratch / "split", FIRST, kind="datasets")
        settings = {"data": {"train": "acme/split", "validation": "acme/split",
                             "token_dtype": "uint16"}, "checkpoint": {"every": 1}}
        train_by_name("acme/small", "tokens", **settings)
        train_by_name("acme/small", "files", data={"train": str(job.data), "token_dtype": "uint16"})
        assert same_tensors(exported_weights(job.out("tokens")), exported_weights(job.out("files")))
        record = manifest(job.out("tokens"))
        assert record["data"]["train"]["commit"] == FIRST, record["data"]
        assert record["config"]["data"]["train"] == [f"acme/split@{FIRST}/train"], (
            record["config"]["data"])
        assert "4097 tokens" in must(ftrun("inspect", "acme/split",
                                           env=variables)).stdout.replace(",", "")
        # The run continues with the commit that it was trained on.
        (scratch / "split" / "train.bin").write_bytes(job.data.read_bytes()[:4000])
        publish("acme/split", scratch / "split", SECOND, kind="datasets")
        resumed = train_by_name("acme/small", "tokens", "--resume", "auto",
                                **settings | {"train": {"steps": 3, "weight_decay_exempt": "none"}})
        assert (f"data.train: acme/split is commit {SECOND} in the Hugging Face "
                f"cache by now; the run continues with {FIRST}" in resumed.stderr)
        (texts / "blobs" / f"{SECOND[:8]}-train.bin").unlink()
        (scratch / "raw").mkdir()
        (scratch / "raw" / "part.parquet").write_text("")
        publish("acme/raw", scratch / "raw", FIRST, kind="datasets")
        for name, words in (
                ("acme/split", ("acme/split: its download is not complete: ", " has no train.bin\n",
                                "download the missing files: hf download acme/split --repo-type "
                                f"dataset --revision {SECOND}\n")),
                ("acme/splits", ("(did you mean \"acme/split\"?)",
                                 "download it: hf download acme/splits --repo-type dataset")),
                ("acme/raw", ("has neither train.bin nor train.jsonl",
                              "make them of texts and conversations: scripts/prepare_data.py "
                              "--tokenizer MODEL --out FOLDER acme/raw; then name FOLDER/train"))):
            stderr = train_by_name("acme/small", "no-tokens", code=4, data={"train": name}).stderr
            assert all(word in stderr for word in words), stderr

    @case
    def a_folder_of_the_name_takes_precedence_and_is_reported():
        place = scratch / "place"
        shutil.copytree(job.model, place / "acme" / "small")
        result = train_by_name("acme/small", "folder", cwd=place)
        assert ("the folder acme/small is read; the Hugging Face cache also has a model of that "
                "name" in result.stderr), result.stderr
        assert "commit" not in manifest(job.out("folder"))["model"]
        shutil.rmtree(place / "acme" / "small")
        for make, words in (((place / "acme" / "small").mkdir, "acme/small: has no config.json\n"),
                            (lambda: (place / "acme" / "small").write_text(
                                ""), "acme/small: is a file, expected a model folder\n")):
            make()
            stderr = train_by_name("acme/small", "no-folder", cwd=place, code=4).stderr
            assert (words in stderr
                    and "or rename this one to use the model of that name in the Hugging Face "
                        "cache" in stderr), stderr
            (place / "acme" / "small").rmdir() if (place / "acme" / "small").is_dir() else (
                place / "acme" / "small").unlink()

    @case
    def nodes_whose_caches_hold_other_weights_are_refused():
        other_cache = scratch / "other-hub"
        shutil.copytree(cache, other_cache, symlinks=True)
        weights = other_cache / "models--acme--small" / "blobs" / f"{FIRST[:8]}-model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-4] + b"\0\0\0\0")
        config, port = job.config("nodes", model={"path": "acme/small"},
                                  train={"steps": 2}), str(free_port())
        nodes = [start("--config", config, env={"HF_HUB_CACHE": str(folder), "RANK": str(rank),
                                                "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
                                                "MASTER_PORT": port})
                 for rank, folder in enumerate((cache, other_cache))]
        for node in nodes:
            node.wait(2)
        assert any("model.path model.safetensors is " in node.text() for node in nodes), (
            [node.text() for node in nodes])

    @case
    def missing_files_are_named_with_the_download_command():
        def refused(name, *words, **changes):
            stderr = train_by_name(name, "missing", code=4, **changes).stderr
            for word in words:
                assert word in stderr, f"{word!r} is not in\n{stderr}"
        refused("acme/none", ":3:11: error: acme/none: there is no such folder",
                "download it: hf download acme/none;")
        refused("acme/small@v2", "has no revision v2 of it (it has main)",
                "download it: hf download acme/small --revision v2;")
        publish("acme/part", job.model, FIRST)
        (cache / "models--acme--part" / "snapshots" / FIRST / "model.safetensors").unlink()
        refused("acme/part", "has neither model.safetensors",
                f"download the missing files: hf download acme/part --revision {FIRST}\n")
        config = job.config("no-adapter", adapter="acme/none")
        stderr = must(ftrun("--config", config, env=variables), 2).stderr
        assert ("adapter: acme/none: there is no such folder" in stderr
                and "hf download acme/none" in stderr), stderr

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

        def prepare_data(*words):
            return subprocess.run([sys.executable, SOURCE / "scripts" / "prepare_data.py", *words],
                                  env=environment(variables),
                                  capture_output=True, text=True)
        result = prepare_data("--tokenizer", "acme/tokens", "--out", scratch / "prepared",
                              "acme/texts")
        assert (result.returncode == 0 and f"acme/texts: commit {SECOND} in the Hugging Face cache"
                in result.stdout), result.stdout + result.stderr
        assert (scratch / "prepared" / "train.bin").stat().st_size > 0
        gone = prepare_data("--tokenizer", "acme/tokens", "--out", scratch / "other",
                            "acme/nothing@v1")
        assert (gone.returncode == 4 and "; download it: hf download acme/nothing --repo-type "
                                         "dataset --revision v1" in gone.stderr), gone.stderr

    run_cases()
