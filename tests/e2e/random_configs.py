"""Whole configs drawn from a seed, each on a layout drawn with it: what `ftrun check` accepts is planned, trained, verified and
exported; its losses are those of one process that trains the same in the plainest way; goes on bit by bit from a checkpoint
before its last on the same layout, and with the same losses on another one; and allocates what was planned. What it
refuses has a remedy. No CTest entry: scripts/soak.sh runs it.

    random_configs.py SOURCE --runs 100 --seed 1 [--first 0] [--keep FOLDER]
"""
import argparse
import collections
import json
import math
import os
import pathlib
import random
import re
import shutil
import sys
import tempfile

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "TQDM_DISABLE": "1"}

import numpy as np
from runner import checkpoints, config, copy_without_last, ftrun, manifest, must, same_run, steps, tiny_data, write_config

parser = argparse.ArgumentParser()
parser.add_argument("source")
parser.add_argument("--runs", type=int, default=40)
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--first", type=int, default=0, help="run of the seed to begin with")
parser.add_argument("--keep", help="folder for configs and outputs of runs that failed")
args = parser.parse_args()

VOCABULARY = 212
SHAPE = {"vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2,
         "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None, "initializer_range": 0.1}
MODELS = {
    "llama": ("Llama", {"num_hidden_layers": 4, "tie_word_embeddings": False}),
    "llama, tied": ("Llama", {"num_hidden_layers": 3, "tie_word_embeddings": True}),
    "llama, biases": ("Llama", {"num_hidden_layers": 2, "tie_word_embeddings": False, "attention_bias": True, "mlp_bias": True}),
    "mistral, window": ("Mistral", {"num_hidden_layers": 4, "head_dim": 16, "sliding_window": 8, "tie_word_embeddings": False}),
    "qwen2, tied": ("Qwen2", {"num_hidden_layers": 4, "tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {"num_hidden_layers": 3, "head_dim": 16, "tie_word_embeddings": False}),
}
CPU = {"device": "cpu"}


def make_models(folder):
    import torch
    import transformers
    for seed, (name, (family, changes)) in enumerate(MODELS.items()):
        torch.manual_seed(seed)
        model = getattr(transformers, family + "ForCausalLM")(getattr(transformers, family + "Config")(**SHAPE | changes))
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() == 1:
                    parameter.add_(torch.randn_like(parameter) * 0.1)
        model.save_pretrained(folder / name.replace(", ", "-"))


def write_documents(path, seed, count=90):
    chance = np.random.default_rng(seed)
    with open(path, "w") as lines:
        for _ in range(count):
            ids = chance.integers(3, VOCABULARY, chance.integers(2, 50)).tolist()
            document = {"input_ids": ids}
            if chance.random() < 0.5:
                prompt = int(chance.integers(0, len(ids)))
                document["labels"] = [-100] * prompt + ids[prompt:]
            lines.write(json.dumps(document) + "\n")


class Draw:
    """What one run trains, and the layouts it trains it on."""

    def __init__(self, chance, scratch, number):
        self.chance = chance
        self.scratch = scratch
        self.number = number
        self.model = chance.choice(list(MODELS))
        self.samples = chance.choice((4, 6, 8, 12))  # of a global batch
        self.steps = chance.randint(4, 7)
        self.precision = self.weighted(("fp32", 6), ("bf16", 2), ("fp16", 1))
        self.what = self.draw_what()

    def weighted(self, *choices):
        return self.chance.choices([c for c, _ in choices], [w for _, w in choices])[0]

    def maybe(self, probability):
        return self.chance.random() < probability

    def draw_data(self):
        flat, documents, more = (str(self.scratch / name) for name in ("flat.bin", "documents.jsonl", "more.jsonl"))
        data = {"sequence_length": self.chance.choice((8, 16, 32)), "shuffle": self.maybe(0.7)}
        kind = self.weighted(("flat", 3), ("documents", 3), ("mix", 2), ("several", 1))
        data["train"] = {"flat": flat, "documents": documents, "several": [documents, more],
                         "mix": [{"path": documents, "weight": 3}, {"path": more, "weight": self.chance.choice((1, 2.5))}]}[kind]
        if kind == "flat":
            data["token_dtype"] = "uint16"
        else:
            data["packing"] = self.chance.choice(("concat", "documents", "none"))
        if self.maybe(0.4):
            data["validation"] = self.chance.choice((more, {"first": more, "second": documents}))
        return data

    def draw_what(self):
        chance = self.chance
        rate = 10 ** chance.uniform(-4, -2.5)
        what = {"data": self.draw_data(), "train": {"steps": self.steps, "seed": chance.randint(0, 99)},
                "gradient_clipping": chance.choice((0, 0.3, 1.0)), "train_batch_size": self.samples}
        what["optimizer"] = self.weighted(
            ({"type": "AdamW", "params": {"lr": rate, "betas": [0.9, 0.95], "weight_decay": 0.1}}, 5),
            ({"type": "Adam", "params": {"lr": rate, "adam_w_mode": False, "weight_decay": 0.01}}, 1),
            ({"type": "Adam", "params": {"lr": rate, "bias_correction": False}}, 1),
            ({"type": "SGD", "params": {"lr": 10 * rate, "momentum": 0.9, "nesterov": self.maybe(0.5)}}, 2),
            ({"type": "SGD", "params": {"lr": 10 * rate}}, 1))
        if self.maybe(0.6):
            what["scheduler"] = chance.choice((
                {"type": "cosine", "params": {"warmup_num_steps": 2}}, {"type": "linear", "params": {"warmup_num_steps": 1}},
                {"type": "WarmupLR", "params": {"warmup_num_steps": 3, "warmup_max_lr": rate}},
                {"type": "WarmupCosineLR", "params": {"total_num_steps": self.steps, "warmup_num_steps": 2}}))
        if what["data"].get("validation"):
            what["train"]["evaluation"] = {"every": chance.choice((0, 2)), "samples": chance.choice((0, 5, 64))}
            if self.maybe(0.3):
                what["train"]["generate"] = {"prompt_tokens": 4, "tokens": 5, "prompts": chance.choice((1, 3))}
        if self.precision == "bf16":
            what["bf16"] = {"enabled": True}
            if self.maybe(0.3):
                what["data_types"] = {"grad_accum_dtype": "fp32"}
        if self.precision == "fp16":
            what["fp16"] = {"enabled": True, "initial_scale_power": chance.choice((8, 16)), "loss_scale_window": 2}
        trained = self.weighted(("all", 5), ("lora", 3), ("dora", 1), ("frozen", 2), ("quantized", 1))
        if trained == "frozen":
            what["train"]["freeze"] = chance.choice(("embed_tokens", r"layers\.[01]\.", "norm", "lm_head"))
        elif trained != "all":
            what["adapter"] = {"r": chance.choice((2, 4)), "lora_alpha": 8, "use_dora": trained == "dora", "use_rslora": self.maybe(0.2),
                               "target_modules": chance.choice(("all-linear", ["q_proj", "v_proj"], ["o_proj", "down_proj"])),
                               "lora_dropout": chance.choice((0, 0, 0.1))}
            if self.maybe(0.2):
                what["adapter"]["modules_to_save"] = ["lm_head"]
        if trained == "quantized":
            what["quantization"] = {"type": chance.choice(("nf4", "int8")), "double": self.maybe(0.5)}
        what |= self.weighted(({}, 8), ({"prescale_gradients": True}, 1), ({"gradient_predivide_factor": 2.0}, 1), ({"dataloader_drop_last": True}, 2))
        if what["data"].get("validation") and self.maybe(0.3):
            name = "first" if isinstance(what["data"]["validation"], dict) else "validation"
            what["checkpoint"] = {"keep_best": {"metric": f"{name}.loss"}}
        return what

    def nvme(self, name):
        return {"device": "nvme", "nvme_path": str(self.scratch / f"{name}-{self.number}")}

    def layout(self):
        """Ranks, and the keys that say how they train."""
        chance = self.chance
        tensor, pipeline, data = self.weighted(((1, 1, 1), 2), ((1, 1, 2), 4), ((1, 1, 3), 2), ((1, 1, 4), 3), ((2, 1, 1), 2), ((2, 1, 2), 3),
                                               ((1, 2, 1), 2), ((1, 2, 2), 3), ((2, 2, 1), 2), ((1, 3, 1), 1), ((4, 1, 1), 1))
        if self.samples % data:
            data = 1
        each = self.samples // data
        micro = chance.choice([m for m in range(1, each + 1) if each % m == 0])
        how = {"train_micro_batch_size_per_gpu": micro, "threads": 1, "parallel": {"tensor": tensor, "pipeline": pipeline}}
        if tensor > 1:
            how["parallel"]["sequence"] = self.maybe(0.6)
        if pipeline > 1:
            how["parallel"]["schedule"] = chance.choice(("gpipe", "1f1b", "interleaved", "zb-h1", "zbv"))
        stage = chance.choice((0, 1, 2, 3)) if data > 1 else self.weighted((0, 2), (1, 1), (3, 1))
        zero = {"stage": stage, "reduce_bucket_size": chance.choice((1000, 30000, 500_000_000)),
                "allgather_bucket_size": chance.choice((1000, 30000, 500_000_000)), "overlap_comm": self.maybe(0.5)}
        if stage == 3:
            zero |= {"stage3_param_persistence_threshold": chance.choice((0, 100, 100_000)),
                     "stage3_prefetch_bucket_size": chance.choice((0, 20000, 50_000_000)),
                     "stage3_max_live_parameters": chance.choice((0, 50000, 10**9)), "stage3_max_reuse_distance": chance.choice((0, 50000, 10**9))}
            if self.maybe(0.3):
                zero["offload_param"] = chance.choice((CPU, self.nvme("parameters")))
            if data == 4 and self.maybe(0.3):
                zero["zero_hpz_partition_size"] = 2
        if stage > 0 and self.maybe(0.4):
            zero["offload_optimizer"] = dict(zero["offload_param"]) if zero.get("offload_param", CPU) != CPU else chance.choice(
                (dict(CPU), self.nvme("parameters")))
            if stage == 3 and self.maybe(0.3):
                zero["offload_optimizer"]["ratio"] = 0.5
        if data == 4 and stage > 0 and "zero_hpz_partition_size" not in zero and self.maybe(0.3):
            how["parallel"] |= {"data": 4, "data_replicate": 2}
        how["zero_optimization"] = zero
        if self.maybe(0.5):
            how["recompute"] = {"policy": chance.choice(("selective", "full")), "every": chance.choice((1, 1, 2))}
            if how["recompute"]["policy"] == "full" and self.maybe(0.3):
                how["activation_checkpointing"] = {"cpu_checkpointing": True}
        how["partition"] = {"unit": chance.choice(("block", "layer", "layer", "model"))}
        if self.maybe(0.2):
            how["comm"] = {"backend": "gloo"}
        return tensor * pipeline * data, how

    def value(self, out, how, **checkpoint):
        value = config(self.scratch / self.model.replace(", ", "-"), "", out)
        for key in ("data", "train", "gradient_accumulation_steps", "train_micro_batch_size_per_gpu"):
            del value[key]
        value |= self.what | how
        # One of the scheduler's keys repeats the optimizer's rate.
        value["checkpoint"] = self.what.get("checkpoint", {}) | checkpoint
        return value

    def plain(self):
        return {"train_micro_batch_size_per_gpu": self.samples, "threads": 1}

    def tolerance(self):
        return {"fp32": 5e-6, "bf16": 5e-3, "fp16": 1e-3}[self.precision]


class Finding(Exception):
    pass


class Run:
    def __init__(self, draw, scratch, counts):
        self.draw, self.scratch, self.counts = draw, scratch, counts
        self.files = []

    def train(self, name, ranks, how, *arguments, **checkpoint):
        out = self.scratch / name
        file = write_config(self.scratch, self.draw.value(out, how, **checkpoint), f"{name}.json")
        self.files.append(file)
        must(ftrun("--config", file, "--nproc", ranks, *arguments))
        return out

    def refused(self, ranks, how, name):
        """The words of a refusal, or ""."""
        file = write_config(self.scratch, self.draw.value(self.scratch / "checked", how), f"{name}.json")
        self.files.append(file)
        done = ftrun("check", "--config", file, "--nproc", ranks)
        if done.returncode == 0:
            must(ftrun("plan", "--memory", "--config", file, "--nproc", ranks))
            return ""
        if done.returncode not in (2, 3, 4) or "remedy" not in done.stderr + done.stdout and "instead" not in done.stderr + done.stdout:
            raise Finding(f"check ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
        return done.stderr + done.stdout

    def accepted_layout(self, name):
        for _ in range(20):
            ranks, how = self.draw.layout()
            words = self.refused(ranks, how, name)
            if not words:
                return ranks, how
            self.counts["refused"] += 1
            for line in re.findall(r"(?:error|problem).*", words)[:1] or [words.splitlines()[0]]:
                self.counts["refused: " + re.sub(r"\S*/\S*|\d+", "#", line)[:150]] += 1
        raise Finding("twenty layouts in turn were refused; the last one:\n" + words)

    def compare(self, what, found, expected):
        bound = self.draw.tolerance()
        a, b = steps(found), steps(expected)
        if [m["step"] for m in a] != [m["step"] for m in b]:
            raise Finding(f"{what}: steps {[m['step'] for m in a]} and {[m['step'] for m in b]}")
        for x, y in zip(a, b):
            for key in ("loss", "grad_norm"):
                wide = bound * (10 if key == "grad_norm" else 1)
                if not (math.isfinite(x[key]) and math.isfinite(y[key])):
                    if x.get("skipped") and y.get("skipped"):
                        continue
                    raise Finding(f"{what}: {key} of step {x['step']}: {x[key]} and {y[key]}")
                off = abs(x[key] - y[key]) / max(abs(y[key]), 1e-3)
                worst = self.counts_worst.setdefault((self.draw.precision, key), 0.0)
                self.counts_worst[(self.draw.precision, key)] = max(worst, off)
                if off > wide:
                    raise Finding(f"{what}: {key} of step {x['step']}: {x[key]} and {y[key]}, {off:.2g} apart")
            if x["tokens"] != y["tokens"] or x["lr"] != y["lr"]:
                raise Finding(f"{what}: step {x['step']}: {x} and {y}")

    counts_worst = {}

    def check_record(self, out, ranks):
        """Memory and traffic as planned: whole pages of each buffer more, Gloo's headers, and small all-reduces of more than two
        ranks, whose inputs each rank reads whole."""
        record = manifest(out)
        if record["exit_code"] != 0:
            raise Finding(f"run.json says exit code {record['exit_code']}")
        memory, traffic = record["memory"], record["traffic"]
        for key, planned in memory["predicted"].items():
            allocated = memory["allocated"].get(key, 0)
            if not planned <= allocated <= 1.02 * planned + 2**17 or memory["touched"].get(key, 0) > allocated:
                raise Finding(f"{key}: {planned} bytes planned, {allocated} allocated, {memory['touched'].get(key)} touched")
        for key in ("disk_read", "disk_written"):
            if traffic[key]["program"] != traffic[key]["disk"]:
                raise Finding(f"{key}: {traffic[key]}")
        moved = traffic["communication"]
        if not moved["program"] <= moved["transport"] <= max(1.05, ranks / 2) * moved["program"] + 100_000:
            raise Finding(f"communication: {moved}")

    def go(self):
        draw = self.draw
        words = self.refused(1, draw.plain(), "plain")
        if words:
            self.counts["refused whole"] += 1
            for line in re.findall(r"(?:error|problem).*", words)[:1] or [words.splitlines()[0]]:
                self.counts["refused whole: " + re.sub(r"\S*/\S*|\d+", "#", line)[:150]] += 1
            return False
        ranks, how = self.accepted_layout("layout")
        plain = self.train("one", 1, draw.plain(), every=0)
        out = self.train("first", ranks, how, every=1, keep_last=0)
        self.check_record(out, ranks)
        self.compare(f"{ranks} ranks and one", out, plain)
        must(ftrun("verify", out))
        copy = self.scratch / "again"
        copy_without_last(out, copy, draw.steps)
        for earlier in sorted(checkpoints(copy))[draw.steps // 2:]:
            if earlier.startswith("step-"):
                shutil.rmtree(copy / "checkpoints" / earlier)
        (copy / "checkpoints" / "latest").write_text(f"step-{draw.steps // 2:08}")
        shutil.rmtree(copy / "export", ignore_errors=True)
        moved = self.scratch / "moved"
        shutil.copytree(copy, moved)
        self.train("again", ranks, how, "--resume", "auto", every=1, keep_last=0)
        same_run(out, copy) if not draw.what.get("adapter") else self.same_adapter(out, copy)
        ranks, how = self.accepted_layout("other-layout")
        self.train("moved", ranks, how, "--resume", "auto", every=1, keep_last=0)
        self.compare(f"gone on with {ranks} ranks", moved, plain)
        must(ftrun("verify", moved))
        return True

    def same_adapter(self, a, b):
        from runner import numbers
        if numbers(a) != numbers(b):
            raise Finding(f"metrics differ:\n{numbers(a)}\n{numbers(b)}")
        files = sorted(path.relative_to(a) for path in (a / "export").rglob("*.safetensors"))
        if not files or any((a / file).read_bytes() != (b / file).read_bytes() for file in files):
            raise Finding(f"the exported adapters differ: {files}")


def main():
    counts = collections.Counter()
    findings = 0
    with tempfile.TemporaryDirectory() as base:
        base = pathlib.Path(base)
        make_models(base)
        tiny_data(base / "flat.bin", vocabulary=VOCABULARY, tokens=3001)
        for seed, name in enumerate(("documents", "more")):
            write_documents(base / f"{name}.jsonl", seed)
        for number in range(args.first, args.first + args.runs):
            draw = Draw(random.Random(f"{args.seed}-{number}"), base, number)
            scratch = base / f"run-{number}"
            scratch.mkdir()
            run = Run(draw, scratch, counts)
            try:
                counts["runs"] += run.go()
                counts[draw.precision] += 1
            except Exception as error:
                findings += 1
                print(f"seed {args.seed}, run {number}: {type(error).__name__}: {error}\n", flush=True)
                if args.keep:
                    shutil.copytree(scratch, pathlib.Path(args.keep) / f"{args.seed}-{number}", dirs_exist_ok=True)
            shutil.rmtree(scratch)
    for name, count in sorted(counts.items()):
        print(f"{count:6} {name}")
    print({f"{p} {k}": f"{v:.2g}" for (p, k), v in Run.counts_worst.items()})
    print(f"random configs: seed {args.seed}, {args.runs} drawn, {counts['runs']} trained, {findings} findings", flush=True)
    sys.exit(findings > 0)


main()
