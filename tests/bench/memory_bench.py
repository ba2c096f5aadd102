#!/usr/bin/env python3
"""Compares the planned peak memory of a process with the measured one: trains small models in every
way that runs on CPUs, on 1, 2 and 4 ranks, and prints a table row for each.

    memory_bench.py [--binary build/release/bin/ftrun] [--only WORD] [--families] [--out FILE]

The plan is rank 0's in run.json: what `ftrun plan` prints, what the process held before it
allocated anything for the model, what it maps of its peers' memory, and a bound of other working
memory. The measured peak is the larger of two figures of the kernel: VmHWM during the steps
(run.json), and RssAnon + RssShmem in /proc/PID/status of rank 0's process, read from outside every
ten milliseconds of its life, including loading, evaluation and export.
"""
import argparse
import datetime
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import random_model

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHAPE = "6-narrow-layers"
MIB = 1 << 20
STEPS = 3
# The goal: every row's error is within this share or these bytes.
WORST_SHARE, WORST_BYTES = 0.015, 16 * MIB


def layout(data=1, tensor=1, pipeline=1, rows=4, accumulation=1, **more):
    """Returns settings with `rows` rows of 256 tokens per step, on the given number of ranks."""
    return {"parallel": {"data": data, "tensor": tensor, "pipeline": pipeline},
            "train_micro_batch_size_per_gpu": rows // data // accumulation,
            "gradient_accumulation_steps": accumulation} | more


def zero(stage, **more):
    return {"zero_optimization": {"stage": stage} | more}


def configs(scratch):
    """Yields (name, shape, settings)."""
    cpu = {"device": "cpu"}
    disk = {"device": "nvme", "nvme_path": str(scratch / "swap")}
    bf16, fp16 = {"bf16": {"enabled": True}}, {"fp16": {"enabled": True}}
    full, selective = {"recompute": "full"}, {"recompute": "selective"}

    def adapter(**more):
        return {"adapter": {"type": "lora", "r": 16, "target_modules": "all-linear"} | more}

    def quantized(kind):
        return {"quantization": {"type": kind}}

    def optimizer(kind, **params):
        return {"optimizer": {"type": kind, "params": {"lr": 1e-4} | params}}

    def pipeline(schedule, **more):
        return {"schedule": schedule} | more

    def named(name, settings, shape=SHAPE):
        return name, shape, settings

    # One rank.
    yield named("1 rank", layout())
    yield named("1 rank, 1 row", layout(rows=1))
    yield named("1 rank, 4 micro-batches", layout(accumulation=4))
    yield named("1 rank, bf16", layout(**bf16))
    yield named("1 rank, fp16", layout(**fp16))
    yield named("1 rank, recompute full", layout(**full))
    yield named("1 rank, recompute selective", layout(**selective))
    yield named("1 rank, bf16, recompute full", layout(**bf16, **full))
    yield named("1 rank, optimizer in main memory", layout(**zero(1, offload_optimizer=cpu)))
    yield named("1 rank, optimizer on disk", layout(**zero(1, offload_optimizer=disk)))
    yield named("1 rank, all on disk", layout(**zero(3, offload_optimizer=disk,
                                                     offload_param=disk)))
    for kind in ("SGD", "Adam", "Adagrad", "Lion", "AdamW8bit"):
        yield named(f"1 rank, {kind}", layout(**optimizer(kind)))
    yield named("1 rank, bf16, AdamW8bit", layout(**bf16, **optimizer("AdamW8bit")))
    yield named("1 rank, LoRA", layout(**adapter()))
    yield named("1 rank, LoRA, bf16, recompute full", layout(**adapter(), **bf16, **full))
    yield named("1 rank, DoRA", layout(**adapter(use_dora=True)))
    yield named("1 rank, QLoRA nf4", layout(**adapter(), **quantized("nf4")))
    yield named("1 rank, QLoRA int8, bf16", layout(**adapter(), **quantized("int8"), **bf16))
    yield named("1 rank, layers frozen",
                layout(train={"steps": STEPS, "freeze": [".*layers.[01]..*"]}))
    yield named("1 rank, packed documents", layout(data_packing="concat"))
    yield named("1 rank, evaluation", layout(evaluation=True))
    yield named("1 rank, a checkpoint each step", layout(checkpoint={"every": 1}))
    yield named("1 rank, export", layout(export={"enabled": True}))
    yield named("1 rank, Granite", layout(), "6-narrow-granite")
    yield named("1 rank, Qwen2", layout(), "qwen2-6-narrow-layers")
    yield named("1 rank, Qwen2, bf16", layout(**bf16), "qwen2-6-narrow-layers")
    # Two ranks.
    for stage in range(4):
        yield named(f"data 2, ZeRO {stage}", layout(2, **zero(stage)))
    for stage in (2, 3):
        yield named(f"data 2, ZeRO {stage}, bf16", layout(2, **zero(stage), **bf16))
    yield named("data 2, ZeRO 2, 2 micro-batches", layout(2, accumulation=2, **zero(2)))
    yield named("data 2, ZeRO 3, recompute full", layout(2, **zero(3), **full))
    yield named("data 2, ZeRO 3, recompute selective", layout(2, **zero(3), **selective))
    yield named("data 2, ZeRO 2, optimizer in main memory",
                layout(2, **zero(2, offload_optimizer=cpu)))
    yield named("data 2, ZeRO 3, all in main memory",
                layout(2, **zero(3, offload_optimizer=cpu, offload_param=cpu)))
    yield named("data 2, ZeRO 3, optimizer on disk", layout(2, **zero(3, offload_optimizer=disk)))
    yield named("data 2, ZeRO 3, all on disk",
                layout(2, **zero(3, offload_optimizer=disk, offload_param=disk)))
    yield named("data 2, ZeRO 2, a checkpoint each step",
                layout(2, **zero(2), checkpoint={"every": 1}))
    yield named("data 2, ZeRO 3, evaluation", layout(2, **zero(3), evaluation=True))
    yield named("data 2, ZeRO 3, AdamW8bit", layout(2, **zero(3), **optimizer("AdamW8bit")))
    yield named("data 2, ZeRO 1, LoRA", layout(2, **zero(1), **adapter()))
    yield named("data 2, ZeRO 3, LoRA", layout(2, **zero(3), **adapter()))
    yield named("data 2, ZeRO 3, QLoRA nf4", layout(2, **zero(3), **adapter(), **quantized("nf4")))
    yield named("data 2, ZeRO 2, Gloo", layout(2, **zero(2), comm={"backend": "gloo"}))
    yield named("data 2, ZeRO 3, Gloo", layout(2, **zero(3), comm={"backend": "gloo"}))
    yield named("tensor 2", layout(tensor=2))
    yield named("tensor 2, bf16", layout(tensor=2, **bf16))
    yield named("tensor 2, recompute full", layout(tensor=2, **full))
    yield named("tensor 2, LoRA", layout(tensor=2, **adapter()))
    yield named("tensor 2, Granite", layout(tensor=2), "6-narrow-granite")
    for schedule, more in (("1f1b", {}), ("gpipe", {}), ("interleaved", {"virtual_stages": 2}),
                           ("zb-h1", {}), ("zbv", {"virtual_stages": 2})):
        made = layout(pipeline=2, accumulation=4)
        made["parallel"] |= pipeline(schedule, **more)
        yield named(f"pipeline 2, {schedule}", made)
    yield named("pipeline 2, bf16, recompute full", layout(pipeline=2, accumulation=4, **bf16,
                                                           **full))
    # Four ranks.
    yield named("data 4, ZeRO 1", layout(4, **zero(1)))
    yield named("data 4, ZeRO 2", layout(4, **zero(2)))
    yield named("data 4, ZeRO 3", layout(4, **zero(3)))
    replicas = layout(4, **zero(3))
    replicas["parallel"]["data_replicate"] = 2
    yield named("data 4 in 2 replicas, ZeRO 3", replicas)
    yield named("data 2, tensor 2, ZeRO 3", layout(2, tensor=2, **zero(3)))
    yield named("data 2, tensor 2, ZeRO 1", layout(2, tensor=2, **zero(1)))
    yield named("data 2, pipeline 2, ZeRO 1", layout(2, pipeline=2, accumulation=2, **zero(1)))
    yield named("tensor 2, pipeline 2", layout(tensor=2, pipeline=2, accumulation=4))
    yield named("tensor 2, pipeline 2, bf16", layout(tensor=2, pipeline=2, accumulation=4, **bf16))


def written(path, name, model, tokens, settings, out):
    """Writes the config file of a table row."""
    settings = dict(settings)
    data = {"train": str(tokens), "token_dtype": "uint32", "sequence_length": 256}
    train = settings.pop("train", {"steps": STEPS})
    if packing := settings.pop("data_packing", None):
        data["packing"] = packing
    if settings.pop("evaluation", False):
        data["validation"] = str(tokens)
        train = train | {"evaluation": {"every": 1, "samples": 8}}
    path.write_text(json.dumps({
        "model": {"path": str(model)}, "output_dir": str(out), "train": train, "data": data,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
        "checkpoint": {"every": 0}, "export": {"enabled": False}} | settings))


def resident_bytes(pid):
    """Returns a process's anonymous and shared bytes in memory; 0 if it has ended."""
    try:
        text = pathlib.Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return 1024 * sum(int(kib) for kib in re.findall(r"^Rss(?:Anon|Shmem):\s+(\d+) kB", text, re.M))


def rank_below(pid):
    """Returns the id of rank 0's process among a process's children; None if there is none."""
    try:
        below = [int(child) for task in pathlib.Path(f"/proc/{pid}/task").iterdir()
                 for child in (task / "children").read_text().split()]
        named = [child for child in below
                 if pathlib.Path(f"/proc/{child}/comm").read_text().strip() == "ftrun-rank-0"]
    except OSError:
        return None
    return named[0] if named else next(filter(None, map(rank_below, below)), None)


class Peak(threading.Thread):
    """Peak records the most bytes that rank 0 holds until told to end. With a single rank, that may
    be the watched process itself."""

    def __init__(self, root):
        super().__init__()
        self.root = root
        self.ended = False
        self.most = 0

    def run(self):
        rank = None
        while not self.ended:
            rank = rank or rank_below(self.root)
            self.most = max(self.most, resident_bytes(rank or self.root))
            time.sleep(0.01)


def run(binary, config, nproc):
    """Trains; returns the most bytes that rank 0 held, as read from outside."""
    with subprocess.Popen(
            [str(binary), "--config", str(config), "--nproc", str(nproc), "--restarts", "0"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env=os.environ | {"OMP_WAIT_POLICY": "passive"}) as process:
        peak = Peak(process.pid)
        peak.start()
        try:
            told = process.communicate()[0]
        finally:
            peak.ended = True
            peak.join()
    if process.returncode != 0:
        raise RuntimeError(told[-1500:])
    return peak.most


def families(scratch):
    """Makes small models of all families; yields (name, model, tokens, dtype)."""
    out = scratch / "families"
    subprocess.run([sys.executable, ROOT / "tests/model/reference.py", "families", out], check=True,
                   capture_output=True)
    for folder in sorted(out.iterdir()):
        yield folder.name, folder / "model", folder / "data" / "train.bin"


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=ROOT / "build" / "release" / "bin" / "ftrun")
    parser.add_argument("--only", default="")
    parser.add_argument("--families", action="store_true", help="small models of all families too")
    parser.add_argument("--out", type=pathlib.Path, help="a file for the table")
    options = parser.parse_args()
    rows, failed = [], []
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        (scratch / "swap").mkdir()
        wanted = [(name, *random_model.make(shape, scratch / shape), settings)
                  for name, shape, settings in configs(scratch) if options.only in name]
        if options.families:
            short = {"data": {"sequence_length": 32}}
            wanted += [(f"1 rank, {name}, hidden 64", model, tokens, layout() | short)
                       for name, model, tokens in families(scratch)]
        for number, (name, model, tokens, settings) in enumerate(wanted):
            out = scratch / f"run-{number}"
            config = scratch / f"{number}.json"
            more = settings.pop("data", {})
            written(config, name, model, tokens, settings, out)
            if more:
                made = json.loads(config.read_text())
                made["data"] |= more | {"token_dtype": "uint16"}
                config.write_text(json.dumps(made))
            mesh = settings["parallel"]
            nproc = mesh["data"] * mesh["tensor"] * mesh["pipeline"]
            try:
                seen = run(options.binary, config, nproc)
            except RuntimeError as error:
                failed.append(name)
                print(f"{name}: failed: {error}", file=sys.stderr, flush=True)
                continue
            memory = json.loads((out / "run.json").read_text())["memory"]["process"]
            measured = max(seen, memory["measured"])
            rows.append((name, memory, seen, measured))
            print(row_text(*rows[-1]), flush=True)
            subprocess.run(["rm", "-rf", out], check=True)
    report(rows, failed, options.out)
    return 1 if failed else 0


def row_text(name, memory, seen, measured):
    off = memory["predicted"] / measured - 1
    return (f"| {name} | {memory['predicted'] / MIB:.1f} | {memory['working'] / MIB:.1f} "
            f"| {measured / MIB:.1f} | {seen / MIB:.1f} "
            f"| {100 * off:+.2f} % "
            f"| {(memory['predicted'] - measured) / MIB:+.1f} |")


def report(rows, failed, out):
    errors = [memory["predicted"] / measured - 1 for _, memory, _, measured in rows]
    beyond = [row for row, error in zip(rows, errors)
              if abs(error) > WORST_SHARE and abs(row[1]["predicted"] - row[3]) > WORST_BYTES]
    above = [row[0] for row in rows if row[3] > row[1]["predicted"]]
    head = ["| config | predicted, MiB | of it to work in | measured | seen from outside | off "
            "| off, MiB |", "|---|---|---|---|---|---|---|"]
    total = (f"{len(rows)} configs, {datetime.date.today()}, {os.cpu_count()} processors: mean "
             f"error {100 * statistics.mean(map(abs, errors)):.2f} %, worst "
             f"{100 * max(errors, key=abs):+.2f} %; beyond 1.5 % and 16 MiB: {len(beyond)}; "
             f"measured above the prediction: {len(above)}"
             + "".join(f"\n  above: {name}" for name in above)
             + "".join(f"\n  failed: {name}" for name in failed))
    print(f"\n{total}")
    if out:
        out.write_text("\n".join(head + [row_text(*row) for row in rows]) + f"\n\n{total}\n")


if __name__ == "__main__":
    sys.exit(main())
