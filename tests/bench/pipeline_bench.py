#!/usr/bin/env python3
"""Pipelines beside torch.distributed.pipelining, and what each stage keeps under each schedule. README.md says how.

  pipeline_bench.py --peers FOLDER --peer-python PYTHON [--pairs 5] [--steps 4]    interleaved pairs, the ratio of each
  pipeline_bench.py --memory [--stages 1,2,4]                                      bytes of each stage by category

The model has hidden 1024, feed-forward 2816, 16 query and 4 key/value heads, a vocabulary of 8,192, untied, and random
weights; tokens are random too. --pairs trains 15 layers as 8 + 7 on two ranks of one thread, 1F1B, 8 micro-batches of one
sequence, AdamW on all tensors, clip 1. --memory trains --layers layers (equal stages) for two steps under each schedule.
Needs numpy alone; FOLDER holds the peer (torch_pp.py and the common.py that it uses).
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import statistics
import struct
import sys
import tempfile

import numpy as np

from watched_run import watch

ROOT = pathlib.Path(__file__).resolve().parents[2]
HIDDEN, FEED_FORWARD, HEADS, KV_HEADS, VOCABULARY = 1024, 2816, 16, 4, 8192
MICRO_BATCHES = 8
TIMEOUT = 1800
# name: settings, parts of the model a stage.
SCHEDULES = {"gpipe": ({}, 1), "1f1b": ({}, 1), "interleaved": ({"virtual_stages": 2}, 2), "zb-h1": ({}, 1), "zbv": ({}, 2)}


# --- the job -------------------------------------------------------------------------------------


def tensors(layers):
    head = HIDDEN // HEADS
    yield "model.embed_tokens.weight", (VOCABULARY, HIDDEN)
    for layer in range(layers):
        name = f"model.layers.{layer}."
        yield name + "input_layernorm.weight", (HIDDEN,)
        yield name + "self_attn.q_proj.weight", (HIDDEN, HIDDEN)
        yield name + "self_attn.k_proj.weight", (KV_HEADS * head, HIDDEN)
        yield name + "self_attn.v_proj.weight", (KV_HEADS * head, HIDDEN)
        yield name + "self_attn.o_proj.weight", (HIDDEN, HIDDEN)
        yield name + "post_attention_layernorm.weight", (HIDDEN,)
        yield name + "mlp.gate_proj.weight", (FEED_FORWARD, HIDDEN)
        yield name + "mlp.up_proj.weight", (FEED_FORWARD, HIDDEN)
        yield name + "mlp.down_proj.weight", (HIDDEN, FEED_FORWARD)
    yield "model.norm.weight", (HIDDEN,)
    yield "lm_head.weight", (VOCABULARY, HIDDEN)


def write_model(folder, layers):
    """A Llama with random weights: norms of ones, all else normal with deviation 0.02."""
    folder.mkdir()
    shapes = list(tensors(layers))
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in shapes:
        size = 4 * int(np.prod(shape))
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    random = np.random.default_rng(0)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, shape in shapes:
            ones = name.endswith("norm.weight")
            values = np.ones(shape, np.float32) if ones else random.standard_normal(shape, np.float32) * np.float32(0.02)
            file.write(values.tobytes())
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": FEED_FORWARD,
        "num_hidden_layers": layers, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HIDDEN // HEADS,
        "vocab_size": VOCABULARY, "max_position_embeddings": 4096, "rope_theta": 10000.0, "rms_norm_eps": 1e-6,
        "hidden_act": "silu", "tie_word_embeddings": False, "attention_bias": False, "mlp_bias": False, "bos_token_id": 1,
        "eos_token_id": 2, "torch_dtype": "float32"}))
    return folder


def write_data(folder, tokens):
    folder.mkdir()
    np.random.default_rng(1).integers(3, VOCABULARY, tokens).astype(np.uint16).tofile(folder / "train.bin")
    (folder / "meta.json").write_text(json.dumps({"dtype": "uint16"}))
    return folder / "train.bin"


def config(args, model, out, parallel, micro_batches, steps):
    return {
        "model": {"path": str(model)},
        "data": {"train": str(args.data), "token_dtype": "uint16", "sequence_length": args.tokens, "shuffle": False},
        "train": {"steps": steps, "weight_decay_exempt": "none"}, "parallel": {"data": 1, **parallel},
        "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": micro_batches, "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}},
        "steps_per_print": 1, "threads": 1, "checkpoint": {"every": 0}, "export": {"enabled": False}, "output_dir": str(out),
    }


def step_of_ftrun(line):
    found = re.match(r"(?:\[rank 0\] )?step (\d+)/\d+ .*loss ", line)
    return int(found[1]) or None if found else None


def step_of_peer(line):
    return json.loads(line)["step"] + 1 if line.startswith('{"step"') else None


def train(args, model, parallel, micro_batches, steps):
    """(run as it was watched, lines of metrics, run.json) of ftrun"""
    out, file = args.scratch / "run", args.scratch / "config.json"
    shutil.rmtree(out, ignore_errors=True)
    file.write_text(json.dumps(config(args, model, out, parallel, micro_batches, steps)))
    watched = watch([args.binary, "--config", file], {}, step_of_ftrun, TIMEOUT)
    lines = [json.loads(line) for line in open(out / "metrics.jsonl")]
    run = json.loads((out / "run.json").read_text())
    shutil.rmtree(out)
    return watched, lines, run


# --- speed ---------------------------------------------------------------------------------------


def run_ftrun(args, model):
    parallel = {"pipeline": 2, "pipeline_layers": [8, 7], "schedule": "1f1b"}
    watched, lines, run = train(args, model, parallel, MICRO_BATCHES, args.steps)
    for stage, idle in run.get("pipeline", {}).items():
        print(f"  {stage}: waits {idle['idle_per_million'] / 1e4:.1f} % of its steps, by the schedule alone "
              f"{idle['schedule_idle_per_million'] / 1e4:.1f} %")
    return [line["step_seconds"] for line in lines], [line["loss"] for line in lines], watched.foreign_cores


def run_peer(args, model):
    command = [args.peer_python, pathlib.Path(args.peers) / "torch_pp.py", "--model", model, "--data", args.data, "--ranks", 2,
               "--acc", MICRO_BATCHES, "--schedule", "1f1b", "--split", "8,7", "--seq", args.tokens, "--steps", args.steps]
    env = {"PATH": f"{pathlib.Path(args.peer_python).parent}:{os.environ['PATH']}", "PYTHONDONTWRITEBYTECODE": "1",
           "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    watched = watch(command, env, step_of_peer, TIMEOUT)
    lines = [json.loads(line) for line in watched.output.splitlines() if line.startswith('{"step"')]
    return [line["step_s"] for line in lines], [line["loss"] for line in lines], watched.foreign_cores


def compare_speed(args):
    model = write_model(args.scratch / "model", 15)
    ratios = []
    for pair in range(args.pairs):
        turn = [("ftrun", run_ftrun), ("peer", run_peer)]
        found = {name: run(args, model) for name, run in (turn if pair % 2 == 0 else turn[::-1])}
        seconds = {name: statistics.median(times[1:]) for name, (times, _, _) in found.items()}
        off = max(abs(a - b) / b for a, b in zip(found["ftrun"][1], found["peer"][1]))
        ratios.append(seconds["peer"] / seconds["ftrun"])
        print(f"pair {pair + 1}: step {seconds['ftrun']:.2f} s, peer {seconds['peer']:.2f} s: {ratios[-1]:.2f} x as fast; "
              f"other load {found['ftrun'][2]:.2f} and {found['peer'][2]:.2f} core; losses off by {off:.1e}", flush=True)
    print(f"median {statistics.median(ratios):.2f} x ({min(ratios):.2f} to {max(ratios):.2f}, {len(ratios)} pairs)")


# --- memory --------------------------------------------------------------------------------------


def in_flight(schedule, stages, stage, micro_batches):
    """Most micro-batches whose activations a stage keeps, counted in whole stages, by the schedules' papers: GPipe (Huang et
    al. 2019), 1F1B (Narayanan et al. 2019), interleaved 1F1B (Narayanan et al. 2021), ZB-H1 and ZBV (Qi et al. 2024)."""
    if schedule == "gpipe":
        return micro_batches
    if schedule == "1f1b":
        return min(micro_batches, stages - stage)
    if schedule == "interleaved":
        return min(2 * micro_batches, stages + 2 * (stages - 1 - stage) + 1) / 2
    return min(micro_batches, stages)


def stage_bytes(args, model, schedule, stages, micro_batches):
    """Of each stage by category; one process where there is no pipeline."""
    more, _ = SCHEDULES[schedule]
    parallel = {"pipeline": stages, "schedule": schedule, **more} if stages > 1 else {}
    _, lines, run = train(args, model, parallel, micro_batches, 2)
    if stages == 1:
        return [{**lines[-1]["memory"], "process": run["memory"]["process"]["measured"]}]
    return [run["memory"][f"stage {stage}"] for stage in range(stages)]


def compare_memory(args):
    """One micro-batch's activations are what two GPipe runs of 4 and 8 micro-batches differ in, a quarter of it; what else lies
    in the same memory (scratch, gradients between layers) is the rest of the former."""
    model = write_model(args.scratch / "model", args.layers)
    print("| stages | schedule | stage | parameters | gradients | optimizer | temporary | bound | of it in flight | process |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for stages in args.stages:
        half, full = (stage_bytes(args, model, "gpipe", stages, count) for count in (MICRO_BATCHES // 2, MICRO_BATCHES))
        if stages == 1:
            half = full
        for schedule in SCHEDULES if stages > 1 else ["1f1b"]:
            found = full if schedule == "gpipe" or stages == 1 else stage_bytes(args, model, schedule, stages, MICRO_BATCHES)
            for stage, used in enumerate(found):
                one = (full[stage]["temporary"] - half[stage]["temporary"]) / (MICRO_BATCHES // 2)
                kept = in_flight(schedule, stages, stage, MICRO_BATCHES)
                bound = half[stage]["temporary"] + (kept - MICRO_BATCHES // 2) * one
                mib = [used[name] / 2**20 for name in ("parameters", "gradients", "optimizer", "temporary")]
                known = f"{bound / 2**20:.1f} | {kept:g} x {one / 2**20:.1f}" if stages > 1 else "- | 1"
                print(f"| {stages} | {schedule if stages > 1 else '-'} | {stage} | " + " | ".join(f"{x:.1f}" for x in mib) +
                      f" | {known} | {used['process'] / 2**20:.0f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", default=str(ROOT / "build/release/bin/ftrun"))
    parser.add_argument("--peers")
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=512, help="of a sequence")
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--layers", type=int, default=16, help="of the model of --memory")
    parser.add_argument("--stages", type=lambda text: [int(part) for part in text.split(",")], default=[1, 2, 4])
    args = parser.parse_args()
    if not args.memory and not args.peers:
        parser.error("--peers FOLDER or --memory")
    with tempfile.TemporaryDirectory() as scratch:
        args.scratch = pathlib.Path(scratch)
        args.data = write_data(args.scratch / "data", 400_000)
        (compare_memory if args.memory else compare_speed)(args)


main()
