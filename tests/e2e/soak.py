"""Kills runs with kill -9 at moments drawn from a seed, every second time while a checkpoint is
written: a random rank or the supervisor of a tiny run that saves in the background, on each layout
in turn. However often this happens, the run must end with the bits of an undisturbed one. No CTest
entry; scripts/soak.sh runs it.

    soak.py SOURCE --kills 40 --seed 1
"""
import argparse
import collections
import pathlib
import random
import tempfile
import time

from layouts import STEPS, VOCABULARY, kinds
from runner import (Job, await_gone, await_save, checkpoints, children, ftrun,
                    incomplete_checkpoints, must, require_same_run, start, tiny_model, tiny_weights)

parser = argparse.ArgumentParser()
parser.add_argument("source")
parser.add_argument("--kills", type=int, default=40)
parser.add_argument("--seed", type=int, default=1)
args = parser.parse_args()

class Soak:
    def __init__(self, scratch):
        scratch = pathlib.Path(scratch)
        self.job = Job(scratch, tiny_model(scratch / "model", tiny_weights(vocabulary=VOCABULARY),
                                           vocab_size=VOCABULARY))
        self.kinds = kinds(scratch)
        self.chance = random.Random(args.seed)
        self.straight = {}
        self.counts = collections.Counter()
        self.of_kind = collections.Counter()
        self.runs = 0

    def kills(self):
        return self.of_kind.total()

    def undisturbed_run(self, kind):
        """Returns the folder of a run that nothing disturbs, and its duration in seconds."""
        if kind not in self.straight:
            ranks, keys = self.kinds[kind]
            name = f"straight-{len(self.straight)}"
            began = time.monotonic()
            self.job.run(name, "--nproc", ranks, **STEPS | keys)
            self.straight[kind] = (self.job.out(name), time.monotonic() - began)
        return self.straight[kind]

    def kill_once(self, kind, running, out, seconds):
        """Kills the run once; returns False if it ended first."""
        ranks = self.kinds[kind][0]
        aimed = self.chance.random() < 0.5
        time.sleep(self.chance.uniform(0.02, 0.7 if aimed else 1.1) * seconds)
        if aimed:
            await_save(running, out, 2 * seconds)
            time.sleep(self.chance.uniform(0, 0.006))
        started = children(running.process.pid) if running.process.poll() is None else []
        who, pid = self.chance.choice([("supervisor", running.process.pid)]
                                      + [("rank", pid) for pid in (started if ranks > 1 else [])])
        writing = bool(incomplete_checkpoints(out))
        try:
            if running.process.poll() is not None:
                raise ProcessLookupError
            running.kill(pid=pid)
        except ProcessLookupError:
            self.counts["after its end"] += 1
            running.process.wait()
            return False
        self.counts[who] += 1
        self.counts["while one was written"] += writing
        self.of_kind[kind] += 1
        running.process.wait()
        await_gone(started, 60)
        return True

    def run(self, kind):
        ranks, keys = self.kinds[kind]
        straight, seconds = self.undisturbed_run(kind)
        name = f"killed-{self.runs}"
        self.runs += 1
        out = self.job.out(name)
        saving = {"checkpoint": {"every": self.chance.choice((1, 2, 3)),
                                 "keep_last": self.chance.choice((1, 2))}}

        def command(number):
            resume = ["--resume", "auto"] if number else []
            return ["--config", self.job.config(name, **STEPS | saving | keys), "--nproc", ranks,
                    *resume]

        for number in range(3):
            if not self.kill_once(kind, start(*command(number)), out, seconds):
                break
        must(ftrun(*command(1)))
        require_same_run(straight, out)
        assert not list((out / "checkpoints").glob("*.tmp-*")), checkpoints(out)
        must(ftrun("verify", out))

    def print_summary(self):
        counts = self.counts
        print(f"kills: seed {args.seed}, {self.runs} runs, {self.kills()} kills: "
              f"{counts['supervisor']} of the supervisor or the only rank, {counts['rank']} of a "
              f"rank, {counts['while one was written']} while a checkpoint was written "
              f"({', '.join(f'{kind}: {count}' for kind, count in self.of_kind.items())}); each "
              "run ended with the bits of an undisturbed one", flush=True)


with tempfile.TemporaryDirectory() as folder:
    soak = Soak(folder)
    deck = []
    while soak.kills() < args.kills:
        if not deck:
            deck = list(soak.kinds)
            soak.chance.shuffle(deck)
        soak.run(deck.pop())
    soak.print_summary()
