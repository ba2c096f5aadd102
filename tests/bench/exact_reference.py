#!/usr/bin/env python3
"""Runs the job of train_bench.py in fp64, in one process, for losses and gradient norms that
contain no program's rounding. Where the job has a micro-batch on each of several ranks, this
accumulates them (--acc).
"""
import json
import sys

FOLDER = sys.argv.index("--common")
sys.path.insert(0, sys.argv[FOLDER + 1])
del sys.argv[FOLDER:FOLDER + 2]
import common  # noqa: E402

a = common.parse(__doc__)
import torch  # noqa: E402

model = common.load_model(a, torch.float64)
data, parameters = common.Data(a), list(model.parameters())
optimizer = common.adamw(a, parameters)
for step in range(a.steps):
    total = 0.0
    for slot in range(a.acc):
        inputs, targets = data.batch(step, slot)
        logits = model(input_ids=inputs, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()) / a.acc
        loss.backward()
        total += loss.item()
    norm = torch.nn.utils.clip_grad_norm_(parameters, a.clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    print(json.dumps({"step": step, "loss": total, "grad_norm": norm.item()}), flush=True)
