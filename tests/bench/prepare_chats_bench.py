#!/usr/bin/env python3
"""Measures how fast chats become training data, compared with transformers' apply_chat_template(
tokenize=True) on as many processes.

  tests/bench/prepare_chats_bench.py [--model models/smollm2-135m] [--chats 4000] [--workers 2]
                               [--turns 2]

Both read the same JSON lines and produce token ids; prepare_data.py also finds the tokens to train
on, renders every prompt as a server would, and writes its files. The script prints both rates and
their ratio by wall-clock time, which includes the start of prepare_data.py's processes, and by CPU
time, which other programs hardly affect and which does not include the start of the processes.
"""
import argparse
import json
import multiprocessing
import os
import pathlib
import random
import resource
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
WORDS = ("the a of and model learns from what it is told in many words because some lines are "
         "longer than others while numbers like 42 or 3.14 and names such as Ada Lovelace stand "
         "between them").split()


def write_chats(path, count, turns):
    """Writes random chats."""
    source = random.Random(1)
    make_text = lambda: " ".join(source.choices(WORDS, k=source.randint(10, 180)))
    with open(path, "w") as file:
        for _ in range(count):
            messages = [{"role": role, "content": make_text()} for _ in range(turns // 2)
                        for role in ("user", "assistant")]
            file.write(json.dumps({"messages": messages}) + "\n")


_tokenizer = None


def load_tokenizer(model):
    """Loads the tokenizer for tokenize()."""
    global _tokenizer
    from transformers import AutoTokenizer

    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _tokenizer = AutoTokenizer.from_pretrained(model)


def tokenize(lines):
    """Returns the number of tokens of chats by transformers."""
    return sum(len(_tokenizer.apply_chat_template(json.loads(line)["messages"],
                                                  tokenize=True)["input_ids"])
               for line in lines)


def cpu_seconds():
    """Returns CPU seconds of this process and of its ended children."""
    both = resource.getrusage(resource.RUSAGE_CHILDREN), resource.getrusage(resource.RUSAGE_SELF)
    return sum(r.ru_utime + r.ru_stime for r in both)


def reference(path, model, workers, times):
    """Returns the seconds of processes that have already loaded the tokenizer, and the tokens. Each
    process records when it begins."""
    load_tokenizer(model)
    times.append(cpu_seconds())
    with multiprocessing.get_context("fork").Pool(workers) as pool, open(path) as file:
        lines = file.readlines()
        begin = time.monotonic()
        tokens = sum(pool.imap(tokenize, [lines[i:i + 64] for i in range(0, len(lines), 64)]))
        seconds = time.monotonic() - begin
        pool.close()
        pool.join()
        return seconds, tokens


def run_prepare_data(path, model, workers, out):
    """Returns the seconds that the command itself reports, including the start of its processes."""
    script = [sys.executable, str(ROOT / "scripts/prepare_data.py"), "--tokenizer", model, "--out",
              out, "--workers", str(workers), path]
    stdout = subprocess.run(script, check=True, capture_output=True, text=True).stdout
    seconds = float(stdout.rsplit("done in ", 1)[1].split()[0])
    return seconds, json.loads(pathlib.Path(out, "train.json").read_text())["tokens"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default=str(ROOT / "models/smollm2-135m"))
    parser.add_argument("--chats", type=int, default=4000)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2)
    a = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = folder + "/chats.jsonl"
        write_chats(path, a.chats, a.turns)
        write_chats(folder + "/few.jsonl", 4, a.turns)
        times = [cpu_seconds()]
        run_prepare_data(folder + "/few.jsonl", a.model, a.workers, folder + "/few")
        times.append(cpu_seconds())
        seconds, tokens = run_prepare_data(path, a.model, a.workers, folder + "/out")
        times.append(cpu_seconds())
        reference_seconds, reference_tokens = reference(path, a.model, a.workers, times)
        ratio = (cpu_seconds() - times[3]) / (times[2] - times[1] - (times[1] - times[0]))
    assert tokens == reference_tokens, (
        f"prepare_data.py makes {tokens} tokens, transformers {reference_tokens}")
    print(f"{a.chats} chats of {a.turns} messages, {tokens} tokens, {a.workers} processes: "
          f"prepare_data.py {tokens / seconds / 1e3:.0f} k tokens/s, apply_chat_template "
          f"{tokens / reference_seconds / 1e3:.0f} k tokens/s, ratio "
          f"{reference_seconds / seconds:.2f} by wall-clock time, {ratio:.2f} by CPU time")


if __name__ == "__main__":
    main()
