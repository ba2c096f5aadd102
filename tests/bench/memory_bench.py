#!/usr/bin/env python3
"""Compares the planned peak memory of a process with the measured one: trains small models with
every setting that runs on CPUs, on 1, 2 and 4 ranks, and prints a table row for each.

    memory_bench.py [--binary build/release/bin/ftrun] [--only WORD] [--families] [--page FILE]

The plan is rank 0's in run.json: what `ftrun plan` prints, what the process held before any weights
were in memory, what it maps of its peers' memory, and an upper bound on other working memory. The
measured peak is the larger of two figures of the kernel: VmHWM during the steps (run.json), and
RssAnon + RssShmem in /proc/PID/status of rank 0's process, read from outside every ten milliseconds
of its life, including loading, evaluation and export.
"""
import argparse
import datetime
import json
import os
import pathlib
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import textwrap
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
    yield named("1 rank, 1 sequence", layout(rows=1))
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
        settings = layout(pipeline=2, accumulation=4)
        settings["parallel"] |= pipeline(schedule, **more)
        yield named(f"pipeline 2, {schedule}", settings)
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


def write_config(path, name, model, tokens, settings, out):
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


def find_rank(pid):
    """Returns the id of rank 0's process among a process's children; None if there is none."""
    try:
        children = [int(child) for task in pathlib.Path(f"/proc/{pid}/task").iterdir()
                    for child in (task / "children").read_text().split()]
        ranks = [child for child in children
                 if pathlib.Path(f"/proc/{child}/comm").read_text().strip() == "ftrun-rank-0"]
    except OSError:
        return None
    return ranks[0] if ranks else next(filter(None, map(find_rank, children)), None)


class Peak(threading.Thread):
    """Peak records the maximum number of bytes that rank 0 holds until `ended` is set. With a
    single rank, rank 0 may be the watched process itself."""

    def __init__(self, root):
        super().__init__()
        self.root = root
        self.ended = False
        self.bytes = 0

    def run(self):
        rank = None
        while not self.ended:
            rank = rank or find_rank(self.root)
            self.bytes = max(self.bytes, resident_bytes(rank or self.root))
            time.sleep(0.01)


def run(binary, config, nproc):
    """Trains; returns the maximum number of bytes that rank 0 held, measured by another process."""
    with subprocess.Popen(
            [str(binary), "--config", str(config), "--nproc", str(nproc), "--restarts", "0"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env=os.environ | {"OMP_WAIT_POLICY": "passive"}) as process:
        peak = Peak(process.pid)
        peak.start()
        try:
            output = process.communicate()[0]
        finally:
            peak.ended = True
            peak.join()
    if process.returncode != 0:
        raise RuntimeError(output[-1500:])
    return peak.bytes


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
    parser.add_argument("--page", type=pathlib.Path,
                        help="docs/memory-peaks.md, whose table is replaced")
    options = parser.parse_args()
    if options.page and not options.page.is_file():
        parser.error(f"--page: {options.page} is not a file")
    rows, failed = [], []
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        (scratch / "swap").mkdir()
        runs = [(name, *random_model.make_model(shape, scratch / shape), settings)
                for name, shape, settings in configs(scratch) if options.only in name]
        if options.families:
            short = {"data": {"sequence_length": 32}}
            runs += [(f"1 rank, {name}, hidden 64", model, tokens, layout() | short)
                     for name, model, tokens in families(scratch)]
        for number, (name, model, tokens, settings) in enumerate(runs):
            out = scratch / f"run-{number}"
            config = scratch / f"{number}.json"
            data = settings.pop("data", {})
            write_config(config, name, model, tokens, settings, out)
            if data:
                content = json.loads(config.read_text())
                content["data"] |= data | {"token_dtype": "uint16"}
                config.write_text(json.dumps(content))
            mesh = settings["parallel"]
            nproc = mesh["data"] * mesh["tensor"] * mesh["pipeline"]
            try:
                peak = run(options.binary, config, nproc)
            except RuntimeError as error:
                failed.append(name)
                print(f"{name}: failed: {error}", file=sys.stderr, flush=True)
                continue
            memory = json.loads((out / "run.json").read_text())["memory"]["process"]
            rows.append((name, memory, max(peak, memory["measured"])))
            print(row_text(rows[-1]), flush=True)
            subprocess.run(["rm", "-rf", out], check=True)
    if rows:
        text = report(rows, failed)
        print("\n" + text)
        if options.page:
            update_page(options.page, text)
    return 1 if failed else 0


def errors_of(row):
    """Returns the error of a prediction: as a share of the measured peak, and in bytes."""
    _, memory, measured = row
    return memory["predicted"] / measured - 1, memory["predicted"] - measured


def row_text(row):
    name, memory, measured = row
    share, size = errors_of(row)
    return (f"| {name} | {memory['predicted'] / MIB:.1f} | {memory['peers'] / MIB:.1f} "
            f"| {memory['working'] / MIB:.1f} | {measured / MIB:.1f} | {100 * share:+.2f} % "
            f"| {size / MIB:+.1f} |")


def machine_text():
    """Describes this machine: number and model of its CPUs, and its kernel."""
    info = pathlib.Path("/proc/cpuinfo").read_text()
    model = re.search(r"^model name\s*: (.+)$", info, re.M)
    units = next((name for flag, name in (("amx_bf16", "AMX"), ("avx512f", "AVX-512"),
                                          ("avx2", "AVX2"))
                  if re.search(rf"\b{flag}\b", info)), "no vector units known")
    return (f"{os.cpu_count()} cores ({model[1] if model else platform.machine()}, {units}), "
            f"Linux {platform.release().split('-')[0]}")


def report(rows, failed):
    """Returns the table and a summary of its errors."""
    under = [row for row in rows if errors_of(row)[1] < 0]
    beyond = [row for row in rows
              if abs(errors_of(row)[0]) > WORST_SHARE and abs(errors_of(row)[1]) > WORST_BYTES]
    worst = max(rows, key=lambda row: abs(errors_of(row)[0]))
    worst_share, worst_bytes = errors_of(worst)
    mean_share, mean_bytes = (statistics.mean(abs(errors_of(row)[i]) for row in rows)
                              for i in (0, 1))
    sentences = [
        f"{len(rows)} training runs, {datetime.date.today()}, {machine_text()}.",
        f"The mean error is {100 * mean_share:.2f} % ({mean_bytes / MIB:.1f} MiB), the worst "
        f"{100 * worst_share:+.2f} % ({worst[0]}, {worst_bytes / MIB:+.1f} MiB).",
        f"{len(beyond)} rows are off by more than {100 * WORST_SHARE} % and "
        f"{WORST_BYTES // MIB} MiB. {len(under)} predictions are under what was measured"
        + (": " + "; ".join(f"{row[0]} by {-errors_of(row)[1] / MIB:.2f} MiB" for row in under)
           if under else "") + "."]
    if failed:
        sentences.append(f"{len(failed)} training runs failed: {'; '.join(failed)}.")
    head = ["| config | predicted | peers | working memory | measured | error "
            "| error, MiB |", "|---|---|---|---|---|---|---|"]
    lines = head + [row_text(row) for row in rows] + [""]
    return "\n".join(lines + textwrap.wrap(" ".join(sentences), 100)) + "\n"


def update_page(page, text):
    """Replaces the text of a page between the two marks of this script."""
    begin, end = "<!-- memory_bench.py writes from here -->\n", "<!-- to here -->\n"
    before, rest = page.read_text().split(begin)
    page.write_text(before + begin + text + end + rest.split(end)[1])


if __name__ == "__main__":
    sys.exit(main())
