#include "config/schema_tables.h"

namespace ftrun {

void declare_adapter(Schema& s) {
  auto rows = section(
      s,
      {.path = "adapter",
       .doc = "Low-rank adapters (LoRA): small matrices beside the products of frozen weights, "
              "which alone train. The keys are those of PEFT's LoraConfig; the path of a PEFT "
              "folder or of its adapter_config.json may stand in place of the section.",
       .vocabulary = Vocabulary::kFtrun},
      [](auto& c) -> auto& { return c.adapter; });
  using A = AdapterConfig;
  rows.key("type", &A::type,
           "lora (the default of a section without type); none: the section has no effect.")
      .alias("peft_type")
      .in_any_case();
  rows.key("path", &A::path,
           "Folder of an adapter in PEFT's layout to continue from, or the name of one that the "
           "Hugging Face cache holds; empty: a new one.");
  rows.key("r", &A::r, "Rank of each adapter: the columns of B.").range(1, 65'536);
  rows.key("lora_alpha", &A::lora_alpha, "The adapter's results are scaled by lora_alpha / r.")
      .above(0);
  rows.key("lora_dropout", &A::lora_dropout,
           "Share of an adapter's inputs that is dropped in training: each element with this "
           "probability.")
      .from_to_below(0, 1);
  rows.key("target_modules", &A::target_modules,
           "Names of the modules that get an adapter (a path's end: q_proj, mlp.up_proj), or "
           "all-linear; one text instead of a list is a regular expression of whole paths, as in "
           "PEFT.")
      .defaults_to("q_proj, v_proj");
  rows.key("target_pattern", &A::target_pattern,
           "The regular expression of target_modules, under a name of its own.");
  rows.key("exclude_modules", &A::exclude_modules,
           "Modules that get no adapter, written as in target_modules.");
  rows.key("exclude_pattern", &A::exclude_pattern, "The regular expression of exclude_modules.");
  rows.key("layers_to_transform", &A::layers_to_transform,
           "Layers whose modules get adapters, besides modules whose whole path target_modules "
           "names; empty = all.")
      .at_least(0)
      .in("layers");
  rows.key("rank_pattern", &A::rank_pattern,
           "Ranks of some modules: {expression: rank}, each of a path's end; the first one that "
           "matches counts.");
  rows.key("rank_pattern_ranks", &A::rank_pattern_ranks,
           "The ranks of a rank_pattern that is a list.")
      .range(1, 65'536);
  rows.key("alpha_pattern", &A::alpha_pattern,
           "lora_alpha of some modules: {expression: alpha}; the first match counts.");
  rows.key("alpha_pattern_alphas", &A::alpha_pattern_alphas,
           "The alphas of an alpha_pattern that is a list.")
      .above(0);
  rows.key("modules_to_save", &A::modules_to_save,
           "Names of modules that train whole beside the adapters (embed_tokens, lm_head).");
  rows.key("bias", &A::bias,
           "Biases that train too: none; all; lora_only, those of modules with an adapter.");
  rows.key("use_rslora", &A::use_rslora, "Scale by lora_alpha / sqrt(r).");
  rows.key("use_dora", &A::use_dora,
           "Each row of W + scale B A is divided by its length and multiplied by a magnitude that "
           "trains too (DoRA), and begins as that length.");
  rows.key("init_lora_weights", &A::init_lora_weights,
           "true: A Kaiming uniform, B zero; gaussian: A normal of deviation 1 / r, B zero; "
           "orthogonal: neither is zero, their product is (r even); false: both uniform.");
}

void declare_quantization(Schema& s) {
  auto rows = section(
      s,
      {.path = "quantization",
       .doc =
           "Frozen weights in few bits (QLoRA): the matrices that a block's layers multiply by, "
           "quantized while they are loaded from the model folder, so that they are never whole in "
           "memory. Embeddings, the head, norms, biases and adapters stay as they are. The numbers "
           "are those of bitsandbytes, whose keys are accepted.",
       .vocabulary = Vocabulary::kFtrun},
      [](auto& c) -> auto& { return c.quantization; });
  using Q = QuantizationConfig;
  rows.key("type", &Q::type,
           "nf4: 4-bit NormalFloat; int8: 8 bits with a scale a row; none: weights as the model "
           "has them. They are unpacked, part by part, to the precision of computation.")
      .alias("bnb_4bit_quant_type")
      .in_any_case();
  rows.key("double", &Q::double_quantization,
           "The scales of nf4 are quantized to 8 bits, which takes 4.4 bits a weight instead of "
           "4.5.")
      .alias("bnb_4bit_use_double_quant");
  rows.key("block", &Q::block, "Neighbouring weights that share a scale (nf4): 64, 128 or 256.")
      .range(64, 256)
      .in("weights");
  rows.unkept<bool>("load_in_4bit", false, "Use type: nf4.");
  rows.unkept<bool>("load_in_8bit", false, "Use type: int8.");
  rows.unkept<std::string>("quant_method", "bitsandbytes", "The library whose keys these are.");
  rows.unkept<std::string>("bnb_4bit_quant_storage", "uint8",
                           "The dtype of the tensors in which bitsandbytes stores the codes.");
  rows.unkept<double>("llm_int8_threshold", 6.0, "Activations are not quantized.");
  rows.unkept<std::string>("bnb_4bit_compute_dtype", "float32",
                           "Computation uses the precision of training (bf16, fp16).");
}

}  // namespace ftrun
