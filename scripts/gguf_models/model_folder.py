"""Reads a Hugging Face model folder for llama.cpp: its settings and tensors.

A model that llama.cpp would compute differently is refused; the error names its family, or the
setting that has no counterpart."""
import json
import os

import numpy as np

from gguf_models.families import (FAMILIES, MULTIMODAL, applicable_modules, config_shape,
                                  decoder_name, rotating_layers, score_scalar, supported_names,
                                  windowed_layers)
from gguf_models.rotation import llama3_factors, rope_settings
from script_errors import UserError
from text_files import read_text, refuse_pointers


def read_json(path):
    """Returns the object of a JSON file. Raises UserError."""
    try:
        value = json.loads(read_text(path))
    except ValueError as error:
        raise UserError(f"{path}: is not JSON ({error})") from None
    if not isinstance(value, dict):
        raise UserError(f"{path}: holds no JSON object")
    return value


# A key in the config of a decoder that marks it as a part of a multimodal model.
INSIDE_OF = "multimodal"


def read_config(folder):
    """Returns the config.json of a model that can be exported, with the defaults of its class for
    missing keys; for a multimodal model, the config of its decoder. Raises UserError for any other
    model."""
    path = os.path.join(folder, "config.json")
    model_type = read_json(path).get("model_type")
    config = completed_config(folder, path) if model_type in (*FAMILIES, *MULTIMODAL) else None
    kind = config["model_type"] if config else model_type
    if kind not in FAMILIES:
        raise UserError(f"{path}: model_type {kind!r} cannot be exported as GGUF; supported are "
                        f"{supported_names()}. transformers and vLLM read the folder itself")
    refuse_settings(FAMILIES[kind], config, path)
    return config


def completed_config(folder, path):
    """Returns the config of the text decoder, with the defaults of its class."""
    from transformers import AutoConfig
    try:
        full = AutoConfig.from_pretrained(folder)
    except Exception as error:  # many classes of exceptions, some from other packages
        raise UserError(f"{path}: transformers cannot read the file ({error})") from None
    config = full.to_dict()
    if full.model_type in MULTIMODAL:
        config = full.get_text_config().to_dict()
        config |= {INSIDE_OF: full.model_type, "tie_word_embeddings": full.tie_word_embeddings}
    return with_derived_values(config)


def with_derived_values(config):
    """Returns the config with null keys replaced by the values that its class derives from other
    keys."""
    if config["model_type"] == "gpt2":
        config["n_inner"] = config["n_inner"] or 4 * config["n_embd"]
    if config["model_type"] == "falcon" and config["num_ln_in_parallel_attn"] is None:
        config["num_ln_in_parallel_attn"] = 2 if config["new_decoder_architecture"] else 1
    return config


def refuse_settings(family, config, path):
    """Raises UserError for the first setting that llama.cpp does not compute."""
    def refuse(key, remedy=""):
        raise UserError(f"{path}: {key} {config[key]!r} is not supported by llama.cpp's "
                        f"{family.architecture}{remedy}")

    for key, values in family.fixed.items():
        if config.get(key) not in values:
            refuse(key)
    layers, shape = config[family.key("block_count")], config_shape(family, config)
    for optional in family.optional_modules:
        if config.get(optional.key) not in (optional.value_with, optional.value_without):
            refuse(optional.key)
        if optional.from_layers and optional.applies_to(config) != (layers >= optional.from_layers):
            refuse(optional.key, f" with {layers} layers: it uses {optional.value_with} from "
                   f"{optional.from_layers} layers on and {optional.value_without} below")
    if family.window_period:
        if config["layer_types"] != windowed_layers(family, layers):
            period = family.window_period
            refuse("layer_types", f": only layers {period}, {2 * period}, ... are without a window")
    elif is_windowed(config, config[family.key("context_length")]):
        window = config["sliding_window"]
        refuse("sliding_window", f"; for a model that is used for at most {window} tokens, set "
               f"\"max_position_embeddings\": {window}")
    if family.unrotated_period and config["no_rope_layers"] != rotating_layers(family, layers):
        refuse("no_rope_layers")
    if family.wide_score_layers:
        scalar = score_scalar(family, shape, config["hidden_size"], layers)
        if config["query_pre_attn_scalar"] != scalar:
            refuse("query_pre_attn_scalar", f", which uses {scalar} for {layers} layers")


def is_windowed(config, positions):
    """Returns whether a layer of the model has a window shorter than its positions."""
    window, types = config.get("sliding_window"), config.get("layer_types")
    is_used = ("sliding_attention" in types if types
               else config.get("use_sliding_window") is not False)
    return window is not None and is_used and window < positions


def write_settings(writer, config, path):
    """Writes the architecture's keys."""
    family = FAMILIES[config["model_type"]]
    shape = config_shape(family, config)
    for name, key in family.setting_keys().items():
        value = shape.kv_heads if name == "attention.head_count_kv" else config[key]
        add_setting(writer, name, value)
    for name, value in family.constants.items():
        add_setting(writer, name, value)
    add_setting(writer, "vocab_size", config["vocab_size"])
    add_setting(writer, "attention.key_length", shape.head_size)
    add_setting(writer, "attention.value_length", shape.head_size)
    if not family.learned_positions:
        write_rotation(writer, family, config, shape.head_size, path)


def add_setting(writer, name, value):
    """Writes a key of the architecture with the type of its value."""
    import gguf
    kinds = gguf.GGUFValueType
    kind = (kinds.BOOL if isinstance(value, bool) else
            kinds.FLOAT32 if isinstance(value, float) else kinds.UINT32)
    if name in FRACTIONS:
        value, kind = float(value), kinds.FLOAT32
    writer.add_key_value(f"{writer.arch}.{name}", value, kind)


# Settings that may be integers in config.json, but are floating-point numbers in GGUF.
FRACTIONS = {"attention.scale", "embedding_scale", "residual_scale", "logit_scale",
             "attn_logit_softcapping", "final_logit_softcapping"}


def write_rotation(writer, family, config, size, path):
    """Writes the keys of the rotary embedding, for heads of `size`."""
    import gguf
    rope = rope_settings(config)
    share = rope.get("partial_rotary_factor", family.partial_rotation or 1.0)
    add_setting(writer, "rope.dimension_count", int(size * share))
    writer.add_rope_freq_base(float(rope["rope_theta"]))
    kind = rope["rope_type"]
    if kind == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(float(rope["factor"]))
    elif kind not in ("default", "llama3"):  # llama3's factors are a tensor
        raise UserError(f"{path}: a rotary embedding of type {kind!r} cannot be exported as GGUF; "
                        "supported are default, linear and llama3")
    if family.window_rotation:
        windowed = rope_settings(config, "sliding_attention")
        if windowed["rope_type"] != "default":
            raise UserError(f"{path}: the rotary embedding of layers with a sliding window is of "
                            f"type {windowed['rope_type']!r}, but llama.cpp supports only default "
                            "in these layers")
        add_setting(writer, "rope.freq_base_swa", float(windowed["rope_theta"]))


class Tensors:
    """The tensors of a model folder by GGUF's names, in fp32, one at a time in memory. They include
    the factors of a rotation, which the folder has as settings."""

    def __init__(self, folder, config):
        self.family = FAMILIES[config["model_type"]]
        self.architecture = self.family.architecture
        self.model_shape = config_shape(self.family, config)
        rope = rope_settings(config)
        scaled = rope["rope_type"] == "llama3"
        size = self.model_shape.head_size
        self.computed = {"rope_freqs.weight": llama3_factors(rope, size)} if scaled else {}
        modules = self.family.module_names(config[self.family.key("block_count")],
                                           applicable_modules(self.family, config))
        self.names_by_module = {module: name for name, module in modules.items()}
        self.is_inside = INSIDE_OF in config
        self.left_out = 0  # tensors of other parts than the decoder
        # `places` holds the folder's name and the file of each tensor. `heads` holds those of
        # tensors that the folder stores separately for each head.
        self.places, self.heads = {}, {}
        for file in sorted(shard_files(folder)):
            self._add_file(file, config.get("tie_word_embeddings"))
        for name, by_head in self.heads.items():
            if sorted(by_head) != list(range(len(by_head))):
                last = max(by_head)
                raise UserError(f"{folder}: some heads have no norm: {len(by_head)} of {last + 1} "
                                f"found, the last is {by_head[last][0]}; restore the missing "
                                "tensors")
        if "token_embd.weight" not in self.places:
            raise UserError(f"{folder}: holds no embedding ({self.family.embedding}.weight)")

    def _add_file(self, file, tied):
        opened = open_safetensors(file, "numpy")
        if has_bf16(file):
            opened = open_safetensors(file, "pt")
        for name in opened.keys():
            own_name = decoder_name(name) if self.is_inside else name
            if own_name is None:
                self.left_out += 1
                continue
            module, _, kind = own_name.rpartition(".")
            if is_buffer(own_name) or (tied and module == self.family.head):
                continue
            module, head = split_head(module)
            if module not in self.names_by_module or kind not in ("weight", "bias"):
                raise UserError(f"{file}: tensor {name!r} has no name in llama.cpp's "
                                f"{self.architecture}")
            gguf_name = f"{self.names_by_module[module]}.{kind}"
            if head is None:
                self.places[gguf_name] = (name, opened)
            else:
                self.heads.setdefault(gguf_name, {})[head] = (name, opened)

    def names(self):
        """Returns the GGUF names of the tensors."""
        return [*self.computed, *self.places, *self.heads]

    def shape(self, name):
        """Returns the shape of a tensor in GGUF."""
        if name in self.computed:
            return self.computed[name].shape
        if name in self.heads:
            source, opened = self.heads[name][0]
            return (len(self.heads[name]), *opened.get_slice(source).get_shape())
        source, opened = self.places[name]
        shape = tuple(opened.get_slice(source).get_shape())
        return shape[::-1] if self.model_shape.is_transposed(name, len(shape)) else shape

    def source(self, name):
        """Returns the values as they are in the folder, in fp32; None for a tensor that is computed
        here."""
        if name in self.computed:
            return None
        if name in self.heads:
            by_head = self.heads[name]
            return np.stack([read_values(*by_head[head]) for head in range(len(by_head))])
        return read_values(*self.places[name])

    def values(self, name):
        """Returns the values for GGUF, in fp32."""
        if name in self.computed:
            return self.computed[name]
        return self.model_shape.convert(name, self.source(name), True)

    def adds_one(self, name):
        """Returns whether GGUF stores the folder's values plus 1."""
        return self.family.norms_less_one and name.endswith("norm.weight")

    def restored(self, name, values):
        """Returns the folder's values, computed from the values in GGUF, in fp32."""
        return self.model_shape.convert(name, values, False)


def split_head(module):
    """Returns (module, head) for a norm that a file stores separately for each head
    (q_layernorm.norms.3), and (module, None) for any other module."""
    before, _, head = module.rpartition(".norms.")
    return (before, int(head)) if before and head.isdecimal() else (module, None)


def read_values(name, opened):
    """Returns a tensor of an opened file, fp32."""
    values = opened.get_tensor(name)
    if not isinstance(values, np.ndarray):
        values = values.float().numpy()
    return np.asarray(values, dtype=np.float32)


def is_buffer(name):
    """Returns whether a tensor is a buffer that older files contain and no model reads."""
    return name.endswith(("rotary_emb.inv_freq", ".attn.bias", ".masked_bias", ".attention.bias"))


def open_safetensors(path, framework):
    """Opens a file of tensors. Raises UserError if it is not one."""
    from safetensors import SafetensorError, safe_open
    refuse_pointers([path])
    try:
        return safe_open(path, framework=framework)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except SafetensorError as error:
        raise UserError(f"{path}: is not a readable safetensors file ({error}); fetch it "
                        "again, or export the model again") from None


def has_bf16(file):
    """Returns whether a file contains bf16, which numpy does not support, so that torch must read
    it. The file has been opened before, so its header is valid."""
    with open(file, "rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        header = json.loads(opened.read(length))
    tensors = [entry for name, entry in header.items() if name != "__metadata__"]
    return any(entry.get("dtype") == "BF16" for entry in tensors)


def shard_files(folder):
    """Returns the files that hold the model's tensors."""
    single, index = (os.path.join(folder, name)
                     for name in ("model.safetensors", "model.safetensors.index.json"))
    if os.path.isfile(single):
        return {single}
    if not os.path.isfile(index):
        raise UserError(f"{folder}: has neither model.safetensors nor model.safetensors.index.json")
    return {os.path.join(folder, file) for file in read_json(index)["weight_map"].values()}
