#include "model/families.h"

#include <array>
#include <cstdint>
#include <limits>

#include "axes/tensor/split.h"
#include "base/error.h"
#include "base/text.h"
#include "model/decoder.h"
#include "model/quantized_layers.h"

namespace ftrun {

std::span<const Family> families() {
  static const std::array kFamilies{
#define FTRUN_FAMILY(name) k##name##Family,
#include "model/families/list.inc"
#undef FTRUN_FAMILY
  };
  return kFamilies;
}

const Family* find_family(std::string_view model_type) {
  for (const Family& family : families())
    if (family.model_type == model_type) return &family;
  return nullptr;
}

std::string family_names() {
  std::vector<std::string> names;
  for (const Family& family : families()) names.emplace_back(family.model_type);
  return join(names, ", ");
}

namespace {

void check_float_dtype(DType dtype, std::string_view what) {
  if (dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16) return;
  throw Error(ExitCode::kUnsupported, cat(what, " in ", dtype_name(dtype), " are not supported"),
              "use fp32, bf16 or fp16");
}

}  // namespace

void record_dropouts(ConfigReader& reader, ModelConfig& config,
                     std::initializer_list<const char*> keys, double class_default) {
  for (const char* const key : keys)
    if (reader.read_number_or(key, class_default, false) != 0) config.dropouts.emplace_back(key);
}

ModelDescription build_model(const ModelConfig& config, const BatchShape& unpadded_batch,
                             GraphMode mode, const ModelDtypes& dtypes,
                             const RecomputeOptions& recompute, const TensorSplit& split,
                             const Adapter& adapter) {
  if (!find_family(config.family)) bug(cat("no family ", config.family));
  require(unpadded_batch.sequences > 0 && unpadded_batch.sequence_length > 0,
          "a batch has sequences and tokens");
  check_tensor_split(config, split);
  const BatchShape batch = pad_sequence_length(unpadded_batch, split);
  constexpr int64_t kMaxSize = std::numeric_limits<int32_t>::max();
  if (batch.sequence_length > kMaxSize || batch.sequences > kMaxSize / batch.sequence_length) {
    throw Error(ExitCode::kBadInput,
                cat("a micro-batch of ", batch.sequences, " sequences of ", batch.sequence_length,
                    " tokens has more than ", kMaxSize, " tokens"),
                "make the sequence length or the micro-batch smaller");
  }
  if (mode == GraphMode::kTrain && !config.dropouts.empty()) {
    throw Error(ExitCode::kUnsupported,
                cat(join(config.dropouts, ", "), ": dropout in training is not supported yet"),
                cat("set ", join(config.dropouts, " and "), " to 0 in the model's config.json"));
  }
  const int64_t tokens = batch.sequence_length - batch.sequence_padding;
  if (config.learned_positions && tokens > config.max_positions) {
    throw Error(ExitCode::kBadInput,
                cat("sequences of ", tokens, " tokens: the model has vectors for ",
                    config.max_positions, " positions"),
                cat("set data.sequence_length to at most ", config.max_positions));
  }
  if (config.max_unscaled_positions > 0 &&
      batch.max_sequence_tokens() > config.max_unscaled_positions) {
    throw Error(ExitCode::kUnsupported,
                cat("sequences of ", batch.max_sequence_tokens(), " tokens: a ", config.family,
                    " model multiplies queries beyond position ", config.max_unscaled_positions,
                    " (llama_4_scaling_beta), which is not supported yet"),
                cat("set data.sequence_length to at most ", config.max_unscaled_positions));
  }
  check_float_dtype(dtypes.compute, "activations");
  check_float_dtype(dtypes.gradients, "gradients");
  require(recompute.every > 0, "recompute.every is at least 1");
  require(adapter.blocks.empty() || static_cast<int64_t>(adapter.blocks.size()) == config.layers,
          "an adapter describes each block of the model");
  ModelDtypes fitted_dtypes = dtypes;
  fitted_dtypes.quantized = fit_quantized_format(config, split, dtypes.quantized);
  return build_decoder(config, batch, mode, fitted_dtypes, recompute, split, adapter);
}

}  // namespace ftrun
