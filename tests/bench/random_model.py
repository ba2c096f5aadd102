#!/usr/bin/env python3
"""Writes a model folder of random bf16 weights and a file of tokens, using only the standard
library.

  tests/bench/random_model.py --shape NAME --out FOLDER

The script is for machines to which no weights can be copied. The same shape gives the same bytes.
Norm weights are 1; the absolute values of all others are between 2^-7 and 2^-5. The shapes are
Llama and Granite models with untied embeddings, and Qwen2 models, whose embeddings are tied and
whose query, key and value projections have biases.
"""
import argparse
import json
import pathlib
import random
import struct

# hidden, feed-forward, layers, query heads, key/value heads, head size, vocabulary
SHAPES = {
    "tiny": (64, 96, 2, 4, 2, 16, 512),
    "tiny-granite": (64, 96, 2, 4, 2, 16, 512),
    "small-granite": (576, 1536, 6, 9, 3, 64, 49152),
    "small": (576, 1536, 6, 9, 3, 64, 49152),
    "smollm2": (576, 1536, 30, 9, 3, 64, 49152),
    "smollm2-12-heads": (576, 1536, 30, 12, 4, 64, 49152),
    "8b-two-layers": (4096, 14336, 2, 32, 8, 128, 128256),
    "qwen2.5-3b": (2048, 11008, 36, 16, 2, 128, 151936),
    # Eight layers of Qwen2.5-0.5B, whose query and key/value heads two tensor ranks can divide
    # evenly, with SmolLM2's vocabulary.
    "qwen2.5-0.5b-eight-layers": (896, 4864, 8, 14, 2, 64, 49152),
    # For two almost equal stages of a pipeline: the head costs about three quarters of a layer.
    "15-layers": (1024, 2816, 15, 16, 4, 64, 8192),
    "15-narrow-layers": (512, 1408, 15, 8, 2, 64, 4096),
    "6-narrow-layers": (512, 1408, 6, 8, 4, 64, 4096),
    "6-narrow-granite": (512, 1408, 6, 8, 4, 64, 4096),
    "qwen2-6-narrow-layers": (512, 1408, 6, 8, 4, 64, 4096),
    "16-layers": (1024, 2816, 16, 16, 4, 64, 8192),
}
TOKENS = 1 << 20
ONE = b"\x80\x3f"
# Maps a random byte to the upper byte of a bf16 number: the sign, and the exponent's upper bits.
UPPER = bytes((byte & 0x80) | 0x3C for byte in range(256))
PIECE = 1 << 22


def tensors(shape):
    """Yields (name, shape) of the model's tensors."""
    hidden, feed_forward, layers, query, kv, head, vocabulary = SHAPES[shape]
    yield "model.embed_tokens.weight", (vocabulary, hidden)
    for layer in range(layers):
        name = f"model.layers.{layer}."
        yield name + "input_layernorm.weight", (hidden,)
        yield name + "self_attn.q_proj.weight", (query * head, hidden)
        yield name + "self_attn.k_proj.weight", (kv * head, hidden)
        yield name + "self_attn.v_proj.weight", (kv * head, hidden)
        if is_qwen(shape):
            for part, rows in (("q", query), ("k", kv), ("v", kv)):
                yield name + f"self_attn.{part}_proj.bias", (rows * head,)
        yield name + "self_attn.o_proj.weight", (hidden, query * head)
        yield name + "post_attention_layernorm.weight", (hidden,)
        yield name + "mlp.gate_proj.weight", (feed_forward, hidden)
        yield name + "mlp.up_proj.weight", (feed_forward, hidden)
        yield name + "mlp.down_proj.weight", (hidden, feed_forward)
    yield "model.norm.weight", (hidden,)
    if not is_qwen(shape):
        yield "lm_head.weight", (vocabulary, hidden)


# The multipliers of a Granite model.
MULTIPLIERS = {"embedding_multiplier": 12.0, "residual_multiplier": 0.22,
               "attention_multiplier": 0.015625, "logits_scaling": 8.0}


def is_granite(shape):
    """Returns whether a shape is a Granite model's."""
    return shape.endswith("granite")


def is_qwen(shape):
    """Returns whether a shape is a Qwen2 model's."""
    return shape.startswith("qwen")


def count(dims):
    """Returns the number of elements of a tensor."""
    total = 1
    for size in dims:
        total *= size
    return total


def random_numbers(source, elements):
    """Yields the bytes of random bf16 numbers, piece by piece."""
    for first in range(0, elements, PIECE):
        piece = bytearray(source.randbytes(2 * min(PIECE, elements - first)))
        piece[1::2] = piece[1::2].translate(UPPER)
        yield piece


def write_weights(path, shape):
    """Writes model.safetensors."""
    header, at = {}, 0
    for name, dims in tensors(shape):
        end = at + 2 * count(dims)
        header[name] = {"dtype": "BF16", "shape": list(dims), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    source = random.Random(1)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, dims in tensors(shape):
            if name.endswith("norm.weight"):
                file.write(ONE * count(dims))
                continue
            for piece in random_numbers(source, count(dims)):
                file.write(piece)


def config(shape):
    """Returns the content of config.json."""
    hidden, feed_forward, layers, query, kv, head, vocabulary = SHAPES[shape]
    family = "Qwen2" if is_qwen(shape) else "Granite" if is_granite(shape) else "Llama"
    return {
        "architectures": [f"{family}ForCausalLM"], "model_type": family.lower(),
        "vocab_size": vocabulary, "hidden_size": hidden,
        "intermediate_size": feed_forward, "num_hidden_layers": layers,
        "num_attention_heads": query,
        "num_key_value_heads": kv, "head_dim": head, "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0, "hidden_act": "silu", "tie_word_embeddings": is_qwen(shape),
        "attention_bias": False,
        "attention_dropout": 0.0, "mlp_bias": False, "bos_token_id": 1, "eos_token_id": 2,
        "torch_dtype": "bfloat16",
        **(MULTIPLIERS if is_granite(shape) else {}),
    }


def make_model(shape, out):
    """Makes the model's folder and the token file unless they exist; returns both paths."""
    out = pathlib.Path(out)
    out.mkdir(parents=True, exist_ok=True)
    done = out / "made"
    if not done.exists():
        (out / "config.json").write_text(json.dumps(config(shape), indent=1))
        write_weights(out / "model.safetensors", shape)
        vocabulary = SHAPES[shape][-1]
        source = random.Random(2)
        # Sixteen words repeat in turn, except that one token in ten is random, so that the model
        # learns the text quickly.
        words = [source.randrange(vocabulary) for _ in range(16)]
        tokens = [words[i % 16] if source.random() < 0.9 else source.randrange(vocabulary)
                  for i in range(TOKENS)]
        (out / "train.bin").write_bytes(struct.pack(f"<{TOKENS}I", *tokens))
        (out / "meta.json").write_text(json.dumps({"dtype": "uint32", "eos": 2}))
        done.write_text(shape)
    return out, out / "train.bin"


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    args = parser.parse_args()
    model, data = make_model(args.shape, args.out)
    print(f"{model} {data}")


if __name__ == "__main__":
    main()
