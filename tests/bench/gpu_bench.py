#!/usr/bin/env python3
"""Whole trainings on one GPU: tokens/s, memory and hidden copies by ZeRO stage and offload.

  tests/bench/gpu_bench.py --model FOLDER --data train.bin [--binary build/bin/ftrun] [--steps 20] [--way NAME]

Trains SmolLM2-135M (or the model at --model) in bf16 on one rank, each way in a run of its own:

  tokens/s      of the median step, without the first two
  GPU           bytes in use on the GPU at the end, CUDA's own and other processes' among them
  planned       bytes of the device tier, as `ftrun plan` prints them
  host          bytes of the host tier (pinned)
  hidden        share of the time of copies between device and host in which compute had work, from events
                around every instruction. It is taken in a second run (wall_clock_breakdown), because measuring
                waits for the GPU once a step.

Not one figure of it is known yet: it was written without a GPU at hand and has not been run on one.
"""
import argparse
import json
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
HOST = "{device: cpu}"
WAYS = {
    "ZeRO 0": [],
    "ZeRO 1": ["zero_optimization.stage=1"],
    "ZeRO 2": ["zero_optimization.stage=2"],
    "ZeRO 3": ["zero_optimization.stage=3"],
    "ZeRO 2, optimizer on the host": ["zero_optimization.stage=2", f"zero_optimization.offload_optimizer={HOST}"],
    "ZeRO 3, optimizer on the host": ["zero_optimization.stage=3", f"zero_optimization.offload_optimizer={HOST}"],
    "ZeRO 3, parameters on the host": ["zero_optimization.stage=3", f"zero_optimization.offload_param={HOST}"],
    "ZeRO 3, all on the host": ["zero_optimization.stage=3", f"zero_optimization.offload_optimizer={HOST}",
                                f"zero_optimization.offload_param={HOST}"],
    "full recompute": ["recompute=full"],
    "full recompute, inputs on the host": ["recompute=full", "activation_checkpointing.cpu_checkpointing=true"],
}


def config(args, out):
    return {
        "model": {"path": str(args.model)},
        "data": {"train": str(args.data), "sequence_length": args.sequence, "shuffle": False},
        "train": {"steps": args.steps},
        "device": "cuda", "bf16": {"enabled": True},
        "train_micro_batch_size_per_gpu": args.micro_batch, "gradient_accumulation_steps": 1, "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}},
        "zero_optimization": {"stage": 0, "overlap_comm": True},
        "checkpoint": {"every": 0}, "export": {"enabled": False}, "output_dir": str(out),
    }


def run(args, scratch, settings):
    """What a run printed, its manifest and its steps; None and why when it ended with an error."""
    out = pathlib.Path(scratch) / "run"
    shutil.rmtree(out, ignore_errors=True)
    file = pathlib.Path(scratch) / "config.json"
    file.write_text(json.dumps(config(args, out)))
    words = [word for setting in settings for word in ("--set", setting)]
    done = subprocess.run([str(args.binary), "--config", str(file), *words], capture_output=True, text=True)
    if done.returncode != 0:
        return None, done.stderr.strip().splitlines()[-2:]
    manifest = json.loads((out / "run.json").read_text())
    steps = [json.loads(line) for line in open(out / "metrics.jsonl")]
    return (done.stdout + done.stderr, manifest, steps), ""


def hidden(printed):
    """Of all steps but the first two: hidden time over all time of copies."""
    found = [(float(ms), float(share)) for ms, share in
             re.findall(r"copies between device and host: ([\d.]+) ms, (\d+) % of it", printed)][2:]
    total = sum(ms for ms, _ in found)
    return f"{sum(ms * share for ms, share in found) / total:.0f} %" if total > 0 else "no copies"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=pathlib.Path, default=ROOT / "build/bin/ftrun")
    parser.add_argument("--model", type=pathlib.Path, required=True)
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--micro-batch", type=int, default=8)
    parser.add_argument("--sequence", type=int, default=2048)
    parser.add_argument("--way", default="", help="only ways with this in their name")
    args = parser.parse_args()
    if args.steps < 4:
        parser.error("--steps: at least 4, the first two are not counted")
    print(f"bf16, {args.micro_batch} x {args.sequence} tokens a step, one rank")
    print("| way | tokens/s | GPU, MiB | planned, MiB | host, MiB | hidden |\n|---|---|---|---|---|---|")
    failed = 0
    for name, settings in WAYS.items():
        if args.way not in name:
            continue
        with tempfile.TemporaryDirectory() as scratch:
            result, why = run(args, scratch, settings)
            timed, timed_why = run(args, scratch, [*settings, "wall_clock_breakdown=true"])
        if result is None or timed is None:
            failed += 1
            print(f"| {name} | failed: {' '.join(why or timed_why)} |", flush=True)
            continue
        _, manifest, steps = result
        memory = manifest["memory"]
        speed = statistics.median(step["tokens_per_second"] for step in steps[2:])
        mib = [memory["gpu"]["used"], memory["predicted"]["device_total"], memory["predicted"].get("host_total", 0)]
        print(f"| {name} | {speed:.0f} | " + " | ".join(f"{b / 2**20:.0f}" for b in mib) + f" | {hidden(timed[0])} |", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
