"""Runs the commands of README.md and docs/fine-tuning.md as they are written there, in their order:
from a file of chats to an adapter in use, a merged model and a report, and from a name on the Hub
to answers by transformers and by llama.cpp. The model is small and random, with SmolLM2's tokenizer
and template; a Hugging Face cache also has it under its Hub name. Two lines are not run: the one
that makes the real model (e2e.quickstart runs its script) and the one that downloads it. The test
is skipped (exit 77) if there is no models/smollm2-135m."""
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

from safetensors.numpy import load_file

from pages import command_blocks
from runner import (BINARY, case, environment, exported_weights, link_python, manifest,
                    publish_on_hub, run_cases, skip, steps, tiny_model, tiny_weights)

SOURCE = pathlib.Path(sys.argv[1])
SMOLLM2 = SOURCE / "models" / "smollm2-135m"
# These lines need more than this test has.
NOT_HERE = ("scripts/make_model.py smollm2", "hf download")
HUB_NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"


def small_model(folder):
    """Writes a model of two layers with hidden size 64, whose matrices NF4 can pack."""
    shape = json.loads((SMOLLM2 / "config.json").read_text())
    tiny_model(folder, weights=tiny_weights(hidden=64, inner=128, heads=4, kv_heads=2,
                                            vocabulary=shape["vocab_size"]),
               hidden_size=64, intermediate_size=128, num_attention_heads=4, num_key_value_heads=2,
               head_dim=16, vocab_size=shape["vocab_size"],
               bos_token_id=shape["bos_token_id"], eos_token_id=shape["eos_token_id"])
    for path in SMOLLM2.iterdir():
        if path.name not in ("config.json", "model.safetensors", "ftrun-output.json"):
            shutil.copy(path, folder)


if not (SMOLLM2 / "tokenizer.json").exists():
    skip("models/smollm2-135m is not there; scripts/make_model.py smollm2 --out "
         "models/smollm2-135m makes it")

with tempfile.TemporaryDirectory() as scratch:
    scratch = pathlib.Path(scratch)
    small_model(scratch / "models" / "smollm2-135m")
    publish_on_hub(scratch / "hub", HUB_NAME, scratch / "models" / "smollm2-135m", "1" * 40)
    (scratch / "build" / "release" / "bin").mkdir(parents=True)
    (scratch / "build" / "release" / "bin" / "ftrun").symlink_to(BINARY)
    for name in ("scripts", "configs"):
        (scratch / name).symlink_to(SOURCE / name)
    link_python(scratch, SOURCE)

    def run(block):
        text = "\n".join(line for line in block.splitlines() if not line.startswith(NOT_HERE))
        result = subprocess.run(["bash", "-e", "-u", "-o", "pipefail", "-c", text], cwd=scratch,
                                env=environment({"HF_HUB_CACHE": str(scratch / "hub")}),
                                capture_output=True, text=True, timeout=300)
        assert result.returncode == 0, (
            f"exit code {result.returncode} of\n{text}\n{result.stdout[-3000:]}\n"
            f"{result.stderr[-3000:]}")
        return result.stdout

    @case
    def docs_fine_tuning():
        outputs = [run(block) for block in command_blocks(SOURCE, "docs/fine-tuning.md")]
        assert len(outputs) >= 7, f"{len(outputs)} blocks of commands were found"
        runs = scratch / "runs"
        for name in ("chats", "chats-lora", "chats-qlora"):
            assert manifest(runs / name)["exit_code"] == 0 and len(steps(runs / name)) >= 3, name
            assert (runs / name / "report.html").exists()
        assert "what is trained on between >>> and <<<" in outputs[2], outputs[2]
        base = set(load_file(scratch / "models" / "smollm2-135m" / "model.safetensors"))
        assert set(exported_weights(runs / "chats")) == base
        for merged in ("merged", "merged-qlora"):
            assert set(load_file(scratch / merged / "model.safetensors")) == base, merged
        assert (runs / "chats-lora" / "export" / "adapter" / "adapter_config.json").exists()
        assert (scratch / "mine-lora.gguf").read_bytes()[:4] == b"GGUF"
        assert "llama.cpp has the token ids" in outputs[7], outputs[7]
        gguf = (scratch / "mine.gguf").read_bytes()
        assert gguf[:4] == b"GGUF" and b"<|im_start|>" in gguf
        page = (scratch / "both.html").read_text()
        assert "runs/chats-lora" in page and "runs/chats-qlora" in page
        assert manifest(runs / "hub")["model"]["path"] == HUB_NAME
        assert len(steps(runs / "hub")) == 10
        # Both programs print the trained model's answer.
        answers = [line.split(": ", 1) for text in outputs[-2:] for line in text.splitlines()
                   if line.startswith(("transformers: ", "llama.cpp: "))]
        assert [who for who, _ in answers] == ["transformers", "llama.cpp"], outputs[-2:]
        assert answers[0][1].strip() and answers[0][1] == answers[1][1], answers

    @case
    def readme():
        shutil.rmtree(scratch / "data")
        shutil.rmtree(scratch / "runs")
        blocks = command_blocks(SOURCE, "README.md")
        outputs = [run(block) for block in blocks if "chats.jsonl" in block and "configs/" in block]
        assert len(outputs) == 1, outputs
        assert manifest(scratch / "runs" / "lora")["exit_code"] == 0
        assert (
            scratch / "runs" / "lora" / "export" / "adapter" / "adapter_model.safetensors").exists()

    run_cases()
