#!/usr/bin/env python3
"""Training beside the peers, in one run: interleaved pairs of the same job, ratios of each pair.

  tests/bench/train_bench.py --data train.bin --peers FOLDER --case NAME|all [--pairs 5] [--steps 4]
  tests/bench/train_bench.py --data train.bin --bound      ftrun beside the machine's matrix products
  tests/bench/train_bench.py --data train.bin --plain      ZeRO-3 beside ftrun's own plain data parallel
  tests/bench/train_bench.py --data train.bin --disk       the optimizer on disk beside its update and its transfers
  tests/bench/train_bench.py --data train.bin --ways       memory and tokens/s of ftrun's ways to save memory

FOLDER holds the baseline trainers (hf_single.py, hf_ddp.py, hf_fsdp2.py, ds_zero.py, common.py). The
job: SmolLM2-135M, fp32, sequence 512, no shuffling, AdamW on all tensors, clip 1. A case is ftrun's
settings and one or more peers to run them against; a peer that needs DeepSpeed is left out, with a
message, where --peer-python has none. Pairs are interleaved, and one counts only when other processes
kept at most 0.05 core busy meanwhile; with fewer than 5 such pairs the result is "not measurable here".
Ratios, by pair: tokens/s (higher is better), peak resident memory of the largest rank and time to the
first forward (lower is better). Losses must agree to 1e-5 relative, gradient norms to 2e-4: the peers sum
theirs in fp32, which alone is off by 1e-4 at this size.
"""
import argparse
import json
import os
import pathlib
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
# name: ranks, micro-batch, ftrun's settings (as for --set) and the peers' command lines.
CASES = {
    "single": dict(ranks=1, mb=1, settings=[], peers=["hf_single.py"]),
    "ddp": dict(ranks=2, mb=1, settings=[], peers=["hf_ddp.py"]),
    "single-mb4": dict(ranks=1, mb=4, settings=[], peers=["hf_single.py"]),
    "ddp-mb4": dict(ranks=2, mb=4, settings=[], peers=["hf_ddp.py"]),
    "zero1": dict(ranks=2, mb=1, settings=["zero_optimization.stage=1"], peers=["ds_zero.py --stage 1"]),
    "zero2": dict(ranks=2, mb=1, settings=["zero_optimization.stage=2"], peers=["ds_zero.py --stage 2", "hf_fsdp2.py --keep"]),
    "zero3": dict(ranks=2, mb=1, settings=["zero_optimization.stage=3"], peers=["hf_fsdp2.py", "ds_zero.py --stage 3"]),
    "zero3-recompute": dict(ranks=2, mb=1, settings=["zero_optimization.stage=3", "recompute=full"],
                            peers=["hf_fsdp2.py --ckpt", "hf_fsdp2.py", "ds_zero.py --stage 3 --ckpt"]),
}
CPU, DISK = '{device: cpu}', '{device: nvme, nvme_path: FOLDER}'
# What the README's table shows, on two ranks: settings beside those of plain data parallel.
WAYS = {
    "ZeRO 0 (data parallel)": [],
    "ZeRO 1": ["zero_optimization.stage=1"],
    "ZeRO 2": ["zero_optimization.stage=2"],
    "ZeRO 3": ["zero_optimization.stage=3"],
    "ZeRO 3, selective recompute": ["zero_optimization.stage=3", "recompute=selective"],
    "ZeRO 3, full recompute": ["zero_optimization.stage=3", "recompute=full"],
    "ZeRO 3, bf16": ["zero_optimization.stage=3", "bf16.enabled=true"],
    "ZeRO 3, bf16, full recompute": ["zero_optimization.stage=3", "bf16.enabled=true", "recompute=full"],
    "ZeRO 3, optimizer on the host": ["zero_optimization.stage=3", f"zero_optimization.offload_optimizer={CPU}"],
    "ZeRO 3, optimizer and parameters on disk": ["zero_optimization.stage=3", f"zero_optimization.offload_optimizer={DISK}",
                                                 f"zero_optimization.offload_param={DISK}"],
}
QUIET_CORES = 0.05
SETTLE_SECONDS = 3  # the system takes a while to clear up behind gigabytes of the process before


def busy_seconds():
    fields = [int(x) for x in open("/proc/stat").readline().split()[1:9]]
    return (fields[0] + fields[1] + fields[2] + fields[5] + fields[6] + fields[7]) / os.sysconf("SC_CLK_TCK")


def own_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measured(command, env=None):
    """Runs a command; its output and the cores that other processes kept busy meanwhile."""
    time.sleep(SETTLE_SECONDS)
    busy, own, start = busy_seconds(), own_seconds(), time.time()
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **(env or {})})
    wall = time.time() - start
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\nexit {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    foreign = max(0.0, (busy_seconds() - busy) - (own_seconds() - own)) / wall
    return done.stdout, foreign


def peer_environment(args):
    """DeepSpeed compiles an extension at its first start; a folder of our own keeps it from waiting on another's lock."""
    return {"PYTHONDONTWRITEBYTECODE": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "DS_ACCELERATOR": "cpu",
            "DS_BUILD_OPS": "0", "MAX_JOBS": "2", "TORCH_EXTENSIONS_DIR": str(pathlib.Path(args.scratch) / "torch_extensions"),
            "PATH": f"{pathlib.Path(args.peer_python).parent}:{os.environ['PATH']}"}


def peer_is_there(args, peer):
    if not peer.startswith("ds_"):
        return True
    found = subprocess.run([args.peer_python, "-c", "import deepspeed"], capture_output=True, text=True,
                           env={**os.environ, **peer_environment(args)})
    if found.returncode != 0:
        why = (found.stderr.strip().splitlines() or ["it does not import"])[-1]
        print(f"{peer}: left out, no DeepSpeed for {args.peer_python} ({why}); {args.peers}/setup.sh makes an environment")
    return found.returncode == 0


def run_peer(args, case, peer):
    script, *options = peer.split()
    command = [args.peer_python, pathlib.Path(args.peers) / script, *options, "--model", args.model, "--data", args.data,
               "--mb", case["mb"], "--steps", args.steps]
    if case["ranks"] > 1:
        command += ["--ranks", case["ranks"]]
    out, foreign = measured([str(word) for word in command], peer_environment(args))
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


def kinds_of(printed):
    """Median seconds of each kind of instruction, where wall_clock_breakdown printed them; without the first step."""
    steps = [dict(re.findall(r"(\w+): ([\d.]+)", line)) for line in printed.splitlines() if "time (ms) |" in line][1:]
    return {kind: statistics.median(float(step[kind]) / 1e3 for step in steps) for kind in (steps[0] if steps else [])}


def run_ftrun(args, case, scratch):
    out = pathlib.Path(scratch) / "run"
    shutil.rmtree(out, ignore_errors=True)
    config = pathlib.Path(scratch) / "config.json"
    config.write_text(json.dumps(ftrun_config(args, case, out)))
    settings = [word.replace("FOLDER", f"{scratch}/swap") for setting in [*case["settings"], *args.set] for word in ("--set", setting)]
    printed, foreign = measured([str(args.binary), "--config", str(config), *settings])
    lines = [json.loads(line) for line in open(out / "metrics.jsonl")]
    run = json.loads((out / "run.json").read_text())
    times = [line["step_seconds"] for line in lines][1:]
    tokens = 512 * case["mb"] * case["ranks"]
    return {"tokens_per_s": tokens / statistics.median(times), "memory": run["counters"]["peak_resident_bytes"] / 2**20,
            "ready_s": run["counters"]["ready_milliseconds"] / 1e3, "categories": lines[-1]["memory"], "seconds": statistics.median(times),
            "kinds": kinds_of(printed),
            "loss": [line["loss"] for line in lines], "grad_norm": [line["grad_norm"] for line in lines], "foreign": foreign}


def worst(name, ours, theirs, limit):
    off = max(abs(a - b) / abs(b) for a, b in zip(ours, theirs, strict=True))
    print(f"  {name}: agrees to {off:.1e} ({'ok' if off <= limit else 'TOO FAR'}, {limit:g} allowed)")


def compare(args, name):
    for peer in CASES[name]["peers"]:
        if args.peer in peer and peer_is_there(args, peer):
            pairs(args, f"{name} against {peer}", lambda scratch: run_ftrun(args, CASES[name], scratch),
                  lambda scratch: run_peer(args, CASES[name], peer))


def compare_plain(args):
    pairs(args, "zero3 against plain data parallel", lambda scratch: run_ftrun(args, CASES["zero3"], scratch),
          lambda scratch: run_ftrun(args, CASES["ddp"], scratch))


def repeated(args, name, once):
    """Results of once(i) -> (result, foreign) until --pairs of them were quiet, at most twice as many in all: the quiet
    ones where there are five, else all of them, which are no result but an indication."""
    found = []
    while sum(foreign <= QUIET_CORES for _, foreign in found) < args.pairs and len(found) < 2 * args.pairs:
        found.append(once(len(found)))
    quiet = [result for result, foreign in found if foreign <= QUIET_CORES]
    print(f"{name}: {len(quiet)} of {len(found)} pairs quiet" + ("" if len(quiet) >= 5 else ": not measurable here"))
    return quiet if len(quiet) >= 5 else [result for result, _ in found]


def pairs(args, name, ours, theirs):
    """Runs both by turns, beginning with the one and then the other, and reports their ratios."""
    def once(i):
        results = {run: run(args.scratch) for run in ((theirs, ours) if i % 2 == 0 else (ours, theirs))}
        pair = (results[ours], results[theirs])
        print(f"{name}, pair {i}: " + ", ".join(
            f"{who} {r['tokens_per_s']:.1f} tok/s {r['memory']:.0f} MiB ready {r['ready_s']:.1f} s (foreign {r['foreign']:.2f})"
            for who, r in zip(("ftrun", "peer"), pair)), flush=True)
        return pair, max(r["foreign"] for r in pair)
    report(repeated(args, name, once))


def report(found):
    for key, label in (("tokens_per_s", "tokens/s, ftrun ÷ peer"), ("memory", "peak resident memory, ftrun ÷ peer"),
                       ("ready_s", "start to first forward, ftrun ÷ peer")):
        ratios = sorted(p[0][key] / p[1][key] for p in found)
        print(f"  {label}: min {ratios[0]:.3f}  median {statistics.median(ratios):.3f}  max {ratios[-1]:.3f}")
    worst("loss", found[0][0]["loss"], found[0][1]["loss"], 1e-5)
    worst("gradient norm", found[0][0]["grad_norm"], found[0][1]["grad_norm"], 2e-4)


def disk(args):
    """How long the update takes with the optimizer on disk, beside the longer of its two parts. Short sequences, so that
    little else is in a step; what else there is is that of the same step with the optimizer in memory."""
    common = ["data.sequence_length=32", "zero_optimization.stage=1", "wall_clock_breakdown=true"]
    on_disk = f"zero_optimization.offload_optimizer={DISK}"

    def once(i):
        memory, file = (run_ftrun(args, dict(ranks=1, mb=1, settings=settings), args.scratch) for settings in (common, [*common, on_disk]))
        other = memory["seconds"] - memory["kinds"]["update"]
        update, transfer = file["kinds"]["update"], file["kinds"]["copy"]
        phase = file["seconds"] - other
        ratio, foreign = phase / max(update, transfer), max(memory["foreign"], file["foreign"])
        print(f"disk pair {i}: update with transfers {phase:.2f} s, updates {update:.2f} s, transfers {transfer:.2f} s, ratio {ratio:.2f}, "
              f"foreign {foreign:.2f}", flush=True)
        return ratio, foreign
    print(f"disk: median ratio {statistics.median(repeated(args, 'disk', once)):.2f}")


def ways(args):
    """A table of each way's memory by category, peak and speed: the median over rounds in which each ran once."""
    rounds = []
    for i in range(args.pairs):
        rounds.append({name: run_ftrun(args, dict(ranks=2, mb=1, settings=settings), args.scratch) for name, settings in WAYS.items()})
        foreign = max(run["foreign"] for run in rounds[-1].values())
        print(f"round {i}: foreign {foreign:.2f}; " + ", ".join(f"{name} {run['tokens_per_s']:.0f} tok/s" for name, run in rounds[-1].items()),
              flush=True)
    base = next(iter(WAYS))
    print("| | parameters | gradients | optimizer | activations | peak of a rank | tokens/s | quiet rounds |\n|---|---|---|---|---|---|---|---|")
    for name in WAYS:
        kept = rounds[-1][name]["categories"]
        cells = [f"{kept.get(category, 0) / 2**20:.0f}" for category in ("parameters", "gradients", "optimizer", "activations")]
        peak = statistics.median(r[name]["memory"] for r in rounds)
        quiet = [r for r in rounds if max(r[name]["foreign"], r[base]["foreign"]) <= QUIET_CORES]
        speed = statistics.median(r[name]["tokens_per_s"] / r[base]["tokens_per_s"] for r in quiet or rounds)
        print(f"| {name} | " + " | ".join(cells) + f" | {peak:.0f} | {speed:.2f} | {len(quiet)} of {len(rounds)} |", flush=True)


BOUND = """
import json, sys, time, torch
torch.set_num_threads(int(sys.argv[1]))
D, QKV, F, V, T, L = 576, 960, 1536, 49152, int(sys.argv[2]), 30
def best(a, b, repeats=5):
    c, times = torch.empty(a.shape[0], b.shape[1]), []
    for _ in range(repeats):
        start = time.perf_counter(); torch.mm(a, b, out=c); times.append(time.perf_counter() - start)
    return min(times)
def layer(i, o):  # forward, input gradient, weight gradient, of weights as a model has them
    x, w, dy = torch.randn(T, i), torch.randn(o, i), torch.randn(T, o)
    return best(x, w.t()) + best(dy, w) + best(dy.t(), x)
seconds = L * (layer(D, D) + 2 * layer(D, 192) + layer(D, D) + 2 * layer(D, F) + layer(F, D)) + layer(D, V)
print(json.dumps({"seconds": seconds}))
"""


def bound(args):
    """tokens/s beside what the step's matrix products alone would allow, in the same run."""
    def once(i):
        out, foreign = measured([sys.executable, "-c", BOUND, "2", "512"], {"OMP_NUM_THREADS": "2"})
        limit = 512 / json.loads(out)["seconds"]
        ours = run_ftrun(args, CASES["single"], args.scratch)
        ratio, foreign = ours["tokens_per_s"] / limit, max(foreign, ours["foreign"])
        print(f"bound pair {i}: ftrun {ours['tokens_per_s']:.1f} tok/s, products alone {limit:.1f}, ratio {ratio:.3f}, foreign {foreign:.2f}",
              flush=True)
        return ratio, foreign
    print(f"bound: median ratio {statistics.median(repeated(args, 'bound', once)):.3f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers")
    parser.add_argument("--case", choices=[*CASES, "all"], default="single")
    parser.add_argument("--bound", action="store_true")
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--disk", action="store_true")
    parser.add_argument("--ways", action="store_true")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4, help="at least 2: the first is not timed")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="one more setting of ftrun's config")
    parser.add_argument("--isa", choices=["avx2"], help="hold ftrun, LibTorch and MKL to processors without AVX-512")
    parser.add_argument("--peer", default="", metavar="WORD", help="only the peers whose command line has this in it")
    parser.add_argument("--peer-python", default=sys.executable, help="interpreter of the peers' environment")
    parser.add_argument("--bucket", type=float, default=5e6, help="reduce_bucket_size, elements")
    parser.add_argument("--model", default=ROOT / "models/smollm2-135m")
    parser.add_argument("--data", required=True, help="flat token file (.bin) with meta.json beside it")
    parser.add_argument("--binary", default=ROOT / "build/release/bin/ftrun")
    args = parser.parse_args()
    if args.steps < 2 or not (args.bound or args.plain or args.disk or args.ways or args.peers):
        parser.error("give --peers, --bound, --plain, --disk or --ways, and at least 2 steps")
    if args.isa:
        os.environ.update({"ATEN_CPU_CAPABILITY": args.isa, "MKL_ENABLE_INSTRUCTIONS": args.isa.upper()})
    with tempfile.TemporaryDirectory() as args.scratch:
        if args.bound:
            bound(args)
        if args.plain:
            compare_plain(args)
        if args.disk:
            disk(args)
        if args.ways:
            ways(args)
        if args.peers:
            for name in CASES if args.case == "all" else [args.case]:
                compare(args, name)


main()
