#!/usr/bin/env python3
"""Compares every model family with transformers and PEFT in every way that the small models of
tests/model/reference.py allow, and prints a table with a row for each model. It is run by hand,
because it takes three quarters of an hour on two cores; the tests `e2e.families` and `e2e.lora` run
a part of it.

    families_sweep.py [--only COLUMN,...] [--out FILE] [--page] [NAME ...]

Columns: losses, gradient norms and final weights of 20 AdamW steps in fp32 on all layouts; the
first step in bf16; the first step of rows with several documents, compared with one document after
another; 20 steps of a LoRA on all linear layers, compared with PEFT, and the same on two ranks,
compared with one; greedy texts after 20 steps, compared with transformers on the exported weights;
and whether an unchanged model is exported with the bytes that were read. --page writes
docs/model-accuracy.md; rows and columns that this run did not compute stay in the page."""
import argparse
import datetime
import importlib.metadata
import json
import os
import pathlib
import re
import shutil
import sys
import tempfile

os.environ.setdefault("FTRUN_BINARY",
                      str(pathlib.Path(__file__).resolve().parents[2] / "build/release/bin/ftrun"))
import families_test  # noqa: E402
import lora_reference  # noqa: E402
import numpy as np  # noqa: E402
import reference  # noqa: E402
from families_test import LONGROPE, check_family, check_untrained_bytes, config_of  # noqa: E402
from runner import ftrun, must, require_near, steps, write_config  # noqa: E402
from safetensors.numpy import load_file  # noqa: E402

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
# Each pair or group of documents fills a row of 32 tokens; first fit keeps them in this order.
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
    return (require_near("loss in bf16", [found["loss"]], [loss], BF16_BOUND),
            require_near("gradient norm in bf16", [found["grad_norm"]], [total_norm(model)],
                         BF16_BOUND))


def check_packed(folder, scratch):
    """Trains on rows of several documents, which must not attend to each other."""
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
    return (require_near("loss of packed sequences", [found["loss"]], [loss], PACKED_BOUND[0]),
            require_near("gradient norm of packed sequences", [found["grad_norm"]],
                         [total_norm(model)], PACKED_BOUND[1]))


def near_lines(what, found, expected):
    """Requires that losses and gradient norms agree within the page's bounds; returns the
    differences."""
    return (require_near(f"loss of {what}", found[0], expected[0], 1e-5),
            require_near(f"gradient norm of {what}", found[1], expected[1], 5e-5))


def run_lora(folder, out, changes, ranks=1):
    """Continues from PEFT's adapter; returns losses and gradient norms."""
    value = config_of(folder, out, ranks, changes | {"adapter": str(folder / "adapter")})
    value["threads"] = 1
    must(ftrun("--config", write_config(out.parent, value, f"{out.name}.json"), "--nproc", ranks))
    lines = steps(out)
    assert len(lines) == reference.SETTINGS["steps"], len(lines)
    return [m["loss"] for m in lines], [m["grad_norm"] for m in lines]


def adapter_tensors(out):
    return load_file(out / "export" / "adapter" / "adapter_model.safetensors")


PROMPT, TEXT = 20, 12  # tokens; together a row


def check_texts(folder, scratch):
    """Compares the greedy texts that a run writes at its end with those of transformers on the
    exported weights. Returns the number of texts."""
    model, out = scratch / f"{folder.name}-spoken", scratch / f"{folder.name}-texts"
    shutil.copytree(folder / "model", model)
    words = {"model": {"type": "BPE", "vocab": {f"w{i}": i for i in range(256)}},
             "decoder": {"type": "ByteLevel"}}
    (model / "tokenizer.json").write_text(json.dumps(words))
    value = config_of(folder, out)
    value["model"]["path"] = str(model)
    value["data"]["validation"] = value["data"]["train"]
    value["train"] |= {"evaluation": {"samples": 4},
                       "generate": {"prompt_tokens": PROMPT, "tokens": TEXT, "prompts": 4}}
    must(ftrun("--config", write_config(scratch, value)))
    lines = [json.loads(line) for line in (out / "samples.jsonl").read_text().splitlines()]
    lines = [line for line in lines if line["step"] == value["train"]["steps"]]
    assert len(lines) == 4, lines
    torch = reference.torch
    of_export = lora_reference.transformers.AutoModelForCausalLM.from_pretrained(
        out / "export" / "model", dtype=torch.float32, attn_implementation="eager").eval()
    for line in lines:
        prompt = torch.tensor([ids_of(line["prompt"])])
        assert prompt.shape[1] == PROMPT, line
        written = of_export.generate(prompt, attention_mask=torch.ones_like(prompt),
                                     max_new_tokens=TEXT, do_sample=False, pad_token_id=0)
        wanted = written[0, PROMPT:].tolist()
        ends = of_export.generation_config.eos_token_id
        if wanted[-1] in (ends if isinstance(ends, list) else [ends]):
            wanted.pop()
        assert len(wanted) > 3 and ids_of(line["answer"]) == wanted, (
            f"text {ids_of(line['answer'])}, transformers writes {wanted}")
    return len(lines)


def ids_of(text):
    return [int(number) for number in re.findall(r"w(\d+)", text)]


def cannot_be_cut(folder, changes):
    """Returns whether two tensor ranks cannot divide the model's heads or rows of matrices
    evenly."""
    if "tensor" not in changes.get("parallel", {}):
        return False
    model = json.loads((folder / "model" / "config.json").read_text())
    heads = model.get("num_attention_heads") or model["n_head"]
    keys = model.get("num_key_value_heads") or model.get("num_kv_heads") or heads
    one_key_head = model.get("multi_query") and not model.get("new_decoder_architecture")
    return heads % 2 == 1 or (1 if one_key_head else keys) % 2 == 1


class Sweep:
    """Computes the cells of the table. A check that fails is recorded, and the others continue."""

    def __init__(self, scratch):
        self.scratch = scratch
        self.failed = []
        self.loras = {}

    def attempt(self, what, check):
        """Returns the result of a check; None if it failed."""
        try:
            return check()
        except (AssertionError, SystemExit) as error:
            self.failed.append(f"{what}: {str(error).splitlines()[0]}")
            print(f"FAILED {what}: {error}", file=sys.stderr, flush=True)
            return None

    def layouts(self, folder):
        name, found = folder.name, []
        layouts = [layout for layout in LAYOUTS if not cannot_be_cut(folder, layout[2])]
        for layout, ranks, changes in layouts:
            value = self.attempt(f"{name}, {layout}", lambda: check_family(
                folder, ranks, self.scratch, layout, changes))
            found += [value] if value else []
        return [f"{len(found)} of {len(layouts)}",
                *([f"{max(values):.1e}" for values in zip(*found)] or ["-", "-"])]

    def bf16(self, folder):
        return [pair_text(self.attempt(f"{folder.name}, bf16",
                                       lambda: check_bf16(folder, self.scratch)))]

    def packed(self, folder):
        # For longrope, transformers selects the factors for each document, ftrun for the run's
        # rows.
        if folder.name in LONGROPE:
            return ["-"]
        return [pair_text(self.attempt(f"{folder.name}, packed",
                                       lambda: check_packed(folder, self.scratch)))]

    def lora_on_one_rank(self, name):
        """Returns (PEFT's losses and gradient norms, ftrun's on one rank, ftrun's folder)."""
        if name not in self.loras:
            folder, out = self.scratch / "lora" / name, self.scratch / f"{name}-lora"
            record, _ = lora_reference.train_case(Swept, name, folder)
            self.loras[name] = ((record["losses"], record["grad_norms"]),
                                run_lora(folder, out, {}), out)
        return self.loras[name]

    def lora(self, folder):
        def check():
            peft, one, _ = self.lora_on_one_rank(folder.name)
            return near_lines("the LoRA", one, peft)

        return [pair_text(self.attempt(f"{folder.name}, LoRA", check))]

    def lora_ranks(self, folder):
        """Trains the LoRA on two tensor-parallel ranks, and on two ranks with ZeRO-3."""
        name, found = folder.name, []

        def check(layout, changes):
            _, one, alone = self.lora_on_one_rank(name)
            out = self.scratch / f"{name}-lora-{layout}"
            of_ranks = run_lora(self.scratch / "lora" / name, out, changes, 2)
            expected, trained = adapter_tensors(alone), adapter_tensors(out)
            assert set(trained) == set(expected), set(trained) ^ set(expected)
            for tensor, values in expected.items():
                far = np.linalg.norm(trained[tensor] - values) / np.linalg.norm(values)
                assert far <= 1e-4, f"{tensor}: {far} from one rank's"
            return near_lines(f"the LoRA, {layout}", of_ranks, one)

        layouts = [(layout, changes) for layout, changes in LORA_LAYOUTS
                   if not cannot_be_cut(folder, changes)]
        for layout, changes in layouts:
            pair = self.attempt(f"{name}, LoRA, {layout}", lambda: check(layout, changes))
            found += [pair] if pair else []
        if len(found) < len(layouts):
            return ["failed"]
        return [pair_text([max(values) for values in zip(*found)])]

    def texts(self, folder):
        equal = self.attempt(f"{folder.name}, texts", lambda: check_texts(folder, self.scratch))
        return [f"{equal} of 4" if equal else "failed"]

    def bytes(self, folder):
        equal = []
        for ranks in (1,) if cannot_be_cut(folder, TENSOR) else (1, 2):
            self.attempt(f"{folder.name}, bytes on {ranks}", lambda: equal.append(
                check_untrained_bytes(folder, self.scratch, ranks)))
        return [f"yes, {len(equal)} rank{'s'[:len(equal) - 1]}" if equal else "no"]


LORA_LAYOUTS = [("tensor 2", TENSOR), ("ZeRO 3", zero(3, stage3_param_persistence_threshold=0))]
# COLUMNS maps the name of each group of columns to their headings and to the method that computes
# them.
COLUMNS = {
    "layouts": (["layouts", "loss", "gradient norm"], Sweep.layouts),
    "bf16": (["bf16: loss, norm"], Sweep.bf16),
    "packed": (["packed sequences: loss, norm"], Sweep.packed),
    "lora": (["LoRA: loss, norm"], Sweep.lora),
    "lora_ranks": (["LoRA on 2 ranks: loss, norm"], Sweep.lora_ranks),
    "texts": (["texts"], Sweep.texts),
    "bytes": (["bytes"], Sweep.bytes),
}
HEADS = ["small model", *(head for heads, _ in COLUMNS.values() for head in heads)]


def pair_text(pair):
    return "failed" if pair is None else f"{pair[0]:.1e}, {pair[1]:.1e}"


def line_of(cells):
    return "| " + " | ".join(cells) + " |"


def table_of(rows):
    """Returns {model: {heading: cell}} as a table, in the order of the models' names."""
    return [line_of(HEADS), "|" + "---|" * len(HEADS),
            *(line_of([name, *(cells.get(head, "-") for head in HEADS[1:])])
              for name, cells in sorted(rows.items()))]


def rows_of(page):
    """Reads a table that table_of() has written."""
    lines = [[cell.strip() for cell in line.strip("|").split("|")]
             for line in page.splitlines() if line.startswith("|") and "---" not in line]
    return {cells[0]: dict(zip(lines[0][1:], cells[1:])) for cells in lines[1:]}


PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs/model-accuracy.md"
TEXT_OF_PAGE = """\
# Agreement with transformers, by model family

Use this page to look up how closely ftrun's losses, gradient norms, texts and files agree with
those of transformers and PEFT for a family of models. [models.md](models.md) lists what each family
supports. `tests/e2e/families_sweep.py --page` made the table; its last cells are of {date}, on
{cores} cores ({cpu}) with transformers {transformers}, PEFT {peft} and torch {torch}. The script
takes three quarters of an hour, so it is run by hand. The tests `e2e.families` and `e2e.lora`
repeat a part of it in each test run.

Each row is a small random model of two or three layers (`tests/model/reference.py`). All figures
are the largest relative differences that were seen. The columns are:

* *layouts*: how many layouts agree with transformers, of those that were tried. Each trains 20
  AdamW steps in fp32. The eleven layouts are one rank, the same with full recompute, two
  data-parallel ranks with ZeRO stage 0, 1, 2 and 3, all state in main memory, two tensor-parallel
  ranks, two pipeline stages, data 2 × tensor 2 with ZeRO-3, and tensor 2 × pipeline 2. Models with
  an odd number of heads or one key head have only the eight layouts without tensor parallelism.
* *loss*, *gradient norm*: the worst layout over the 20 steps, against transformers with eager
  attention. The norms of all weights after the last step agree within 1e-4.
* *bf16*: the first step in bf16, against transformers in bf16.
* *packed sequences*: the first step of sequences that several documents share (`data.packing:
  documents`), against transformers on one document after another. The two Phi-3 models have no such
  figure, because transformers chooses longrope's factors for each document, and ftrun chooses them
  once for the sequences of a run.
* *LoRA*: 20 steps of rank 4 on all linear layers, against PEFT.
* *LoRA on 2 ranks*: the same on two tensor-parallel ranks, and on two ranks with ZeRO-3, against
  one rank. The cell has the larger difference. The trained tensors agree within 1e-4. Models
  without tensor parallelism (see *layouts*) have only the run with ZeRO-3.
* *texts*: greedy texts that a run writes after 20 steps (`train.generate`; {prompt} tokens are
  continued by {text}). The cell counts those that equal, token by token, the texts of transformers'
  `generate` with the weights that the run exported.
* *bytes*: a model that is loaded and exported without a change has the bytes that were read, on one
  rank, and on two tensor-parallel ranks if it can be divided.

{table}

{count} models; {result} (losses 1e-5, norms 5e-5; bf16 2e-2). Rows
whose name begins with `padding` train with `model.padding_row_gradient: transformers`.
"""


def write_page(rows):
    """Writes the page; cells that `rows` lacks keep the page's values."""
    merged = rows_of(PAGE.read_text()) if PAGE.exists() else {}
    for name, cells in rows.items():
        merged[name] = merged.get(name, {}) | cells
    failed = [name for name, cells in merged.items()
              if "failed" in cells.values() or cells.get("bytes") == "no"
              or len(set(cells.get("layouts", "0 of some").split(" of "))) > 1]
    models = [line.partition(":")[2].strip() for line in
              pathlib.Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line]
    PAGE.write_text(TEXT_OF_PAGE.format(
        date=datetime.date.today(), cores=os.cpu_count(), cpu=models[0], prompt=PROMPT,
        text=TEXT, table="\n".join(table_of(merged)), count=len(merged),
        result=(f"comparisons of {', '.join(failed)} are outside their bounds" if failed
                else "all comparisons are within their bounds"),
        **{name: importlib.metadata.version(name) for name in ("transformers", "peft", "torch")}))


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(reference.FAMILIES))
    parser.add_argument("--only", default=",".join(COLUMNS), help="columns: " + ", ".join(COLUMNS))
    parser.add_argument("--out", type=pathlib.Path, help="a file for the table")
    parser.add_argument("--page", action="store_true", help="write docs/model-accuracy.md")
    options = parser.parse_args()
    columns = [COLUMNS[name] for name in options.only.split(",")]
    lora_reference.load_libraries()
    rows = {}
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        sweep = Sweep(scratch)
        for folder in families_test.make_references(scratch / "references", options.names):
            cells = {}
            for heads, check in columns:
                cells |= zip(heads, check(sweep, folder))
            rows[folder.name] = cells
            print(line_of([folder.name, *cells.values()]), flush=True)
            if options.page:
                write_page(rows)
    total = (f"{len(rows)} small models, {datetime.date.today()}, {os.cpu_count()} cores: "
             f"{len(sweep.failed)} comparisons failed"
             + "".join(f"\n  {line}" for line in sweep.failed))
    print(f"\n{total}")
    if options.out:
        options.out.write_text("\n".join(table_of(rows)) + f"\n\n{total}\n")
    return 1 if sweep.failed else 0


if __name__ == "__main__":
    sys.exit(main())
