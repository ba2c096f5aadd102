#!/usr/bin/env python3
"""Compares training with other programs (the baselines): interleaved pairs of the same job in one
run, and the ratios of each pair. README.md says how.

  train_bench.py --data train.bin --baselines FOLDER --case NAME|all [--pairs 5] [--steps 4]
                 [--out results.jsonl]
  train_bench.py --data train.bin --baselines FOLDER --case NAME --exact
      compares all programs' losses and gradient norms with those in fp64
  train_bench.py --data train.bin --bound
      compares ftrun with the machine's matrix multiplications, each by its fastest library
  train_bench.py --data train.bin --plain
      compares ftrun's ZeRO-3 with its own plain data parallelism
  train_bench.py --data train.bin --disk
      compares a step with the optimizer on disk with its update and its transfers
  train_bench.py --data train.bin --settings
      shows memory and tokens/s of ftrun's settings that save memory
  train_bench.py --table [--out results.jsonl]
      prints what has been measured so far

The job is SmolLM2-135M in fp32: sequence 512, no shuffling, AdamW on all tensors, clip 1. A case is
ftrun's settings and the baselines to run them against, both as usually configured and at their
sensible best. A pair is one run of each; with two ranks, a third run with ftrun on Gloo shows what
shared memory gains. A pair counts only if other processes kept at most 0.05 core busy during the
timed steps of all its runs; the script runs until --pairs pairs count, or twice as many have run.
Each run is written to --out as soon as it is done, so the same command continues where an earlier
one stopped.
"""
import argparse
import datetime
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from watched_run import QUIET_CORES, step_of_ftrun, step_of_baseline, watch

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = pathlib.Path(__file__).resolve().parent
QUIET_PAIRS = 5     # fewer only indicate a result
SETTLE_SECONDS = 3  # the system needs time to free the previous process's gigabytes
TIMEOUT = 1800
TUNED = "tuned_baseline.py"
# Each name has its ranks, micro-batch, ftrun's settings (as for --set) and the baselines' command
# lines. Those of tuned_baseline.py also get huge pages and tcmalloc.
CASES = {
    "single": dict(ranks=1, mb=1, settings=[], baselines=["hf_single.py", f"{TUNED} single",
                                                      f"{TUNED} single --compile"]),
    "ddp": dict(ranks=2, mb=1, settings=[],
                baselines=["hf_ddp.py", f"{TUNED} ddp", f"{TUNED} ddp --compile"]),
    "single-mb4": dict(ranks=1, mb=4, settings=[],
                       baselines=["hf_single.py", f"{TUNED} single", f"{TUNED} single --compile"]),
    "ddp-mb4": dict(ranks=2, mb=4, settings=[],
                    baselines=["hf_ddp.py", f"{TUNED} ddp", f"{TUNED} ddp --compile"]),
    "zero1": dict(ranks=2, mb=1, settings=["zero_optimization.stage=1"],
                  baselines=["ds_zero.py --stage 1", f"{TUNED} deepspeed --stage 1"]),
    "zero2": dict(ranks=2, mb=1, settings=["zero_optimization.stage=2"],
                  baselines=["ds_zero.py --stage 2", f"{TUNED} deepspeed --stage 2",
                             "hf_fsdp2.py --keep",
                             f"{TUNED} fsdp2 --stage 2 --meta"]),
    "zero3": dict(ranks=2, mb=1, settings=["zero_optimization.stage=3"],
                  baselines=["hf_fsdp2.py", f"{TUNED} fsdp2 --meta",
                             f"{TUNED} fsdp2 --meta --compile", "ds_zero.py --stage 3",
                             f"{TUNED} deepspeed --stage 3 --meta"]),
    "zero3-recompute": dict(ranks=2, mb=1, settings=["zero_optimization.stage=3", "recompute=full"],
                            baselines=["hf_fsdp2.py --ckpt", f"{TUNED} fsdp2 --meta --ckpt",
                                       "hf_fsdp2.py",
                                       "ds_zero.py --stage 3 --ckpt",
                                       f"{TUNED} deepspeed --stage 3 --meta --ckpt"]),
}
CPU, DISK = "{device: cpu}", "{device: nvme, nvme_path: FOLDER}"
# The settings in the tables of docs/memory.md and docs/benchmarks.md, on two ranks: what each adds
# to plain data parallelism.
SETTINGS = {
    "ZeRO 0 (data parallel)": [],
    "ZeRO 1": ["zero_optimization.stage=1"],
    "ZeRO 2": ["zero_optimization.stage=2"],
    "ZeRO 3": ["zero_optimization.stage=3"],
    "ZeRO 3, selective recompute": ["zero_optimization.stage=3", "recompute=selective"],
    "ZeRO 3, full recompute": ["zero_optimization.stage=3", "recompute=full"],
    "ZeRO 3, bf16": ["zero_optimization.stage=3", "bf16.enabled=true"],
    "ZeRO 3, bf16, full recompute": ["zero_optimization.stage=3", "bf16.enabled=true",
                                     "recompute=full"],
    "ZeRO 3, optimizer on the host": ["zero_optimization.stage=3",
                                      f"zero_optimization.offload_optimizer={CPU}"],
    "ZeRO 3, optimizer and parameters on disk": ["zero_optimization.stage=3",
                                                 f"zero_optimization.offload_optimizer={DISK}",
                                                 f"zero_optimization.offload_param={DISK}"],
}
CATEGORIES = ("parameters", "optimizer", "temporary")


# --- one run -------------------------------------------------------------------------------------


def tuned_environment(args):
    """Returns an environment with huge pages for tensors and malloc, and with tcmalloc if it is
    installed."""
    env = {"THP_MEM_ALLOC_ENABLE": "1", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
    return env | ({"LD_PRELOAD": str(args.tcmalloc)} if args.tcmalloc else {})


def baseline_environment(args):
    """Returns the baseline's environment. DeepSpeed compiles an extension at its first start; with
    a folder of its own it does not wait for another process's lock."""
    return {"PYTHONDONTWRITEBYTECODE": "1", "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false", "DS_ACCELERATOR": "cpu",
            "DS_BUILD_OPS": "0", "MAX_JOBS": "2",
            "TORCH_EXTENSIONS_DIR": str(args.cache / "torch_extensions"),
            "TORCHINDUCTOR_CACHE_DIR": str(args.cache / "inductor"),
            "PATH": f"{pathlib.Path(args.baseline_python).parent}:{os.environ['PATH']}"}


def needs_deepspeed(baseline):
    """Returns whether a baseline's command line uses DeepSpeed."""
    return baseline.startswith("ds_") or " deepspeed" in baseline


def has_baseline(args, baseline):
    """Returns whether a baseline can run: DeepSpeed may be missing, which is printed."""
    if not needs_deepspeed(baseline):
        return True
    imported = subprocess.run([args.baseline_python, "-c", "import deepspeed"], capture_output=True,
                              text=True, env={**os.environ, **baseline_environment(args)})
    if imported.returncode != 0:
        reason = (imported.stderr.strip().splitlines() or ["the import failed"])[-1]
        print(f"{baseline}: left out, {args.baseline_python} cannot import DeepSpeed ({reason})")
    return imported.returncode == 0


def json_lines(text):
    """Returns the values of the lines that are JSON objects."""
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def figures(watched, steps, tokens, **more):
    """Returns the figures to compare, for either program. Each program reports its own step times;
    all else is measured from outside."""
    times = [step["step_s"] for step in steps][1:]
    return {"tokens_per_s": tokens / statistics.median(times),
            "first_step_s": watched.first_step_seconds,
            "foreign": watched.foreign_cores, "loss": [s["loss"] for s in steps],
            "grad_norm": [s["grad_norm"] for s in steps],
            "seconds": statistics.median(times)} | more


def tokens_of(case):
    return 512 * case["mb"] * case["ranks"]


def run_baseline(args, case, baseline):
    time.sleep(SETTLE_SECONDS)
    script, *options = baseline.split()
    tuned = script == TUNED
    command = [args.baseline_python, (HERE if tuned else pathlib.Path(args.baselines)) / script,
               *options, "--model", args.model, "--data", args.data,
               "--mb", case["mb"], "--steps", args.steps]
    if tuned:
        command += ["--common", args.baselines]
    if case["ranks"] > 1:
        command += ["--ranks", case["ranks"]]
    environment = baseline_environment(args) | (tuned_environment(args) if tuned else {})
    watched = watch(command, environment, step_of_baseline, TIMEOUT)
    lines = json_lines(watched.output)
    summary = next(line for line in lines if "summary" in line)
    return figures(watched, [line for line in lines if "step" in line], tokens_of(case),
                   memory=max(summary["peak_rss_mb"]))


def ftrun_config(args, case, out):
    return {
        "model": {"path": str(args.model)},
        "data": {"train": str(args.data), "token_dtype": args.token_dtype, "sequence_length": 512,
                 "shuffle": False},
        "train": {"steps": args.steps, "weight_decay_exempt": "none"},
        "parallel": {"data": case["ranks"]},
        "train_micro_batch_size_per_gpu": case["mb"], "gradient_accumulation_steps": 1,
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "betas": [0.9, 0.95], "eps": 1e-8,
                                                  "weight_decay": 0.1}},
        "zero_optimization": {"stage": 0, "overlap_comm": True, "reduce_bucket_size": args.bucket},
        "steps_per_print": 1, "checkpoint": {"every": 0}, "export": {"enabled": False},
        "output_dir": str(out),
    }


def kinds_of(printed):
    """Returns the median seconds of each kind of instruction that wall_clock_breakdown printed,
    without the first step."""
    steps = [dict(re.findall(r"(\w+): ([\d.]+)", line)) for line in printed.splitlines()
             if "time (ms) |" in line][1:]
    return {kind: statistics.median(float(step[kind]) / 1e3 for step in steps)
            for kind in (steps[0] if steps else [])}


def run_ftrun(args, case, settings=()):
    time.sleep(SETTLE_SECONDS)
    out = args.scratch / "run"
    shutil.rmtree(out, ignore_errors=True)
    config = args.scratch / "config.json"
    config.write_text(json.dumps(ftrun_config(args, case, out)))
    words = [word.replace("FOLDER", str(args.scratch / "swap"))
             for setting in [*case["settings"], *settings, *args.set]
             for word in ("--set", setting)]
    watched = watch([args.binary, "--config", config, *words], {}, step_of_ftrun, TIMEOUT)
    lines = [json.loads(line) for line in open(out / "metrics.jsonl")]
    run = json.loads((out / "run.json").read_text())
    shutil.rmtree(out)
    steps = [{**line, "step_s": line["step_seconds"]} for line in lines]
    return figures(watched, steps, tokens_of(case),
                   memory=run["counters"]["peak_resident_bytes"] / 2**20,
                   categories=lines[-1]["memory"], kinds=kinds_of(watched.output))


# --- what has been measured ----------------------------------------------------------------------


class Results:
    """Results holds lines of JSON, one per pair or round: {"name", "when", "quiet", "runs": {who:
    figures}}."""

    def __init__(self, path):
        self.path = pathlib.Path(path)

    def of(self, name):
        return [line for line in self.all() if line["name"] == name]

    def all(self):
        return [json.loads(line) for line in open(self.path)] if self.path.exists() else []

    def add(self, name, runs, **more):
        foreign = max(run["foreign"] for run in runs.values())
        record = {"name": name, "when": datetime.datetime.now().isoformat(timespec="seconds"),
                  "quiet": foreign <= QUIET_CORES,
                  "foreign": foreign, "runs": runs} | more
        with open(self.path, "a") as file:
            file.write(json.dumps(record) + "\n")
        return record


def counted_pairs(records):
    """Returns the quiet pairs if there are enough, else all pairs, which only indicate a result."""
    quiet = [record for record in records if record["quiet"]]
    return quiet if len(quiet) >= QUIET_PAIRS else records


def repeat(args, name, once, print_one):
    """Calls `once(i)` until --pairs of the runs recorded under `name` were quiet, at most twice as
    often in total."""
    while True:
        records = args.results.of(name)
        quiet = sum(record["quiet"] for record in records)
        if quiet >= args.pairs or len(records) >= 2 * args.pairs:
            return records
        print_one(len(records), args.results.add(name, **once(len(records))))


def run_all(runs, i):
    """Runs each run once, beginning with a different one in each round."""
    names = list(runs)
    order = names[i % len(names):] + names[:i % len(names)]
    results = {name: runs[name]() for name in order}
    return {name: results[name] for name in names}


def run_text(name, run):
    return (f"{name} {run['tokens_per_s']:.1f} tokens/s, {run['memory']:.0f} MiB, first step done "
            f"after {run['first_step_s']:.1f} s (other load {run['foreign']:.2f} core)")


def compare(args, name):
    case = CASES[name]
    for baseline in case["baselines"]:
        if args.baseline not in baseline or not has_baseline(args, baseline):
            continue
        runs = {"ftrun": lambda: run_ftrun(args, case),
                "baseline": lambda: run_baseline(args, case, baseline)}
        if case["ranks"] > 1 and not args.no_gloo:
            runs["gloo"] = lambda: run_ftrun(args, case, ["comm.backend=gloo"])
        label = f"{name} | {baseline}"
        repeat(args, label, lambda i: {"runs": run_all(runs, i)},
               lambda i, pair: print(f"{label}, pair {i}: "
                                     + ", ".join(run_text(*run) for run in pair["runs"].items()),
                                     flush=True))


def compare_plain(args):
    runs = {"ftrun": lambda: run_ftrun(args, CASES["zero3"]), "baseline": lambda:
            run_ftrun(args, CASES["ddp"])}
    repeat(args, "zero3 | ftrun's plain data parallel", lambda i: {"runs": run_all(runs, i)},
           lambda i, pair: print(f"plain, pair {i}: "
                                 + ", ".join(run_text(*run) for run in pair["runs"].items()),
                                 flush=True))


def spread(ratios):
    ordered = sorted(ratios)
    return f"{statistics.median(ordered):.2f} × ({ordered[0]:.2f}–{ordered[-1]:.2f})"


def largest_error(values, expected):
    """Returns the largest relative difference of values."""
    return max(abs(a - b) / abs(b) for a, b in zip(values, expected, strict=True))


def pair_row(name, records):
    used = counted_pairs(records)

    def ratio(key, other="baseline"):
        return [r["runs"]["ftrun"][key] / r["runs"][other][key] for r in used if other in r["runs"]]
    quiet = sum(r["quiet"] for r in records)
    gloo = ratio("tokens_per_s", "gloo")
    first = used[0]["runs"]
    return (f"| {name.replace(' | ', ': ')} | {quiet} of "
            f"{len(records)}{'' if quiet >= QUIET_PAIRS else ': not established'} | "
            f"{statistics.median(r['runs']['ftrun']['tokens_per_s'] for r in used):.0f} / "
            f"{statistics.median(r['runs']['baseline']['tokens_per_s'] for r in used):.0f} | "
            f"{spread(ratio('tokens_per_s'))} | {spread(gloo) if gloo else '-'} | "
            f"{spread(ratio('memory'))} | {spread(ratio('first_step_s'))} | "
            f"{largest_error(first['ftrun']['loss'], first['baseline']['loss']):.1e} | "
            f"{largest_error(first['ftrun']['grad_norm'], first['baseline']['grad_norm']):.1e} |")


def settings_rows(records):
    used, rows = counted_pairs(records), []
    base = next(iter(SETTINGS))
    for name in SETTINGS:
        kept = used[-1]["runs"][name]["categories"]
        cells = [f"{kept.get(category, 0) / 2**20:.0f}" for category in CATEGORIES]
        peak = statistics.median(r["runs"][name]["memory"] for r in used)
        speed = [r["runs"][name]["tokens_per_s"] / r["runs"][base]["tokens_per_s"] for r in used]
        rows.append(f"| {name} | " + " | ".join(cells) + f" | {peak:.0f} | "
                                                         f"{statistics.median(speed):.2f} |")
    return rows


def table(args):
    records = args.results.all()
    names = list(dict.fromkeys(record["name"] for record in records))
    pairs = [name for name in names if "baseline" in args.results.of(name)[0]["runs"]]
    if pairs:
        print("| ftrun against | quiet pairs | tokens/s, both | tokens/s | gain by shared memory "
              "instead of Gloo | peak memory of a rank | launch to first step done | losses off | "
              "norms off |\n" + "|---" * 9 + "|")
        print("\n".join(pair_row(name, args.results.of(name)) for name in pairs))
    if "settings" in names:
        found = args.results.of("settings")
        print(f"\n{sum(r['quiet'] for r in found)} of {len(found)} rounds quiet")
        print("| 2 ranks, MiB of a rank | " + " | ".join(CATEGORIES)
              + " | peak of the process | tokens/s |\n" + "|---" * (3 + len(CATEGORIES)) + "|")
        print("\n".join(settings_rows(found)))
    for name in ("bound", "disk"):
        if name in names:
            found = args.results.of(name)
            print(f"\n{name}: {spread([r['ratio'] for r in counted_pairs(found)])}, "
                  f"{sum(r['quiet'] for r in found)} of {len(found)} pairs quiet")
    for name in names:
        if name.startswith("exact | "):
            print(f"\n{name.replace(' | ', ', ')}: "
                  + exact_text(args.results.of(name)[-1]["runs"]))


# --- measurements without a baseline -------------------------------------------------------------


def disk(args):
    """Measures a step's update with the optimizer on disk, compared with the longer of its two
    parts, update and transfers. Sequences are short, so that the step does little else; the rest is
    measured by the same step with the optimizer in memory."""
    common = ["data.sequence_length=32", "zero_optimization.stage=1", "wall_clock_breakdown=true"]
    case = dict(ranks=1, mb=1, settings=common)

    def once(i):
        runs = {"memory": run_ftrun(args, case),
                "disk": run_ftrun(args, case, [f"zero_optimization.offload_optimizer={DISK}"])}
        other = runs["memory"]["seconds"] - runs["memory"]["kinds"]["update"]
        update, transfer = runs["disk"]["kinds"]["update"], runs["disk"]["kinds"]["copy"]
        return {"runs": runs, "ratio": (runs["disk"]["seconds"] - other) / max(update, transfer),
                "update": update, "transfer": transfer}
    repeat(args, "disk", once, lambda i, pair: print(f"disk, pair {i}: updates "
                                                     f"{pair['update']:.2f} s, transfers "
                                                     f"{pair['transfer']:.2f} s, ratio "
                                                     f"{pair['ratio']:.2f}, other load "
                                                     f"{pair['foreign']:.2f} core", flush=True))


def measure_settings(args):
    """Measures each of SETTINGS once per round."""
    runs = {name: (lambda settings=settings: run_ftrun(args,
                                                       dict(ranks=2, mb=1, settings=settings)))
            for name, settings in SETTINGS.items()}
    repeat(args, "settings", lambda i: {"runs": run_all(runs, i)}, lambda i, found: print(
        f"round {i}: other load {found['foreign']:.2f} core; "
        + ", ".join(f"{name} {run['tokens_per_s']:.0f} tokens/s"
                   for name, run in found["runs"].items()), flush=True))


BOUND = """
import ctypes, glob, json, os, sys, time, torch
threads = int(sys.argv[1])
torch.set_num_threads(threads)
D, QKV, F, V, T, L = 576, 960, 1536, 49152, int(sys.argv[2]), 30
def mkl(a, b, c):
    torch.mm(a, b, out=c)
def sides(a, b):  # op, leading dimension and data of each as they lie in memory
    return [("N", x.stride(0), x.data_ptr()) if x.stride(1) == 1
            else ("T", x.stride(1), x.data_ptr()) for x in (a, b)]
def opened(pattern):
    found = glob.glob(os.path.join(sys.prefix, "lib", pattern))
    return ctypes.CDLL(found[0]) if found else None
def onednn(library):
    L64, P, One = ctypes.c_int64, ctypes.c_void_p, ctypes.c_float
    def call(a, b, c):
        (ta, lda, pa), (tb, ldb, pb) = sides(a, b)
        assert library.dnnl_sgemm(ctypes.c_char(ta.encode()), ctypes.c_char(tb.encode()),
                                  L64(a.shape[0]), L64(b.shape[1]), L64(a.shape[1]), One(1), P(pa),
                                  L64(lda), P(pb), L64(ldb), One(0), P(c.data_ptr()),
                                  L64(c.stride(0))) == 0
    return call
def openblas(library):
    library.scipy_openblas_set_num_threads(threads)
    P, One = ctypes.c_void_p, ctypes.c_float
    def call(a, b, c):
        (ta, lda, pa), (tb, ldb, pb) = sides(a, b)
        library.scipy_cblas_sgemm(101, 111 + (ta == "T"), 111 + (tb == "T"), a.shape[0],
                                  b.shape[1], a.shape[1], One(1), P(pa), lda,
                                  P(pb), ldb, One(0), P(c.data_ptr()), c.stride(0))
    return call
libraries = {"mkl": mkl}
for name, make, pattern in (
        ("onednn", onednn, "libdnnl.so.3"),
        ("openblas", openblas, "python3*/site-packages/scipy_openblas32/lib/*.so")):
    library = opened(pattern)
    if library is not None:
        libraries[name] = make(library)
won = {}
def best(a, b, repeats=5):
    c, times = torch.empty(a.shape[0], b.shape[1]), {}
    expected = a @ b
    for name, multiply in libraries.items():
        time.sleep(0.25)  # until the threads of the one before have stopped waiting for more
        for _ in range(repeats):
            start = time.perf_counter(); multiply(a, b, c); seconds = time.perf_counter() - start
            times[name] = min(times.get(name, seconds), seconds)
        assert torch.allclose(c, expected, rtol=1e-3, atol=1e-2), name
    first = min(times, key=times.get)
    won[first] = won.get(first, 0) + 1
    return times[first]
def layer(i, o):  # forward, input gradient, weight gradient, of weights as a model has them
    x, w, dy = torch.randn(T, i), torch.randn(o, i), torch.randn(T, o)
    return best(x, w.t()) + best(dy, w) + best(dy.t(), x)
print(json.dumps({"step": 0}), flush=True)
block = 2 * layer(D, D) + 2 * layer(D, 192) + 2 * layer(D, F) + layer(F, D)
seconds = L * block + layer(D, V)
print(json.dumps({"step": 1, "seconds": seconds, "best": won}), flush=True)
"""


def bound(args):
    """Measures tokens/s, compared with the rate that the step's matrix multiplications alone would
    allow, each by the fastest of all libraries, in the same run."""
    def matmuls():
        time.sleep(SETTLE_SECONDS)
        watched = watch([sys.executable, "-c", BOUND, "2", "512"], {"OMP_NUM_THREADS": "2"},
                        step_of_baseline, TIMEOUT)
        found = json_lines(watched.output)[-1]
        return {"tokens_per_s": 512 / found["seconds"], "best": found["best"],
                "foreign": watched.foreign_cores}

    def once(i):
        runs = {"matmuls": matmuls(), "ftrun": run_ftrun(args, CASES["single"])}
        return {"runs": runs,
                "ratio": runs["ftrun"]["tokens_per_s"] / runs["matmuls"]["tokens_per_s"]}
    repeat(args, "bound", once, lambda i, pair: print(
        f"bound, pair {i}: ftrun {pair['runs']['ftrun']['tokens_per_s']:.1f} tokens/s, its matrix "
        f"multiplications alone {pair['runs']['matmuls']['tokens_per_s']:.1f} (number of shapes "
        f"at which each library is the fastest: {pair['runs']['matmuls']['best']}), ratio "
        f"{pair['ratio']:.3f}, other load {pair['foreign']:.2f} core", flush=True))


def exact_text(runs):
    """Returns a text with the errors of each program's losses and gradient norms."""
    exact_run = runs["fp64"]

    def error(run, key):
        return largest_error(run[key], exact_run[key])
    return "; ".join(f"{program}: loss off by {error(run, 'loss'):.1e}, gradient norm by "
                     f"{error(run, 'grad_norm'):.1e}"
                     for program, run in runs.items() if program != "fp64")


def exact(args, name):
    """Prints losses and gradient norms of ftrun, of each baseline, and of one process in fp64 over
    the same global batches, to show whose rounding causes differences. Speed and load do not matter
    here."""
    case = CASES[name]
    words = [args.baseline_python, HERE / "exact_reference.py", "--common", args.baselines,
             "--model", args.model, "--data", args.data,
             "--mb", case["mb"], "--acc", case["ranks"], "--steps", args.steps]
    lines = json_lines(watch(words, baseline_environment(args), step_of_baseline, TIMEOUT).output)
    steps = [line for line in lines if "step" in line]
    runs = {"fp64": {"loss": [s["loss"] for s in steps],
                     "grad_norm": [s["grad_norm"] for s in steps], "foreign": 0.0},
            "ftrun": run_ftrun(args, case)}
    runs |= {baseline: run_baseline(args, case, baseline) for baseline in case["baselines"]
             if args.baseline in baseline and has_baseline(args, baseline)}
    print(f"{name} against fp64: " + exact_text(args.results.add(f"exact | {name}", runs)["runs"]),
          flush=True)


# --- the command line ----------------------------------------------------------------------------


def flat_data(args):
    """Links the token file into a folder without the files that the baselines read, and without an
    index, which would make it another kind of file."""
    folder = args.scratch / "tokens"
    folder.mkdir()
    (folder / "train.bin").symlink_to(pathlib.Path(args.data).resolve())
    (folder / "meta.json").write_text(json.dumps({"dtype": args.token_dtype}))
    return folder / "train.bin"


def find_tcmalloc():
    for folder in ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64",
                   "/usr/lib"):
        for name in ("libtcmalloc_minimal.so.4", "libtcmalloc.so.4"):
            if (pathlib.Path(folder) / name).exists():
                return pathlib.Path(folder) / name
    return None


def parse():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--baselines", help="folder of the baseline trainers: hf_single.py, "
                                            "hf_ddp.py, hf_fsdp2.py, ds_zero.py, common.py")
    parser.add_argument("--case", choices=[*CASES, "all"], default="single")
    for flag in ("bound", "plain", "disk", "settings", "exact", "table"):
        parser.add_argument(f"--{flag}", action="store_true")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4, help="at least 2: the first is not timed")
    parser.add_argument("--out", default="train_bench.jsonl",
                        help="where results are added, one line a pair")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE",
                        help="one more setting of ftrun's config")
    parser.add_argument("--isa", choices=["avx2"], help="hold ftrun, LibTorch and MKL to "
                                                        "CPUs without AVX-512")
    parser.add_argument("--baseline", default="", metavar="WORD",
                        help="only the baselines whose command line has this in it")
    parser.add_argument("--baseline-python", default=sys.executable,
                        help="interpreter of the baselines' environment")
    parser.add_argument("--tcmalloc", type=pathlib.Path, default=find_tcmalloc(),
                        help="library that tuned baselines preload")
    parser.add_argument("--no-gloo", action="store_true",
                        help="leave out the run of ftrun over Gloo")
    parser.add_argument("--bucket", type=float, default=5e6, help="reduce_bucket_size, elements")
    parser.add_argument("--model", default=ROOT / "models/smollm2-135m")
    parser.add_argument("--data", help="token file (.bin): flat, or of an indexed data set")
    parser.add_argument("--token-dtype", choices=["uint16", "uint32"], default="uint16")
    parser.add_argument("--binary", default=ROOT / "build/release/bin/ftrun")
    args = parser.parse_args()
    if args.steps < 2:
        parser.error("--steps: at least 2, the first is not timed")
    if not args.table and not args.data:
        parser.error("--data is needed")
    if not (args.bound or args.plain or args.disk or args.settings or args.table or args.baselines):
        parser.error("give --baselines, --bound, --plain, --disk, --settings or --table")
    return args


def main():
    args = parse()
    args.results = Results(args.out)
    if args.table:
        return table(args)
    if args.isa:
        os.environ.update({"ATEN_CPU_CAPABILITY": args.isa,
                           "MKL_ENABLE_INSTRUCTIONS": args.isa.upper()})
    if not args.tcmalloc and args.baselines:
        print("no tcmalloc (Debian: libtcmalloc-minimal4): tuned baselines run with huge pages "
              "alone")
    # Code that baselines have compiled is kept between runs: its first use is not measured.
    args.cache = pathlib.Path(args.out).resolve().with_suffix(".cache")
    with tempfile.TemporaryDirectory() as scratch:
        args.scratch = pathlib.Path(scratch)
        args.data = flat_data(args)
        for flag, work in (("bound", bound), ("plain", compare_plain), ("disk", disk),
                           ("settings", measure_settings)):
            if getattr(args, flag):
                work(args)
        if args.baselines:
            for name in CASES if args.case == "all" else [args.case]:
                (exact if args.exact else compare)(args, name)
    table(args)


main()
