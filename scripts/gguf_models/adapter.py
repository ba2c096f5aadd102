"""Reads a PEFT folder of a LoRA adapter, for use by llama.cpp with the GGUF file of its base.

llama.cpp only adds alpha / rank times B A to a weight matrix. An adapter that contains more is
refused; it must be merged into its base, which is then exported."""
import math
import os
import shlex

from gguf_models.families import FAMILIES, config_shape, decoder_name
from gguf_models.model_folder import INSIDE_OF, open_safetensors, read_json
from script_errors import UserError

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
# PEFT's names of the two matrices, and llama.cpp's.
MATRICES = {"lora_A": "lora_a", "lora_B": "lora_b"}
PREFIX = "base_model.model."


def unsupported_settings(settings, metadata):
    """Returns the settings of an adapter that llama.cpp does not support."""
    names = [key for key in ("use_dora", "modules_to_save", "alpha_pattern", "lora_bias",
                             "layer_replication", "trainable_token_indices") if settings.get(key)]
    if settings.get("bias", "none") != "none":
        names.append("bias")
    if settings.get("use_rslora") and settings.get("rank_pattern"):
        names.append("use_rslora with rank_pattern")
    if (metadata or {}).get("ftrun.base_quantization", "none") != "none":
        names.append("a base that was quantized in training")
    return names


class AdapterTensors:
    """The matrices of an adapter by GGUF's names, in fp32, and their alpha."""

    def __init__(self, folder, config):
        family = FAMILIES[config["model_type"]]
        self.architecture = family.architecture
        self.model_shape = config_shape(family, config)
        settings = read_json(os.path.join(folder, CONFIG))
        path = os.path.join(folder, WEIGHTS)
        self.file = open_safetensors(path, "pt")
        if settings.get("peft_type") != "LORA":
            raise refusal(folder, f"peft_type {settings.get('peft_type')}")
        unsupported = unsupported_settings(settings, self.file.metadata())
        if unsupported:
            raise refusal(folder, ", ".join(unsupported))
        rank = settings["r"]
        self.alpha = float(settings["lora_alpha"])
        if settings.get("use_rslora"):  # the scale is alpha / sqrt(r) here, alpha / r in llama.cpp
            self.alpha *= math.sqrt(rank)
        modules = family.module_names(config[family.key("block_count")])
        names = {module: name for name, module in modules.items() if name.startswith("blk.")}
        self.stored_names = {}
        for name in self.file.keys():
            path = name.removesuffix(".weight").removeprefix(PREFIX)
            module, _, matrix = (decoder_name(path) or path if INSIDE_OF in config
                                 else path).rpartition(".")
            if module not in names or matrix not in MATRICES:
                raise refusal(folder, f"the tensor {name}")
            self.stored_names[f"{names[module]}.weight.{MATRICES[matrix]}"] = name

    def names(self):
        """Returns the GGUF names of the matrices."""
        return list(self.stored_names)

    def shape(self, name):
        """Returns the shape of a matrix."""
        return tuple(self.file.get_slice(self.stored_names[name]).get_shape())

    def source(self, name):
        """Returns the values as they are in the folder, in fp32."""
        return self.file.get_tensor(self.stored_names[name]).float().numpy()

    def values(self, name):
        """Returns the values for GGUF, in fp32. The rows of B are in the order of the rows of the
        matrix to which they are added."""
        return self._ordered(name, self.source(name), True)

    def restored(self, name, values):
        """Returns the folder's values, computed from the values in GGUF."""
        return self._ordered(name, values, False)

    def _ordered(self, name, values, to_gguf):
        part = name.split(".")[-3]
        return self.model_shape.order_rows(part, values, to_gguf) if name.endswith("b") else values

    def adds_one(self, _):
        """Returns False: GGUF stores the folder's values."""
        return False


def refusal(folder, what):
    """Returns the error for an adapter that llama.cpp cannot apply unchanged."""
    return UserError(f"{folder}: llama.cpp cannot apply this adapter unchanged ({what}); merge it "
                     f"with its base first: ftrun convert {shlex.quote(folder)} --merge "
                     "--out FOLDER")


def base_of(folder):
    """Returns the folder or name of the model that an adapter says it was trained on."""
    base = read_json(os.path.join(folder, CONFIG)).get("base_model_name_or_path")
    if not base:
        raise UserError(f"{folder}: does not name its base model; give --base FOLDER")
    return base
