#!/usr/bin/env python3
"""Training beside the peers, in one run: interleaved pairs of the same job, ratios of each pair.

  tests/bench/train_bench.py --peers FOLDER --case single|ddp|single-mb4|ddp-mb4 [--pairs 5] [--steps 4]
  tests/bench/train_bench.py --bound --pairs 5        only ftrun beside the machine's matrix products

FOLDER holds the baseline trainers (hf_single.py, hf_ddp.py, common.py). The job: SmolLM2-135M, fp32,
sequence 512, no shuffling, AdamW on all tensors, clip 1. A pair counts only when other processes kept
at most 0.05 core busy meanwhile; with fewer than 5 such pairs the result is "not measurable here".
Ratios, by pair: tokens/s (higher is better), peak resident memory of the largest rank and time to the
first forward (lower is better). Losses must agree to 1e-5 relative, gradient norms to 2e-4: the peers sum
theirs in fp32, which alone is off by 1e-4 at this size.
"""
import argparse
import json
import os
import pathlib
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
CASES = {
    "single": dict(script="hf_single.py", ranks=1, mb=1),
    "ddp": dict(script="hf_ddp.py", ranks=2, mb=1),
    "single-mb4": dict(script="hf_single.py", ranks=1, mb=4),
    "ddp-mb4": dict(script="hf_ddp.py", ranks=2, mb=4),
}
QUIET_CORES = 0.05


def busy_seconds():
    fields = [int(x) for x in open("/proc/stat").readline().split()[1:9]]
    return (fields[0] + fields[1] + fields[2] + fields[5] + fields[6] + fields[7]) / os.sysconf("SC_CLK_TCK")


def own_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measured(command, env=None):
    """Runs a command; its output and the cores that other processes kept busy meanwhile."""
    busy, own, start = busy_seconds(), own_seconds(), time.time()
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **(env or {})})
    wall = time.time() - start
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\nexit {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    foreign = max(0.0, (busy_seconds() - busy) - (own_seconds() - own)) / wall
    return done.stdout, foreign


def run_peer(args, case):
    command = [sys.executable, pathlib.Path(args.peers) / case["script"], "--model", args.model, "--data", args.data,
               "--mb", case["mb"], "--steps", args.steps]
    if case["ranks"] > 1:
        command += ["--ranks", case["ranks"]]
    out, foreign = measured([str(word) for word in command], {"PYTHONDONTWRITEBYTECODE": "1"})
    lines = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    summary = next(line for line in lines if "summary" in line)
    steps = [line for line in lines if "step" in line]
    return {"tokens_per_s": summary["tokens_per_s"], "memory": max(summary["peak_rss_mb"]), "ready_s": summary["ready_s"],
            "loss": [s["loss"] for s in steps], "grad_norm": [s["grad_norm"] for s in steps], "foreign": foreign}


def ftrun_config(args, case, out):
    return {
        "model": {"path": str(args.model)},
        "data": {"train": str(args.data), "sequence_length": 512, "shuffle": False},
        "train": {"steps": args.steps, "weight_decay_exempt": "none"},
        "parallel": {"data": case["ranks"]},
        "train_micro_batch_size_per_gpu": case["mb"], "gradient_accumulation_steps": 1, "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}},
        "zero_optimization": {"stage": 0, "overlap_comm": True, "reduce_bucket_size": args.bucket},
        "checkpoint": {"every": 0}, "export": {"enabled": False}, "output_dir": str(out),
    }


def run_ftrun(args, case, scratch):
    out = pathlib.Path(scratch) / "run"
    shutil.rmtree(out, ignore_errors=True)
    config = pathlib.Path(scratch) / "config.json"
    config.write_text(json.dumps(ftrun_config(args, case, out)))
    _, foreign = measured([str(args.binary), "--config", str(config)])
    lines = [json.loads(line) for line in open(out / "metrics.jsonl")]
    run = json.loads((out / "run.json").read_text())
    times = [line["step_seconds"] for line in lines][1:]
    tokens = 512 * case["mb"] * case["ranks"]
    return {"tokens_per_s": tokens / statistics.median(times), "memory": run["counters"].get("peak_resident_bytes", float("nan")) / 2**20,
            "ready_s": run["counters"]["ready_milliseconds"] / 1e3,
            "loss": [line["loss"] for line in lines], "grad_norm": [line["grad_norm"] for line in lines], "foreign": foreign}


def worst(name, ours, theirs, limit):
    off = max(abs(a - b) / abs(b) for a, b in zip(ours, theirs, strict=True))
    print(f"  {name}: agrees to {off:.1e} ({'ok' if off <= limit else 'TOO FAR'}, {limit:g} allowed)")


def compare(args, name):
    case = CASES[name]
    pairs = []
    with tempfile.TemporaryDirectory() as scratch:
        for i in range(args.pairs):
            order = (run_peer, run_ftrun) if i % 2 == 0 else (run_ftrun, run_peer)
            results = {f: f(args, case, scratch) if f is run_ftrun else f(args, case) for f in order}
            pair = (results[run_ftrun], results[run_peer])
            pairs.append(pair)
            print(f"{name} pair {i}: ftrun {pair[0]['tokens_per_s']:.1f} tok/s (foreign {pair[0]['foreign']:.2f}), "
                  f"peer {pair[1]['tokens_per_s']:.1f} (foreign {pair[1]['foreign']:.2f})", flush=True)
    report(name, pairs)


def report(name, pairs):
    quiet = [p for p in pairs if max(p[0]["foreign"], p[1]["foreign"]) <= QUIET_CORES]
    print(f"{name}: {len(quiet)} of {len(pairs)} pairs quiet" + ("" if len(quiet) >= 5 else ": not measurable here"))
    for key, label in (("tokens_per_s", "tokens/s, ftrun ÷ peer"), ("memory", "peak resident memory, ftrun ÷ peer"),
                       ("ready_s", "start to first forward, ftrun ÷ peer")):
        ratios = sorted(p[0][key] / p[1][key] for p in pairs)
        print(f"  {label}: min {ratios[0]:.3f}  median {statistics.median(ratios):.3f}  max {ratios[-1]:.3f}")
    worst("loss", pairs[0][0]["loss"], pairs[0][1]["loss"], 1e-5)
    worst("gradient norm", pairs[0][0]["grad_norm"], pairs[0][1]["grad_norm"], 2e-4)


BOUND = """
import json, sys, time, torch
torch.set_num_threads(int(sys.argv[1]))
D, QKV, F, V, T, L = 576, 960, 1536, 49152, int(sys.argv[2]), 30
def best(m, k, n, repeats=5):
    a, b, c = torch.randn(m, k), torch.randn(k, n), torch.empty(m, n)
    times = []
    for _ in range(repeats):
        start = time.perf_counter(); torch.mm(a, b, out=c); times.append(time.perf_counter() - start)
    return min(times)
def layer(i, o):  # forward, input gradient, weight gradient
    return best(T, i, o) + best(T, o, i) + best(o, T, i)
seconds = L * (layer(D, D) + 2 * layer(D, 192) + layer(D, D) + 2 * layer(D, F) + layer(F, D)) + layer(D, V)
print(json.dumps({"seconds": seconds}))
"""


def bound(args):
    """tokens/s beside what the step's matrix products alone would allow, in the same run."""
    case = CASES["single"]
    ratios = []
    with tempfile.TemporaryDirectory() as scratch:
        for i in range(args.pairs):
            out, foreign = measured([sys.executable, "-c", BOUND, "2", "512"], {"OMP_NUM_THREADS": "2"})
            limit = 512 / json.loads(out)["seconds"]
            ours = run_ftrun(args, case, scratch)
            ratios.append((ours["tokens_per_s"] / limit, max(foreign, ours["foreign"])))
            print(f"bound pair {i}: ftrun {ours['tokens_per_s']:.1f} tok/s, products alone {limit:.1f}, "
                  f"ratio {ratios[-1][0]:.3f}, foreign {ratios[-1][1]:.2f}", flush=True)
    quiet = [r for r, f in ratios if f <= QUIET_CORES]
    print(f"bound: {len(quiet)} of {len(ratios)} pairs quiet" + ("" if len(quiet) >= 5 else ": not measurable here") +
          f"; median ratio {statistics.median(r for r, _ in ratios):.3f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers")
    parser.add_argument("--case", choices=[*CASES, "all"], default="single")
    parser.add_argument("--bound", action="store_true")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--bucket", type=float, default=5e6, help="reduce_bucket_size, elements")
    parser.add_argument("--model", default=ROOT / "models/smollm2-135m")
    parser.add_argument("--data", required=True, help="flat token file (.bin) with meta.json beside it")
    parser.add_argument("--binary", default=ROOT / "build/release/bin/ftrun")
    args = parser.parse_args()
    if args.bound:
        bound(args)
    if args.peers:
        for name in CASES if args.case == "all" else [args.case]:
            compare(args, name)


main()
