"""Makes the files next to this one: a tiny Llama that the real DeepSpeed (0.19.8) trained for a few
steps and saved, and the states that the import must read, as the training processes had them in
memory.

  PEERS/bin/python tests/checkpoint/imports/make_fixtures.py FOLDER [CASE...]
  (tests/bench/README.md: PEERS)

  model/, train.bin      the model before training, and rows of 16 tokens: step s takes rows 6 s to
                         6 s + 5
  deepspeed.tar.xz       all cases in FOLDER: CASE/checkpoint/, the files that DeepSpeed saved after
                         4 steps, and CASE/expected.json, the SHA-256 of each state in fp32,
                         gathered while training, and the losses of the 3 steps after"""
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile

import numpy as np

from training_job import (AFTER, BATCH, HERE, SAVED, SEQUENCE, batches, loss_of, mean_over_ranks,
                          run_ranks)

LAYERS = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
          "num_attention_heads": 2, "num_key_value_heads": 1,
          "vocab_size": 47, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "bos_token_id": 1,
          "eos_token_id": 2,
          "pad_token_id": None, "initializer_range": 0.1, "tie_word_embeddings": False}
OPTIMIZER = {"lr": 3e-3, "betas": [0.9, 0.95], "eps": 1e-8}
SCHEDULE = {"type": "WarmupLR", "params": {"warmup_min_lr": 0.0, "warmup_max_lr": 3e-3,
                                           "warmup_num_steps": 12, "warmup_type": "linear"}}
# name: ZeRO stage, ranks, precision, parameter groups, whether a universal checkpoint is made of it
CASES = {
    "zero1-fp32-2": (1, 2, "fp32", 1, False), "zero1-bf16-2": (1, 2, "bf16", 2, False),
    "zero2-fp32-3": (2, 3, "fp32", 2, True), "zero2-fp16-2": (2, 2, "fp16", 2, False),
    "zero3-fp32-2": (3, 2, "fp32", 1, False), "zero3-bf16-3": (3, 3, "bf16", 2, True),
}


def make_model(folder):
    import torch
    import transformers
    torch.manual_seed(7)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**LAYERS))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)


def make_data(path):
    random, ids = np.random.default_rng(3), np.zeros((SAVED + AFTER) * BATCH * SEQUENCE + 1,
                                                     dtype=np.uint16)
    for i in range(1, len(ids)):
        ids[i] = random.integers(47) if random.random() < 0.2 else (int(ids[i - 1]) * 3 + 11) % 47
    path.write_bytes(ids.tobytes())


def settings(stage, ranks, precision):
    own = {"fp32": {}, "bf16": {"bf16": {"enabled": True}},
           "fp16": {"fp16": {"enabled": True, "initial_scale_power": 18, "loss_scale_window": 2,
                             "hysteresis": 2}}}[precision]
    return {"train_micro_batch_size_per_gpu": BATCH // ranks, "gradient_accumulation_steps": 1,
            "gradient_clipping": 1.0,
            "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False,
            "steps_per_print": 1 << 30,
            "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
            "scheduler": SCHEDULE, **own}


def groups(model, number):
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    if number == 1:
        return [{"params": [p for _, p in named], "weight_decay": 0.1}]
    decayed = [p for name, p in named if not name.endswith("norm.weight")]
    return [{"params": decayed, "weight_decay": 0.1},
            {"params": [p for name, p in named if name.endswith("norm.weight")],
             "weight_decay": 0.0}]


def moment_of(engine, parameter, kind):
    """Returns a moment of a parameter. safe_get_full_optimizer_state() does not know those of a
    second group of parameters at stages 1 and 2."""
    import torch
    import torch.distributed as dist
    from deepspeed.utils import safe_get_full_optimizer_state
    optimizer = engine.optimizer
    groups = getattr(optimizer, "bit16_groups", None) or getattr(optimizer, "bf16_groups", None)
    if groups is None:
        return safe_get_full_optimizer_state(parameter, kind)
    whole = torch.zeros(parameter.numel())
    if parameter._hp_mapping is not None:
        here, there = (parameter._hp_mapping.get_hp_fragment_address(),
                       parameter._hp_mapping.lp_fragment_address)
        (group,) = [i for i, held in enumerate(groups) if any(p is parameter for p in held)]
        (flat,) = optimizer.optimizer.param_groups[group]["params"]
        moment = optimizer.optimizer.state[flat][kind]
        whole.narrow(0, there.start, there.numel).copy_(moment.narrow(0, here.start, here.numel))
    dist.all_reduce(whole)
    return whole


def gather(engine):
    """Returns SHA-256 of every state, gathered from all ranks."""
    from deepspeed.utils import safe_get_full_fp32_param
    found = {}
    for name, parameter in engine.module.named_parameters():
        states = {"param": safe_get_full_fp32_param(parameter)}
        for kind in ("exp_avg", "exp_avg_sq"):
            states[kind] = moment_of(engine, parameter, kind)
        for kind, values in states.items():
            raw = values.detach().float().contiguous().numpy().tobytes()
            found[f"{name}.{kind}"] = hashlib.sha256(raw).hexdigest()
    return found


def scaler_of(engine):
    scaler = getattr(engine.optimizer, "loss_scaler", None)
    if type(scaler).__name__ != "DynamicLossScaler":
        return None
    return {"scale": scaler.cur_scale, "iteration": scaler.cur_iter,
            "last_overflow": scaler.last_overflow_iter,
            "hysteresis": scaler.cur_hysteresis}


def worker(name, out):
    import deepspeed
    import torch
    import torch.distributed as dist
    import transformers
    stage, ranks, precision, number, _ = CASES[name]
    torch.set_num_threads(1)
    if precision == "fp16":  # DeepSpeed declines it on CPUs without fast instructions for it
        deepspeed.accelerator.get_accelerator().is_fp16_supported = lambda: True
    deepspeed.init_distributed(dist_backend="gloo")
    rank = dist.get_rank()
    model = transformers.AutoModelForCausalLM.from_pretrained(HERE / "model", dtype=torch.float32,
                                                              attn_implementation="eager").train()
    optimizer = torch.optim.AdamW(groups(model, number), lr=OPTIMIZER["lr"],
                                  betas=tuple(OPTIMIZER["betas"]), eps=OPTIMIZER["eps"])
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer,
                                      config=settings(stage, ranks, precision))
    rows = batches(rank, ranks)

    def step(s):
        loss = loss_of(engine, rows(s))
        engine.backward(loss)
        engine.step()
        return mean_over_ranks(loss, ranks)

    before = [step(s) for s in range(SAVED)]
    engine.save_checkpoint(str(out / "checkpoint"))
    expected = {"states": gather(engine), "step": engine.global_steps,
                "skipped_steps": engine.skipped_steps,
                "samples": engine.global_samples, "loss_scaler": scaler_of(engine), "ranks": ranks,
                "stage": stage,
                "precision": precision, "groups": number, "losses_before": before}
    expected["losses"] = [step(s) for s in range(SAVED, SAVED + AFTER)]
    expected["scaler_after"] = scaler_of(engine)
    expected["skipped_after"] = engine.skipped_steps
    if rank == 0:
        (out / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
    dist.barrier()


def run_case(name, out):
    ranks = CASES[name][1]
    run_ranks(__file__, ranks, [name, out], f"{name}: a rank failed", DS_ACCELERATOR="cpu",
              LOCAL_WORLD_SIZE=str(ranks),
              OMP_NUM_THREADS="1")
    for script in ("zero_to_fp32.py", "zero_to_torch.py"):
        (out / "checkpoint" / script).unlink(missing_ok=True)


def make_universal(source, out):
    """Converts with DeepSpeed's own converter; plain models need --inject_missing_state."""
    tag = (source / "checkpoint" / "latest").read_text()
    (out / "checkpoint").mkdir(parents=True)
    subprocess.run([sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal", "--input_folder",
                    source / "checkpoint" / tag,
                    "--output_folder", out / "checkpoint" / f"{tag}_universal",
                    "--inject_missing_state", "--num_extract_workers", "1",
                    "--num_merge_workers", "1"], check=True,
                   env={**os.environ, "DS_ACCELERATOR": "cpu"}, stdout=subprocess.DEVNULL)
    shutil.copy(source / "expected.json", out / "expected.json")
    (source / "checkpoint" / "latest_universal").unlink(missing_ok=True)
    (out / "checkpoint" / "latest_universal").write_text(f"{tag}_universal")


def plain(entry):
    entry.mtime = entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mode = 0o755 if entry.isdir() else 0o644
    return entry


def pack(folder):
    with tarfile.open(HERE / "deepspeed.tar.xz", "w:xz", preset=9) as packed:
        for case in sorted(path for path in folder.iterdir() if (path / "expected.json").exists()):
            packed.add(case, case.name, filter=plain)


def main(folder, chosen):
    if not (HERE / "model").is_dir():
        make_model(HERE / "model")
        make_data(HERE / "train.bin")
    for name in chosen or CASES:
        universal = CASES[name][-1]
        out = folder / name
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
        run_case(name, out)
        if universal:
            other = folder / f"universal-{name}"
            shutil.rmtree(other, ignore_errors=True)
            make_universal(out, other)
    pack(folder)


if sys.argv[1:2] == ["--worker"]:
    worker(sys.argv[2], pathlib.Path(sys.argv[3]))
else:
    main(pathlib.Path(sys.argv[1]).resolve(), sys.argv[2:])
