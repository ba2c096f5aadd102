#include "config/capability.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <iterator>
#include <string>

#include "base/error.h"
#include "base/text.h"
#include "config/schema.h"
#include "optimizers/optimizers.h"

namespace ftrun {
namespace {

/// Returns a folder's path as text that is the same for "/n", "/n/" and "/n/./".
std::string plain_path(const std::string& path) {
  const std::string plain = std::filesystem::path(path).lexically_normal().string();
  return plain.size() > 1 && plain.back() == '/' ? plain.substr(0, plain.size() - 1) : plain;
}

bool uses_two_disks(const ZeroConfig& zero) {
  const OffloadParamConfig& parameters = zero.offload_param;
  const OffloadOptimizerConfig& optimizer = zero.offload_optimizer;
  return parameters.device == OffloadDevice::kNvme && optimizer.device == OffloadDevice::kNvme &&
         plain_path(parameters.nvme_path) != plain_path(optimizer.nvme_path);
}

bool on_gpu(const Config& config) {
  return config.device == DeviceKind::kCuda;
}

/// Gap is a feature whose keys are read and checked, and which cannot run yet. Deleting a row
/// switches the feature on.
struct Gap {
  const char* key;
  std::function<std::string(const Config&)> feature;
  bool (*wanted)(const Config&);
};

auto text(const char* feature) {
  return [feature](const Config&) { return std::string(feature); };
}

const Gap kGaps[] = {
    // Devices and tiers.
    {"zero_optimization.offload_param.nvme_path",
     text("parameters and optimizer state on two disks"),
     [](const Config& c) { return uses_two_disks(c.zero); }},
    {"zero_optimization.offload_param.device", text("quantized weights on a disk"),
     [](const Config& c) {
       return c.quantization.type != QuantizationType::kNone &&
              c.zero.offload_param.device == OffloadDevice::kNvme;
     }},
    // Other parallelism, optimizers, files.
    {"parallel.context", text("context parallelism"),
     [](const Config& c) { return c.parallel.context > 1; }},
    {"parallel.expert", text("expert parallelism"),
     [](const Config& c) { return c.parallel.expert > 1; }},
    {"optimizer.type",
     [](const Config& c) { return cat("the optimizer ", name_of(c.optimizer.type)); },
     [](const Config& c) {
       // A class of PyTorch was reported already when it was read.
       return !optimizer_of(c.optimizer.type).offered() &&
              c.optimizer.type != OptimizerType::kTorch;
     }},
    {"checkpoint.use_node_local_storage", text("checkpoints on every node's own disk"),
     [](const Config& c) { return c.checkpoint.use_node_local_storage; }},
};

/// Features that have run only on processors and emulated GPUs. Deleting a row says that it ran on
/// a GPU (docs/benchmarks.md).
const Gap kEmulated[] = {
    {"parallel.data", text("several GPUs"),
     [](const Config& c) { return on_gpu(c) && c.parallel.data > 1; }},
    {"parallel.tensor", text("tensor parallelism"),
     [](const Config& c) { return on_gpu(c) && c.parallel.tensor > 1; }},
    {"parallel.pipeline", text("pipelines"),
     [](const Config& c) { return on_gpu(c) && c.parallel.pipeline > 1; }},
    {"communication_data_type", text("gradients sent in fp16"),
     [](const Config& c) {
       return on_gpu(c) && !c.fp16.enabled && communication_dtype(c) == ConfigDtype::kFp16;
     }},
};

/// Lists the choices of the key that the gap refuses in a config of defaults.
std::vector<std::string> refused_choices(const Gap& gap, const Field& field) {
  std::vector<std::string> refused;
  for (const std::string& choice : field.choices) {
    Config config;
    field.store(config, choice);
    if (gap.wanted(config)) refused.push_back(choice);
  }
  return refused;
}

}  // namespace

Position place_of(const Origins& origins, const std::string& key) {
  // A degree that came from another key has no place of its own.
  if (key == "parallel.tensor" && !origins.given(key))
    return origins.position("tensor_parallel.autotp_size");
  if (key == "parallel.pipeline" && !origins.given(key)) return origins.position("pipeline.stages");
  if (key == "parallel.context" && !origins.given(key))
    return origins.position("sequence_parallel_size");
  return origins.position(key);
}

std::string not_yet_of(const std::string& path) {
  for (const Gap& gap : kGaps) {
    if (path != gap.key) continue;
    const std::vector<std::string> choices = refused_choices(gap, Schema::get().at(path));
    return choices.empty() ? gap.feature({}) : join(choices, ", ");
  }
  return "";
}

bool only_emulated_on_gpus(const std::string& path) {
  return std::any_of(std::begin(kEmulated), std::end(kEmulated),
                     [&](const Gap& row) { return path == row.key; });
}

std::vector<std::string> only_emulated_on_gpus(const Config& config) {
  std::vector<std::string> features;
  for (const Gap& row : kEmulated)
    if (row.wanted(config)) features.push_back(row.feature(config));
  return features;
}

std::vector<NotYet> missing_capabilities(const Config& config) {
  std::vector<NotYet> missing;
  for (const Gap& gap : kGaps)
    if (gap.wanted(config))
      missing.push_back({gap.feature(config), gap.key, place_of(config.origins, gap.key)});
  const auto& foreign = config.origins.foreign;
  missing.insert(missing.end(), foreign.begin(), foreign.end());
  return missing;
}

}  // namespace ftrun
