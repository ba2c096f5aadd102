#include "config/schema_tables.h"

namespace ftrun {

void declare_adapter(Schema& s) {
  auto rows = section(
      s,
      {.path = "adapter",
       .doc = "Low-rank adapters (LoRA): small matrices beside frozen weight matrices. Only the "
              "adapters are trained. The keys are those of PEFT's LoraConfig; the path of a PEFT "
              "folder or of its adapter_config.json may take the place of the section.",
       .origin = KeyOrigin::kFtrun},
      [](auto& c) -> auto& { return c.adapter; });
  using A = AdapterConfig;
  rows.key("type", &A::type,
           "lora (also if the section has no type), or none: the section has no effect.")
      .alias("peft_type")
      .in_any_case()
      .defaults_to("lora in a written section, else none");
  rows.key("path", &A::path,
           "Folder of an adapter in PEFT's layout to continue from, or its name in the Hugging "
           "Face cache; empty: a new adapter.")
      .may_change();
  rows.key("r", &A::r, "Rank of each adapter: the number of columns of B.").range(1, 65'536);
  rows.key("lora_alpha", &A::lora_alpha, "The adapter's results are scaled by lora_alpha / r.")
      .greater_than(0);
  rows.key("lora_dropout", &A::lora_dropout,
           "Share of an adapter's inputs that is dropped in training: each element with this "
           "probability.")
      .from_to_below(0, 1);
  rows.key("target_modules", &A::target_modules,
           "Names of the modules that get an adapter, each the end of a module's path (q_proj, "
           "mlp.up_proj), or all-linear. A single text instead of a list is a regular expression "
           "that matches whole paths, as in PEFT.")
      .defaults_to("q_proj, v_proj");
  rows.key("target_pattern", &A::target_pattern,
           "The regular expression of target_modules, as a separate key.");
  rows.key("exclude_modules", &A::exclude_modules,
           "Modules that get no adapter, written as in target_modules.");
  rows.key("exclude_pattern", &A::exclude_pattern, "The regular expression of exclude_modules.");
  rows.key("layers_to_transform", &A::layers_to_transform,
           "Layers whose modules get adapters; empty = all. Modules whose whole path is in "
           "target_modules get one in any layer.")
      .at_least(0)
      .in_unit("layers");
  rows.key("rank_pattern", &A::rank_pattern,
           "Ranks of some modules: {expression: rank}. An expression matches the end of a module's "
           "path; the first match counts.");
  rows.key("rank_pattern_ranks", &A::rank_pattern_ranks,
           "The ranks of a rank_pattern that is a list.")
      .range(1, 65'536);
  rows.key("alpha_pattern", &A::alpha_pattern,
           "lora_alpha of some modules: {expression: alpha}; the first match counts.");
  rows.key("alpha_pattern_alphas", &A::alpha_pattern_alphas,
           "The alphas of an alpha_pattern that is a list.")
      .greater_than(0);
  rows.key("modules_to_save", &A::modules_to_save,
           "Names of modules that are trained as a whole, in addition to the adapters "
           "(embed_tokens, lm_head).");
  rows.key("bias", &A::bias,
           "Biases that are trained: none, all, or lora_only (those of modules with an adapter).");
  rows.key("use_rslora", &A::use_rslora,
           "Scale the adapter's results by lora_alpha / sqrt(r) instead (rsLoRA).");
  rows.key("use_dora", &A::use_dora,
           "Divide each row of W + scale B A by its length and multiply it by a trained magnitude, "
           "whose first value is that length (DoRA).");
  rows.key("init_lora_weights", &A::init_lora_weights,
           "First values. true: A is Kaiming uniform, B is zero. gaussian: A is normal with "
           "standard deviation 1 / r, B is zero. orthogonal: neither is zero, but their product is "
           "(r must be even). false: both are uniform.");
}

void declare_quantization(Schema& s) {
  auto rows = section(
      s,
      {.path = "quantization",
       .doc = "Frozen weights in few bits (QLoRA): the weight matrices of the blocks are quantized "
              "while they are loaded, so they are never unquantized in memory as a whole. "
              "Embeddings, the head, norms, biases and adapters are not quantized. The values "
              "equal those of bitsandbytes, whose keys are also accepted.",
       .origin = KeyOrigin::kFtrun},
      [](auto& c) -> auto& { return c.quantization; });
  using Q = QuantizationConfig;
  rows.key(
          "type", &Q::type,
          "nf4: 4-bit NormalFloat. int8: 8 bits with one scale for each row. none: weights are "
          "not quantized. Quantized weights are dequantized part by part into the precision of the "
          "computation.")
      .alias("bnb_4bit_quant_type")
      .in_any_case();
  rows.key("double", &Q::double_quantization,
           "Quantize the scales of nf4 to 8 bits, which takes 4.4 bits for each weight instead of "
           "4.5.")
      .alias("bnb_4bit_use_double_quant");
  rows.key("block", &Q::block, "Neighboring weights that share one scale of nf4: 64, 128 or 256.")
      .range(64, 256)
      .in_unit("weights");
  rows.checked_only<bool>("load_in_4bit", false, "Use type: nf4.");
  rows.checked_only<bool>("load_in_8bit", false, "Use type: int8.");
  rows.checked_only<std::string>("quant_method", "bitsandbytes",
                                 "The library that the keys belong to.");
  rows.checked_only<std::string>(
      "bnb_4bit_quant_storage", "uint8",
      "The dtype of the tensors in which bitsandbytes stores the codes.");
  rows.checked_only<double>("llm_int8_threshold", 6.0, "Activations are not quantized.");
  rows.checked_only<std::string>("bnb_4bit_compute_dtype", "float32",
                                 "Computation uses the precision of training (bf16, fp16).");
}

}  // namespace ftrun
