#!/usr/bin/env python3
"""Compares `ftrun plan --machine` with published training speeds: plans each row of
published_rows.tsv with the machine file of its GPU and the numbers of its software stack
(configs/stacks), and prints predicted and published seconds per step, good and bad.

    published_rows.py [--binary build/release/bin/ftrun] [--only WORD] [--fit NUMBER,...]
    published_rows.py --check [--page docs/plan.md] [--only WORD]

Rows with context ranks are listed as waiting for context parallelism. If a source gives no value,
recompute is none; the micro-batch is the largest power of two that divides a rank's share of the
batch, leaves a pipeline four micro-batches per stage, and fits the GPU by its plan; a stage has
chunks of one layer each if its micro-batches are a multiple of the stages, otherwise one chunk.

--check prints the rows whose predictions differ from those in the page and, if all rows are
checked, wrong statements of the page's summary and missed goals. Its exit status is 1 if it prints
any of these.

--fit searches for the numbers of the rows' stacks (such as products,memory) that minimize the mean
square of log(predicted / published), with a small penalty that pulls them towards common numbers,
and prints them. No file is changed.
"""
import argparse
import concurrent.futures
import csv
import json
import math
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
STACKS = ROOT / "configs" / "stacks"
# Bytes that libraries are assumed to hold on a GPU in addition to the plan.
LIBRARY_BYTES = 3e9


def read_rows(path):
    """Returns the rows of the table as dictionaries."""
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    return list(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))


def number(row, key):
    """Returns a whole number of a row."""
    return int(row[key])


def model_config(row):
    """Returns config.json for a row's shape: GPT's block if it has gelu, else blocks with RoPE."""
    if row["mlp"] == "gelu":
        return {"model_type": "gpt2", "vocab_size": number(row, "vocab"),
                "n_embd": number(row, "hidden"), "n_layer": number(row, "layers"),
                "n_head": number(row, "heads"), "n_inner": number(row, "ffn"),
                "n_positions": number(row, "row"), "attn_pdrop": 0.0, "embd_pdrop": 0.0,
                "resid_pdrop": 0.0, "tie_word_embeddings": row["tied"] == "yes"}
    config = {"model_type": "llama", "vocab_size": number(row, "vocab"),
              "hidden_size": number(row, "hidden"), "num_hidden_layers": number(row, "layers"),
              "num_attention_heads": number(row, "heads"),
              "num_key_value_heads": number(row, "kv_heads"),
              "intermediate_size": number(row, "ffn"),
              "max_position_embeddings": number(row, "row"),
              "tie_word_embeddings": row["tied"] == "yes"}
    if row["mlp"] == "squared relu":
        config |= {"model_type": "starcoder2", "hidden_act": "relu2", "use_bias": False}
    return config


def settings(row, micro_batch, chunks):
    """Returns the config of a row by its keys, for --set."""
    batch, data = number(row, "batch"), number(row, "data")
    overrides = {"device": "cuda", "parallel.data": data, "parallel.tensor": row["tensor"],
                 "parallel.pipeline": row["pipeline"],
                 "parallel.sequence": "true" if row["sequence"] == "yes" else "false",
                 "train_batch_size": batch, "train_micro_batch_size_per_gpu": micro_batch,
                 "gradient_accumulation_steps": batch // data // micro_batch,
                 "zero_optimization.stage": row["zero"], "recompute.policy": row["recompute"],
                 "zero_optimization.overlap_comm": "true" if row["overlap"] == "yes" else "false",
                 "data.sequence_length": row["row"],
                 "optimizer": "{type: AdamW, params: {lr: 1.0e-5}}",
                 f"{row['precision']}.enabled": "true"}
    if row["recompute"] == "?":
        overrides["recompute.policy"] = "none"
    if row["replicas"] != "1":
        overrides["parallel.data_replicate"] = row["replicas"]
    if number(row, "pipeline") > 1:
        overrides["parallel.schedule"] = "interleaved" if chunks > 1 else "1f1b"
        if chunks > 1:
            overrides["parallel.virtual_stages"] = chunks
    if row["lora"] == "qkv":
        overrides["adapter"] = "{type: lora, r: 16, target_modules: [q_proj, k_proj, v_proj]}"
    elif row["lora"] != "-":
        overrides["adapter"] = "{type: lora, r: 16, target_modules: all-linear}"
    return overrides


def plan(binary, row, stack, micro_batch, chunks):
    """Returns the result of `ftrun plan --json`, or None and its error."""
    with tempfile.TemporaryDirectory() as folder:
        config = pathlib.Path(folder) / "config.json"
        config.write_text(json.dumps(model_config(row)))
        base = pathlib.Path(folder) / "plan.yaml"
        base.write_text("train: {steps: 1}\n")
        nodes = -(-number(row, "gpus") // 8)
        command = [binary, "plan", "--json", "--model", config, "--config", base, "--machine",
                   ROOT / "configs" / "machines" / f"{row['machine']}.yaml", "--stack", stack,
                   "--nodes", str(nodes), "--device-memory", "1000GB"]
        for key, value in settings(row, micro_batch, chunks).items():
            command += ["--set", f"{key}={value}"]
        completed = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if completed.returncode != 0:
        return None, completed.stderr
    result = json.loads(completed.stdout)["result"]
    return (result, "") if "time" in result else (None, "the plan has no time of a step")


def machine_memory(row):
    """Returns the bytes of memory of the row's GPU."""
    text = (ROOT / "configs" / "machines" / f"{row['machine']}.yaml").read_text()
    return next(float(line.split()[1]) * 1e9 for line in text.splitlines()
                if line.startswith("memory:"))


def choices(row):
    """Yields the micro-batches and chunks that the row's rules allow, in order of preference."""
    share = number(row, "batch") // number(row, "data")
    stages = number(row, "pipeline")
    min_micro_batches = 4 * stages if stages > 1 else 1
    sizes = [number(row, "micro_batch")] if row["micro_batch"] != "?" else [
        size for size in (64, 32, 16, 8, 4, 2, 1)
        if share % size == 0 and (share // size >= min_micro_batches or size == 1)]
    for size in sizes:
        chunks = number(row, "layers") // stages if row["chunks"] == "?" else number(row, "chunks")
        if row["chunks"] == "?" and share // size % stages != 0:
            chunks = 1
        yield size, chunks


def choose_values(binary, row, stack):
    """Chooses the values that the row marks with question marks, by the rules."""
    candidates = list(choices(row))
    for micro_batch, chunks in candidates[:-1]:
        result, _ = plan(binary, row, stack, micro_batch, chunks)
        if result and result["memory"]["device"]["total"] + LIBRARY_BYTES < machine_memory(row):
            return micro_batch, chunks
    return candidates[-1]


def model_flops(row):
    """Returns the floating-point operations of a step as Megatron-LM counts them: 12 B s L h^2 (2 +
    s/h + 2 ffn/(2 h) + V/(2 L h)), with all of attention's scores and without recompute."""
    hidden, layers, tokens = (number(row, key) for key in ("hidden", "layers", "row"))
    inner = 2 + tokens / hidden + number(row, "ffn") / hidden + number(row, "vocab") / (
        2 * layers * hidden)
    return 12 * number(row, "batch") * tokens * layers * hidden**2 * inner


def published_seconds(row):
    """Returns the published seconds of a step, computed from the source's metric."""
    value, gpus = float(row["value"]), number(row, "gpus")
    if row["metric"] == "step_seconds":
        return value
    if row["metric"] == "tokens_per_second_per_gpu":
        return number(row, "batch") * number(row, "row") / gpus / value
    return model_flops(row) / (value * 1e12 * gpus)


def stack_text(name, values):
    """Returns the content of a stack's file."""
    return f"stack: {name}\n" + "".join(f"{key}: {value:.4g}\n" for key, value in values.items())


def read_stack(name):
    """Returns the numbers of a stack."""
    values = {}
    for line in (STACKS / f"{name}.yaml").read_text().splitlines():
        key, _, value = line.partition(":")
        if key in ("products", "attention", "memory", "node", "cluster"):
            values[key] = float(value.split("#")[0])
    return values


class Rows:
    """Rows with the micro-batch and the chunks that are chosen for each."""

    def __init__(self, binary, rows):
        self.binary = binary
        self.rows = rows
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            self.chosen = list(pool.map(
                lambda row: choose_values(binary, row, STACKS / f"{row['stack']}.yaml"), rows))

    def predict(self, stacks):
        """Returns the predicted seconds of each row. `stacks` holds the numbers of each stack."""
        with tempfile.TemporaryDirectory() as folder:
            for name, values in stacks.items():
                pathlib.Path(folder, f"{name}.yaml").write_text(stack_text(name, values))

            def step_seconds(index):
                row = self.rows[index]
                result, error = plan(self.binary, row, f"{folder}/{row['stack']}.yaml",
                                     *self.chosen[index])
                assert result, (row["model"], error)
                return result["time"]["seconds"]
            with concurrent.futures.ThreadPoolExecutor(2) as pool:
                return list(pool.map(step_seconds, range(len(self.rows))))


# The common numbers, which have no penalty in a fit. A stack has few rows; numbers that the rows do
# not determine stay near these.
PRIOR = {"products": 0.75, "attention": 0.5, "memory": 0.75, "node": 1, "cluster": 1}
PENALTY_WEIGHT = 0.002


def descend(error, start, keys):
    """Returns the numbers near `start` with the smallest error, and that error. Searches with
    steps that are halved when none lowers the error."""
    best, best_error, step = start, error(start), 0.2
    while step > 1e-3:
        has_improved = False
        for key in keys:
            for factor in (1 + step, 1 / (1 + step)):
                candidate = best | {key: best[key] * factor}
                is_share = key not in ("node", "cluster")
                if not is_share or candidate[key] <= 1:
                    candidate_error = error(candidate)
                    if candidate_error < best_error:
                        best, best_error, has_improved = candidate, candidate_error, True
        step = step if has_improved else step / 2
    return best, best_error


def fit(binary, rows, keys):
    """Fits the numbers of each stack. The fit assumes that seconds are linear in the inverses of
    the numbers, with slopes from one more prediction per number, in which that number is changed.
    Another fit that starts with the printed numbers corrects the remaining error."""
    for name in sorted({row["stack"] for row in rows}):
        stack_rows = Rows(binary, [row for row in rows if row["stack"] == name])
        start = read_stack(name)
        base = stack_rows.predict({name: start})
        slopes = {key: [(changed - original) * start[key] / 0.25 for original, changed in zip(
            base, stack_rows.predict({name: start | {key: start[key] * 0.8}}))] for key in keys}

        def error(values, stack_rows=stack_rows, start=start, base=base, slopes=slopes):
            logs = []
            for i, row in enumerate(stack_rows.rows):
                seconds = base[i] + sum(slopes[key][i] * (1 / values[key] - 1 / start[key])
                                        for key in keys)
                logs.append(math.log(max(seconds, 1e-9) / published_seconds(row)))
            penalty = sum(math.log(values[key] / PRIOR[key]) ** 2 for key in keys)
            return statistics.mean(x * x for x in logs) + PENALTY_WEIGHT * penalty
        best, best_error = descend(error, start, keys)
        print(f"{name}: root mean square with the penalty {100 * math.sqrt(best_error):.1f} %: "
              + ", ".join(f"{key} {best[key]:.3g}" for key in best), flush=True)


# The goals for all rows: mean error, share of rows within 15 %, worst error; and the errors of the
# ratios of step times of one layout on more GPUs, and with full recompute.
MEAN, WITHIN, WORST, SCALING, RECOMPUTE = 0.06, 0.92, 0.2, 0.03, 0.05


def row_text(row, predicted, chosen):
    """Returns the line of a row; values that were chosen by rules are marked with "?"."""
    published = published_seconds(row)
    lora = "" if row["lora"] == "-" else " LoRA"
    recompute = " full recompute" if row["recompute"] == "full" else ""
    values = "".join(f"{value}{'?' if row[key] == '?' else ''}{end}" for value, key, end in
                     zip(chosen, ("micro_batch", "chunks"), (", ", "")))
    return (f"| {row['stack']} | {row['model']}{lora}{recompute}, {row['gpus']} {row['machine']} "
            f"| {values} "
            f"| {predicted:.4g} | {published:.4g} | {100 * (predicted / published - 1):+.1f} % |")


def waiting_text(row):
    """Returns the line of a row that cannot be planned yet."""
    return (f"| {row['stack']} | {row['model']}, {row['gpus']} {row['machine']} | waits for "
            f"context parallelism | | {published_seconds(row):.4g} | |")


def settings_without(row, *keys):
    """Returns the values of a row, without its result and those of `keys`."""
    return tuple(value for key, value in row.items() if key not in (*keys, "value", "source"))


def scaling_ratios(rows, seconds):
    """Returns (model, GPUs, more GPUs, predicted ratio, published ratio) for rows that differ only
    in data-parallel ranks and in the batch that grows with them."""
    layouts = {}
    for row, predicted in zip(rows, seconds):
        settings = settings_without(row, "gpus", "data", "batch")
        per_rank = number(row, "batch") / number(row, "data")
        layouts.setdefault((settings, per_rank), []).append(
            (number(row, "gpus"), predicted, published_seconds(row), row["model"]))
    ratios = []
    for layout in layouts.values():
        (gpus, predicted, published, model), *others = sorted(layout)
        ratios += [(model, gpus, more, seconds / predicted, measured / published)
                   for more, seconds, measured, _ in others]
    return ratios


def scaling_text(model, gpus, more, predicted, published):
    return f"| {model} | {more} instead of {gpus} | {predicted:.3f} | {published:.3f} |"


def recompute_ratios(rows, seconds):
    """Returns (model, predicted ratio, published ratio) of the step times with full recompute and
    without, for rows that differ only in recompute and in sequence parallelism."""
    layouts = {}
    for row, predicted in zip(rows, seconds):
        settings = settings_without(row, "recompute", "sequence")
        layouts.setdefault(settings, {})[row["recompute"]] = (
            row["model"], predicted, published_seconds(row))
    return [(by["full"][0], by["full"][1] / by["none"][1], by["full"][2] / by["none"][2])
            for by in layouts.values() if by.keys() >= {"full", "none"}]


def recompute_text(model, predicted, published):
    return f"| {model} | {predicted:.3f} | {published:.3f} |"


def find_faults(lines, errors, ratios, recomputes, page, has_all_rows):
    """Returns the page's wrong statements, and the missed goals."""
    text = page.read_text()
    faults = [f"not in {page}: {line}" for line in lines if line not in text.splitlines()]
    if not has_all_rows:
        return faults
    mean, worst = statistics.mean(errors), max(errors)
    within = sum(error <= 0.15 for error in errors)
    summary = (f"Over {len(errors)} rows the mean error is {100 * mean:.1f} %, {within} are within "
               f"15 %, and the worst is {100 * worst:.1f} %.")
    if summary not in " ".join(text.split()):
        faults.append(f"not in {page}: {summary}")
    faults += [f"a goal is missed: ratios within 3 %: {scaling_text(*ratio)}" for ratio in ratios
               if abs(ratio[3] / ratio[4] - 1) > SCALING]
    faults += [f"a goal is missed: ratios within 5 %: {recompute_text(*ratio)}"
               for ratio in recomputes if abs(ratio[1] / ratio[2] - 1) > RECOMPUTE]
    if mean > MEAN or within < WITHIN * len(errors) or worst > WORST:
        faults.append("a goal is missed: mean 6 %, 92 % of rows within 15 %, none beyond 20 %")
    return faults


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--binary", default=ROOT / "build" / "release" / "bin" / "ftrun")
    parser.add_argument("--only", default="", help="rows whose stack or model contains this text")
    parser.add_argument("--fit", default="", help="numbers to fit, separated by commas")
    parser.add_argument("--check", action="store_true", help="compare with a page's table")
    parser.add_argument("--page", type=pathlib.Path, default=ROOT / "docs" / "plan.md")
    options = parser.parse_args()
    rows = [row for row in read_rows(pathlib.Path(__file__).with_suffix(".tsv"))
            if options.only in row["stack"] + " " + row["model"]]
    waiting = [row for row in rows if row["context"] != "1"]
    rows = [row for row in rows if row["context"] == "1"]
    if options.fit:
        return fit(options.binary, rows, options.fit.split(","))
    planned = Rows(options.binary, rows)
    seconds = planned.predict({name: read_stack(name) for name in {r["stack"] for r in rows}})
    errors = [abs(predicted / published_seconds(row) - 1) for row, predicted in zip(rows, seconds)]
    lines = [row_text(*row) for row in zip(rows, seconds, planned.chosen)]
    lines += map(waiting_text, waiting)
    ratios, recomputes = scaling_ratios(rows, seconds), recompute_ratios(rows, seconds)
    if options.check:
        lines += [scaling_text(*ratio) for ratio in ratios]
        lines += [recompute_text(*ratio) for ratio in recomputes]
        faults = find_faults(lines, errors, ratios, recomputes, options.page, not options.only)
        print("\n".join(faults or [f"{len(rows + waiting)} rows are those of {options.page}"]))
        return 1 if faults else 0
    print("| stack | model, GPUs | micro-batch, chunks | predicted, s | published, s | error |")
    print("|---|---|---|---|---|---|")
    print("\n".join(lines))
    print("\n| model | GPUs | predicted | published |\n|---|---|---|---|")
    print("\n".join(scaling_text(*ratio) for ratio in ratios))
    print("\n| model | predicted | published |\n|---|---|---|")
    print("\n".join(recompute_text(*ratio) for ratio in recomputes))
    print(f"\n{len(rows)} rows: mean error {100 * statistics.mean(errors):.1f} %, within 15 %: "
          f"{sum(error <= 0.15 for error in errors)}, worst {100 * max(errors):.1f} %")
    return 0


sys.exit(main())
