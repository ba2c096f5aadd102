#!/usr/bin/env python3
"""Compares tensor and pipeline parallelism on two ranks of one thread with PyTorch's, and pipeline
schedules with each other. README.md says how.

  parallel_bench.py --tensor --baselines FOLDER [--pairs 5] [--steps 4]
      compares with one process and with torch.distributed.tensor.parallel
  parallel_bench.py --pipeline --baselines FOLDER
      compares with torch.distributed.pipelining
  parallel_bench.py --schedules [--shape 15-layers]
      compares 1F1B with the other schedules: step times, idle shares; takes six minutes
  parallel_bench.py --memory [--stages 1,2,4]
      shows the bytes of each stage under each schedule

Weights and tokens are random (random_model.py). --tensor: eight layers of Qwen2.5-0.5B's shape, one
sequence per step. --pipeline: 15 layers of hidden size 1024, feed-forward size 2816, 16 query and 4
key/value heads, vocabulary 8,192, untied, split as 8 + 7; eight micro-batches of one sequence.
--schedules: the same model at half the width, a quarter of the operations. --memory: 16 layers, two
steps under each schedule. AdamW on all tensors, clip 1, fp32. A round is one run of each, in turn.
FOLDER holds the baselines (torch_tp.py, torch_pp.py and the common.py that they use).
"""
import argparse
import json
import os
import pathlib
import shutil
import statistics
import sys
import tempfile

import random_model
from watched_run import QUIET_CORES, step_of_ftrun, step_of_baseline, watch

ROOT = pathlib.Path(__file__).resolve().parents[2]
TENSOR_SHAPE, PIPELINE_SHAPE, MEMORY_SHAPE = "qwen2.5-0.5b-eight-layers", "15-layers", "16-layers"
SCHEDULES_SHAPE = "15-narrow-layers"
PAIRS = {"tensor": 5, "pipeline": 5, "schedules": 2}
SPLIT = [8, 7]
MICRO_BATCHES = 8
TIMEOUT = 1800
# Each name has its settings and the number of model chunks per stage.
SCHEDULES = {"gpipe": ({}, 1), "1f1b": ({}, 1), "interleaved": ({"virtual_stages": 2}, 2),
             "zb-h1": ({}, 1), "zbv": ({}, 2)}


# --- the job -------------------------------------------------------------------------------------


def config(args, model, out, parallel, micro_batches, steps, threads):
    return {
        "model": {"path": str(model)},
        "data": {"train": str(model / "train.bin"), "token_dtype": "uint32",
                 "sequence_length": args.tokens, "shuffle": False},
        "train": {"steps": steps, "weight_decay_exempt": "none"},
        "parallel": {"data": 1, **parallel},
        "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": micro_batches,
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "betas": [0.9, 0.95], "eps": 1e-8,
                                                  "weight_decay": 0.1}},
        "steps_per_print": 1, "threads": threads, "checkpoint": {"every": 0},
        "export": {"enabled": False}, "output_dir": str(out),
    }


def train(args, model, parallel, micro_batches, steps, threads=1):
    """Trains with ftrun; returns (watched run, lines of metrics, run.json)."""
    out, file = args.scratch / "run", args.scratch / "config.json"
    shutil.rmtree(out, ignore_errors=True)
    file.write_text(json.dumps(config(args, model, out, parallel, micro_batches, steps, threads)))
    watched = watch([args.binary, "--config", file], {}, step_of_ftrun, TIMEOUT)
    lines = [json.loads(line) for line in open(out / "metrics.jsonl")]
    run = json.loads((out / "run.json").read_text())
    shutil.rmtree(out)
    return watched, lines, run


# --- speed ---------------------------------------------------------------------------------------


def figures(watched, seconds, losses, **more):
    return {"seconds": statistics.median(seconds[1:]), "losses": losses,
            "foreign": watched.foreign_cores, **more}


def run_ftrun(args, model, parallel, micro_batches, threads=1):
    watched, lines, run = train(args, model, parallel, micro_batches, args.steps, threads)
    idle = {stage: (shares["idle_per_million"] / 1e4, shares["schedule_idle_per_million"] / 1e4)
            for stage, shares in run.get("pipeline", {}).items()}
    return figures(watched, [line["step_seconds"] for line in lines],
                   [line["loss"] for line in lines], idle=idle)


def run_baseline(args, model, script, *options):
    command = [args.baseline_python, pathlib.Path(args.baselines) / script, "--model", model,
               "--data", model / "train.bin", "--ranks", 2,
               "--seq", args.tokens, "--steps", args.steps, *options]
    env = {"PATH": f"{pathlib.Path(args.baseline_python).parent}:{os.environ['PATH']}",
           "PYTHONDONTWRITEBYTECODE": "1",
           "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    watched = watch(command, env, step_of_baseline, TIMEOUT)
    lines = [json.loads(line) for line in watched.output.splitlines() if line.startswith('{"step"')]
    return figures(watched, [line["step_s"] for line in lines], [line["loss"] for line in lines])


def compare(args, runs):
    """Trains all runs in turn, and compares the first with each other one over the quiet rounds, or
    over all rounds if none was quiet."""
    baseline, *others = runs
    rounds = []
    for i in range(args.pairs):
        names = list(runs)
        order = names[i % len(names):] + names[:i % len(names)]
        results = {name: runs[name]() for name in order}
        rounds.append(results)

        def comparison_text(name):
            pairs = zip(results[baseline]["losses"], results[name]["losses"], strict=True)
            error = max(abs(a - b) / b for a, b in pairs)
            ratio = results[name]["seconds"] / results[baseline]["seconds"]
            return (f"{name} {results[name]['seconds']:.2f} s, {ratio:.2f} x, losses differ by "
                    f"{error:.1e}")

        foreign = max(run["foreign"] for run in results.values())
        print(f"round {i + 1}: {baseline} {results[baseline]['seconds']:.2f} s; "
              + "; ".join(comparison_text(name) for name in others)
              + f"; other load at most {foreign:.2f} core", flush=True)
        for name, run in results.items():
            for stage, (idle, schedule) in run.get("idle", {}).items():
                print(f"  {name}, {stage}: waits {idle:.1f} % of its steps, by the schedule "
                      f"{schedule:.1f} %", flush=True)
    quiet = [results for results in rounds
             if max(run["foreign"] for run in results.values()) <= QUIET_CORES]
    for name in others:
        ratios = sorted(results[name]["seconds"] / results[baseline]["seconds"]
                        for results in quiet or rounds)
        print(f"{baseline} is {statistics.median(ratios):.2f} x as fast as {name} "
              f"({ratios[0]:.2f} to {ratios[-1]:.2f}; {len(quiet)} of {len(rounds)} rounds "
              f"quiet{'' if quiet else ': no result'})")
    return quiet or rounds


def compare_tensor(args):
    model = random_model.make_model(TENSOR_SHAPE, args.scratch / "model")[0]
    compare(args, {
        "tensor 2": lambda: run_ftrun(args, model, {"tensor": 2}, 1),
        "one process of two threads": lambda: run_ftrun(args, model, {}, 1, threads=2),
        "PyTorch": lambda: run_baseline(args, model, "torch_tp.py"),
        "PyTorch, sequence parallel": lambda: run_baseline(args, model, "torch_tp.py", "--sp"),
    })


def pipeline(schedule, split):
    return {"pipeline": 2, "schedule": schedule, **({"pipeline_layers": split} if split else {}),
            **SCHEDULES[schedule][0]}


def compare_pipeline(args):
    model = random_model.make_model(PIPELINE_SHAPE, args.scratch / "model")[0]
    compare(args, {
        "1f1b": lambda: run_ftrun(args, model, pipeline("1f1b", SPLIT), MICRO_BATCHES),
        "PyTorch": lambda: run_baseline(args, model, "torch_pp.py", "--acc", MICRO_BATCHES,
                                    "--schedule", "1f1b", "--split",
                                    ",".join(map(str, SPLIT))),
    })


def compare_schedules(args):
    """Compares schedules on a model that ftrun itself divides into four chunks."""
    names = [name for name in SCHEDULES if name != "gpipe"]
    print(f"{args.shape}, {args.tokens} tokens, {MICRO_BATCHES} micro-batches, two stages",
          flush=True)
    model = random_model.make_model(args.shape, args.scratch / "model")[0]

    def run(name):
        layers = SPLIT if SCHEDULES[name][1] == 1 else None
        return run_ftrun(args, model, pipeline(name, layers), MICRO_BATCHES)

    rounds = compare(args, {name: (lambda name=name: run(name)) for name in names})

    def median_of(name, value):
        return statistics.median(value(results[name], results["1f1b"]) for results in rounds)

    def mean_idle(run, which):
        return statistics.mean(shares[which] for shares in run["idle"].values())

    print("\n| schedule | step | of 1f1b's | stage 0 waits (by the schedule) | stage 1 waits (by "
          "the schedule) | both wait less than under 1f1b, points (by the schedule) |\n"
          "|---|---|---|---|---|---|")
    for name in names:
        idle = [[median_of(name, lambda run, _: run["idle"][f"stage {stage}"][which])
                 for which in (0, 1)] for stage in (0, 1)]
        less = [median_of(name, lambda run, base: mean_idle(base, which) - mean_idle(run, which))
                for which in (0, 1)]
        print(f"| {name} | {median_of(name, lambda run, _: run['seconds']):.2f} s | "
              f"{median_of(name, lambda run, base: run['seconds'] / base['seconds']):.3f} | " +
              " | ".join(f"{measured:.1f} % ({schedule:.1f})" for measured, schedule in idle)
              + f" | {less[0]:.1f} ({less[1]:.1f}) |")


# --- memory --------------------------------------------------------------------------------------


def in_flight(schedule, stages, stage, micro_batches):
    """Returns the maximum number of micro-batches whose activations a stage keeps, in units of
    whole stages, according to the schedules' papers: GPipe (Huang et al. 2019), 1F1B (Narayanan et
    al. 2019), interleaved 1F1B (Narayanan et al. 2021), ZB-H1 and ZBV (Qi et al. 2024)."""
    if schedule == "gpipe":
        return micro_batches
    if schedule == "1f1b":
        return min(micro_batches, stages - stage)
    if schedule == "interleaved":
        return min(2 * micro_batches, stages + 2 * (stages - 1 - stage) + 1) / 2
    return min(micro_batches, stages)


def stage_bytes(args, model, schedule, stages, micro_batches):
    """Returns each stage's bytes by category, or those of one process without a pipeline."""
    more, _ = SCHEDULES[schedule]
    parallel = {"pipeline": stages, "schedule": schedule, **more} if stages > 1 else {}
    _, lines, run = train(args, model, parallel, micro_batches, 2)
    if stages == 1:
        return [{**lines[-1]["memory"], "process": run["memory"]["process"]["measured"]}]
    return [run["memory"][f"stage {stage}"] for stage in range(stages)]


def compare_memory(args):
    """Compares memory. The activations of one micro-batch are a quarter of the difference between
    GPipe runs with 4 and with 8 micro-batches; gradients and scratch reuse memory of freed
    activations."""
    model = random_model.make_model(MEMORY_SHAPE, args.scratch / "model")[0]
    print("| stages | schedule | stage | parameters | optimizer | temporary | of it in flight | "
          "process |")
    print("|---|---|---|---|---|---|---|---|")
    for stages in args.stages:
        half, full = (stage_bytes(args, model, "gpipe", stages, count)
                      for count in (MICRO_BATCHES // 2, MICRO_BATCHES))
        if stages == 1:
            half = full
        for schedule in SCHEDULES if stages > 1 else ["1f1b"]:
            by_stage = (full if schedule == "gpipe" or stages == 1
                        else stage_bytes(args, model, schedule, stages, MICRO_BATCHES))
            for stage, used in enumerate(by_stage):
                per_batch = ((full[stage]["temporary"] - half[stage]["temporary"])
                             / (MICRO_BATCHES // 2))
                count = in_flight(schedule, stages, stage, MICRO_BATCHES)
                mib = [used[name] / 2**20 for name in ("parameters", "optimizer", "temporary")]
                activations = f"{count:g} x {per_batch / 2**20:.1f}" if stages > 1 else "1"
                print(f"| {stages} | {schedule if stages > 1 else '-'} | {stage} | "
                      + " | ".join(f"{x:.1f}" for x in mib) +
                      f" | {activations} | {used['process'] / 2**20:.0f} |", flush=True)


COMPARISONS = {"tensor": compare_tensor, "pipeline": compare_pipeline,
               "schedules": compare_schedules, "memory": compare_memory}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    group = parser.add_mutually_exclusive_group(required=True)
    for name in COMPARISONS:
        group.add_argument(f"--{name}", dest="comparison", action="store_const", const=name)
    parser.add_argument("--binary", default=str(ROOT / "build/release/bin/ftrun"))
    parser.add_argument("--baselines")
    parser.add_argument("--baseline-python", default=sys.executable)
    parser.add_argument("--pairs", type=int, help="number of rounds (default: 5; with --schedules "
                                                  "2)")
    parser.add_argument("--shape", default=SCHEDULES_SHAPE,
                        help="the model's shape with --schedules (random_model.py)")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=512, help="tokens of a sequence")
    parser.add_argument("--stages",
                        type=lambda text: [int(part)
                                           for part in text.split(",")], default=[1, 2, 4])
    args = parser.parse_args()
    args.pairs = args.pairs or PAIRS.get(args.comparison)
    if args.comparison in ("tensor", "pipeline") and not args.baselines:
        parser.error(f"--{args.comparison} needs --baselines FOLDER")
    with tempfile.TemporaryDirectory() as scratch:
        args.scratch = pathlib.Path(scratch)
        COMPARISONS[args.comparison](args)


if __name__ == "__main__":
    main()
