#include "config/capability.h"

#include <string>

#include "base/error.h"

namespace ftrun {
namespace {

/// A feature whose keys are read and checked, and which cannot run yet. Deleting a row switches
/// the feature on.
struct Gap {
  const char* key;
  std::string (*feature)(const Config&);
  bool (*wanted)(const Config&, bool cuda);
};

const Gap kGaps[] = {
    {"zero_optimization.stage", [](const Config& c) { return cat("ZeRO stage ", c.zero.stage); },
     [](const Config& c, bool) { return c.zero.stage > 0; }},
    {"zero_optimization.offload_param.device",
     [](const Config& c) { return cat("parameters on ", name_of(c.zero.offload_param.device)); },
     [](const Config& c, bool) { return c.zero.offload_param.device != OffloadDevice::kNone; }},
    {"zero_optimization.offload_optimizer.device",
     [](const Config& c) {
       return cat("optimizer state on ", name_of(c.zero.offload_optimizer.device));
     },
     [](const Config& c, bool) { return c.zero.offload_optimizer.device != OffloadDevice::kNone; }},
    {"fp16.enabled", [](const Config&) { return std::string("training in fp16"); },
     [](const Config& c, bool) { return c.fp16.enabled; }},
    {"bf16.enabled", [](const Config&) { return std::string("training in bf16 on the CPU"); },
     [](const Config& c, bool cuda) { return c.bf16.enabled && !cuda; }},
    {"data_types.grad_accum_dtype",
     [](const Config&) { return std::string("another dtype for accumulated gradients"); },
     [](const Config& c, bool) {
       return c.data_types.grad_accum_dtype != ConfigDtype::kModel &&
              c.data_types.grad_accum_dtype != ConfigDtype::kFp32;
     }},
    {"communication_data_type",
     [](const Config&) { return std::string("another dtype for gradient reduction"); },
     [](const Config& c, bool) {
       return c.reduction.communication_data_type != ConfigDtype::kModel &&
              c.reduction.communication_data_type != ConfigDtype::kFp32;
     }},
    {"recompute", [](const Config& c) { return cat("recompute ", name_of(c.recompute)); },
     [](const Config& c, bool) { return c.recompute != Recompute::kNone; }},
    {"parallel.tensor", [](const Config&) { return std::string("tensor parallelism"); },
     [](const Config& c, bool) { return c.parallel.tensor > 1; }},
    {"parallel.pipeline", [](const Config&) { return std::string("pipeline parallelism"); },
     [](const Config& c, bool) { return c.parallel.pipeline > 1; }},
    {"parallel.context", [](const Config&) { return std::string("context parallelism"); },
     [](const Config& c, bool) { return c.parallel.context > 1; }},
    {"parallel.expert", [](const Config&) { return std::string("expert parallelism"); },
     [](const Config& c, bool) { return c.parallel.expert > 1; }},
    {"parallel.data_replicate", [](const Config&) { return std::string("hybrid sharding"); },
     [](const Config& c, bool) { return c.parallel.data_replicate > 1; }},
    {"optimizer.type",
     [](const Config& c) { return cat("the optimizer ", name_of(c.optimizer.type)); },
     [](const Config& c, bool) {
       // A class of PyTorch is named already where it was read.
       return c.optimizer.type > OptimizerType::kSgd && c.optimizer.type != OptimizerType::kTorch;
     }},
    {"export.dtype", [](const Config&) { return std::string("exporting weights in fp16"); },
     [](const Config& c, bool) {
       return c.model_export.enabled && c.model_export.dtype == ExportDtype::kFp16;
     }},
    {"elasticity.enabled", [](const Config&) { return std::string("elastic batch sizes"); },
     [](const Config& c, bool) { return c.elasticity.enabled; }},
    {"checkpoint.use_node_local_storage",
     [](const Config&) { return std::string("checkpoints on every node's own disk"); },
     [](const Config& c, bool) { return c.checkpoint.use_node_local_storage; }},
};

Position place_of(const Config& config, const std::string& key) {
  // A degree that came from another key has no place of its own.
  if (key == "parallel.context" && !config.origins.given(key))
    return config.origins.position("sequence_parallel_size");
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
