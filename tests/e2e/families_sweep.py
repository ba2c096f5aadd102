#!/usr/bin/env python3
"""Compares every model family with transformers and PEFT in every way that the small models of
tests/model/reference.py allow, and prints a table with a row for each. Run by hand, as it takes
half an hour on two cores; `e2e.families` and `e2e.lora` are the share of it that runs in each test.

    families_sweep.py [--out FILE] [NAME ...]

Columns: losses, gradient norms and final weights of 20 AdamW steps in fp32 on all layouts; the
first step in bf16; the first step of rows that documents share, beside one document after another;
20 steps of a LoRA on all linear layers, beside PEFT; whether a model that was not changed is
exported with the bytes that were read."""
import argparse
import datetime
import json
import os
import pathlib
import sys
import tempfile

os.environ.setdefault("FTRUN_BINARY",
                      str(pathlib.Path(__file__).resolve().parents[2] / "build/release/bin/ftrun"))
import families_test  # noqa: E402
import lora_reference  # noqa: E402
import numpy as np  # noqa: E402
import reference  # noqa: E402
from families_test import LONGROPE, check_family, check_untrained_bytes, config_of  # noqa: E402
from runner import ftrun, must, near, steps, write_config  # noqa: E402

CPU = {"device": "cpu"}
TENSOR = {"parallel": {"tensor": 2}}


def zero(stage, **more):
    return {"zero_optimization": {"stage": stage} | more}


# (name, ranks, changes of the config)
LAYOUTS = [
    ("one rank", 1, {}),
    ("recompute", 1, {"recompute": "full"}),
    *((f"data 2, ZeRO {stage}", 2, zero(stage)) for stage in range(4)),
    ("data 2, ZeRO 3, all offloaded", 2, zero(3, stage3_param_persistence_threshold=0,
                                              offload_param=CPU, offload_optimizer=CPU)),
    ("tensor 2", 2, TENSOR),
    ("pipeline 2", 2, {"parallel": {"pipeline": 2}}),
    ("data 2, tensor 2, ZeRO 3", 4, TENSOR | zero(3)),
    ("tensor 2, pipeline 2", 4, {"parallel": {"tensor": 2, "pipeline": 2}}),
]
# Two documents fill a row of 32 tokens each time; first fit keeps them in this order.
DOCUMENTS = (10, 22, 16, 16, 7, 25, 12, 20)
BF16_BOUND, PACKED_BOUND = 2e-2, (1e-5, 5e-5)


class Swept(lora_reference.Adapted):
    """A LoRA on all linear layers of each family."""

    cases = {name: (name, {"r": 4, "lora_alpha": 8, "target_modules": "all-linear"})
             for name in reference.FAMILIES}


def total_norm(model):
    grads = [p.grad.double().norm() for p in model.parameters() if p.grad is not None]
    return float(reference.torch.stack(grads).norm())


def run_one_step(folder, scratch, name, **changes):
    out = scratch / f"{folder.name}-{name}"
    value = config_of(folder, out)
    value["train"]["steps"], value["export"] = 1, {"enabled": False}
    value["data"] |= changes.pop("data", {})
    must(ftrun("--config", write_config(scratch, value | changes)))
    return steps(out)[0]


def check_bf16(folder, scratch):
    torch = reference.torch
    model = lora_reference.base_of(folder, torch.bfloat16).train()
    data = np.fromfile(folder / "data" / "train.bin", dtype=np.uint16)
    loss = 0.0
    for slot in range(reference.SETTINGS["accumulation"]):
        x, y = reference.batch(data, 0, slot)
        logits = model(input_ids=x, use_cache=False).logits.float()
        part = torch.nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten())
        (part / reference.SETTINGS["accumulation"]).backward()
        loss += part.item() / reference.SETTINGS["accumulation"]
    found = run_one_step(folder, scratch, "bf16", bf16={"enabled": True})
    return (near("loss in bf16", [found["loss"]], [loss], BF16_BOUND),
            near("gradient norm in bf16", [found["grad_norm"]], [total_norm(model)], BF16_BOUND))


def check_packed(folder, scratch):
    """Trains on rows of several documents, which see nothing of each other."""
    torch = reference.torch
    tokens = np.fromfile(folder / "data" / "train.bin", dtype=np.uint16).astype("int64")
    ends = np.cumsum(DOCUMENTS)
    documents = [tokens[end - length:end] for end, length in zip(ends, DOCUMENTS)]
    path = scratch / f"{folder.name}-documents.jsonl"
    path.write_text("".join(json.dumps({"input_ids": d.tolist()}) + "\n" for d in documents))
    labels = sum(len(d) - 1 for d in documents)
    model, loss = lora_reference.base_of(folder, torch.float32).train(), 0.0
    for document in documents:
        ids = torch.from_numpy(document)[None]
        logits = model(input_ids=ids, use_cache=False).logits[0, :-1]
        part = torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="sum") / labels
        part.backward()
        loss += part.item()
    found = run_one_step(folder, scratch, "packed",
                         data={"train": str(path), "packing": "documents"})
    return (near("loss of packed rows", [found["loss"]], [loss], PACKED_BOUND[0]),
            near("gradient norm of packed rows", [found["grad_norm"]], [total_norm(model)],
                 PACKED_BOUND[1]))


def check_lora(name, scratch):
    folder = scratch / "lora" / name
    record, _ = lora_reference.train_case(Swept, name, folder)
    out = scratch / f"{name}-lora"
    value = config_of(folder, out, changes={"adapter": str(folder / "adapter")})
    must(ftrun("--config", write_config(scratch, value)))
    found = steps(out)
    return (near("loss of the LoRA", [m["loss"] for m in found], record["losses"], 1e-5),
            near("gradient norm of the LoRA", [m["grad_norm"] for m in found],
                 record["grad_norms"], 5e-5))


def cannot_be_cut(folder, changes):
    """Returns whether two tensor ranks cannot share the model's heads or rows of matrices
    evenly."""
    if "tensor" not in changes.get("parallel", {}):
        return False
    model = json.loads((folder / "model" / "config.json").read_text())
    heads = model.get("num_attention_heads") or model["n_head"]
    keys = model.get("num_key_value_heads") or model.get("num_kv_heads") or heads
    one_key_head = model.get("multi_query") and not model.get("new_decoder_architecture")
    return heads % 2 == 1 or (1 if one_key_head else keys) % 2 == 1


class Sweep:
    def __init__(self, scratch):
        self.scratch = scratch
        self.failed = []

    def attempt(self, what, check):
        """Returns what a check found as text; notes a failure and goes on."""
        try:
            return check()
        except (AssertionError, SystemExit) as error:
            self.failed.append(f"{what}: {str(error).splitlines()[0]}")
            print(f"FAILED {what}: {error}", file=sys.stderr, flush=True)
            return None

    def row(self, folder):
        name, found = folder.name, []
        layouts = [layout for layout in LAYOUTS if not cannot_be_cut(folder, layout[2])]
        for layout, ranks, changes in layouts:
            value = self.attempt(f"{name}, {layout}", lambda: check_family(
                folder, ranks, self.scratch, layout, changes))
            found += [value] if value else []
        texts = [f"{len(found)} of {len(layouts)}"]
        texts += [f"{max(values):.1e}" for values in zip(*found)] or ["-", "-"]
        texts += [pair_text(self.attempt(f"{name}, bf16",
                                         lambda: check_bf16(folder, self.scratch)))]
        # transformers chooses longrope's factors for each document, ftrun for the run's rows.
        packs = name not in LONGROPE
        texts += [pair_text(self.attempt(f"{name}, packed", lambda: check_packed(
            folder, self.scratch))) if packs else "-"]
        texts += [pair_text(self.attempt(f"{name}, LoRA", lambda: check_lora(name, self.scratch)))]
        equal = []
        for ranks in (1,) if cannot_be_cut(folder, TENSOR) else (1, 2):
            self.attempt(f"{name}, bytes on {ranks}", lambda: equal.append(
                check_untrained_bytes(folder, self.scratch, ranks)))
        texts += [f"yes, {len(equal)} rank{'s'[:len(equal) - 1]}" if equal else "no"]
        return f"| {name} | " + " | ".join(texts) + " |"


def pair_text(pair):
    return "failed" if pair is None else f"{pair[0]:.1e}, {pair[1]:.1e}"


HEAD = ["| small model | layouts | loss | gradient norm | bf16: loss, norm "
        "| packed rows: loss, norm | LoRA: loss, norm | bytes |",
        "|---|---|---|---|---|---|---|---|"]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(reference.FAMILIES))
    parser.add_argument("--out", type=pathlib.Path, help="a file for the table")
    options = parser.parse_args()
    lora_reference.load_libraries()
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        sweep = Sweep(scratch)
        for folder in families_test.make_references(scratch / "references", options.names):
            rows.append(sweep.row(folder))
            print(rows[-1], flush=True)
    total = (f"{len(rows)} small models, {datetime.date.today()}, {os.cpu_count()} processors: "
             f"{len(sweep.failed)} comparisons failed"
             + "".join(f"\n  {line}" for line in sweep.failed))
    print(f"\n{total}")
    if options.out:
        options.out.write_text("\n".join(HEAD + rows) + f"\n\n{total}\n")
    return 1 if sweep.failed else 0


if __name__ == "__main__":
    sys.exit(main())
