#!/usr/bin/env python3
"""Compares adapters with PEFT in tokens per second and memory, and with full training in step time.
README.md says how.

  lora_bench.py --data TOKENS.bin [--model FOLDER] [--pairs 5]
  lora_bench.py --data TOKENS.bin --model FOLDER --alone
      planned and measured memory of one run on an NF4 base

Each pair trains the same steps in turn, in one process on as many threads: LoRA of rank 16 on all
linear layers with ftrun, the same on an NF4 base, the same with transformers and PEFT, and all
weights with ftrun. With --dora the adapters have magnitudes, and LoRA takes the place of training
all weights. Times are medians of the steps after the first; memory is the process's peak (VmHWM),
libraries included.
"""
import argparse
import json
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]

BASELINE = '''
import json, resource, sys, time
import numpy as np, torch, transformers
from peft import LoraConfig, get_peft_model
model_folder, data = sys.argv[1:3]
tokens, steps, threads = map(int, sys.argv[3:6])
targets, dora = sys.argv[6].split(","), sys.argv[7] == "dora"
torch.set_num_threads(threads)
base = transformers.AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
adapter = LoraConfig(r=16, lora_alpha=32, target_modules=targets, use_dora=dora,
                     task_type="CAUSAL_LM")
model = get_peft_model(base, adapter).train()
trained = [p for p in model.parameters() if p.requires_grad]
optimizer = torch.optim.AdamW(trained, lr=2e-4, weight_decay=0.0)
stream = np.fromfile(data, dtype=np.uint16).astype(np.int64)
times, losses = [], []
for step in range(steps):
    start = time.perf_counter()
    row = torch.from_numpy(stream[step * tokens:(step + 1) * tokens + 1])[None]
    logits = model(input_ids=row[:, :-1], use_cache=False).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), row[0, 1:])
    loss.backward()
    torch.nn.utils.clip_grad_norm_([p for p in model.parameters() if p.requires_grad], 1.0)
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
    times.append(time.perf_counter() - start)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({"times": times, "losses": losses, "peak": peak}))
'''


def run_ftrun(args, adapter, quantized=False, dora=False):
    """Trains with ftrun; returns times, losses, and planned and measured peak memory."""
    out = args.scratch / "run"
    shutil.rmtree(out, ignore_errors=True)
    config = {"model": {"path": str(args.model)}, "output_dir": str(out), "threads": args.threads,
              "data": {"train": str(args.data), "token_dtype": args.token_dtype,
                       "sequence_length": args.tokens, "shuffle": False},
              "train": {"steps": args.steps}, "train_micro_batch_size_per_gpu": 1,
              "gradient_accumulation_steps": 1,
              "gradient_clipping": 1.0,
              "optimizer": {"type": "AdamW", "params": {"lr": 2e-4, "weight_decay": 0.0}},
              "checkpoint": {"every": 0}, "export": {"enabled": False}}
    if adapter:
        config["adapter"] = {"r": 16, "lora_alpha": 32, "target_modules": "all-linear",
                             "use_dora": dora}
    if quantized:
        config["quantization"] = {"type": "nf4"}
    if args.bf16:
        config["bf16"] = {"enabled": True}
    file = args.scratch / "run.json"
    file.write_text(json.dumps(config))
    result = subprocess.run([args.binary, "--config", file], capture_output=True, text=True)
    if result.returncode:
        sys.exit(result.stdout[-2000:] + result.stderr[-2000:])
    lines = [json.loads(line) for line in open(out / "metrics.jsonl")]
    lines = [line for line in lines if "loss" in line and "evaluation" not in line]
    memory = json.loads((out / "run.json").read_text())["memory"]["process"]
    return {"times": [line["step_seconds"] for line in lines],
            "losses": [line["loss"] for line in lines], "peak": memory["measured"],
            "planned": memory["predicted"]}


def run_baseline(args):
    """Trains with PEFT; returns times, losses and peak memory."""
    result = subprocess.run([sys.executable, "-c", BASELINE, args.model, args.data,
                             str(args.tokens), str(args.steps), str(args.threads), ",".join(ALL),
                             "dora" if args.dora else "lora"],
                            capture_output=True, text=True, check=True)
    return json.loads(result.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", default=str(ROOT / "build/release/bin/ftrun"))
    parser.add_argument("--model", type=pathlib.Path, default=ROOT / "models/smollm2-135m")
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=512,
                        help="tokens of a sequence and of a step")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--token-dtype", default="uint16")
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--dora", action="store_true")
    parser.add_argument("--bf16", action="store_true", help="ftrun's runs in bf16")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        args.scratch = pathlib.Path(scratch)
        if args.alone:
            run = run_ftrun(args, True, quantized=True)
            print(f"the process held {run['peak'] / 2**30:.3f} GiB, planned were "
                  f"{run['planned'] / 2**30:.3f} GiB ({run['peak'] / run['planned'] - 1:+.1%}); "
                  f"{statistics.median(run['times'][1:]):.1f} s a step of {args.tokens} tokens")
            return
        for pair in range(args.pairs):
            fp32, nf4 = (run_ftrun(args, True, quantized, args.dora)
                         for quantized in (False, True))
            peft, full = run_baseline(args), run_ftrun(args, args.dora)
            fp32_step, nf4_step, peft_step, full_step = (statistics.median(run["times"][1:])
                                                         for run in (fp32, nf4, peft, full))
            print(f"pair {pair + 1}: {peft_step / fp32_step:.2f} x PEFT's tokens/s, "
                  f"{fp32['peak'] / peft['peak']:.2f} x its memory ({fp32['peak'] / 2**20:.0f} "
                  f"and {peft['peak'] / 2**20:.0f} MiB); a step takes {fp32_step / full_step:.2f} "
                  f"times as long as with {'LoRA' if args.dora else 'full training'} "
                  f"({fp32_step:.2f} s, {full_step:.2f} s), "
                  f"memory {fp32['peak'] / full['peak']:.2f}; first losses "
                  f"{fp32['losses'][0]:.6f}, {peft['losses'][0]:.6f}; NF4 base: "
                  f"{nf4['peak'] / peft['peak']:.2f} x PEFT's fp32 memory "
                  f"({nf4['peak'] / 2**20:.0f} MiB), {fp32_step / nf4_step:.2f} x the speed of "
                  f"the fp32 base, first loss {nf4['losses'][0]:.6f}", flush=True)


main()
