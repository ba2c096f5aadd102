"""Checks that the learning rates of the schedules which Hugging Face's trainer names equal those of
transformers at every step. schedules.json stores these rates for these schedules and this version
of transformers, because importing it takes longer than all runs; for others, transformers computes
them here (FTRUN_UPDATE_GOLDENS=1 writes the file)."""
import hashlib
import importlib.metadata
import inspect
import json
import os
import pathlib
import sys
import tempfile

from runner import Job, case, ftrun, preload, run_cases, steps

STORED = pathlib.Path(sys.argv[1]) / "tests" / "e2e" / "schedules.json"

RATE, STEPS, WARMUP = 3e-3, 24, 5
# (type, the arguments that transformers needs besides warm-up and steps)
SCHEDULES = [
    ("constant_with_warmup", {}), ("linear", {}), ("cosine", {}), ("cosine_with_restarts", {}),
    ("cosine_with_restarts", {"num_cycles": 3}), ("polynomial", {}),
    ("polynomial", {"lr_end": 1e-4, "power": 2.0}),
    ("inverse_sqrt", {}), ("inverse_sqrt", {"timescale": 9}),
    ("cosine_with_min_lr", {"min_lr": 2e-4}),
    ("cosine_with_min_lr", {"min_lr_rate": 0.1, "num_cycles": 1.5}),
    ("warmup_stable_decay", {"num_decay_steps": 7}),
    ("warmup_stable_decay", {"num_decay_steps": 7, "num_stable_steps": 4, "min_lr_ratio": 0.1}),
    ("warmup_stable_decay", {"num_decay_steps": 9, "decay_type": "linear",
                             "warmup_type": "cosine"}),
    ("warmup_stable_decay", {"num_decay_steps": 9, "decay_type": "1-sqrt", "warmup_type": "1-sqrt",
                             "min_lr_ratio": 0.2}),
]


def rates_of_transformers(kind, given):
    import torch
    from transformers import get_scheduler
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=RATE)
    schedule = get_scheduler(kind, optimizer, WARMUP, STEPS, scheduler_specific_kwargs=dict(given))
    rates = []
    for _ in range(STEPS):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return rates


def recipe():
    """Returns a hash of everything that decides the rates of transformers."""
    parts = [RATE, STEPS, WARMUP, SCHEDULES, inspect.getsource(rates_of_transformers),
             [importlib.metadata.version(package) for package in ("torch", "transformers")]]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def expected_rates():
    """Returns the rates of each schedule: the stored ones if their recipe is the same."""
    stored = json.loads(STORED.read_text()) if STORED.exists() else {}
    update = os.environ.get("FTRUN_UPDATE_GOLDENS") == "1"
    if stored.get("recipe") == recipe() and not update:
        return stored["rates"]
    print(f"{STORED.name} is of another recipe: transformers makes the rates", flush=True)
    rates = [rates_of_transformers(kind, params) for kind, params in SCHEDULES]
    if update:
        lines = ",\n".join(json.dumps(of_one) for of_one in rates)
        STORED.write_text(f'{{"recipe": "{recipe()}",\n"rates": [\n{lines}\n]}}\n')
    return rates


with tempfile.TemporaryDirectory() as scratch:
    preload()
    job = Job(scratch)

    def config_of(name, kind, given, **changes):
        return {"train": {"steps": STEPS}, "optimizer": {"type": "SGD", "params": {"lr": RATE}},
                "scheduler": {"type": kind, "params": {"warmup_num_steps": WARMUP}
                              | given}} | changes

    @case
    def rates_are_those_of_transformers():
        rates = expected_rates()
        assert len(rates) == len(SCHEDULES)
        for number, (kind, params) in enumerate(SCHEDULES):
            name = f"{kind}-{number}"
            job.run(name, **config_of(name, kind, params))
            found = [line["lr"] for line in steps(job.out(name))]
            assert len(found) == STEPS and max(found) > 0
            for step, (a, b) in enumerate(zip(found, rates[number], strict=True)):
                assert abs(a - b) <= 1e-6 * RATE, (kind, params, step, a, b)

    @case
    def values_that_do_not_fit_are_named():
        def error(kind, given):
            refused = ftrun("check", "--config",
                            job.config("refused", **config_of("refused", kind, given)))
            assert refused.returncode != 0, refused.stdout
            return refused.stderr

        assert "scheduler.params.num_decay_steps is missing: warmup_stable_decay needs it" in error(
            "wsd", {})
        assert "warmup_num_steps 5 + num_decay_steps 20 > total_num_steps 24" in error(
            "wsd", {"num_decay_steps": 20})
        assert "expected one of linear, cosine, 1-sqrt for warmup_stable_decay, found log" in error(
            "wsd", {"num_decay_steps": 2, "warmup_type": "log"})
        assert "expected one of log, linear for WarmupLR, found cosine" in error(
            "WarmupLR", {"warmup_type": "cosine"})
        assert ("scheduler.params.min_lr is missing: cosine_with_min_lr needs it or min_lr_rate"
                in error("cosine_with_min_lr", {}))
        assert "scheduler.params.min_lr_rate and min_lr exclude each other" in error(
            "cosine_with_min_lr", {"min_lr": 1e-4, "min_lr_rate": 0.1})
        assert "scheduler.params.lr_end 0.01 is not below the optimizer's lr 0.003" in error(
            "polynomial", {"lr_end": 0.01})
        assert "scheduler.params.power: cosine has no such parameter" in error(
            "cosine", {"power": 2.0})

    run_cases()
