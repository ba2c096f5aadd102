"""What llama.cpp computes of a model folder: its architecture, settings and tensors.

Names and keys are those of the package gguf. A model that llama.cpp would compute otherwise is refused: by its family,
or by the setting that has no counterpart."""
import json
import os

import numpy as np

from script_errors import UserError

# Families by config.json's model_type: llama.cpp's architecture, and whether it turns neighbouring rows of a head in its
# rotation, for which the rows of q and k are put in that order.
FAMILIES = {
    "llama": ("llama", True),
    "mistral": ("llama", True),
    "qwen2": ("qwen2", False),
    "qwen3": ("qwen3", False),
}
# Keys of config.json under which only these values are computed as the model does.
REQUIRED = {"hidden_act": ("silu",), "attention_dropout": (0, 0.0, None), "use_sliding_window": (False, None),
            "mlp_bias": (False, None), "pretraining_tp": (1, None)}


def read_json(path):
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except (ValueError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: is not JSON ({error})") from None


def read_config(folder):
    """config.json of a family that is handed over; UserError for any other."""
    path = os.path.join(folder, "config.json")
    config = read_json(path)
    family = config.get("model_type")
    if family not in FAMILIES:
        raise UserError(f"{path}: model_type {family!r} has no proven way into GGUF here; those that have: {', '.join(FAMILIES)}")
    for key, values in REQUIRED.items():
        if config.get(key) not in values:
            raise UserError(f"{path}: {key} {config[key]!r} is not computed by llama.cpp's {FAMILIES[family][0]}")
    window, most = config.get("sliding_window"), config.get("max_position_embeddings", 0)
    if window is not None and window < most and (family == "mistral" or config.get("use_sliding_window")):
        raise UserError(f"{path}: sliding_window {window} is not computed by llama.cpp's {FAMILIES[family][0]}; a model that is used "
                        f"for at most {window} tokens may say so: \"max_position_embeddings\": {window}")
    return config


def head_size(config):
    return config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]


def rope_settings(config):
    """rope_theta and what scales the rotation, under transformers 5's key or the older ones."""
    settings = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    settings.setdefault("rope_theta", config.get("rope_theta", 10000.0))
    settings["rope_type"] = settings.get("rope_type", settings.get("type", "default"))
    return settings


def llama3_factors(rope, size):
    """What Llama 3.1 divides each frequency by: 1 for the short wavelengths, `factor` for the long ones, between them a
    linear mixture of the frequencies (rope_freqs in GGUF), fp32 [size / 2]."""
    frequencies = rope["rope_theta"] ** -(np.arange(0, size, 2, dtype=np.float64) / size)
    wavelengths = 2 * np.pi / frequencies
    low, high, factor = rope["low_freq_factor"], rope["high_freq_factor"], rope["factor"]
    trained = rope["original_max_position_embeddings"]
    share = np.clip((trained / wavelengths - low) / (high - low), 0.0, 1.0)
    return (1.0 / ((1.0 - share) / factor + share)).astype(np.float32)


def write_settings(writer, config, path):
    """The architecture's keys."""
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config.get("num_key_value_heads", config["num_attention_heads"]))
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    size = head_size(config)
    writer.add_key_length(size)
    writer.add_value_length(size)
    writer.add_rope_dimension_count(size)
    write_rope(writer, config, size, path)


def write_rope(writer, config, size, path):
    import gguf
    rope = rope_settings(config)
    writer.add_rope_freq_base(rope["rope_theta"])
    kind = rope["rope_type"]
    if kind == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    elif kind not in ("default", "llama3"):  # llama3's factors are a tensor
        raise UserError(f"{path}: rotation of type {kind!r} has no proven way into GGUF here; default, linear and llama3 have")


def pairs_from_halves(values, heads):
    """Puts beside each other the two rows of a head that a rotation turns together: Hugging Face keeps one in each half of
    the head. values [heads * head_size, ...]."""
    rows = values.shape[0]
    halves = values.reshape(heads, 2, rows // heads // 2, *values.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)


class Tensors:
    """The tensors of a model folder by GGUF's names, in fp32, one in memory at a time; and the factors of a rotation."""

    def __init__(self, folder, config):
        import gguf
        from safetensors import safe_open
        self.config = config
        self.architecture, self.in_pairs = FAMILIES[config["model_type"]]
        arch = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == self.architecture)
        names = gguf.get_tensor_name_map(arch, config["num_hidden_layers"])
        rope = rope_settings(config)
        self.made = {"rope_freqs.weight": llama3_factors(rope, head_size(config))} if rope["rope_type"] == "llama3" else {}
        self.places = {}
        for file in sorted(shard_files(folder)):
            opened = safe_open(file, framework="numpy" if not has_bf16(file) else "pt")
            for name in opened.keys():
                if name.endswith("rotary_emb.inv_freq"):
                    continue
                if name == "lm_head.weight" and config.get("tie_word_embeddings"):
                    continue
                ours = names.get_name(name, try_suffixes=(".weight", ".bias"))
                if ours is None:
                    raise UserError(f"{file}: tensor {name!r} has no name in llama.cpp's {self.architecture}")
                self.places[ours] = (name, opened)
        if "token_embd.weight" not in self.places:
            raise UserError(f"{folder}: holds no embedding (model.embed_tokens.weight)")

    def names(self):
        return [*self.made, *self.places]

    def shape(self, name):
        if name in self.made:
            return self.made[name].shape
        source, opened = self.places[name]
        return tuple(opened.get_slice(source).get_shape())

    def values(self, name):
        """fp32, with the rows of q and k in llama.cpp's order."""
        if name in self.made:
            return self.made[name]
        source, opened = self.places[name]
        values = opened.get_tensor(source)
        if not isinstance(values, np.ndarray):
            values = values.float().numpy()
        values = np.asarray(values, dtype=np.float32)
        part = name.split(".")[-2]
        if self.in_pairs and part in ("attn_q", "attn_k"):
            heads = self.config["num_attention_heads"]
            values = pairs_from_halves(values, heads if part == "attn_q" else self.config.get("num_key_value_heads", heads))
        return values


def has_bf16(file):
    """numpy has no bf16: torch reads such a file."""
    with open(file, "rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        header = json.loads(opened.read(length))
    return any(entry.get("dtype") == "BF16" for name, entry in header.items() if name != "__metadata__")


def shard_files(folder):
    single, index = (os.path.join(folder, name) for name in ("model.safetensors", "model.safetensors.index.json"))
    if os.path.isfile(single):
        return {single}
    if not os.path.isfile(index):
        raise UserError(f"{folder}: has neither model.safetensors nor model.safetensors.index.json")
    return {os.path.join(folder, file) for file in read_json(index)["weight_map"].values()}
