#!/usr/bin/env python3
"""Measures whole training runs on one GPU: tokens/s, memory and the share of hidden copies by ZeRO
stage, offload, adapter and kernels.

  tests/bench/gpu_bench.py --model FOLDER --data train.bin [--binary build/release/bin/ftrun]
                           [--steps 12] [--setting NAME]... [--hidden] [--baseline]

Trains the model at --model in bf16 on one rank. Each setting is a run of its own:

  tokens/s      of the median step, without the first two
  TFLOP/s       model FLOPs (below) times tokens/s
  GPU           bytes in use on the GPU at the end, including CUDA's own and other processes'
  planned       bytes of the device tier, as `ftrun plan` prints them
  host          bytes of the host tier (pinned)
  hidden        with --hidden: share of the time of copies between device and host during which
                compute had work, measured with events around every instruction. A second run
                (wall_clock_breakdown) measures it, because this waits for the GPU once per step.

A token's model FLOPs are 6 for each weight that it is multiplied by (4 if the weight is frozen)
and, for causal attention, 6 x layers x query width x sequence length. --baseline compares with a
training loop of transformers on the same weights and tokens: fp32 weights under autocast to bf16,
scaled-dot-product attention, fused AdamW, clipping. It runs as it is and, with --compiled, also
compiled by torch.compile.
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
LORA = "adapter={type: lora, r: 16, lora_alpha: 32, target_modules: all-linear}"
SETTINGS = {
    "ZeRO 0": [],
    "ZeRO 1": ["zero_optimization.stage=1"],
    "ZeRO 2": ["zero_optimization.stage=2"],
    "ZeRO 3": ["zero_optimization.stage=3"],
    "ZeRO 2, optimizer on the host": ["zero_optimization.stage=2",
                                      f"zero_optimization.offload_optimizer={HOST}"],
    "ZeRO 3, optimizer on the host": ["zero_optimization.stage=3",
                                      f"zero_optimization.offload_optimizer={HOST}"],
    "ZeRO 3, parameters on the host": ["zero_optimization.stage=3",
                                       f"zero_optimization.offload_param={HOST}"],
    "ZeRO 3, all on the host": ["zero_optimization.stage=3",
                                f"zero_optimization.offload_optimizer={HOST}",
                                f"zero_optimization.offload_param={HOST}"],
    "captured": ["kernels.step_graph=true"],
    "own attention": ["kernels.attention=own"],
    "cuDNN": ["kernels.attention=cudnn"],
    "cuDNN, captured": ["kernels.attention=cudnn", "kernels.step_graph=true"],
    "LoRA": [LORA],
    "LoRA, cuDNN": [LORA, "kernels.attention=cudnn"],
    "LoRA on NF4": [LORA, "quantization.type=nf4"],
    "full recompute": ["recompute=full"],
    "full recompute, inputs on the host": ["recompute=full",
                                           "activation_checkpointing.cpu_checkpointing=true"],
}


def config(args, out):
    return {
        "model": {"path": str(args.model)},
        "data": {"train": str(args.data), "sequence_length": args.sequence, "shuffle": False},
        "train": {"steps": args.steps},
        "device": "cuda", "bf16": {"enabled": True},
        "train_micro_batch_size_per_gpu": args.micro_batch, "gradient_accumulation_steps": 1,
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}},
        "zero_optimization": {"stage": 0, "overlap_comm": True},
        "checkpoint": {"every": 0}, "export": {"enabled": False}, "output_dir": str(out),
    }


def run_ftrun(args, scratch, settings):
    """Returns a run's output, manifest and steps; None and its last lines if it failed."""
    out = pathlib.Path(scratch) / "run"
    shutil.rmtree(out, ignore_errors=True)
    file = pathlib.Path(scratch) / "config.json"
    file.write_text(json.dumps(config(args, out)))
    words = [word for setting in settings for word in ("--set", setting)]
    result = subprocess.run([str(args.binary), "--config", str(file), *words], capture_output=True,
                            text=True)
    if result.returncode != 0:
        return None, result.stderr.strip().splitlines()[-2:]
    manifest = json.loads((out / "run.json").read_text())
    steps = [json.loads(line) for line in open(out / "metrics.jsonl")]
    return (result.stdout + result.stderr, manifest, steps), ""


def hidden_share_text(printed):
    """Returns the hidden share of the time of copies, over all steps but the first two."""
    found = [(float(ms), float(share)) for ms, share in
             re.findall(r"copies between device and host: ([\d.]+) ms, (\d+) % of it", printed)][2:]
    total = sum(ms for ms, _ in found)
    return f"{sum(ms * share for ms, share in found) / total:.0f} %" if total > 0 else "no copies"


def model_flops(folder, sequence, frozen):
    """Returns the floating-point operations of one token's forward and backward pass, by the
    formula in this file's docstring."""
    c = json.loads((folder / "config.json").read_text())
    heads, kv, size = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
    d, wide = c["hidden_size"], heads * size
    layer = d * (wide + 2 * kv * size) + wide * d + 3 * d * c["intermediate_size"]
    weights = c["num_hidden_layers"] * layer + c["vocab_size"] * d
    return (4 if frozen else 6) * weights + 6 * c["num_hidden_layers"] * wide * sequence


def run_baseline(args, compiled):
    """Returns tokens/s of transformers' own loop, from the median step without the first two, and
    the bytes that torch reserved."""
    import array
    import time
    import torch
    from transformers import AutoModelForCausalLM
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32,
                                                 attn_implementation="sdpa").cuda()
    model.config.use_cache = False
    forward = torch.compile(model) if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    tokens = array.array("I", args.data.read_bytes())
    count = args.micro_batch * args.sequence
    times = []
    for step in range(args.steps):
        at = step * count % (len(tokens) - count)
        ids = torch.tensor(tokens[at:at + count],
                           dtype=torch.int64).view(args.micro_batch, args.sequence).cuda()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        with torch.autocast("cuda", torch.bfloat16):
            loss = forward(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()
        times.append(time.perf_counter() - begin)
    return count / statistics.median(times[2:]), torch.cuda.max_memory_reserved()


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=pathlib.Path, default=ROOT / "build/release/bin/ftrun")
    parser.add_argument("--model", type=pathlib.Path, required=True)
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--micro-batch", type=int, default=8)
    parser.add_argument("--sequence", type=int, default=2048)
    parser.add_argument("--setting", action="append", choices=SETTINGS, help="only these")
    parser.add_argument("--hidden", action="store_true",
                        help="a second run each, for the share of hidden copies")
    parser.add_argument("--baseline", action="store_true",
                        help="transformers' loop on the same GPU, last")
    parser.add_argument("--compiled", action="store_true", help="that loop compiled, too")
    args = parser.parse_args()
    if args.steps < 4:
        parser.error("--steps: at least 4, the first two are not counted")
    print(f"{args.model.name}, bf16, {args.micro_batch} x {args.sequence} tokens a step, one rank")
    print("| setting | tokens/s | TFLOP/s | GPU, MiB | planned, MiB | host, MiB | hidden |\n"
          "|---|---|---|---|---|---|---|")
    failed = 0
    for name, settings in SETTINGS.items():
        if args.setting and name not in args.setting:
            continue
        with tempfile.TemporaryDirectory() as scratch:
            result, why = run_ftrun(args, scratch, settings)
            timed, timed_why = run_ftrun(args, scratch,
                                         [*settings,
                                          "wall_clock_breakdown=true"]) if args.hidden else ([""],
                                                                                             "")
        if result is None or timed is None:
            failed += 1
            print(f"| {name} | failed: {' '.join(why or timed_why)} |", flush=True)
            continue
        _, manifest, steps = result
        memory = manifest["memory"]
        speed = statistics.median(step["tokens_per_second"] for step in steps[2:])
        rate = speed * model_flops(args.model, args.sequence, LORA in settings) * 1e-12
        mib = [memory["gpu"]["used"], memory["predicted"]["device_total"],
               memory["predicted"].get("host_total", 0)]
        print(f"| {name} | {speed:.0f} | {rate:.0f} | "
              + " | ".join(f"{b / 2**20:.0f}" for b in mib) +
              f" | {hidden_share_text(timed[0]) if args.hidden else ''} |", flush=True)
    for compiled in ([False] if args.baseline else []) + ([True] if args.compiled else []):
        speed, reserved = run_baseline(args, compiled)
        rate = speed * model_flops(args.model, args.sequence, False) * 1e-12
        name = "transformers, compiled" if compiled else "transformers"
        print(f"| {name} | {speed:.0f} | {rate:.0f} | {reserved / 2**20:.0f} | | | |", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
