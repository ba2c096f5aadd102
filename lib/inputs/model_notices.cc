#include "inputs/model_notices.h"

#include <cstdint>
#include <string>

#include "axes/pipeline/pipeline_config.h"
#include "axes/tensor/tensor_config.h"
#include "base/text.h"
#include "config/serving_limits.h"
#include "inputs/config_problem.h"
#include "model/rope_angles.h"

namespace ftrun {
namespace {

/// Returns a notice if the config requests more positions than the model was trained on. This is
/// allowed; the notice says which scaling of the rotary embedding would support them.
std::optional<Problem> positions_notice(const Config& config, const ModelConfig& model) {
  const int64_t tokens = config.data.sequence_length, limit = max_supported_positions(model);
  if (limit == 0 || tokens <= limit) return std::nullopt;
  const char* const reach =
      limit == model.max_positions
          ? "the model's max_position_embeddings, "
          : "factor times original_max_position_embeddings of the model's yarn, ";
  return notice_about(config.origins, "data.sequence_length",
                      cat("data.sequence_length ", tokens, " is above ", reach, limit),
                      suggest_rope_scaling(model, tokens));
}

/// Says which factors longrope uses in this run; the longest sequence decides that.
std::vector<Problem> longrope_notices(const Config& config, const ModelConfig& model) {
  std::vector<Problem> notices;
  const int64_t tokens = config.data.sequence_length;
  for (const RopeConfig& rope : model.rotations()) {
    const auto* longrope = rope.as<LongRopeScaling>();
    if (longrope == nullptr) continue;
    const bool is_long = uses_long_factors(rope, tokens);
    notices.push_back(notice_about(
        config.origins, "data.sequence_length",
        cat("data.sequence_length ", tokens, is_long ? " is above" : " is not above",
            " longrope's original_max_position_embeddings, ", longrope->original_positions, ": ",
            is_long ? "long_factor" : "short_factor", " rotates all sequences of the run"),
        is_long ? cat("set data.sequence_length to at most ", longrope->original_positions,
                      " to train with short_factor, as the model is used for short texts")
                : ""));
  }
  return notices;
}

}  // namespace

std::vector<Problem> model_notices(const Config& config, const std::optional<ModelConfig>& model) {
  std::vector<Problem> notices;
  if (model) {
    if (const auto notice = positions_notice(config, *model)) notices.push_back(*notice);
    for (const Problem& notice : longrope_notices(config, *model)) notices.push_back(notice);
  }
  if (const auto notice = sequence_padding_notice(config)) notices.push_back(*notice);
  // A config without errors has at most as many pipeline stages as the model has layers.
  if (const std::string bubble = model ? bubble_notice(config) : ""; !bubble.empty())
    notices.push_back(notice_about(config.origins, "parallel.pipeline", bubble));
  // Users should know limits of other programs before they train.
  for (const std::string& limits : serving_limits(config.adapter, config.quantization))
    notices.push_back(notice_about(config.origins, "adapter", limits));
  return notices;
}

}  // namespace ftrun
