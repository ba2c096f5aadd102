"""kill -9 at random moments, drawn from a seed: a random rank or the supervisor of a tiny run that saves in the background.
However often that happens, the run ends with the bits of one that nobody disturbed. No CTest entry: scripts/soak.sh runs it.

    soak.py SOURCE --kills 40 --seed 1
"""
import argparse
import random
import tempfile
import time

from runner import Job, await_gone, checkpoints, children, ftrun, must, same_run, start

parser = argparse.ArgumentParser()
parser.add_argument("source")
parser.add_argument("--kills", type=int, default=40)
parser.add_argument("--seed", type=int, default=1)
args = parser.parse_args()

STEPS = {"train": {"steps": 40}, "scheduler": {"type": "cosine", "params": {"warmup_num_steps": 3}},
         "optimizer": {"type": "AdamW", "params": {"lr": 3e-3, "weight_decay": 0.1}},
         "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2}

with tempfile.TemporaryDirectory() as scratch:
    job = Job(scratch)
    disk = {"device": "nvme", "nvme_path": str(job.scratch / "swap")}
    KINDS = {
        "one rank": (1, {}),
        "two ranks": (2, {}),
        "three ranks, stage 3": (3, {"zero_optimization": {"stage": 3}}),
        "two ranks, disk tier": (2, {"zero_optimization": {"stage": 3, "offload_optimizer": disk, "offload_param": disk}}),
    }
    chance = random.Random(args.seed)
    straight = {}
    counts = {"supervisor": 0, "rank": 0, "after its end": 0, "while one was written": 0}
    number = 0
    while sum(counts[who] for who in ("supervisor", "rank")) < args.kills:
        kind = chance.choice(list(KINDS))
        ranks, keys = KINDS[kind]
        if kind not in straight:
            began = time.monotonic()
            job.run(f"straight-{len(straight)}", "--nproc", ranks, **STEPS, **keys)
            straight[kind] = (job.out(f"straight-{len(straight)}"), time.monotonic() - began)
        undisturbed, seconds = straight[kind]
        name = f"killed-{number}"
        number += 1
        saving = {"checkpoint": {"every": chance.choice((1, 2, 3)), "keep_last": chance.choice((1, 2))}}
        for start_number in range(3):
            config = job.config(name, **STEPS, **saving, **keys)
            running = start("--config", config, "--nproc", ranks, *(["--resume", "auto"] if start_number else []))
            time.sleep(chance.uniform(0.02, 1.1) * seconds)
            started = children(running.process.pid) if running.process.poll() is None else []
            victims = [("supervisor", running.process.pid)] + [("rank", pid) for pid in (started if ranks > 1 else [])]
            who, pid = chance.choice(victims)
            if running.process.poll() is not None:
                counts["after its end"] += 1
                break
            writing = list((job.out(name) / "checkpoints").glob("step-*.tmp-*"))
            try:
                running.kill(pid=pid)
            except ProcessLookupError:
                counts["after its end"] += 1
                running.process.wait()
                break
            counts[who] += 1
            counts["while one was written"] += bool(writing)
            running.process.wait()
            await_gone(started, 60)
        must(ftrun("--config", job.config(name, **STEPS, **saving, **keys), "--nproc", ranks, "--resume", "auto"))
        same_run(undisturbed, job.out(name))
        assert not list((job.out(name) / "checkpoints").glob("*.tmp-*")), checkpoints(job.out(name))
        must(ftrun("verify", job.out(name)))
    print(f"kills: seed {args.seed}, {number} runs, {counts['supervisor']} of the supervisor or the only rank, {counts['rank']} of a rank, "
          f"{counts['while one was written']} while a checkpoint was written; each run ended with the bits of an undisturbed one")
