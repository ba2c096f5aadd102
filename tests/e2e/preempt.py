"""Counts how often the contract of pre-emption holds: a stop signal at any instant ends a run in
time, and the resumed run has the bits of an undisturbed one. Instants, signals and their receivers
are drawn from a seed; half of the signals are aimed at a phase. The CTest entry e2e.preempt makes a
few such stops; this script makes many, as recorded in docs/reliability.md:

    preempt.py SOURCE --signals 200 --seed 1
"""

import argparse
import collections
import json
import os
import pathlib
import random
import signal
import statistics
import sys
import tempfile
import time

import numpy as np

from layouts import STEPS, VOCABULARY, kinds
from runner import (
    Job,
    await_gone,
    await_save,
    await_that,
    incomplete_checkpoints,
    checkpoints,
    children,
    ftrun,
    manifest,
    must,
    require_same_run,
    start,
    steps,
    tiny_model,
    tiny_weights,
)

CODES = {signal.SIGUSR1: 75, signal.SIGTERM: 143, signal.SIGINT: 130, signal.SIGHUP: 129}
# Schedulers' warnings are drawn more often than the signals that people send.
DRAWN = [signal.SIGUSR1] * 5 + [signal.SIGTERM] * 3 + [signal.SIGINT, signal.SIGHUP]
# SLURM kills 30 s after SIGTERM by default.
IN_TIME = 30
PHASES = ("start", "save", "validation", "text", "export", "any", "any", "any", "any", "any")


def writer_model(folder):
    """Writes a model that can generate words and has no token that ends a text. Its folder has a
    large file, so that an export takes a moment."""
    tiny_model(
        folder, tiny_weights(vocabulary=VOCABULARY), vocab_size=VOCABULARY, eos_token_id=None
    )
    words = {
        "model": {"type": "BPE", "vocab": {f"w{i}": i for i in range(VOCABULARY)}},
        "decoder": {"type": "ByteLevel"},
    }
    (folder / "tokenizer.json").write_text(json.dumps(words))
    with open(folder / "notes.txt", "wb") as notes:
        notes.truncate(64 << 20)
    return folder


def count_steps(out):
    """Returns the number of steps in the run's metrics."""
    return len(steps(out)) if (out / "metrics.jsonl").exists() else 0


def require_saved(out, number, code, what):
    """Checks that the run ended with the signal's code, and saved what it had trained."""
    assert code == CODES[number], what
    if not (out / "run.json").exists():
        return
    assert not incomplete_checkpoints(out), f"{incomplete_checkpoints(out)}: {what}"
    last_step = count_steps(out)
    if (
        last_step > 0
        and manifest(out).get("exit_reason") == f"stopped by {number.name} after step {last_step}"
    ):
        assert f"step-{last_step:08}" in checkpoints(out), f"step {last_step} was not saved: {what}"


class PreemptionTrial:
    def __init__(self, scratch, seed):
        scratch = pathlib.Path(scratch)
        self.job = Job(scratch, writer_model(scratch / "model"))
        self.validation = scratch / "validation.bin"
        np.random.default_rng(seed).integers(VOCABULARY, size=40_000, dtype=np.uint16).tofile(
            self.validation
        )
        self.kinds = kinds(scratch)
        self.seed = seed
        self.chance = random.Random(seed)
        self.straight = {}
        self.of_kind, self.of_phase, self.of_signal = (
            collections.Counter(),
            collections.Counter(),
            collections.Counter(),
        )
        self.late = 0
        self.seconds = []
        self.runs = 0

    def count(self):
        return len(self.seconds)

    def settings(self, kind):
        keys = STEPS | self.kinds[kind][1]
        train = keys["train"] | {
            "evaluation": {"every": 10, "samples": 400},
            "generate": {"prompt_tokens": 4, "tokens": 40},
        }
        return keys | {
            "train": train,
            "steps_per_print": 1,
            "data": {
                "sequence_length": 32,
                "validation": str(self.validation),
                "token_dtype": "uint16",
            },
        }

    def undisturbed_run(self, kind):
        """Returns the folder of a run that nothing disturbs, and its duration in seconds."""
        if kind not in self.straight:
            name = f"straight-{len(self.straight)}"
            began = time.monotonic()
            self.job.run(name, "--nproc", self.kinds[kind][0], **self.settings(kind))
            self.straight[kind] = (self.job.out(name), time.monotonic() - began)
        return self.straight[kind]

    def await_phase(self, phase, running, out, seconds):
        """Waits until the run is in the phase, or has ended without reaching it."""

        def ended():
            return running.process.poll() is not None

        def printed(text):
            return any(text in line for line in running.lines)

        if phase == "any":
            return time.sleep(self.chance.uniform(0, 1.05) * seconds)
        if phase == "start":
            return time.sleep(self.chance.uniform(0, 0.4) * seconds)
        if phase == "save":
            await_that(lambda: ended() or printed("step="), "the first step is told", pause=0.001)
            await_save(running, out, 2 * seconds)
            return time.sleep(self.chance.uniform(0, 0.006))
        if phase == "export":
            await_that(
                lambda: ended() or list((out / "export").glob("model*")),
                "the export has begun",
                pause=0.0005,
            )
            return time.sleep(self.chance.uniform(0, 0.02))
        # The validation after a step, and the sample of text after that.
        step = self.chance.choice((10, 20, 30))
        after = f"step={step}, " if phase == "validation" else f"step {step}/"
        await_that(lambda: ended() or printed(after), f"there is {after!r}", pause=0.001)
        return time.sleep(self.chance.uniform(0, 0.03))

    def choose_receivers(self, running):
        """Chooses the receivers of the signal: the supervisor, one rank, or all processes, as with
        SLURM."""
        first = running.process.pid
        ranks = children(first) if running.process.poll() is None else []
        return self.chance.choice(
            [[first], [self.chance.choice(ranks)] if ranks else [first], [first, *ranks]]
        )

    def stop_once(self, kind, running, out, seconds):
        """Sends a signal and checks how the run ends; returns False if it had ended before."""
        before = count_steps(out)
        phase = self.chance.choice(PHASES)
        number = self.chance.choice(DRAWN)
        self.await_phase(phase, running, out, seconds)
        sent = time.monotonic()
        pids = self.choose_receivers(running)
        ranks = children(running.process.pid) if running.process.poll() is None else []
        for pid in pids:
            try:
                if running.process.poll() is None:
                    os.kill(pid, number)
            except ProcessLookupError:  # the process has just ended
                pass
        code = running.wait()
        took = time.monotonic() - sent
        await_gone(ranks)
        if code == 0:
            self.late += 1
            return False
        what = f"{kind}, {phase}, {number.name}: exit {code} after {took:.1f} s"
        what += f"\n{running.text()[-3000:]}"
        assert took <= IN_TIME, f"the run did not end within {IN_TIME} s: {what}"
        if code == -number:
            # Before training begins, the kernel ends the process, as docs/errors.md says; but ftrun
            # handles SIGUSR1 from its first line on.
            assert count_steps(out) == before, what
            assert number != signal.SIGUSR1 or not running.text(), what
        else:
            require_saved(out, number, code, what)
        self.seconds.append(took)
        self.of_kind[kind] += 1
        self.of_phase[phase] += 1
        self.of_signal[number.name] += 1
        return True

    def run(self, kind, most):
        straight, seconds = self.undisturbed_run(kind)
        name = f"stopped-{self.runs}"
        self.runs += 1
        out = self.job.out(name)
        saving = {
            "checkpoint": {
                "every": self.chance.choice((1, 2, 5)),
                "keep_last": self.chance.choice((1, 2)),
                "background": self.chance.random() < 0.5,
            }
        }
        command = [
            "--config",
            self.job.config(name, **self.settings(kind) | saving),
            "--nproc",
            self.kinds[kind][0],
            "--resume",
            "auto",
            "--stop-lead",
            "120",
        ]
        for _ in range(min(most, self.chance.choice((1, 2, 3)))):
            if not self.stop_once(kind, start(*command), out, seconds):
                break
        must(ftrun(*command))
        require_same_run(straight, out)
        must(ftrun("verify", out))

    def send_signals(self, signals):
        deck = []
        while self.count() < signals:
            if not deck:
                deck = list(self.kinds)
                self.chance.shuffle(deck)
            self.run(deck.pop(), signals - self.count())
        return self.print_summary()

    def print_summary(self):
        def list_counts(counts):
            return ", ".join(
                f"{name} {count}"
                for name, count in sorted(counts.items(), key=lambda item: -item[1])
            )

        return (
            f"stops: seed {self.seed}, {self.count()} signals in {self.runs} runs ({self.late} "
            f"more came after a run's work): all ended with their code, after "
            f"{statistics.median(self.seconds):.2f} s in the median and {max(self.seconds):.2f} s "
            f"at most, and all went on to the bits of an undisturbed run\n"
            f"  signals: {list_counts(self.of_signal)}\n"
            f"  phases: {list_counts(self.of_phase)}\n"
            f"  layouts: {list_counts(self.of_kind)}"
        )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("source")
    parser.add_argument("--signals", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(PreemptionTrial(folder, args.seed).send_signals(args.signals), flush=True)


if __name__ == "__main__":
    sys.exit(main())
