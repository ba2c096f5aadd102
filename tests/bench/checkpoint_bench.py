#!/usr/bin/env python3
"""Checkpoints: how long training stands for one, how fast one is written and read, what training loses. README.md says how.

  checkpoint_bench.py --data TOKENS.bin [--model FOLDER] [--pairs 3]                  beside the machine's own limits
  checkpoint_bench.py --data TOKENS.bin --peer-python PYTHON                          beside torch.distributed.checkpoint
  checkpoint_bench.py --data TOKENS.bin --peer-python PYTHON --peer deepspeed         beside DeepSpeed's writer, ZeRO stage 1

One process trains the model in fp32, so a checkpoint holds three floats a parameter. Everything lies below --folder, on
the disk that is measured. The limits are measured in the same run, between trainings: a copy of as many bytes of memory on
as many threads; a file of as many bytes that is written, synced, and read back after the kernel has given up its copy.
"""
import argparse
import concurrent.futures
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

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "ms": 1e-3, "s": 1.0, "min": 60.0}


def quantity(text):
    number, unit = re.fullmatch(r"([\d.]+) ?(\w+)", text).groups()
    return float(number) * UNITS[unit]


# --- ftrun ---------------------------------------------------------------------------------------


def train(args, name, steps, every, background=True, resume=False):
    out, file = args.scratch / name, args.scratch / f"{name}.json"
    if not resume:
        shutil.rmtree(out, ignore_errors=True)
    file.write_text(json.dumps({
        "model": {"path": str(args.model)}, "output_dir": str(out), "threads": args.threads,
        "data": {"train": str(args.data), "token_dtype": "uint16", "sequence_length": args.tokens, "shuffle": False},
        "train": {"steps": steps}, "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": args.accumulation,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}}, "export": {"enabled": False},
        "checkpoint": {"every": every, "keep_last": 2, "background": background}}))
    done = subprocess.run([args.binary, "--config", file, *(["--resume", "auto"] if resume else [])], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stdout[-2000:] + done.stderr[-2000:])
    lines = [json.loads(line) for line in open(out / "metrics.jsonl")]
    return done.stdout, lines, json.loads((out / "run.json").read_text())


def saved(text):
    """(bytes, seconds beside training, pause of training) of each checkpoint that was written in the background."""
    found = re.findall(r"saved \S+ \(([\d.]+ \w+), in ([\d.]+\w+) while training went on, which paused for ([\d.]+ ?\w+)", text)
    return [tuple(map(quantity, one)) for one in found]


# --- what the machine can do -----------------------------------------------------------------------


def copy_seconds(size, threads):
    """Of `size` bytes between two regions whose pages are there, the best of three."""
    count = size // 8
    source, target = np.ones(count), np.zeros(count)
    cuts = np.linspace(0, count, threads + 1).astype(int)
    times = []
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        for _ in range(3):
            start = time.perf_counter()
            list(pool.map(lambda i: np.copyto(target[cuts[i]:cuts[i + 1]], source[cuts[i]:cuts[i + 1]]), range(threads)))
            times.append(time.perf_counter() - start)
    return min(times)


def disk_seconds(folder, size):
    """(write and sync, read from the disk) of one file."""
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
        room = bytearray(8 << 20)
        start = time.perf_counter()
        while file.readinto(room):
            pass
        read = time.perf_counter() - start
    path.unlink()
    return written, read


def beside_the_machine(args):
    for pair in range(args.pairs):
        _, plain, _ = train(args, "plain", args.steps, 0)
        text, lines, run = train(args, "saving", args.steps, args.every)
        found = saved(text)
        size = int(found[0][0])
        count = run["counters"]["checkpoints_saved"]
        # The first copy may meet pages that the kernel has yet to give.
        held = statistics.median(pause for _, _, pause in found[1:] or found)
        copied = copy_seconds(size, args.threads)
        written, read = disk_seconds(args.scratch, size)
        seconds = statistics.median(seconds for _, seconds, _ in found)
        # From one checkpoint to the next, of both trainings the same steps. Those before the first one meet, once in a run,
        # the pages that the kernel has yet to give for the copy.
        whole = range(args.every + 1, args.steps // args.every * args.every + 1)
        step, mean = (statistics.fmean(line["step_seconds"] for line in one if "loss" in line and line["step"] in whole)
                      for one in (plain, lines))
        lost = (mean - step) * args.every + held
        early = [[line["step_seconds"] for line in one if "loss" in line and 1 < line["step"] <= args.every + 1] for one in (plain, lines)]
        once = sum(early[1]) - sum(early[0]) - lost
        print(f"pair {pair + 1}: {size / 2**30:.2f} GiB a checkpoint, {count} of them in {len(lines)} steps of {step:.2f} s\n"
              f"  held {held:.3f} s a checkpoint, {held / copied:.2f} of a copy of as many bytes ({copied:.3f} s)\n"
              f"  written and read back in {seconds:.2f} s beside training; the disk alone {written:.2f} + {read:.2f} s: "
              f"{(written + read) / seconds:.2f} of its rate\n"
              f"  a checkpoint costs training {lost:.2f} s; one every 30 s would cost {lost / 30:.1%}; the first one of a run {once:.2f} s more\n"
              f"  (steps of the training without checkpoints differ by {statistics.stdev(one['step_seconds'] for one in plain if 'loss' in one and one['step'] > 1):.2f} s)",
              flush=True)


# --- the peers -------------------------------------------------------------------------------------

DCP = '''
import json, sys, time, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
folder, shapes = sys.argv[1], json.load(open(sys.argv[2]))
dist.init_process_group("gloo", init_method=f"file://{folder}.store", rank=0, world_size=1)
make = lambda: {f"{kind}.{name}": torch.rand(shape) for name, shape in shapes for kind in ("param", "exp_avg", "exp_avg_sq")}
state = make()
for attempt in range(2):  # the first one makes what it keeps
    start = time.perf_counter()
    future = dcp.async_save(state, storage_writer=dcp.FileSystemWriter(f"{folder}-{attempt}", sync_files=True))
    held = time.perf_counter() - start
    future.result()
    written = time.perf_counter() - start
import os
for root, _, names in os.walk(f"{folder}-1"):
    for name in names:
        with open(os.path.join(root, name), "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
other = make()
start = time.perf_counter()
dcp.load(other, storage_reader=dcp.FileSystemReader(f"{folder}-1"))
print(json.dumps({"held": held, "written": written, "read": time.perf_counter() - start, "same": all(torch.equal(state[k], other[k]) for k in state)}))
'''


# Its writer writes what is synced here afterwards, and a checkpoint of ZeRO's holds the weights of the module beside the states.
DEEPSPEED = '''
import json, os, sys, time, torch, deepspeed
folder, shapes = sys.argv[1], json.load(open(sys.argv[2]))
deepspeed.init_distributed(dist_backend="gloo", init_method=f"file://{folder}.store", rank=0, world_size=1)
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.all = torch.nn.ParameterList(torch.rand(shape) for _, shape in shapes)
    def forward(self):
        return sum(parameter.mean() for parameter in self.all)
def engine():
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    return deepspeed.initialize(model=model, optimizer=optimizer, config={
        "train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 1}, "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False, "steps_per_print": 1 << 30})[0]
one = engine()
one.backward(one())
one.step()
for attempt in range(2):
    start = time.perf_counter()
    one.save_checkpoint(f"{folder}-{attempt}")
    held = time.perf_counter() - start
    paths = [os.path.join(root, name) for root, _, names in os.walk(f"{folder}-{attempt}") for name in names]
    for path in paths:
        with open(path, "rb") as file:
            os.fsync(file.fileno())
    written = time.perf_counter() - start
size = sum(os.path.getsize(path) for path in paths)
for path in paths:
    with open(path, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
other = engine()
start = time.perf_counter()
other.load_checkpoint(f"{folder}-1")
read = time.perf_counter() - start
print(json.dumps({"held": held, "written": written, "read": read, "bytes": size,
                  "same": all(torch.equal(a, b) for a, b in zip(one.module.all, other.module.all))}))
os._exit(0)
'''

PEERS = {"dcp": ("DCP", DCP), "deepspeed": ("DeepSpeed", DEEPSPEED)}


def beside_peer(args):
    called, program = PEERS[args.peer]
    from safetensors import safe_open
    shapes = []
    for path in sorted(args.model.glob("*.safetensors")):
        with safe_open(path, framework="np") as file:
            shapes += [(name, file.get_slice(name).get_shape()) for name in file.keys()]
    (args.scratch / "shapes.json").write_text(json.dumps(shapes))
    script = args.scratch / "peer.py"
    script.write_text(program)
    env = {**os.environ, "DS_ACCELERATOR": "cpu", "DS_BUILD_OPS": "0"}
    for pair in range(args.pairs):
        text, _, _ = train(args, "saving", 6, 2)
        for path in (args.scratch / "saving" / "checkpoints").rglob("*.safetensors"):
            with open(path, "rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        again, _, _ = train(args, "saving", 6, 0, resume=True)
        _, seconds, _ = saved(text)[-1]
        read = quantity(re.search(r"resumed from \S+ \(read in ([\d.]+\w+)\)", again)[1])
        done = subprocess.run([args.peer_python, script, args.scratch / f"peer-{pair}", args.scratch / "shapes.json"],
                              capture_output=True, text=True, env=env)
        if done.returncode:
            sys.exit(done.stdout[-1000:] + done.stderr[-2000:])
        peer = json.loads(done.stdout.splitlines()[-1])
        assert peer["same"], "the peer reads something else than it wrote"
        for path in args.scratch.glob("peer-*"):
            shutil.rmtree(path, ignore_errors=True)
        print(f"pair {pair + 1}: saved in {seconds:.2f} s (read back, beside training), read in {read:.2f} s; {called} held {peer['held']:.2f} s, "
              f"saved in {peer['written']:.2f} s (alone, not read back), read in {peer['read']:.2f} s: "
              f"{(peer['written'] + peer['read']) / (seconds + read):.2f} x as fast", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", default=str(ROOT / "build/release/bin/ftrun"))
    parser.add_argument("--model", type=pathlib.Path, default=ROOT / "models/smollm2-135m")
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--folder", help="on the disk that is measured; the system's temporary folder")
    parser.add_argument("--peer-python", help="with torch, or DeepSpeed: compare with a peer instead")
    parser.add_argument("--peer", choices=PEERS, default="dcp")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=13)
    parser.add_argument("--every", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=256, help="of a sequence")
    parser.add_argument("--accumulation", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    if args.steps < 2 * args.every:
        parser.error("--steps must be twice --every at least: what a checkpoint costs is counted from one to the next")
    with tempfile.TemporaryDirectory(dir=args.folder) as scratch:
        args.scratch = pathlib.Path(scratch)
        (beside_peer if args.peer_python else beside_the_machine)(args)


main()
