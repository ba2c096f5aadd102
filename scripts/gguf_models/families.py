"""The model families that can be converted between Hugging Face's folders and GGUF, as one table
for both directions.

The entry of a family says which architecture of llama.cpp computes it, the names of its modules and
settings in both formats, how tensors are stored differently, and which settings llama.cpp cannot
compute. GGUF's names of tensors are those of the package gguf."""
import dataclasses
import functools

import numpy as np

from gguf_models import rows

# {GGUF's key after the name of the architecture: key of config.json}
COMMON_KEYS = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
}
RMS = {"attention.layer_norm_rms_epsilon": "rms_norm_eps"}
SILU = ("silu",)
# llama.cpp computes gelu only by its tanh approximation, from a table in f16. Using it for the
# exact gelu adds no larger error than the table itself.
GELU = ("gelu_pytorch_tanh", "gelu_new")
GELUS = ("gelu", *GELU)


@dataclasses.dataclass(frozen=True)
class OptionalModules:
    """Modules of a block that only some models of a family have, depending on a key of
    config.json."""

    key: str
    # The key's value with these modules, and without them.
    value_with: object
    value_without: object
    modules: tuple
    # A module, by its GGUF name in the block, that only models with these modules have.
    marker: str
    # The modules that are absent if these modules are present.
    instead_of: tuple = ()
    # llama.cpp expects these modules only in models with at least this many layers; 0:
    # models with any number of layers may have them.
    from_layers: int = 0

    def applies_to(self, config):
        """Returns whether a model has the modules."""
        return config.get(self.key) == self.value_with


@dataclasses.dataclass(frozen=True)
class Family:
    """A model family: one model_type of config.json."""

    model_type: str
    # llama.cpp's name of the architecture, and Hugging Face's name of the class.
    architecture: str
    hf_class: str
    embedding: str = "model.embed_tokens"
    norm: str = "model.norm"
    head: str = "lm_head"
    # Modules outside of blocks that most families do not have.
    others: tuple = ()
    blocks: str = "model.layers."
    # The modules of a block.
    modules: tuple = ()
    # Modules that some models have.
    optional_modules: tuple = ()
    # Settings: GGUF's key behind the architecture's name, config.json's key.
    keys: dict = dataclasses.field(default_factory=dict)
    # GGUF settings for which the class has no key, with the value that all its models have.
    constants: dict = dataclasses.field(default_factory=dict)
    # Keys of config.json for which llama.cpp supports only these values. When a GGUF file is read,
    # the first value is written.
    fixed: dict = dataclasses.field(default_factory=dict)
    # Flags of config.json that say whether a module of a block has a bias: {flag: module}.
    bias_flags: dict = dataclasses.field(default_factory=dict)
    # config.json has head_dim.
    has_head_dim: bool = True
    # The share of a head that rotates if config.json does not say it; None: always the whole head.
    partial_rotation: float | None = None
    # Position embeddings are used instead of a rotary embedding.
    learned_positions: bool = False
    # llama.cpp rotates pairs of neighboring rows of a head, Hugging Face pairs of rows from its
    # two halves.
    in_pairs: bool = False
    # Hugging Face stores the weights of norms minus 1.
    norms_less_one: bool = False
    # Hugging Face stores the matrices of linear layers as [inputs, outputs].
    transposed: bool = False
    # Hugging Face's files hold norms of heads head by head.
    norms_by_head: bool = False
    # In Hugging Face's files the fused matrix of q, k and v is ordered by key head.
    by_key_head: bool = False
    # With n, every n-th layer has no sliding window, and the other layers have one; 0: llama.cpp
    # computes no window.
    window_period: int = 0
    # In models with this number of layers, llama.cpp divides scores by sqrt(hidden size / heads)
    # instead of sqrt(head_dim); 0: config.json has no query_pre_attn_scalar.
    wide_score_layers: int = 0
    # Layers with a window have their own base of the rotation.
    window_rotation: bool = False
    # With n, every n-th layer does not rotate; 0: all layers rotate.
    unrotated_period: int = 0

    def setting_keys(self):
        """Returns config.json's key of each setting, by GGUF's key."""
        return {**COMMON_KEYS, **self.keys}

    def key(self, name):
        """Returns config.json's key of a setting that all families have."""
        return self.setting_keys()[name]

    def module_names(self, layers, optional_modules=()):
        """Returns Hugging Face's module by GGUF's name, for a model of `layers` layers with the
        modules of `optional_modules`."""
        import gguf
        arch = next(key for key, name in gguf.MODEL_ARCH_NAMES.items()
                    if name == self.architecture)
        table = gguf.get_tensor_name_map(arch, layers)
        modules = [self.embedding, self.norm, self.head, *self.others]
        replaced = {module for optional in optional_modules for module in optional.instead_of}
        of_block = [module for module in self.modules if module not in replaced]
        of_block += [module for optional in optional_modules for module in optional.modules]
        modules += [f"{self.blocks}{i}.{module}" for i in range(layers) for module in of_block]
        by_name = {table.get_name(module): module for module in modules}
        by_name.pop(None, None)  # the architecture has no head, because it is always tied
        return by_name


ATTENTION = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
GATED = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
NORMS = ("input_layernorm", "post_attention_layernorm")
NORMS_BEHIND = ("post_attention_layernorm", "post_feedforward_layernorm")
HEAD_NORMS = ("self_attn.q_norm", "self_attn.k_norm")
NO_WINDOW = {"use_sliding_window": (False, None)}
GLM_MODULES = (*NORMS, *ATTENTION, "mlp.gate_up_proj", "mlp.down_proj")
GEMMA_KEYS = {"attention.sliding_window": "sliding_window", **RMS}
GEMMA_MODULES = ("input_layernorm", "pre_feedforward_layernorm", *NORMS_BEHIND, *ATTENTION, *GATED)
CAPS = {"attn_logit_softcapping": "attn_logit_softcapping",
        "final_logit_softcapping": "final_logit_softcapping"}

FAMILIES = {family.model_type: family for family in (
    Family("llama", "llama", "LlamaForCausalLM", modules=(*NORMS, *ATTENTION, *GATED), keys=RMS,
           fixed={"hidden_act": SILU, "pretraining_tp": (1, None)}, in_pairs=True,
           bias_flags={"attention_bias": "attn_q", "mlp_bias": "ffn_up"}),
    Family("mistral", "llama", "MistralForCausalLM", modules=(*NORMS, *ATTENTION, *GATED), keys=RMS,
           fixed={"hidden_act": SILU}, in_pairs=True),
    Family("qwen2", "qwen2", "Qwen2ForCausalLM", modules=(*NORMS, *ATTENTION, *GATED), keys=RMS,
           fixed={"hidden_act": SILU, **NO_WINDOW}),
    Family("qwen3", "qwen3", "Qwen3ForCausalLM", modules=(*NORMS, *ATTENTION, *HEAD_NORMS, *GATED),
           keys=RMS, fixed={"hidden_act": SILU, "attention_bias": (False,), **NO_WINDOW}),
    Family("granite", "granite", "GraniteForCausalLM", modules=(*NORMS, *ATTENTION, *GATED),
           keys={**RMS, "attention.scale": "attention_multiplier",
                 "embedding_scale": "embedding_multiplier",
                 "residual_scale": "residual_multiplier", "logit_scale": "logits_scaling"},
           fixed={"hidden_act": SILU}, in_pairs=True,
           bias_flags={"attention_bias": "attn_q", "mlp_bias": "ffn_up"}),
    Family("phi3", "phi3", "Phi3ForCausalLM", keys=RMS, fixed={"hidden_act": SILU},
           modules=(*NORMS, "self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj",
                    "mlp.down_proj"), partial_rotation=1.0),
    Family("phi", "phi2", "PhiForCausalLM", norm="model.final_layernorm",
           modules=("input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
                    "self_attn.dense", "mlp.fc1", "mlp.fc2"),
           keys={"attention.layer_norm_epsilon": "layer_norm_eps"},
           fixed={"hidden_act": GELU[::-1], "qk_layernorm": (False,)}, has_head_dim=False,
           partial_rotation=0.5),
    Family("gpt2", "gpt2", "GPT2LMHeadModel", embedding="transformer.wte", norm="transformer.ln_f",
           others=("transformer.wpe",), blocks="transformer.h.",
           modules=("ln_1", "ln_2", "attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"),
           keys={"context_length": "n_positions", "embedding_length": "n_embd",
                 "block_count": "n_layer", "feed_forward_length": "n_inner",
                 "attention.head_count": "n_head", "attention.head_count_kv": None,
                 "attention.layer_norm_epsilon": "layer_norm_epsilon"},
           fixed={"activation_function": GELU[::-1], "scale_attn_weights": (True,),
                  "scale_attn_by_inverse_layer_idx": (False,), "add_cross_attention": (False,)},
           has_head_dim=False, learned_positions=True, transposed=True),
    Family("gemma", "gemma", "GemmaForCausalLM", modules=(*NORMS, *ATTENTION, *GATED), keys=RMS,
           fixed={"hidden_act": (*GELU, "gelu"), "attention_bias": (False,),
                  "use_bidirectional_attention": (None, False)}, norms_less_one=True),
    Family("gemma2", "gemma2", "Gemma2ForCausalLM", modules=GEMMA_MODULES,
           keys={**GEMMA_KEYS, **CAPS},
           fixed={"hidden_activation": GELU, "attention_bias": (False,),
                  "use_bidirectional_attention": (None, False)},
           norms_less_one=True, window_period=2, wide_score_layers=46),
    Family("gemma3_text", "gemma3", "Gemma3ForCausalLM", modules=(*GEMMA_MODULES, *HEAD_NORMS),
           keys=GEMMA_KEYS, fixed={"hidden_activation": GELU, "attention_bias": (False,),
                                   "use_bidirectional_attention": (False, None),
                                   **{key: (None,) for key in CAPS}},
           norms_less_one=True, window_period=6, wide_score_layers=62, window_rotation=True),
    # In olmo, norms have neither weights nor biases, and so no tensors.
    Family("olmo", "olmo", "OlmoForCausalLM", modules=(*ATTENTION, *GATED),
           constants={"attention.layer_norm_epsilon": 1e-5},
           fixed={"hidden_act": SILU, "attention_bias": (False,), "clip_qkv": (None,)},
           in_pairs=True),
    Family("olmo2", "olmo2", "Olmo2ForCausalLM",
           modules=(*NORMS_BEHIND, *ATTENTION, *HEAD_NORMS, *GATED), keys=RMS,
           fixed={"hidden_act": SILU, "attention_bias": (False,)}),
    Family("smollm3", "smollm3", "SmolLM3ForCausalLM", modules=(*NORMS, *ATTENTION, *GATED),
           keys=RMS, fixed={"hidden_act": SILU, "attention_bias": (False,), "mlp_bias": (False,),
                            **NO_WINDOW}, in_pairs=True, unrotated_period=4),
    Family("starcoder2", "starcoder2", "Starcoder2ForCausalLM",
           modules=(*NORMS, *ATTENTION, "mlp.c_fc", "mlp.c_proj"),
           keys={"attention.layer_norm_epsilon": "norm_epsilon"},
           fixed={"hidden_act": GELU, "use_bias": (True,)}),
    Family("stablelm", "stablelm", "StableLmForCausalLM", modules=(*NORMS, *ATTENTION, *GATED),
           keys={"attention.layer_norm_epsilon": "layer_norm_eps",
                 "use_parallel_residual": "use_parallel_residual"},
           optional_modules=(OptionalModules(
               "qk_layernorm", True, False,
               ("self_attn.q_layernorm", "self_attn.k_layernorm"), "attn_q_norm"),),
           fixed={"hidden_act": SILU}, has_head_dim=False, partial_rotation=0.25,
           norms_by_head=True,
           bias_flags={"use_qkv_bias": "attn_q"}),
    Family("glm", "chatglm", "GlmForCausalLM", modules=GLM_MODULES, keys=RMS,
           fixed={"hidden_act": SILU}, partial_rotation=0.5,
           bias_flags={"attention_bias": "attn_q"}),
    Family("glm4", "glm4", "Glm4ForCausalLM",
           modules=(*GLM_MODULES, "post_self_attn_layernorm", "post_mlp_layernorm"), keys=RMS,
           fixed={"hidden_act": SILU}, partial_rotation=0.5,
           bias_flags={"attention_bias": "attn_q"}),
    Family("cohere", "command-r", "CohereForCausalLM",
           modules=("input_layernorm", *ATTENTION, *GATED),
           keys={"attention.layer_norm_epsilon": "layer_norm_eps", "logit_scale": "logit_scale"},
           optional_modules=(OptionalModules(
               "use_qk_norm", True, False, HEAD_NORMS, "attn_q_norm", from_layers=64),),
           fixed={"hidden_act": SILU, "attention_bias": (False,)}),
    Family("cohere2", "cohere2", "Cohere2ForCausalLM",
           modules=("input_layernorm", *ATTENTION, *GATED),
           keys={"attention.layer_norm_epsilon": "layer_norm_eps", "logit_scale": "logit_scale",
                 "attention.sliding_window": "sliding_window"},
           fixed={"hidden_act": SILU, "attention_bias": (False,)}, has_head_dim=False,
           window_period=4),
    Family("gpt_neox", "gptneox", "GPTNeoXForCausalLM", embedding="gpt_neox.embed_in",
           norm="gpt_neox.final_layer_norm", head="embed_out", blocks="gpt_neox.layers.",
           modules=(*NORMS, "attention.query_key_value", "attention.dense", "mlp.dense_h_to_4h",
                    "mlp.dense_4h_to_h"),
           keys={"attention.head_count_kv": None, "attention.layer_norm_epsilon": "layer_norm_eps",
                 "use_parallel_residual": "use_parallel_residual"},
           fixed={"hidden_act": GELUS, "attention_bias": (True,)}, has_head_dim=False,
           partial_rotation=0.25, by_key_head=True),
    Family("falcon", "falcon", "FalconForCausalLM", embedding="transformer.word_embeddings",
           norm="transformer.ln_f", blocks="transformer.h.",
           modules=("input_layernorm", "self_attention.query_key_value", "self_attention.dense",
                    "mlp.dense_h_to_4h", "mlp.dense_4h_to_h"),
           keys={"attention.head_count_kv": "num_kv_heads",
                 "feed_forward_length": "ffn_hidden_size",
                 "attention.layer_norm_epsilon": "layer_norm_epsilon"},
           optional_modules=(OptionalModules(
               "num_ln_in_parallel_attn", 2, 1, ("ln_attn", "ln_mlp"), "attn_norm_2",
               instead_of=("input_layernorm",)),),
           fixed={"activation": GELUS, "alibi": (False,), "parallel_attn": (True,),
                  "bias": (False,)},
           has_head_dim=False, by_key_head=True),
)}


# Multimodal classes whose text decoder can be exported.
MULTIMODAL = ("gemma3", "mistral3")
# Prefixes of the tensors of the other parts, as transformers 4 and 5 write them.
OTHER_PARTS = ("vision_tower.", "multi_modal_projector.", "model.vision_tower.",
               "model.multi_modal_projector.")
# Prefixes of the decoder's tensor names in a multimodal model, each with the prefix that replaces
# it if the decoder is stored alone.
INSIDE = (("language_model.", ""), ("model.language_model.", "model."))


def decoder_name(name):
    """Returns the name that the decoder alone has for a module or tensor of a multimodal model;
    None if it belongs to another part."""
    if name.startswith(OTHER_PARTS):
        return None
    for inside, alone in INSIDE:
        if name.startswith(inside):
            return alone + name.removeprefix(inside)
    return name


def family_by_architecture(architecture):
    """Returns the family that reads an architecture of llama.cpp; None if there is none."""
    return next((f for f in FAMILIES.values() if f.architecture == architecture), None)


@dataclasses.dataclass(frozen=True)
class Shape:
    """The numbers of heads of a model, and the conversion of its tensors between the two
    formats."""

    family: Family
    query_heads: int
    kv_heads: int
    head_size: int

    def convert(self, name, values, to_gguf):
        """Converts the values of the tensor that GGUF calls `name`, for GGUF or back; fp32."""
        part = name.split(".")[-2]
        if self.family.norms_less_one and part.endswith("norm"):
            return values + np.float32(1) if to_gguf else values - np.float32(1)
        if self.is_transposed(name, values.ndim):
            return np.ascontiguousarray(values.T)
        return self.order_rows(part, values, to_gguf)

    def order_rows(self, part, values, to_gguf):
        """Puts the rows of a matrix or a bias in GGUF's order, or back in Hugging Face's order.
        `part` is GGUF's name of the module in its block."""
        if self.family.in_pairs and part in ("attn_q", "attn_k"):
            order = rows.pairs_from_halves if to_gguf else rows.halves_from_pairs
            return order(values, self.query_heads if part == "attn_q" else self.kv_heads)
        if self.family.by_key_head and part == "attn_qkv":
            order = rows.rows_by_projection if to_gguf else rows.rows_by_key_head
            return order(values, self.query_heads, self.kv_heads)
        return values

    def is_transposed(self, name, axes):
        """Returns whether a tensor is transposed."""
        return self.family.transposed and name.startswith("blk.") and axes == 2


def config_shape(family, config):
    """Returns the Shape of a model from its config.json."""
    heads = config[family.key("attention.head_count")]
    size = config.get("head_dim") if family.has_head_dim else None
    hidden = config[family.key("embedding_length")]
    return Shape(family, heads, kv_heads(family, config), size or hidden // heads)


def kv_heads(family, config):
    """Returns the number of key/value heads of a model."""
    heads = config[family.key("attention.head_count")]
    if family.model_type == "falcon" and not config.get("new_decoder_architecture"):
        return 1 if config.get("multi_query", True) else heads
    return config.get(family.key("attention.head_count_kv")) or heads


def applicable_modules(family, config):
    """Returns the optional modules of a family that a model has."""
    return [optional for optional in family.optional_modules if optional.applies_to(config)]


def windowed_layers(family, layers):
    """Returns layer_types as llama.cpp assumes them for the architecture."""
    return ["full_attention" if (i + 1) % family.window_period == 0 else "sliding_attention"
            for i in range(layers)]


def rotating_layers(family, layers):
    """Returns no_rope_layers as llama.cpp assumes them for the architecture: 1 for a layer that
    rotates."""
    return [int((i + 1) % family.unrotated_period != 0) for i in range(layers)]


def score_scalar(family, shape, hidden, layers):
    """Returns query_pre_attn_scalar as llama.cpp assumes it for the architecture."""
    return hidden // shape.query_heads if layers == family.wide_score_layers else shape.head_size


@functools.cache
def supported_names():
    """Returns the names of all families, for messages."""
    return ", ".join(FAMILIES)
