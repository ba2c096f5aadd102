#include "config/capability.h"

#include <functional>
#include <string>

#include "base/error.h"

namespace ftrun {
namespace {

/// A feature whose keys are read and checked, and which cannot run yet. Deleting a row switches
/// the feature on.
struct Gap {
  const char* key;
  std::function<std::string(const Config&)> feature;
  bool (*wanted)(const Config&, bool cuda);
};

auto text(const char* feature) {
  return [feature](const Config&) { return std::string(feature); };
}

const Gap kGaps[] = {
    // Precision.
    {"bf16.enabled", text("training in bf16 on a GPU"),
     [](const Config& c, bool cuda) { return c.bf16.enabled && cuda; }},
    // Other parallelism, optimizers, files.
    {"parallel.tensor", text("tensor parallelism"),
     [](const Config& c, bool) { return c.parallel.tensor > 1; }},
    {"parallel.pipeline", text("pipeline parallelism"),
     [](const Config& c, bool) { return c.parallel.pipeline > 1; }},
    {"parallel.context", text("context parallelism"),
     [](const Config& c, bool) { return c.parallel.context > 1; }},
    {"parallel.expert", text("expert parallelism"),
     [](const Config& c, bool) { return c.parallel.expert > 1; }},
    {"optimizer.type",
     [](const Config& c) { return cat("the optimizer ", name_of(c.optimizer.type)); },
     [](const Config& c, bool) {
       // A class of PyTorch is named already where it was read.
       return c.optimizer.type > OptimizerType::kSgd && c.optimizer.type != OptimizerType::kTorch;
     }},
    {"export.dtype", text("exporting weights in fp16"),
     [](const Config& c, bool) {
       return c.model_export.enabled && c.model_export.dtype == ExportDtype::kFp16;
     }},
    {"checkpoint.use_node_local_storage", text("checkpoints on every node's own disk"),
     [](const Config& c, bool) { return c.checkpoint.use_node_local_storage; }},
};

Position place_of(const Config& config, const std::string& key) {
  // A degree that came from another key has no place of its own.
  if (key == "parallel.context" && !config.origins.given(key))
    return config.origins.position("sequence_parallel_size");
  if (key == "parallel.data_replicate" && !config.origins.given(key))
    return config.origins.position("zero_optimization.mics_shard_size");
  // A plain word stands in the section's place.
  if (key == "recompute") return config.origins.position("recompute.policy");
  return config.origins.position(key);
}

}  // namespace

std::vector<NotYet> missing_capabilities(const Config& config, bool cuda) {
  std::vector<NotYet> missing;
  for (const Gap& gap : kGaps)
    if (gap.wanted(config, cuda))
      missing.push_back({gap.feature(config), gap.key, place_of(config, gap.key)});
  const auto& foreign = config.origins.foreign;
  missing.insert(missing.end(), foreign.begin(), foreign.end());
  return missing;
}

}  // namespace ftrun
