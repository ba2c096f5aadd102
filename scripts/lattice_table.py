#!/usr/bin/env python3
"""The table of a run of the lattice (scripts/lattice.sh), as markdown.

    lattice_table.py RESULTS.tsv"""
import csv
import datetime
import os
import re
import sys

BOUNDS = {"loss": 1e-5, "norm": 5e-5, "weights": 1e-4, "key bias": 1e-3}


def number(text):
    return f"{float(text):.1e}" if float(text) else "0"


def worst(cells):
    return [number(max((cell[name] for cell in cells), key=float)) for name in BOUNDS]


def row(*parts):
    return "| " + " | ".join(str(part) for part in parts) + " |"


def table(heads, rows):
    return [row(*heads), row(*["---"] * len(heads)), *(row(*one) for one in rows)]


def main():
    path = sys.argv[1]
    lines = open(path).read().splitlines()
    planned = dict(zip(("complete", "covering"), map(int, re.findall(r"\d+", lines[0]))))
    cells = list(csv.DictReader(lines[1:], delimiter="\t"))
    axes = [name for name in cells[0] if name not in ("part", "|", "within", "worst", "seconds", *BOUNDS)]
    day = datetime.date.fromtimestamp(os.path.getmtime(path))
    seconds = sum(float(cell["seconds"]) for cell in cells)
    print(f"""# The lattice: every layout against one process

`scripts/lattice.sh` trains a model of 8 layers (hidden 32, 4 heads, 2 key/value heads, fp32) for 20 steps of AdamW on
each layout of up to 8 ranks and compares it with one process that trains the same global batch. Ranks are threads with
the communicators of real ones. This is what it wrote on {day}
({os.cpu_count()} shared cores, {seconds / 60:.0f} minutes in all cells together).

*Complete*: tensor {{1, 2, 4}} × pipeline {{1, 2, 4}} × dp_shard {{1, 2, 3}} × dp_replicate {{1, 2}} of 2 to 8 ranks ×
ZeRO {{0, 1, 2, 3}} × schedules, on llama, untied, 12 micro-batches. At stage 0, where nothing is sharded, replicas are
shards by another name and are left out; without a pipeline there is no schedule. *Covering*: any two values of all axes
together in some cell, the model's family, recompute, tiers and accumulation among them.

Bounds: {BOUNDS["loss"]:.0e} of the loss and {BOUNDS["norm"]:.0e} of the gradient norm in each step, after the last one ‖Δw‖ ≤ {BOUNDS["weights"]:.0e} ‖w‖ for each
tensor, for biases of keys {BOUNDS["key bias"]:.0e} (a key's bias moves all scores of a query alike, rotation apart: of a gradient that is
next to nothing AdamW makes full steps, rounding included).
""")
    heads = ("part", "cells", "run", "within bounds", *(f"worst {name}" for name in BOUNDS))
    rows = []
    for part, count in planned.items():
        own = [cell for cell in cells if cell["part"] == part]
        rows.append((part, count, len(own), sum(cell["within"] == "yes" for cell in own), *(worst(own) if own else "----")))
    print("\n".join(table(heads, rows)))
    beyond = [cell for cell in cells if cell["within"] != "yes"]
    if beyond:
        print("\nBeyond the bounds:\n")
        print("\n".join(table((*axes, *BOUNDS, "worst tensor"), [[cell[name] for name in (*axes, *BOUNDS, "worst")] for cell in beyond])))
    print("\nBy value of each axis, both parts together:\n")
    rows = []
    for axis in axes:
        for value in sorted({cell[axis] for cell in cells}, key=lambda text: (text.isdigit() and int(text), text)):
            own = [cell for cell in cells if cell[axis] == value]
            rows.append((axis, value, len(own), sum(cell["within"] == "yes" for cell in own), *worst(own)))
    print("\n".join(table(("axis", "value", "cells run", "within bounds", *(f"worst {name}" for name in BOUNDS)), rows)))


main()
