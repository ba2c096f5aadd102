#!/usr/bin/env python3
"""Measures checkpoints: how long training pauses, how fast they are written and read, their cost.
README.md says how.

  checkpoint_bench.py --data TOKENS.bin [--model FOLDER] [--pairs 3]
      compares ftrun with the machine's own limits
  checkpoint_bench.py --data TOKENS.bin --baseline-python PYTHON
      compares ftrun with torch.distributed.checkpoint
  checkpoint_bench.py --data TOKENS.bin --baseline-python PYTHON --baseline deepspeed
      compares ftrun with DeepSpeed's writer
  checkpoint_bench.py --data TOKENS.bin --baseline-python PYTHON --baseline deepspeed-decoupled
      compares ftrun with DeepSpeed's writer in a separate process

One process trains the model in fp32, so a checkpoint holds three floats per parameter. All files
are below --folder, on the disk that is measured. The same run measures the machine's limits between
training runs: it copies as many bytes of memory on as many threads; it writes and syncs a file of
as many bytes, drops it from the kernel's page cache, and reads it back.

With a baseline, the two programs take turns in going first. Both save and load in processes of
their own while nothing else runs, except that the pause of training is measured on a save during
training (for the baseline: on its asynchronous save). A save ends when its files and folders are
synced. Before a load, the files are dropped from the page cache in the same way for both. ftrun's
load is all of a resume that reads: choosing the checkpoint, verifying it, and filling the state.
"""
import argparse
import concurrent.futures
import json
import math
import os
import pathlib
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "ms": 1e-3, "s": 1.0, "min": 60.0}


def quantity(text):
    """Returns a number with a unit, such as "1.5 GiB", in bytes or seconds."""
    number, unit = re.fullmatch(r"([\d.]+) ?(\w+)", text).groups()
    return float(number) * UNITS[unit]


# --- ftrun ---------------------------------------------------------------------------------------


def train(args, name, steps, every, background=True, resume=False):
    """Trains; returns (output, lines of metrics.jsonl, run.json)."""
    out, file = args.scratch / name, args.scratch / f"{name}.json"
    if not resume:
        shutil.rmtree(out, ignore_errors=True)
    file.write_text(json.dumps({
        "model": {"path": str(args.model)}, "output_dir": str(out), "threads": args.threads,
        "data": {"train": str(args.data), "token_dtype": "uint16", "sequence_length": args.tokens,
                 "shuffle": False},
        "train": {"steps": steps}, "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": args.accumulation,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}}, "export": {"enabled": False},
        "checkpoint": {"every": every, "keep_last": 2, "background": background}}))
    result = subprocess.run([args.binary, "--config", file,
                             *(["--resume", "auto"] if resume else [])], capture_output=True,
                            text=True)
    if result.returncode:
        sys.exit(result.stdout[-2000:] + result.stderr[-2000:])
    lines = [json.loads(line) for line in open(out / "metrics.jsonl")]
    return result.stdout, lines, json.loads((out / "run.json").read_text())


def parse_saves(text):
    """Returns (bytes, seconds of writing during training, pause of training) of each checkpoint
    that was written in the background."""
    saves = re.findall(r"saved \S+ \(([\d.]+ \w+), in ([\d.]+\w+) while training went on, which "
                       r"paused for ([\d.]+ ?\w+)", text)
    return [tuple(map(quantity, save)) for save in saves]


# --- the machine's limits ------------------------------------------------------------------------


def copy_seconds(size, threads):
    """Returns the seconds of the fastest of three copies of `size` bytes between two regions whose
    pages are mapped."""
    count = size // 8
    source, target = np.ones(count), np.zeros(count)
    cuts = np.linspace(0, count, threads + 1).astype(int)
    times = []
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        for _ in range(3):
            start = time.perf_counter()
            list(pool.map(lambda i: np.copyto(target[cuts[i]:cuts[i + 1]],
                                              source[cuts[i]:cuts[i + 1]]), range(threads)))
            times.append(time.perf_counter() - start)
    return min(times)


def disk_seconds(folder, size):
    """Returns the seconds to (write and sync one file, read it from the disk)."""
    path, piece = folder / "disk", np.random.default_rng(0).bytes(8 << 20)
    start = time.perf_counter()
    with open(path, "wb", buffering=0) as file:
        os.posix_fallocate(file.fileno(), 0, size)
        for _ in range(size // len(piece)):
            file.write(piece)
        os.fsync(file.fileno())
        written = time.perf_counter() - start
    with open(path, "rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        buffer = bytearray(8 << 20)
        start = time.perf_counter()
        while file.readinto(buffer):
            pass
        read = time.perf_counter() - start
    path.unlink()
    return written, read


def costs_within(lines, every, seconds, paused):
    """Returns what each checkpoint but the first cost the training: its pause, and the extra time
    of the steps during its writing over those before and after them. Both are measured within one
    run, since the machine's speed may change by more than that between runs."""
    times = {line["step"]: line["step_seconds"] for line in lines if "loss" in line}
    concurrent_steps = math.ceil(seconds / statistics.median(times.values()))
    costs = []
    if concurrent_steps > every // 2:  # no steps without a save are left in between
        return costs
    for save in range(2 * every, max(times) - every + 1, every):
        during = [times[save + i] for i in range(1, concurrent_steps + 1)]
        others = [times[save + i] for i in range(concurrent_steps + 1 - every, every + 1)
                  if not 1 <= i <= concurrent_steps]
        costs.append(sum(during) - concurrent_steps * statistics.median(others) + paused)
    return costs


def spread_of_costs(costs):
    """Returns a text with the median, the lowest and the highest cost."""
    if not costs:
        return ("not measured (--steps must be at least three times --every, and --every steps "
                "must take at least twice as long as a checkpoint)")
    middle = statistics.median(costs)
    return (f"{middle:.2f} s ({min(costs):.2f} to {max(costs):.2f}, of {len(costs)}), "
            f"{middle / 30:.1%} of 30 s")


def compare_with_machine(args):
    """Prints pauses and speeds of checkpoints, compared with the machine's limits."""
    for pair in range(args.pairs):
        _, plain, _ = train(args, "plain", args.steps, 0)
        text, lines, run = train(args, "saving", args.steps, args.every)
        saves = parse_saves(text)
        size = int(saves[0][0])
        count = run["counters"]["checkpoints_saved"]
        # The first copy may use pages that the kernel has not provided yet.
        paused = statistics.median(pause for _, _, pause in saves[1:] or saves)
        copied = copy_seconds(size, args.threads)
        written, read = disk_seconds(args.scratch, size)
        seconds = statistics.median(seconds for _, seconds, _ in saves)
        # These are all steps from one checkpoint to the next, in both training runs. Steps before
        # the first checkpoint also pay, once per run, for the copy's pages that the kernel has not
        # provided yet.
        counted = range(args.every + 1, args.steps // args.every * args.every + 1)
        step, mean = (statistics.fmean(line["step_seconds"] for line in metrics if "loss" in line
                                       and line["step"] in counted)
                      for metrics in (plain, lines))
        lost = (mean - step) * args.every + paused
        early = [[line["step_seconds"] for line in metrics if "loss" in line
                  and 1 < line["step"] <= args.every + 1] for metrics in (plain, lines)]
        once = sum(early[1]) - sum(early[0]) - lost
        costs = costs_within(lines, args.every, seconds, paused)
        plain_steps = [line["step_seconds"] for line in plain
                       if "loss" in line and line["step"] > 1]
        print(f"pair {pair + 1}: {size / 2**30:.2f} GiB a checkpoint, {count} of them in "
              f"{len(lines)} steps of {step:.2f} s\n  pause of training per checkpoint: "
              f"{paused:.3f} s, {paused / copied:.2f} x the time of a memory copy of the same size "
              f"({copied:.3f} s)\n  written and read back in {seconds:.2f} s during training; the "
              f"disk alone needs {written:.2f} + {read:.2f} s: {(written + read) / seconds:.2f} of "
              f"its rate\n  cost to training, from runs with and without checkpoints: {lost:.2f} s "
              f"per checkpoint, {lost / 30:.1%} of the time with one every 30 s; the first of a "
              f"run {once:.2f} s more\n  cost to training, within one run: "
              f"{spread_of_costs(costs)}\n  standard deviation of step times without checkpoints: "
              f"{statistics.stdev(plain_steps):.2f} s",
              flush=True)


# --- the baselines -------------------------------------------------------------------------------

# Each baseline is a program `BASELINE save|load FOLDER SHAPES` that runs in a process of its own.
# It saves the same state twice, first to allocate the memory that it keeps for later saves, and
# prints the time of the second save. It reports the content of the state that it saved or loaded
# ("state").
BASELINE = '''
import json, os, sys, time, torch
kinds = ("param", "exp_avg", "exp_avg_sq")
def bits(tensors):
    return [int(tensor.contiguous().view(torch.int32).sum(dtype=torch.int64)) for tensor in tensors]
def sync(folder):
    """To the disk, folders too; what is synced already costs nothing."""
    for root, _, names in os.walk(folder):
        for path in [os.path.join(root, name) for name in names] + [root]:
            file = os.open(path, os.O_RDONLY)
            os.fsync(file)
            os.close(file)
def main(save, load):
    action, folder, shapes = sys.argv[1], sys.argv[2], json.load(open(sys.argv[3]))
    torch.manual_seed(0)
    result = save(folder, shapes) if action == "save" else load(folder, shapes)
    print(json.dumps(result), flush=True)
'''

DCP = BASELINE + '''
import torch.distributed as dist, torch.distributed.checkpoint as dcp
def state(shapes):
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
    return {f"{kind}.{name}": torch.rand(shape) for name, shape in shapes for kind in kinds}
def save(folder, shapes):
    tensors = state(shapes)
    for attempt in range(2):
        start = time.perf_counter()
        writer = dcp.FileSystemWriter(f"{folder}-{attempt}", sync_files=True, thread_count=2)
        future = dcp.async_save(tensors, storage_writer=writer)
        paused = time.perf_counter() - start
        future.result()
        sync(f"{folder}-{attempt}")
        durable = time.perf_counter() - start
    return {"paused": paused, "durable": durable, "state": bits(tensors.values())}
def load(folder, shapes):
    tensors = state(shapes)
    for tensor in tensors.values():
        tensor.zero_()
    start = time.perf_counter()
    dcp.load(tensors, storage_reader=dcp.FileSystemReader(f"{folder}-1"))
    return {"load": time.perf_counter() - start, "state": bits(tensors.values())}
if __name__ == "__main__":
    main(save, load)
'''

# DeepSpeed runs without ZeRO, with which fp32 checkpoints hold the weights twice. WRITER is
# replaced by the value of "checkpoint" in its config.
DEEPSPEED = BASELINE + '''
import deepspeed
class Model(torch.nn.Module):
    def __init__(self, shapes):
        super().__init__()
        self.all = torch.nn.ParameterList(torch.rand(shape) for _, shape in shapes)
    def forward(self):
        return sum(parameter.square().mean() for parameter in self.all)
def engine(shapes):
    model = Model(shapes)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    return deepspeed.initialize(model=model, optimizer=optimizer, config={
        "train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 0},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False, "steps_per_print": 1 << 30, "checkpoint": WRITER})[0]
def state(trained):
    states = trained.optimizer.state
    return bits(tensor for p in trained.module.all
                for tensor in (p.detach(), states[p]["exp_avg"], states[p]["exp_avg_sq"]))
def save(folder, shapes):
    trained = engine(shapes)
    trained.backward(trained())
    trained.step()
    for attempt in range(2):
        start = time.perf_counter()
        trained.save_checkpoint(f"{folder}-{attempt}")
        paused = time.perf_counter() - start
        if trained.checkpoint_engine.is_decoupled():
            trained._commit_decoupled_checkpoint()  # what its next step() begins with
        sync(f"{folder}-{attempt}")
        durable = time.perf_counter() - start
    return {"paused": paused, "durable": durable, "state": state(trained)}
def load(folder, shapes):
    trained = engine(shapes)
    start = time.perf_counter()
    trained.load_checkpoint(f"{folder}-1")
    return {"load": time.perf_counter() - start, "state": state(trained)}
if __name__ == "__main__":
    deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False,
                               init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
    main(save, load)
'''

# DeepSpeed's default engine is torch.save. Its "fast" writer needs memory pinned by CUDA; its plain
# one can also run in a separate process.
BASELINES = {"dcp": ("DCP", DCP), "deepspeed": ("DeepSpeed", DEEPSPEED.replace("WRITER", "{}")),
         "deepspeed-decoupled": ("DeepSpeed, decoupled",
                                 DEEPSPEED.replace("WRITER", '{"writer": {"type": "python", '
                                                   '"decoupled": True}}'))}


def evict(folder):
    """Drops files from the kernel's page cache, so that they are read from the disk; returns the
    bytes of all files."""
    size = 0
    for path in folder.rglob("*"):
        if path.is_file():
            with open(path, "rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            size += path.stat().st_size
    return size


def run_ftrun(args):
    """Runs ftrun. The last of three checkpoints is written after the end of training, so that
    nothing else runs, as for the baseline's checkpoints."""
    text, _, _ = train(args, "saving", 6, 2)
    paused = parse_saves(text)[-1][2]
    total, verified = map(quantity, re.findall(r"saved \S+ \([\d.]+ \w+, in ([\d.]+\w+); "
                                               r"([\d.]+\w+) of it to verify it\)", text)[-1])
    size = evict(args.scratch / "saving" / "checkpoints" / "step-00000006")
    again, _, _ = train(args, "saving", 6, 0, resume=True)
    read = quantity(re.search(r"resumed from \S+ \(read in ([\d.]+\w+)\)", again)[1])
    shutil.rmtree(args.scratch / "saving")
    return {"paused": paused, "durable": total - verified, "verified": verified, "load": read,
            "bytes": size}


def run_baseline(args, program):
    script, folder = args.scratch / "baseline.py", args.scratch / "baseline"
    script.write_text(program)
    env = {**os.environ, "DS_ACCELERATOR": "cpu", "DS_BUILD_OPS": "0", "RANK": "0",
           "LOCAL_RANK": "0", "WORLD_SIZE": "1", "OMP_NUM_THREADS": str(args.threads)}

    def once(action):
        started = subprocess.Popen([args.baseline_python, script, action, folder,
                                    args.scratch / "shapes.json"], stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True, env=env,
                                   start_new_session=True)
        lines = []
        for line in started.stdout:
            lines.append(line)
            if line.startswith('{"'):
                break
        try:
            os.killpg(started.pid, signal.SIGKILL)  # including its child processes
        except ProcessLookupError:
            pass
        started.wait()
        if not lines or not lines[-1].startswith('{"'):
            sys.exit("".join(lines)[-3000:])
        return json.loads(lines[-1])
    saved_state = once("save")
    size = evict(args.scratch / "baseline-1")
    loaded = once("load")
    for attempt in range(2):
        shutil.rmtree(args.scratch / f"baseline-{attempt}")
    if saved_state.pop("state") != loaded.pop("state"):
        sys.exit("the baseline reads something else than it wrote")
    return {**saved_state, **loaded, "bytes": size}


def compare_with_baseline(args):
    baseline, program = BASELINES[args.baseline]
    from safetensors import safe_open
    shapes = []
    for path in sorted(args.model.glob("*.safetensors")):
        with safe_open(path, framework="np") as file:
            shapes += [(name, file.get_slice(name).get_shape()) for name in file.keys()]
    (args.scratch / "shapes.json").write_text(json.dumps(shapes))
    ratios = []
    for pair in range(args.pairs):
        runs = {"ftrun": lambda: run_ftrun(args), baseline: lambda: run_baseline(args, program)}
        order = list(runs)[::-1 if pair % 2 else 1]
        results = {name: runs[name]() for name in order}
        seconds = {name: result["durable"] + result["load"] for name, result in results.items()}
        ratios.append(seconds[baseline] / seconds["ftrun"])
        with_verification = seconds["ftrun"] + results["ftrun"]["verified"]
        print(f"pair {pair + 1}: {ratios[-1]:.2f} x as fast (including ftrun's verification after "
              f"writing: {seconds[baseline] / with_verification:.2f} x)", flush=True)
        for name, result in results.items():
            verified = (f", verified from the disk in {result['verified']:.2f} s"
                        if "verified" in result else "")
            print(f"  {name}: {result['bytes'] / 2**30:.2f} GiB, paused {result['paused']:.2f} s, "
                  f"on the disk after {result['durable']:.2f} s{verified}, loaded in "
                  f"{result['load']:.2f} s", flush=True)
    print(f"saved and loaded {statistics.median(ratios):.2f} x as fast as {baseline} "
          f"({min(ratios):.2f} to {max(ratios):.2f}, {len(ratios)} pairs)")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", default=str(ROOT / "build/release/bin/ftrun"))
    parser.add_argument("--model", type=pathlib.Path, default=ROOT / "models/smollm2-135m")
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--folder", help="a folder on the disk to measure (default: the system's "
                                         "temporary folder)")
    parser.add_argument("--baseline-python", help="compare with a baseline; a Python that has "
                                                  "torch or DeepSpeed")
    parser.add_argument("--baseline", choices=BASELINES, default="dcp")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=13)
    parser.add_argument("--every", type=int, default=4,
                        help="steps between checkpoints; half of them should take longer than a "
                             "checkpoint")
    parser.add_argument("--tokens", type=int, default=256, help="tokens of a sequence")
    parser.add_argument("--accumulation", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    if args.steps < 2 * args.every:
        parser.error("--steps must be at least twice --every, because the cost of a checkpoint is "
                     "measured from one checkpoint to the next")
    with tempfile.TemporaryDirectory(dir=args.folder) as scratch:
        args.scratch = pathlib.Path(scratch)
        (compare_with_baseline if args.baseline_python else compare_with_machine)(args)


main()
