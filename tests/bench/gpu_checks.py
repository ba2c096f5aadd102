#!/usr/bin/env python3
"""Makes whole training runs on a GPU and checks them: each check prints its figures. The exit
status is 0 if all hold, 1 if not, and 77 without a GPU.

  tests/bench/gpu_checks.py CHECK... [--binary FTRUN] [--scratch FOLDER] [--device cuda]

  repeat       two runs have the same losses, bit for bit, at ZeRO 0 and at ZeRO 3 with all state
               on the host
  captured     kernels.step_graph does not change a loss, bit for bit
  cpu          the first ten losses are within 5e-3 of those on the CPU
  cudnn        losses of cuDNN's attention repeat, and are within 5e-3 of those of our kernels
  documents    the same holds for rows of several documents, also for documents of few tokens and
               for more documents than cuDNN's lists hold
  adapters     LoRA, LoRA on NF4 and on INT8, DoRA and DoRA on NF4: losses repeat, and are within
               5e-3 of those on the CPU
  precisions   fp16 with loss scaling, and moments and master weights in bf16: losses repeat, and
               are within 5e-3 of those on the CPU
  optimizers   Lion, Adagrad, and SGD with momentum: losses repeat, and are within 5e-3 of those on
               the CPU
  multipliers  the same holds for a Granite model
  resume       a GPU's checkpoint continues on the CPU, with a next loss within 5e-3 of the GPU's
  long         two layers of an 8B model at 32,768 tokens: losses are finite, and the same twice
  messages     no visible GPU, a GPU that does not exist, a batch that does not fit: exit codes and
               messages

Weights are random (random_model.py). --device cpu runs the checks on the CPU, to test the checks
themselves; `messages` needs a GPU.
"""
import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys

import random_model

ROOT = pathlib.Path(__file__).resolve().parents[2]
SKIPPED = 77
TOLERANCE = 5e-3


class CheckFailed(Exception):
    """An error of a check: what was expected does not hold."""


def config(model, tokens, out, device, steps, sequence, **changes):
    """Returns the config of a run; `changes` replace its sections."""
    settings = {
        "model": {"path": str(model)}, "device": device,
        "data": {"train": str(tokens), "sequence_length": sequence, "shuffle": False},
        "train": {"steps": steps}, "bf16": {"enabled": True}, "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1, "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}, "zero_optimization": {"stage": 0},
        "checkpoint": {"every": 0}, "export": {"enabled": False}, "output_dir": str(out),
    }
    settings.update(changes)
    return settings


class Runs:
    """Runs ftrun with random models."""

    def __init__(self, args):
        self.args = args
        # A run without a GPU only tests the checks themselves.
        self.shape = "small" if args.device == "cuda" else "tiny"

    def model(self, shape):
        """Returns the model folder and the token file of a shape."""
        return random_model.make_model(shape, self.args.scratch / f"model-{shape}")

    def run(self, name, device, shape, steps, sequence, resume=False, environment=None, **more):
        """Runs ftrun; returns the finished process and its run folder."""
        out = self.args.scratch / name
        if not resume:
            shutil.rmtree(out, ignore_errors=True)
        file = self.args.scratch / f"{name}.json"
        file.write_text(json.dumps(config(*self.model(shape), out, device, steps, sequence,
                                          **more)))
        options = ["--resume", "auto"] if resume else []
        result = subprocess.run([str(self.args.binary), "--config", str(file), *options],
                                capture_output=True, text=True,
                                env={**os.environ, **(environment or {})})
        return result, out

    def losses(self, *args, **more):
        """Returns the losses of a run, which must succeed; the arguments are those of run()."""
        done, out = self.run(*args, **more)
        if done.returncode != 0:
            raise CheckFailed(f"{args[0]} ended with exit code {done.returncode}: "
                              f"{done.stderr.strip()[-600:]}")
        return [json.loads(line)["loss"] for line in open(out / "metrics.jsonl")]


def require_close(expected, losses, what):
    """Prints the largest relative difference of losses; raises CheckFailed beyond TOLERANCE."""
    error = max(abs(x - y) / abs(x) for x, y in zip(expected, losses))
    count = min(len(expected), len(losses))
    print(f"{what}: losses differ by at most {error:.2e} (relative) over {count} steps")
    if error > TOLERANCE:
        raise CheckFailed(f"{what}: {error:.2e} is more than {TOLERANCE}")


def compare_with_cpu(runs, folder, name, **changes):
    """Checks that losses repeat, and that they are close to those on the CPU."""
    first, second, on_cpu = (runs.losses(folder, device, runs.shape, 5, 256, **changes)
                             for device in (runs.args.device, runs.args.device, "cpu"))
    if first != second:
        raise CheckFailed(f"{name}: losses differ: {first} and {second}")
    require_close(on_cpu, first, f"{name} compared with the CPU")


def repeat(runs):
    """Checks that two runs have the same losses."""
    host = {"device": "cpu"}
    for name, zero in (("ZeRO 0", {"stage": 0}),
                       ("ZeRO 3, all on the host",
                        {"stage": 3, "offload_optimizer": host, "offload_param": host})):
        first, second = (runs.losses("repeat", runs.args.device, runs.shape, 6, 512,
                                     zero_optimization=zero)
                         for _ in range(2))
        print(f"{name}: {first[0]} ... {first[-1]}")
        if first != second:
            raise CheckFailed(f"{name}: losses differ: {first} and {second}")
        if not first[-1] < first[0]:
            raise CheckFailed(f"{name}: the loss does not fall: {first}")


def cpu(runs):
    """Checks that losses are close to those on the CPU."""
    on_device = runs.losses("cpu-a", runs.args.device, runs.shape, 10, 256)
    on_cpu = runs.losses("cpu-b", "cpu", runs.shape, 10, 256)
    require_close(on_cpu, on_device, f"{runs.args.device} compared with the CPU")


def captured(runs):
    """Checks that captured steps have the losses of steps that are not captured."""
    plain, captured_steps = (runs.losses("captured", runs.args.device, runs.shape, 6, 512,
                                         kernels={"step_graph": flag})
                             for flag in (False, True))
    print(f"captured: {captured_steps[0]} ... {captured_steps[-1]}")
    if plain != captured_steps:
        raise CheckFailed(f"captured steps: losses differ: {plain} and {captured_steps}")


def compare_with_own_kernels(runs, name, what, **changes):
    """Checks that losses with cuDNN's attention repeat, and that they are close to those with our
    kernels."""
    own, first, second = (runs.losses(name, runs.args.device, runs.shape, 6, 512,
                                      kernels={"attention": attention}, **changes)
                          for attention in ("own", "cudnn", "cudnn"))
    if first != second:
        raise CheckFailed(f"cuDNN's losses differ: {first} and {second}")
    if first == own:
        raise CheckFailed("cuDNN's losses equal those of our kernels bit for bit, so cuDNN did not "
                          "compute them")
    require_close(own, first, what)


def cudnn(runs):
    """Checks cuDNN's attention."""
    compare_with_own_kernels(runs, "cudnn", "cuDNN's attention compared with ours")


def documents(runs):
    """Trains on documents from one token to more than a sequence; a sequence of 512 tokens has
    space for eight documents of up to 256 tokens."""
    for name, lengths in (("several documents in a sequence", (200, 90, 1, 700, 40, 300, 2, 150)),
                          ("more than the lists hold", (9, 3, 30, 1, 14, 5, 22))):
        file = runs.args.scratch / "documents.jsonl"
        with open(file, "w") as out:
            for document in range(20000 * len(lengths) // sum(lengths)):
                ids = [(document * 31 + i * 7) % 200 + 1
                       for i in range(lengths[document % len(lengths)])]
                out.write(json.dumps({"input_ids": ids}) + "\n")
        data = {"train": str(file), "sequence_length": 512, "shuffle": False,
                "packing": "documents"}
        compare_with_own_kernels(runs, "documents",
                                 f"cuDNN's attention of {name} compared with ours", data=data)


def adapters(runs):
    """Checks LoRA and DoRA."""
    lora = {"r": 16, "lora_alpha": 32, "target_modules": "all-linear",
            "init_lora_weights": "gaussian"}
    dora, nf4 = {**lora, "use_dora": True}, {"quantization": {"type": "nf4"}}
    for name, changes in (("LoRA", {"adapter": lora}), ("LoRA on NF4", {"adapter": lora, **nf4}),
                          ("LoRA on INT8", {"adapter": lora, "quantization": {"type": "int8"}}),
                          ("DoRA", {"adapter": dora}), ("DoRA on NF4", {"adapter": dora, **nf4})):
        compare_with_cpu(runs, "adapters", name, **changes)


def precisions(runs):
    """Checks fp16 and states in bf16."""
    bf16 = {"enabled": True, "bf16_optimizer_states": True, "bf16_master_weights_and_grads": True}
    for name, changes in (("fp16", {"bf16": {"enabled": False},
                                    "fp16": {"enabled": True, "initial_scale_power": 8}}),
                          ("moments and master weights in bf16",
                           {"bf16": bf16, "zero_optimization": {"stage": 1}})):
        compare_with_cpu(runs, "precisions", name, **changes)


def optimizers(runs):
    """Checks the optimizers other than AdamW."""
    for name, params in (("Lion", {"lr": 1e-4}),
                         ("Adagrad", {"lr": 1e-2, "initial_accumulator_value": 0.1}),
                         ("SGD", {"lr": 0.1, "momentum": 0.9})):
        compare_with_cpu(runs, "optimizers", name, optimizer={"type": name, "params": params})


def multipliers(runs):
    """Checks a Granite model."""
    shape = runs.shape
    runs.shape = f"{shape}-granite"
    try:
        compare_with_cpu(runs, "multipliers", "multipliers")
    finally:
        runs.shape = shape


def resume(runs):
    """Checks that a checkpoint of the device continues on the CPU."""
    uninterrupted = runs.losses("resume-whole", runs.args.device, runs.shape, 4, 256)
    runs.losses("resume", runs.args.device, runs.shape, 3, 256, checkpoint={"every": 3})
    continued = runs.losses("resume", "cpu", runs.shape, 4, 256, resume=True,
                            checkpoint={"every": 3})
    require_close(uninterrupted[3:], continued[-1:], "the step after the checkpoint")


def long(runs):
    """Checks that losses of a long sequence are finite and repeat."""
    shape, sequence = ("8b-two-layers", 32768) if runs.args.device == "cuda" else ("tiny", 256)
    changes = {"recompute": "full", "zero_optimization": {"stage": 0}}
    first, second = (runs.losses("long", runs.args.device, shape, 2, sequence, **changes)
                     for _ in range(2))
    print(f"{shape} at {sequence} tokens: {first}")
    if first != second or not all(loss == loss and abs(loss) < 1e4 for loss in first):
        raise CheckFailed(f"losses: {first} and {second}")


def messages(runs):
    """Checks the exit codes and messages of runs that must fail."""
    if runs.args.device != "cuda":
        raise CheckFailed("the check of messages needs a GPU (--device cuda)")
    cases = (("no GPU is visible", {"CUDA_VISIBLE_DEVICES": ""}, {}, "cannot use this machine"),
             ("a GPU that does not exist", {"CUDA_VISIBLE_DEVICES": "99"}, {},
              "cannot use this machine"),
             ("a batch that does not fit", {}, {"train_micro_batch_size_per_gpu": 4096},
              "out of memory"))
    for name, environment, changes, expected in cases:
        done, _ = runs.run("messages", "cuda", "small", 2, 512, environment=environment, **changes)
        text = done.stdout + done.stderr
        print(f"{name}: exit code {done.returncode}")
        if done.returncode == 0 or expected not in text or "remedy" not in text:
            raise CheckFailed(f"{name}: ended with exit code {done.returncode} and the message "
                              f"{text.strip()[-400:]}")


def has_gpu():
    """Returns whether the machine has a driver for GPUs."""
    return any(os.path.exists(file) for file in ("/dev/nvidiactl", "/dev/dxg"))


def main():
    checks = {check.__name__: check
              for check in (repeat, captured, cpu, cudnn, documents, adapters, precisions,
                            optimizers, multipliers, resume, long,
                            messages)}
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checks", nargs="+", choices=checks)
    parser.add_argument("--binary", type=pathlib.Path, default=ROOT / "build/release/bin/ftrun")
    parser.add_argument("--scratch", type=pathlib.Path, default=ROOT / "build/gpu-scratch")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    args = parser.parse_args()
    if args.device == "cuda" and not has_gpu():
        print("no GPU: this machine has no driver (/dev/nvidiactl)")
        sys.exit(SKIPPED)
    args.scratch.mkdir(parents=True, exist_ok=True)
    failed = False
    for name in args.checks:
        try:
            checks[name](Runs(args))
        except CheckFailed as error:
            failed = True
            print(f"failed: {name}: {error}", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
