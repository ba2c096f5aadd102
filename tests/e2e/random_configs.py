"""Draws whole configs from a seed, each with a layout. A config that `ftrun check` accepts is
planned, trained, verified and exported. Its losses must equal those of one process that trains the
same in the plainest way. It must continue bit for bit from a checkpoint before the last on the same
layout, and with the same losses on another one, and allocate what was planned. A config that is
refused must get a remedy. No CTest entry; scripts/soak.sh runs it.

    random_configs.py SOURCE --runs 100 --seed 1 [--first 0] [--keep FOLDER]
"""
import argparse
import collections
import json
import os
import pathlib
import random
import re
import shutil
import sys
import tempfile
import time

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "TQDM_DISABLE": "1"}

import numpy as np
from runner import (config, copy_without_last_save, ftrun, manifest, metrics, must,
                    reproducible_metrics, start, tiny_data, write_config)

parser = argparse.ArgumentParser()
parser.add_argument("source")
parser.add_argument("--runs", type=int, default=40)
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--first", type=int, default=0, help="run of the seed to begin with")
parser.add_argument("--keep", help="folder for configs and outputs of runs that failed")
args = parser.parse_args()

VOCABULARY = 211
SHAPE = {"vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 128,
         "num_attention_heads": 4, "num_key_value_heads": 2,
         "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "bos_token_id": 1, "eos_token_id": 2,
         "pad_token_id": None, "initializer_range": 0.1}
MODELS = {
    "llama": ("Llama", {"num_hidden_layers": 4, "tie_word_embeddings": False}),
    "llama, tied": ("Llama", {"num_hidden_layers": 3, "tie_word_embeddings": True}),
    "llama, biases": ("Llama", {"num_hidden_layers": 2, "tie_word_embeddings": False,
                                "attention_bias": True, "mlp_bias": True}),
    "mistral, window": ("Mistral", {"num_hidden_layers": 4, "head_dim": 16, "sliding_window": 8,
                                    "tie_word_embeddings": False}),
    "qwen2, tied": ("Qwen2", {"num_hidden_layers": 4, "tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {"num_hidden_layers": 3, "head_dim": 16, "tie_word_embeddings": False}),
}
CPU = {"device": "cpu"}
# The relative differences from one process that are allowed.
BOUNDS = {"fp32": {"loss": 1e-5, "grad_norm": 1e-4}, "bf16": {"loss": 5e-3, "grad_norm": 5e-2},
          "fp16": {"loss": 1e-3, "grad_norm": 1e-2}}


def make_models(folder):
    import torch
    import transformers
    for seed, (name, (family, changes)) in enumerate(MODELS.items()):
        torch.manual_seed(seed)
        model = getattr(transformers,
                        family + "ForCausalLM")(getattr(transformers,
                                                        family + "Config")(**SHAPE | changes))
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
    """A random training, and the layouts on which it runs."""

    def __init__(self, chance, scratch, number):
        self.chance = chance
        self.scratch = scratch
        self.number = number
        self.model = chance.choice(list(MODELS))
        self.samples = chance.choice((4, 6, 8, 12))  # in a global batch
        self.steps = chance.randint(4, 7)
        self.precision = self.weighted(("fp32", 6), ("bf16", 2), ("fp16", 1))
        self.training_settings = self.draw_training()

    def weighted(self, *choices):
        return self.chance.choices([c for c, _ in choices], [w for _, w in choices])[0]

    def maybe(self, probability):
        return self.chance.random() < probability

    def draw_data(self):
        flat, documents, more = (str(self.scratch / name)
                                 for name in ("flat.bin", "documents.jsonl", "more.jsonl"))
        data = {"sequence_length": self.chance.choice((8, 16, 32)), "shuffle": self.maybe(0.7)}
        kind = self.weighted(("flat", 3), ("documents", 3), ("mix", 2), ("several", 1))
        data["train"] = {"flat": flat, "documents": documents, "several": [documents, more],
                         "mix": [{"path": documents, "weight": 3},
                                 {"path": more, "weight": self.chance.choice((1, 2.5))}]}[kind]
        if kind == "flat":
            data["token_dtype"] = "uint16"
        else:
            data["packing"] = self.chance.choice(("concat", "documents", "none"))
        if self.maybe(0.4):
            data["validation"] = self.chance.choice((more, {"first": more, "second": documents}))
        return data

    def draw_training(self):
        chance = self.chance
        rate = 10 ** chance.uniform(-4, -2.5)
        settings = {"data": self.draw_data(), "train": {"seed": chance.randint(0, 99),
                                                        "steps": self.steps},
                    "gradient_clipping": chance.choice((0, 0.3, 1.0)),
                    "train_batch_size": self.samples}
        settings["optimizer"] = self.weighted(
            ({"type": "AdamW", "params": {"lr": rate, "betas": [0.9, 0.95], "weight_decay": 0.1}},
             5),
            ({"type": "Adam", "params": {"lr": rate, "adam_w_mode": False, "weight_decay": 0.01}},
             1),
            ({"type": "Adam", "params": {"lr": rate, "bias_correction": False}}, 1),
            ({"type": "SGD", "params": {"lr": 10 * rate, "momentum": 0.9,
                                        "nesterov": self.maybe(0.5)}}, 2),
            ({"type": "SGD", "params": {"lr": 10 * rate}}, 1))
        if self.maybe(0.6):
            settings["scheduler"] = chance.choice((
                {"type": "cosine", "params": {"warmup_num_steps": 2}},
                {"type": "linear", "params": {"warmup_num_steps": 1}},
                {"type": "WarmupLR", "params": {"warmup_num_steps": 3, "warmup_max_lr": rate}},
                {"type": "WarmupCosineLR", "params": {"total_num_steps": self.steps,
                                                      "warmup_num_steps": 2}},
                {"type": "WarmupDecayLR", "params": {"total_num_steps": self.steps,
                                                     "warmup_num_steps": 2, "warmup_max_lr": rate}},
                {"type": "OneCycle", "params": {"cycle_min_lr": rate / 10, "cycle_max_lr": rate,
                                                "cycle_first_step_size": 2,
                                                "decay_step_size": 2, "decay_lr_rate": 0.1,
                                                "decay_mom_rate": 0.01}},
                {"type": "LRRangeTest", "params": {"lr_range_test_min_lr": rate,
                                                   "lr_range_test_step_size": 2,
                                                   "lr_range_test_step_rate": 0.5}}))
        if settings["data"].get("validation"):
            settings["train"]["check_replicas"] = chance.choice((0, 1, 100))
            settings["train"]["evaluation"] = {"every": chance.choice((0, 2)),
                                               "samples": chance.choice((0, 5, 64))}
            if self.maybe(0.3):
                settings["train"]["generate"] = {"prompt_tokens": 4, "tokens": 5,
                                                 "prompts": chance.choice((1, 3))}
        if self.precision == "bf16":
            settings["bf16"] = {"enabled": True}
            if self.maybe(0.3):
                settings["data_types"] = {"grad_accum_dtype": "fp32"}
            if self.maybe(0.2):
                settings["communication_data_type"] = "fp32"
        # The scales are such that no layout overflows, because overflows depend on the order of
        # sums.
        if self.precision == "fp16":
            settings["fp16"] = {"enabled": True, "initial_scale_power": chance.choice((6, 9)),
                                "loss_scale_window": 2}
        trained = self.weighted(("all", 5), ("lora", 3), ("dora", 1), ("frozen", 2),
                                ("quantized", 1))
        if trained == "frozen":
            settings["train"] |= chance.choice(({"freeze": "embed_tokens"},
                                                {"freeze": r"layers\.[01]\."}, {"freeze": "norm"},
                                                {"freeze": "lm_head"},
                                                {"only": r"layers\.1\."}, {"only": "self_attn"},
                                                {"only": "norm"}))
        elif trained != "all":
            settings["adapter"] = {"r": chance.choice((2, 4)), "lora_alpha": 8,
                                   "use_dora": trained == "dora", "use_rslora": self.maybe(0.2),
                                   "target_modules": chance.choice(("all-linear", ["q_proj",
                                                                                   "v_proj"],
                                                                    ["o_proj", "down_proj"])),
                                   "lora_dropout": chance.choice((0, 0, 0.1))}
            settings["adapter"] |= chance.choice(({}, {"modules_to_save": ["lm_head"]},
                                                  {"modules_to_save": ["embed_tokens"]},
                                                  {"bias": "all"}, {"bias": "lora_only"},
                                                  {"layers_to_transform": [1]},
                                                  {"exclude_modules": ["o_proj"]},
                                                  {"rank_pattern": {"q_proj": 3,
                                                                    "layers.0.*down_proj": 1}},
                                                  {"init_lora_weights":
                                                   chance.choice(("gaussian", "orthogonal",
                                                                  False))}))
        if trained == "quantized":
            settings["quantization"] = {"type": chance.choice(("nf4", "int8")),
                                        "double": self.maybe(0.5)}
        settings |= self.weighted(({}, 8), ({"prescale_gradients": True}, 1),
                                  ({"gradient_predivide_factor": 2.0}, 1),
                                  ({"dataloader_drop_last": True}, 2))
        if settings["data"].get("validation") and self.maybe(0.3):
            name = "first" if isinstance(settings["data"]["validation"], dict) else "validation"
            settings["checkpoint"] = {"keep_best":
                                      {"metric": f"{name}.{chance.choice(('loss', 'accuracy'))}"}}
            settings["export"] = {"which": chance.choice(("last", "best")),
                                  "dtype": chance.choice(("auto", "fp32", "bf16", "fp16"))}
        return settings

    def nvme(self, name):
        return {"device": "nvme", "nvme_path": str(self.scratch / f"{name}-{self.number}")}

    def layout(self):
        """Draws the number of ranks, and the keys of the layout."""
        chance = self.chance
        tensor, pipeline, data = self.weighted(((1, 1, 1), 2), ((1, 1, 2), 4), ((1, 1, 3), 2),
                                               ((1, 1, 4), 3), ((2, 1, 1), 2), ((2, 1, 2), 3),
                                               ((1, 2, 1), 2), ((1, 2, 2), 3), ((2, 2, 1), 2),
                                               ((1, 3, 1), 1), ((4, 1, 1), 1))
        if self.samples % data:
            data = 1
        each = self.samples // data
        micro = chance.choice([m for m in range(1, each + 1) if each % m == 0])
        layout = {"train_micro_batch_size_per_gpu": micro, "threads": 1,
                  "parallel": {"tensor": tensor, "pipeline": pipeline}}
        if tensor > 1:
            layout["parallel"]["sequence"] = self.maybe(0.6)
        if pipeline > 1:
            layout["parallel"]["schedule"] = chance.choice(("gpipe", "1f1b", "interleaved", "zb-h1",
                                                            "zbv"))
        stage = chance.choice((0, 1, 2, 3)) if data > 1 else self.weighted((0, 2), (1, 1), (3, 1))
        zero = {"stage": stage, "reduce_bucket_size": chance.choice((1000, 30000, 500_000_000)),
                "allgather_bucket_size": chance.choice((1000, 30000, 500_000_000)),
                "overlap_comm": self.maybe(0.5)}
        if stage == 3:
            zero |= {"stage3_param_persistence_threshold": chance.choice((0, 100, 100_000)),
                     "stage3_prefetch_bucket_size": chance.choice((0, 20000, 50_000_000)),
                     "stage3_max_live_parameters": chance.choice((0, 50000, 10**9)),
                     "stage3_max_reuse_distance": chance.choice((0, 50000, 10**9))}
            if self.maybe(0.3):
                zero["offload_param"] = chance.choice((CPU, self.nvme("parameters")))
            if data == 4 and self.maybe(0.3):
                zero["zero_hpz_partition_size"] = 2
        if stage > 0 and self.maybe(0.4):
            if zero.get("offload_param", CPU) != CPU:
                zero["offload_optimizer"] = dict(zero["offload_param"])
            else:
                zero["offload_optimizer"] = chance.choice((dict(CPU), self.nvme("parameters")))
            if stage == 3 and self.maybe(0.3):
                zero["offload_optimizer"]["ratio"] = 0.5
        if data == 4 and stage > 0 and "zero_hpz_partition_size" not in zero and self.maybe(0.3):
            layout["parallel"] |= {"data": 4, "data_replicate": 2}
        layout["zero_optimization"] = zero
        if self.maybe(0.5):
            layout["recompute"] = {"policy": chance.choice(("selective", "full")),
                                   "every": chance.choice((1, 1, 2))}
            if layout["recompute"]["policy"] == "full" and self.maybe(0.3):
                layout["activation_checkpointing"] = {"cpu_checkpointing": True}
        layout["partition"] = {"unit": chance.choice(("block", "layer", "layer", "model"))}
        if self.maybe(0.2):
            layout["comm"] = {"backend": "gloo"}
        layout["checkpoint"] = {"background": self.maybe(0.7), "if_busy": "wait"}
        return tensor * pipeline * data, layout

    def value(self, out, layout, **checkpoint):
        value = config(self.scratch / self.model.replace(", ", "-"), "", out)
        for key in ("data", "train", "gradient_accumulation_steps",
                    "train_micro_batch_size_per_gpu"):
            del value[key]
        value |= self.training_settings | layout
        value["checkpoint"] = self.training_settings.get("checkpoint",
                                                         {}) | layout.get("checkpoint",
                                                                          {}) | checkpoint
        return value

    def plain_settings(self):
        return {"train_micro_batch_size_per_gpu": self.samples, "threads": 1}


class Finding(Exception):
    """A defect that a run has revealed."""


class Run:
    def __init__(self, draw, scratch, tally):
        self.draw, self.scratch, self.tally = draw, scratch, tally

    def write(self, name, layout, **checkpoint):
        return write_config(self.scratch, self.draw.value(self.scratch / name, layout,
                                                          **checkpoint),
                            f"{name}.json")

    def train(self, name, ranks, layout, *arguments, **checkpoint):
        must(ftrun("--config", self.write(name, layout, **checkpoint), "--nproc", ranks,
                   *arguments))
        return self.scratch / name

    def refusal(self, name, ranks, layout):
        """Returns the message with which `check` refuses the config, or "" if it accepts it; then
        `plan` must accept it too."""
        file = self.write(name, layout)
        result = ftrun("check", "--config", file, "--nproc", ranks)
        output = result.stderr + result.stdout
        if result.returncode == 0:
            must(ftrun("plan", "--memory", "--config", file, "--nproc", ranks))
            return ""
        if result.returncode not in (2, 3) or "  remedy: " not in output:
            raise Finding(f"check ended with {result.returncode}:\n{output}")
        first = re.search(r"error: .*", output)
        self.tally.refused[re.sub(r"\S*/\S*|\d+", "#", first[0] if first else output)[:150]] += 1
        return output

    def accepted_layout(self, name):
        for _ in range(20):
            ranks, layout = self.draw.layout()
            message = self.refusal(name, ranks, layout)
            if not message:
                return ranks, layout
        raise Finding(f"twenty layouts in turn were refused; the last one:\n{message}")

    def compare(self, what, found, expected):
        """Compares all lines of metrics of two runs that train the same."""
        for line, expected_line in zip(metrics(found), metrics(expected), strict=True):
            for key in ("step", "evaluation", "tokens", "lr", "skipped", "loss_scale"):
                if line.get(key) != expected_line.get(key):
                    raise Finding(f"{what}: {key}: {line} and {expected_line}")
            for key in () if line.get("skipped") else ("loss",
                                                       "grad_norm") if "grad_norm" in line else (
                                                           "loss",):
                if line[key] == expected_line[key]:  # includes "NaN" of a step without labels
                    continue
                off = abs(line[key] - expected_line[key]) / max(abs(expected_line[key]), 1e-3)
                self.tally.worst[self.draw.precision,
                                 key] = max(self.tally.worst[self.draw.precision, key], off)
                if not off <= BOUNDS[self.draw.precision][key]:
                    raise Finding(f"{what}: {key} of step {line['step']}: {line[key]} and "
                                  f"{expected_line[key]}, {off:.2g} apart")

    def check_record(self, out, ranks, layout):
        """Checks memory and traffic against the plan. They may exceed it by whole pages for each
        buffer, by Gloo's headers, and by small all-reduces of more than two ranks, whose inputs
        each rank reads completely."""
        record = manifest(out)
        memory, traffic = record["memory"], record["traffic"]
        for key, planned in memory["predicted"].items():
            allocated = memory["allocated"].get(key, 0)
            if not planned <= allocated <= 1.02 * planned + 2**17 or memory["touched"].get(
                    key, 0) > allocated:
                raise Finding(f"{key}: {planned} bytes planned, {allocated} allocated, "
                              f"{memory['touched'].get(key)} touched")
        for key in ("disk_read", "disk_written"):
            if traffic[key]["program"] != traffic[key]["disk"]:
                raise Finding(f"{key}: {traffic[key]}")
        moved = traffic["communication"]
        most = 2 if "comm" in layout else max(1, ranks / 2)
        if not moved["program"] <= moved["transport"] <= most * moved["program"] + 4096:
            raise Finding(f"communication: {moved}")

    def copy_half_saved(self, out, name):
        """Copies a run's folder as it was when half of its steps were saved."""
        half = self.draw.steps // 2
        copy_without_last_save(out, self.scratch / name, self.draw.steps)
        for step in range(half + 1, self.draw.steps):
            shutil.rmtree(self.scratch / name / "checkpoints" / f"step-{step:08}")
        (self.scratch / name / "checkpoints" / "latest").write_text(f"step-{half:08}")
        shutil.rmtree(self.scratch / name / "export")

    def train_killed(self, name, ranks, layout):
        """Trains, and kills the started process with kill -9 at random moments until a start ends
        by itself."""
        file = self.write(name, layout, every=1, keep_last=0)
        out = self.scratch / name

        def command():
            """Returns the command that resumes if an earlier start has begun its run."""
            if (out / "run.json").exists():
                return "--config", file, "--nproc", ranks, "--resume", "auto"
            shutil.rmtree(out, ignore_errors=True)
            return "--config", file, "--nproc", ranks

        for _ in range(3):
            running = start(*command())
            time.sleep(self.draw.chance.uniform(0.1, 0.8))
            if running.process.poll() is None:
                running.kill_all()
        must(ftrun(*command()))
        return out

    def try_config(self):
        """Tries the config; returns False if it cannot be trained at all."""
        draw = self.draw
        if self.refusal("one", 1, draw.plain_settings()):
            return False
        ranks, layout = self.accepted_layout("first")
        one = self.train("one", 1, draw.plain_settings(), every=0)
        first = self.train("first", ranks, layout, every=1, keep_last=0)
        self.check_record(first, ranks, layout)
        self.compare(f"{ranks} ranks and one", first, one)
        must(ftrun("verify", first))
        self.copy_half_saved(first, "again")
        self.copy_half_saved(first, "moved")
        same_files(first, self.train("again", ranks, layout, "--resume", "auto", every=1,
                                     keep_last=0))
        if draw.maybe(0.3):
            same_files(first, self.train_killed("killed", ranks, layout))
        other_ranks, other = self.accepted_layout("moved")
        moved = self.train("moved", other_ranks, other, "--resume", "auto", every=1, keep_last=0)
        self.compare(f"gone on from {ranks} with {other_ranks} ranks", moved, one)
        must(ftrun("verify", moved))
        return True


def same_files(a, b):
    """Asserts that metrics and exported files are identical bit for bit."""
    first, second = reproducible_metrics(a), reproducible_metrics(b)
    if first != second:
        raise Finding(f"metrics of a resumed run differ:\n{first}\n{second}")
    files = sorted(path.relative_to(a) for path in (a / "export").rglob("*.safetensors"))
    if not files or any((a / file).read_bytes() != (b / file).read_bytes() for file in files):
        raise Finding(f"what a resumed run exported differs: {files}")


class Tally:
    def __init__(self):
        self.trained = collections.Counter()
        self.refused = collections.Counter()
        self.worst = collections.defaultdict(float)
        self.findings = 0

    def print_summary(self):
        for words, count in self.refused.most_common():
            print(f"{count:6} refused: {words}")
        for (precision, key), worst in sorted(self.worst.items()):
            print(f"{precision}: {key} at most {worst:.1e} from one process")
        print(f"random configs: seed {args.seed}, {args.runs} drawn, {self.trained.total()} "
              "trained "
              f"({', '.join(f'{count} in {name}' for name, count in self.trained.items())}), "
              f"{self.findings} findings", flush=True)


def main():
    tally = Tally()
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
            try:
                tally.trained[draw.precision] += Run(draw, scratch, tally).try_config()
            except Exception as error:  # the next configs are tried nevertheless
                tally.findings += 1
                print(f"seed {args.seed}, run {number}: {type(error).__name__}: {error}\n",
                      flush=True)
                if args.keep:
                    shutil.copytree(scratch, pathlib.Path(args.keep) / f"{args.seed}-{number}",
                                    dirs_exist_ok=True)
            shutil.rmtree(scratch)
    tally.print_summary()
    sys.exit(tally.findings > 0)


main()
