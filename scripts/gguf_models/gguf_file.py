"""Reads a GGUF file as a Hugging Face model folder: its config.json, and its tensors by Hugging
Face's names.

A file whose model belongs to no family of families.py is refused; the error names the setting or
tensor that has no counterpart."""
import dataclasses
import shlex

import numpy as np

from gguf_models.families import (FAMILIES, Shape, family_by_architecture, rotating_layers,
                                  score_scalar, windowed_layers)
from gguf_models.rotation import llama3_settings
from script_errors import UserError

# The values that llama.cpp uses if a file lacks these settings.
DEFAULTS = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
# The tensor that holds the factors of a rotation. config.json has settings instead, from which the
# factors follow.
ROPE_FACTORS = "rope_freqs.weight"
# Hugging Face's names of special tokens, and GGUF's.
SPECIAL_TOKENS = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}
# Settings that are not read, because they do not change the results of any supported family: they
# repeat the shape of a tensor or a property of the architecture, or belong to other types of
# scaling.
IGNORED = {"vocab_size", "tensor_data_layout", "attention.layer_norm_epsilon",
          "attention.layer_norm_rms_epsilon", "rope.scaling.original_context_length",
          "rope.scaling.finetuned"}
# Settings that are not read, and that change nothing if they have these values.
NEUTRAL = {"attention.causal": True, "attention.clamp_kqv": 0, "attention.max_alibi_bias": 0,
           "attention.scale": 0, "attention.sliding_window": 0, "attn_logit_softcapping": 0,
           "final_logit_softcapping": 0, "expert_count": 0, "expert_used_count": 0,
           "leading_dense_block_count": 0, "nextn_predict_layers": 0, "logit_scale": 1,
           "embedding_scale": 1, "residual_scale": 1, "rope.scaling.attn_factor": 1,
           "rope.scaling.yarn_log_multiplier": 0}
FOLDER_REMEDY = "use the Hugging Face folder of the model"


@dataclasses.dataclass(frozen=True)
class HeadNorm:
    """The norm of one head: a row of a tensor in the file, but a separate tensor in the folder."""

    tensor: object
    head: int


def open_reader(path):
    """Returns the package's reader of a GGUF file, with the file mapped as a plain array: a slice
    of np.memmap takes ten times as long, and each token of a vocabulary is several slices."""
    import gguf  # slow to import, so only when a file is read

    class Reader(gguf.GGUFReader):
        """Replaces the mapped file by its plain view as soon as it is opened."""

        @property
        def data(self):
            return self._data

        @data.setter
        def data(self, mapped):
            self._data = np.asarray(mapped)

    return Reader(path)


class GgufFile:
    """The settings of a GGUF file, and its tensors under Hugging Face's names."""

    def __init__(self, path):
        import gguf

        self.path = path
        self.keys_read = set()
        self._dequantize = gguf.quants.dequantize
        try:
            self.reader = open_reader(path)
        except (ValueError, IndexError) as error:
            raise UserError(f"{path}: is not a GGUF file that can be read ({error})") from None
        self.architecture = self.field("general.architecture")
        family = family_by_architecture(self.architecture)
        if family is None:
            known = ", ".join(sorted({each.architecture for each in FAMILIES.values()}))
            raise UserError(f"{path}: architecture {self.architecture!r}, expected one that ftrun "
                            f"trains: {known}")
        self.family = family
        if self.field("split.count", 1) > 1:
            raise UserError(f"{path}: is a part of a model in several files; join them: "
                            f"llama-gguf-split --merge {shlex.quote(path)} WHOLE.gguf")
        self.model_shape = self._read_shape()
        self.stored_names = {tensor.name for tensor in self.reader.tensors}
        self.optional_modules = [optional for optional in family.optional_modules
                                 if f"blk.0.{optional.marker}.weight" in self.stored_names]
        modules = family.module_names(self.int_setting("block_count"), self.optional_modules)
        self.by_hf_name = {}
        for tensor in self.reader.tensors:
            if tensor.name != ROPE_FACTORS:
                self.by_hf_name |= self._hf_tensors(tensor, modules)
        self._require_all(modules)

    # ---- settings ----

    def field(self, name, default=None):
        """Returns a field of the file; `default` if the file lacks it."""
        field = self.reader.fields.get(name)
        return default if field is None else field.contents()

    def setting(self, name, default=None):
        """Returns a setting of the architecture. If the file has a list with the same value for
        each layer, returns that value."""
        self.keys_read.add(name)
        value = self.field(f"{self.architecture}.{name}", default)
        if value is None:
            raise UserError(f"{self.path}: lacks the setting {self.architecture}.{name}; "
                            "convert the model again with a newer llama.cpp")
        if isinstance(value, list):
            if len(set(value)) != 1:
                raise UserError(f"{self.path}: {self.architecture}.{name} differs between layers, "
                                "which no supported family has")
            value = value[0]
        return shortest_decimal(value) if isinstance(value, float) else value

    def int_setting(self, name):
        """Returns a setting that is a whole number."""
        return int(self.setting(name))

    def _read_shape(self):
        heads = self.int_setting("attention.head_count")
        hidden = self.int_setting("embedding_length")
        size = int(self.setting("attention.key_length", hidden // heads))
        kv_heads = int(self.setting("attention.head_count_kv", heads))
        if int(self.setting("attention.value_length", size)) != size:
            raise UserError(f"{self.path}: heads of keys and of values have different sizes, which "
                            "no supported family has")
        if not self.family.has_head_dim and size * heads != hidden:
            raise UserError(f"{self.path}: {heads} heads of size {size} do not add up to the "
                            f"hidden size {hidden}, as they must in a {self.family.model_type}")
        return Shape(self.family, heads, kv_heads, size)

    def config(self):
        """Returns the content of config.json, without the dtype of the tensors."""
        family, shape = self.family, self.model_shape
        layers = self.int_setting("block_count")
        config = {"architectures": [family.hf_class], "model_type": family.model_type,
                  "vocab_size": self.shape(self.by_hf_name[f"{family.embedding}.weight"])[0]}
        defaults = DEFAULTS | {"attention.head_count_kv": shape.kv_heads}
        for name, key in family.setting_keys().items():
            if key:
                config[key] = self.setting(name, defaults.get(name))
        for name, value in family.constants.items():
            if self.setting(name) != value:
                raise UserError(f"{self.path}: {self.architecture}.{name} is {self.setting(name)}, "
                                f"but {value} in every {family.model_type} model; {FOLDER_REMEDY}")
        if family.has_head_dim:
            config["head_dim"] = shape.head_size
        for key, values in family.fixed.items():
            config[key] = values[0]
        for optional in family.optional_modules:
            config[optional.key] = (optional.value_with if optional in self.optional_modules
                                    else optional.value_without)
        for key, module in family.bias_flags.items():
            config[key] = f"blk.0.{module}.bias" in self.stored_names
        if family.window_period:
            config["layer_types"] = windowed_layers(family, layers)
        if family.unrotated_period:
            config["no_rope_layers"] = rotating_layers(family, layers)
        if family.wide_score_layers:
            config["query_pre_attn_scalar"] = score_scalar(family, shape, config["hidden_size"],
                                                           layers)
        if family.model_type == "falcon":
            config["new_decoder_architecture"] = shape.kv_heads > 1
            config["multi_query"] = shape.kv_heads == 1
        config["tie_word_embeddings"] = f"{family.head}.weight" not in self.by_hf_name
        if not family.learned_positions:
            config["rope_parameters"] = self._rotation()
        ids = self.special_ids()
        config |= {f"{name}_token_id": ids.get(name) for name in ("bos", "eos", "pad")}
        self._refuse_unread()
        return config

    def _refuse_unread(self):
        """Raises UserError for the first setting that was not read and may change the results."""
        prefix = f"{self.architecture}."
        for key in self.reader.fields:
            name = key.removeprefix(prefix)
            if name != key and name not in self.keys_read | IGNORED and not self._is_neutral(name):
                raise UserError(f"{self.path}: the setting {key} ({shortened(self.field(key))}) is "
                                f"not supported in a {self.family.model_type} model; "
                                f"{FOLDER_REMEDY}")

    def _is_neutral(self, name):
        value = self.field(f"{self.architecture}.{name}")
        if name.startswith("rope.") and self.family.learned_positions:
            return True
        if name == "attention.sliding_window" and value >= self.int_setting("context_length"):
            return True
        if name == "attention.sliding_window_pattern":  # a period, or one flag per layer
            types = windowed_layers(self.family, self.int_setting("block_count")
                                    ) if self.family.window_period else []
            return value in (self.family.window_period, [each != "full_attention"
                                                         for each in types])
        return name in NEUTRAL and value == NEUTRAL[name]

    def special_ids(self):
        """Returns the ids of bos, eos, pad and unk, if the file names them."""
        ids = {hf_name: self.field(f"tokenizer.ggml.{gguf_name}_token_id")
               for hf_name, gguf_name in SPECIAL_TOKENS.items()}
        return {name: int(i) for name, i in ids.items() if i is not None}

    def end_ids(self):
        """Returns the ids that end an answer."""
        ids = [self.field(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
        return sorted({int(i) for i in ids if i is not None})

    def _rotation(self):
        """Returns rope_parameters."""
        size = self.model_shape.head_size
        theta = float(self.setting("rope.freq_base", 10000.0))
        kind, factor = self._scaling()
        if ROPE_FACTORS in self.stored_names:
            tensor = next(t for t in self.reader.tensors if t.name == ROPE_FACTORS)
            rope = llama3_settings(tensor.data.reshape(-1), theta, self.path)
        elif kind == "linear" and factor != 1:
            rope = {"rope_type": "linear", "rope_theta": theta, "factor": factor}
        else:
            rope = {"rope_type": "default", "rope_theta": theta}
        rotated = int(self.setting("rope.dimension_count", size))
        if self.family.partial_rotation is not None:
            rope["partial_rotary_factor"] = rotated / size
        elif rotated != size:
            raise UserError(f"{self.path}: rotates {rotated} of {size} numbers of a head, but a "
                            f"{self.family.model_type} rotates all; {FOLDER_REMEDY}")
        if not self.family.window_rotation:
            return rope
        windowed = float(self.setting("rope.freq_base_swa", 10000.0))
        return {"full_attention": rope,
                "sliding_attention": {"rope_type": "default", "rope_theta": windowed}}

    def _scaling(self):
        kind = self.setting("rope.scaling.type", "linear")
        if kind not in ("none", "linear"):
            raise UserError(f"{self.path}: a rotary embedding of type {kind!r} is not supported; "
                            "supported are default, linear and llama3")
        older = self.setting("rope.scale_linear", 1.0)
        return kind, float(self.setting("rope.scaling.factor", older))

    # ---- tensors ----

    def _hf_tensors(self, tensor, modules):
        """Returns the tensors of the folder that a tensor of the file contains, by name."""
        module, _, kind = tensor.name.rpartition(".")
        if module not in modules or kind not in ("weight", "bias"):
            raise UserError(f"{self.path}: tensor {tensor.name!r} is not known in a "
                            f"{self.family.model_type} model; {FOLDER_REMEDY}")
        module = modules[module]
        if self.family.norms_by_head and module.endswith("_layernorm") and len(tensor.shape) == 2:
            return {f"{module}.norms.{head}.{kind}": HeadNorm(tensor, head)
                    for head in range(int(tensor.shape[1]))}
        return {f"{module}.{kind}": tensor}

    def _require_all(self, modules):
        """Raises UserError for the first matrix or norm that the file lacks."""
        optional = {"output"}
        if self.family.model_type == "stablelm" and self.setting("use_parallel_residual"):
            optional |= {name for name in modules if name.endswith("ffn_norm")}
        for name in modules:
            if f"{name}.weight" not in self.stored_names and name not in optional:
                raise UserError(f"{self.path}: lacks the tensor '{name}.weight' of a "
                                f"{self.family.model_type} model; {FOLDER_REMEDY}")

    def shape(self, tensor):
        """Returns the shape of a tensor in the folder."""
        if isinstance(tensor, HeadNorm):
            return self.shape(tensor.tensor)[1:]
        stored = [int(n) for n in reversed(tensor.shape)]  # GGUF lists the fastest axis first
        return stored[::-1] if self.model_shape.is_transposed(tensor.name, len(stored)) else stored

    def values(self, tensor):
        """Returns the values as they are in the folder, in fp32."""
        if isinstance(tensor, HeadNorm):
            return self.values(tensor.tensor)[tensor.head]
        try:
            values = self._dequantize(tensor.data, tensor.tensor_type)
        except NotImplementedError:
            raise UserError(f"{self.path}: tensor {tensor.name} is of type "
                            f"{tensor.tensor_type.name}, which the package gguf does not read; "
                            "convert it: llama-quantize --allow-requantize "
                            f"{shlex.quote(self.path)} OTHER.gguf Q8_0") from None
        values = np.asarray(values, dtype=np.float32)
        values = values.reshape([int(n) for n in reversed(tensor.shape)])
        return self.model_shape.convert(tensor.name, values, False)


def shortened(value):
    """Returns a setting's value for an error, shortened."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def shortest_decimal(value):
    """Returns the shortest decimal of a fraction that GGUF stores in fp32: 1e-05 for
    9.99999974e-06."""
    return float(str(np.float32(value)))
