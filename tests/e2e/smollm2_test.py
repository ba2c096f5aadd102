"""SmolLM2-135M on real text trains as transformers does: losses and gradient norms of 20 AdamW steps,
on one rank and on two; and every file of configs/ trains it as one process does: a few short steps, or with
the argument --full (of somebody who has an hour) all of its own steps on its own data. Left out (exit 77) where models/smollm2-135m is not there; scripts/quickstart.sh
makes it, or scripts/make_model.py alone."""
import pathlib
import shutil
import subprocess
import sys
import tempfile

import numpy as np

from runner import config, ftrun, must, near, skip, steps, write_config

SOURCE = pathlib.Path(sys.argv[1])
MODEL = SOURCE / "models" / "smollm2-135m"
FULL = "--full" in sys.argv
STEPS, ROWS, SEQUENCE = 20, 2, 64
# Tokens of the text that are left out: a passage whose gradient is so ill-conditioned that transformers gives norms 2e-5
# apart with its two attention kernels, which leaves no room for anybody else's rounding.
OMITTED = slice(11 * ROWS * SEQUENCE, 12 * ROWS * SEQUENCE)
ADAMW = {"lr": 1e-5, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}
CLIP = 1.0


def make_tokens(folder):
    """As many tokens of the plays as the steps use, as a flat file; returns its path and them."""
    subprocess.run([sys.executable, SOURCE / "scripts/prepare_data.py", "--shakespeare", "--tokenizer", MODEL, "--out",
                    folder / "plays"], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    text = np.fromfile(folder / "plays" / "train.bin", dtype=np.uint16)
    tokens = np.delete(text, OMITTED)[:STEPS * ROWS * SEQUENCE + 1]
    path = folder / "train.bin"
    tokens.tofile(path)
    return path, tokens.astype(np.int64)


def train_with_ftrun(data, ranks, scratch):
    out = scratch / f"ranks-{ranks}"
    value = config(MODEL, data, out, threads=2 // ranks)
    value["data"] |= {"sequence_length": SEQUENCE, "token_dtype": "uint16"}
    value["train"]["steps"] = STEPS
    value["optimizer"]["params"] = ADAMW
    value |= {"train_micro_batch_size_per_gpu": ROWS // ranks, "gradient_accumulation_steps": 1, "gradient_clipping": CLIP,
              "export": {"enabled": False}}
    must(ftrun("--config", write_config(scratch, value), "--nproc", ranks, timeout=600))
    found = steps(out)
    shutil.rmtree(out)
    return [m["loss"] for m in found], [m["grad_norm"] for m in found]


def settings(scratch, data, rows, **more):
    """Short steps on the test's own text, unless all is wanted."""
    short = {"data.train": data, "data.token_dtype": "uint16", "data.sequence_length": SEQUENCE, "data.shuffle": "false",
             "data.validation": "[]", "train.steps": 3, "threads": 1}
    wanted = {"train.steps": 20, "train.epochs": "null", "gradient_accumulation_steps": 1, "train_batch_size": rows,
              "export.enabled": "false"} | ({} if FULL else short) | more
    return [word for key, value in wanted.items() for word in ("--set", f"{key}={value}")]


def check_configs(data, scratch):
    """Losses of each of configs/ beside those of one process with the same settings and global batch."""
    one = {}

    def losses(path, ranks, rows):
        out = scratch / f"{path.stem}-{ranks}"
        changes = {"output_dir": out, "model.path": MODEL, "parallel.data": ranks,
                   "parallel.data_replicate": 2 if ranks == 4 else 1, "train_micro_batch_size_per_gpu": rows // ranks}
        for tier in ("offload_param", "offload_optimizer"):
            if "nvme" in path.stem:
                changes[f"zero_optimization.{tier}.nvme_path"] = scratch / "swap"
        must(ftrun("--config", path, *settings(scratch, data, rows, **changes), timeout=3600, cwd=SOURCE))
        found = [m["loss"] for m in steps(out)]
        shutil.rmtree(out)  # a checkpoint of 1.5 GiB
        return found

    for path in sorted((SOURCE / "configs").glob("*.yaml")):
        if path.stem == "quickstart":
            continue
        ranks = 4 if path.stem == "hybrid" else 2
        alike = "zero" if path.stem.startswith("zero") else path.stem  # but for stage and tiers
        if alike not in one:
            one[alike] = losses(path, 1, ranks)
        found = near(path.stem, losses(path, ranks, ranks), one[alike], 2e-3 if path.stem in ("bf16", "fp16") else 1e-5)
        print(f"configs/{path.name}: losses within {found:.1e} of one process", flush=True)


def clip(parameters):
    """clip_grad_norm_ with the norm summed in fp64: in fp32 the sum alone is off by 6e-5 at this size."""
    norm = sum(float(p.grad.double().square().sum()) for p in parameters) ** 0.5
    for p in parameters:
        p.grad.mul_(min(1.0, CLIP / (norm + 1e-6)))
    return norm


def train_with_transformers(tokens):
    import torch
    import transformers
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(2)
    model = transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32, local_files_only=True).train()
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, fused=True, **ADAMW)
    losses, norms = [], []
    for step in range(STEPS):
        first = [(step * ROWS + row) * SEQUENCE for row in range(ROWS)]
        rows = torch.from_numpy(np.stack([tokens[i:i + SEQUENCE + 1] for i in first]))
        logits = model(input_ids=rows[:, :-1], use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        loss.backward()
        losses.append(loss.item())
        norms.append(clip(parameters))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return losses, norms


def main():
    if not (MODEL / "model.safetensors").exists():
        skip(f"{MODEL} is not there; scripts/make_model.py smollm2 --out {MODEL} makes it in seconds")
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        data, tokens = make_tokens(scratch)
        check_configs(data, scratch)
        found = {ranks: train_with_ftrun(data, ranks, scratch) for ranks in (1, 2)}
        losses, norms = train_with_transformers(tokens)
        for ranks, (our_losses, our_norms) in found.items():
            assert len(our_losses) == STEPS, our_losses
            loss = near("loss", our_losses, losses, 1e-5)
            norm = near("gradient norm", our_norms, norms, 5e-5)
            print(f"{ranks} rank(s): loss {losses[0]:.4f} -> {losses[-1]:.4f}, within {loss:.1e}; "
                  f"gradient norm within {norm:.1e}", flush=True)


main()
