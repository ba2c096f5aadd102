"""Checks dropout of adapters: it has the same masks on any layout, in a resumed run and in a step
that is run again; it is only active in training; and PEFT's own dropout trains to the same losses
on average. (With ftrun's masks PEFT trains the same numbers: case `dropout` of lora_test.py.)"""
import hashlib
import importlib.metadata
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import numpy as np
from runner import (ShardedJob, case, config, copy_without_last_save, evaluations, exported_adapter,
                    ftrun, kill_before_last_save, losses, must, preload, reproducible_metrics,
                    require_near, run_cases, same_tensors, start, steps, tiny_data, write_config)
from safetensors.numpy import load_file, save_file

SOURCE = pathlib.Path(sys.argv[1])
sys.path.insert(0, str(SOURCE / "tests/model"))
from reference import STORED, drawn_weights, tensors_of_file  # noqa: E402

UPDATE = os.environ.get("FTRUN_UPDATE_GOLDENS") == "1"
PEFT_LOSSES = STORED / "adapters" / "dropout_losses.json"

CPU = {"device": "cpu"}
LORA = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear", "init_lora_weights": False,
        "lora_dropout": 0.25}
FAST = {"type": "AdamW", "params": {"lr": 0.02}}


TRAIN_WITH_PEFT = """
import json, sys
import numpy as np, torch, transformers
from peft import PeftModel
torch.set_num_threads(1)
model_folder, adapter, tokens, steps, seeds, p = sys.argv[1:]
data, all_losses = np.fromfile(tokens, dtype=np.uint16).astype("int64"), []
rows = torch.from_numpy(np.stack([data[i:i + 33] for i in range(0, 128, 32)]))
for seed in range(int(seeds)):
    torch.manual_seed(seed)
    base = transformers.AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    model = PeftModel.from_pretrained(base, adapter, is_trainable=True).train()
    for module in model.modules():
        for dropout in getattr(module, "lora_dropout", {}).values():
            dropout.p = float(p)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=0.02, weight_decay=0.0)
    found = []
    for step in range(int(steps)):
        logits = model(rows[:, :-1]).logits.flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(logits, rows[:, 1:].flatten())
        loss.backward()
        found.append(loss.item())
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
    all_losses.append(found)
print(json.dumps(all_losses))
"""
PACKAGES = ("torch", "transformers", "peft")


def losses_of_peft(model, adapter, tokens, *numbers):
    """Returns losses of PEFT's training runs with its own dropout, a list for each seed. They are
    stored in a file, which is used if script, packages, files and numbers are the same."""
    adapter_config = json.loads((adapter / "adapter_config.json").read_text())
    adapter_config.pop("base_model_name_or_path")
    of = hashlib.sha256(json.dumps(
        [TRAIN_WITH_PEFT, numbers, adapter_config,
         [importlib.metadata.version(name) for name in PACKAGES],
         [hashlib.sha256(path.read_bytes()).hexdigest()
          for path in (model / "config.json", model / "model.safetensors",
                       adapter / "adapter_model.safetensors", tokens)]]).encode()).hexdigest()
    stored = json.loads(PEFT_LOSSES.read_text()) if PEFT_LOSSES.exists() else {}
    if stored.get("of") == of and not UPDATE:
        return stored["losses"]
    print(f"{PEFT_LOSSES.name} is of something else: PEFT trains anew (FTRUN_UPDATE_GOLDENS=1 "
          "keeps it)", flush=True)
    result = subprocess.run([sys.executable, "-c", TRAIN_WITH_PEFT, model, adapter, tokens,
                             *map(str, numbers)], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-3000:]
    if UPDATE:
        PEFT_LOSSES.write_text(json.dumps({"of": of, "losses": json.loads(result.stdout)}) + "\n")
    return json.loads(result.stdout)


with tempfile.TemporaryDirectory() as scratch:
    preload()
    scratch = pathlib.Path(scratch)
    job = ShardedJob(scratch / "job", vocab_size=500)
    usual = {"adapter": LORA, "optimizer": FAST}

    def require_same(name, other):
        assert reproducible_metrics(job.out(name)) == reproducible_metrics(job.out(other)), name
        tensors, other_tensors = exported_adapter(job.out(name)), exported_adapter(job.out(other))
        assert same_tensors(tensors, other_tensors), name

    @case
    def every_layout_has_the_same_masks():
        """The layouts divide 12 samples of a step among ranks and micro-batches in many ways."""
        job.run("one", **(job.settings(1) | usual))
        layouts = {
            "accumulation": (1, job.settings(1, accumulation=3)),
            "stage 2": (2, job.settings(2, stage=2)),
            "stage 3": (3, job.settings(3, stage=3, accumulation=2)),
            "replicas": (4, job.settings(4, stage=3) | {"parallel": {"data_replicate": 2}}),
            "tensor": (2, job.settings(1, accumulation=2) | {"parallel": {"tensor": 2}}),
            "whole tokens": (2, job.settings(1) | {"parallel": {"tensor": 2, "sequence": False}}),
            "copies of heads": (4, job.settings(1) | {"parallel": {"tensor": 4}}),
            "pipeline": (2, job.settings(1, accumulation=4) | {"parallel": {"pipeline": 2}}),
            "tensor, data and pipeline": (8, job.settings(2, accumulation=3)
                                          | {"parallel": {"tensor": 2, "pipeline": 2}}),
        }
        for name, (ranks, settings) in layouts.items():
            job.run(name, "--nproc", ranks, **(settings | usual))
            loss = require_near("loss", losses(job.out(name)), losses(job.out("one")), 1e-5)
            norm = require_near("gradient norm", [m["grad_norm"] for m in steps(job.out(name))],
                                [m["grad_norm"] for m in steps(job.out("one"))], 5e-5)
            tensors, expected = exported_adapter(job.out(name)), exported_adapter(job.out("one"))
            for tensor, values in expected.items():
                assert np.linalg.norm(tensors[tensor] - values) <= 1e-4 * np.linalg.norm(values), (
                    name, tensor)
            print(f"{name}: loss within {loss:.1e}, gradient norm within {norm:.1e}", flush=True)

    @case
    def what_changes_no_bit_without_dropout_changes_none_with_it():
        job.run("two", "--nproc", 2, **(job.settings(2, stage=3) | usual))
        for name, change in (("full", {"recompute": "full"}),
                             ("selective", {"recompute": "selective"}),
                             ("unsharded", job.settings(2)),
                             ("offload",
                              job.settings(2, stage=3,
                                           zero={"offload_param": CPU, "offload_optimizer": CPU})),
                             ("alone", job.settings(2, stage=3, zero={"overlap_comm": False}))):
            job.run(name, "--nproc", 2, **(job.settings(2, stage=3) | usual | change))
            require_same(name, "two")
        halves = job.settings(1) | usual | {"parallel": {"tensor": 2}}
        job.run("halves", "--nproc", 2, **halves)
        job.run("halves again", "--nproc", 2, **(halves | {"recompute": "full"}))
        require_same("halves again", "halves")

    @case
    def masks_depend_on_the_seed_and_drop_what_they_should():
        job.run("none", **(job.settings(1) | usual | {"adapter": LORA | {"lora_dropout": 0}}))
        job.run("seed",
                **(job.settings(1) | usual
                   | {"adapter": LORA | {"path": str(job.out("one") / "export" / "adapter")},
                     "train": {"steps": 4, "seed": 7}}))
        job.run("same",
                **(job.settings(1) | usual
                   | {"adapter": LORA | {"path": str(job.out("one") / "export" / "adapter")}}))
        for a, b in (("one", "none"), ("seed", "same")):
            apart = [abs(x - y) for x, y in zip(losses(job.out(a)), losses(job.out(b)),
                                                strict=True)]
            assert min(apart) > 1e-4, (a, b, apart)

    @case
    def a_run_that_is_killed_continues_bit_for_bit():
        saving = job.settings(2, stage=3) | usual | {"checkpoint": {"every": 1, "keep_last": 0},
                                                     "train": {"steps": 8}}
        job.run("straight", "--nproc", 2, **saving)
        kill_before_last_save(job.out("cut"), 8, lambda: start(
            "--config", job.config("cut", **saving), "--nproc", 2))
        job.run("cut", "--nproc", 2, "--resume", "auto", **saving)
        require_same("cut", "straight")
        # The masks are the same on other ranks too.
        copy_without_last_save(job.out("straight"), job.out("other"), 8)
        job.run("other", "--resume", "auto",
                **(saving | job.settings(1, accumulation=2) | {"train": {"steps": 8}}))
        require_near("loss", losses(job.out("other"))[-1:], losses(job.out("straight"))[-1:], 1e-5)
        refused = ftrun("--config",
                        job.config("cut", **(saving | {"adapter": LORA | {"lora_dropout": 0.5}})),
                        "--nproc", 2, "--resume", "auto")
        assert (refused.returncode == 2 and "config.adapter.lora_dropout" in refused.stdout
                + refused.stderr), refused.stderr[-2000:]

    @case
    def evaluation_and_export_drop_nothing():
        """A learning rate of 0 leaves the model unchanged, so only training losses show dropout."""
        still = job.settings(1) | {"optimizer": {"type": "AdamW", "params": {"lr": 0.0}},
                                   "data": {"validation": str(job.data)},
                                   "train": {"steps": 2, "evaluation": {"every": 1, "samples": 8}}}
        for name, p in (("still", 0.25), ("still, without", 0.0)):
            job.run(name, **(still | {"adapter": LORA | {"lora_dropout": p}}))
        a, b = job.out("still"), job.out("still, without")
        assert ([m["loss"] for m in evaluations(a)] == [m["loss"] for m in evaluations(b)]
                and len(evaluations(a)) >= 2)
        assert all(x != y for x, y in zip(losses(a), losses(b), strict=True))
        tensors_a, tensors_b = exported_adapter(a), exported_adapter(b)
        assert same_tensors(tensors_a, tensors_b)
        written = json.loads((a / "export" / "adapter" / "adapter_config.json").read_text())
        assert written["lora_dropout"] == 0.25
        # PEFT's file, used unchanged, has the same effect as the key.
        again = still | {"adapter": str(a / "export" / "adapter")}
        job.run("again", **again)
        assert losses(job.out("again")) == losses(a)
        merged = {}
        for name, out in (("still", a), ("without", b)):
            must(ftrun("convert", out, "--merge", "--out", scratch / f"merged-{name}", "--dtype",
                       "fp32"))
            merged[name] = load_file(scratch / f"merged-{name}" / "model.safetensors")
        assert same_tensors(merged["without"], merged["still"])

        # Masks are computed again instead of stored, so the plan equals that of a run without
        # dropout, and the run uses what the plan says. Only memory that is allocated in addition to
        # persistent state is compared; a little of it may be unused.
        def planned_bytes(p):
            text = must(ftrun("plan", "--config",
                              job.config("plan",
                                         **(still
                                            | {"adapter": LORA | {"lora_dropout": p}})))).stdout
            device = {category: int(bytes)
                      for category, bytes in re.findall(r"^device +(\w+) +(\d+) ", text, re.M)}
            return device["all"] - sum(device[kept]
                                       for kept in ("parameters", "optimizer", "sums"))

        page = os.sysconf("SC_PAGE_SIZE")
        temporary_bytes = [line["memory"]["temporary"] for line in steps(a)]
        assert planned_bytes(0.25) == planned_bytes(0.0), (planned_bytes(0.25), planned_bytes(0.0))
        assert (temporary_bytes and all(0 <= bytes - planned_bytes(0.25) < page
                                        for bytes in temporary_bytes)), (temporary_bytes,
                                                                         planned_bytes(0.25))

    @case
    def bf16_runs_stay_close_to_fp32_ones():
        job.run("bf16", "--nproc", 2,
                **(job.settings(2, precision="bf16", stage=2) | {"adapter": LORA}))
        job.run("fp32", **(job.settings(1) | {"adapter": LORA}))
        require_near("loss", losses(job.out("bf16")), losses(job.out("fp32")), 2e-3)

    def drawn_adapter(out, folder):
        """Fills the adapter of a run with values that numpy draws, which are the same bits on any
        machine."""
        shutil.copytree(out / "export" / "adapter", folder)
        path = folder / "adapter_model.safetensors"
        tensors = tensors_of_file(path)
        save_file(drawn_weights(tensors, 1), path, metadata={"format": "pt"})
        return folder

    @case
    def dropout_of_peft_trains_to_the_same_losses_on_average():
        """Training takes 30 steps on 4 rows, which an adapter without dropout memorizes, with 8
        seeds. Means of the last steps must agree within 4 of their standard deviations, which are a
        fraction of the effect of dropout."""
        count, seeds, p = 30, 8, 0.5
        few = tiny_data(scratch / "few.bin", tokens=129)
        drawn = drawn_adapter(job.out("still"), scratch / "drawn")
        ours = {}
        for seed in range(seeds + 1):  # the last run has no dropout
            adapter = LORA | {"path": str(drawn), "lora_dropout": p if seed < seeds else 0.0}
            value = config(job.model, few, scratch / f"stats-{seed}", threads=1, adapter=adapter,
                           train={"steps": count, "seed": seed}, export={"enabled": False})
            value |= {"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 1,
                      "optimizer": FAST}
            value["data"]["token_dtype"] = "uint16"
            must(ftrun("--config", write_config(scratch, value)))
            ours[seed] = losses(scratch / f"stats-{seed}")
        peft = losses_of_peft(job.model, drawn, few, count, seeds, p)
        for part in (slice(0, 1), slice(count - 10, count)):
            a, b = (np.array([np.mean(run[part]) for run in runs])
                    for runs in ([ours[seed] for seed in range(seeds)], peft))
            without = np.mean(ours[seeds][part])
            error = np.sqrt((a.var(ddof=1) + b.var(ddof=1)) / seeds)
            print(f"steps {part.start + 1} to {part.stop}: {a.mean():.4f} and PEFT's "
                  f"{b.mean():.4f}, {error:.4f} expected between them; without dropout "
                  f"{without:.4f}", flush=True)
            assert abs(a.mean() - b.mean()) < 4 * error, (a, b)
        assert b.mean() - without > 12 * error, (
            "the effect of dropout is within the error of the measurement")

    run_cases()
