#pragma once

#include <optional>
#include <string>

#include "base/error.h"
#include "config/config.h"
#include "model/config.h"

namespace ftrun {

/// ModelMisfit says why a model cannot be cut as a resolved config asks, and by which key.
struct ModelMisfit {
  std::string key;
  Error error;
};

/// Explains why a model cannot be split over tensor ranks as a config says; nothing where it can.
std::optional<ModelMisfit> tensor_misfit(const Config& config, const ModelConfig& model);

/// Explains why a model cannot be split over tensor ranks, or cut into the parts of a pipeline, as
/// a config says; nothing where it can. The config's own keys must not contradict each other.
std::optional<ModelMisfit> model_misfit(const Config& config, const ModelConfig& model);

}  // namespace ftrun
