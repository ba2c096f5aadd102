#include "config/unsupported.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "axes/keys.h"
#include "base/error.h"
#include "base/text.h"
#include "config/schema.h"
#include "optimizers/optimizers.h"

namespace ftrun {
namespace {

/// Returns a folder's path in a form that is the same for "/n", "/n/" and "/n/./".
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

/// UnsupportedFeature is a feature whose keys are read and checked, but which cannot run yet.
/// Deleting a row enables the feature; axes have AxisKeys::support instead.
struct UnsupportedFeature {
  const char* key;
  std::function<std::string(const Config&)> feature;
  std::function<bool(const Config&)> wanted;
};

auto text(const char* feature) {
  return [feature](const Config&) { return std::string(feature); };
}

/// Lists the rows `before`, rows for the axes with this support, and the rows `after`. Emulated
/// axes count only on GPUs.
std::vector<UnsupportedFeature> with_axes(std::vector<UnsupportedFeature> before,
                                          AxisSupport support,
                                          const std::vector<UnsupportedFeature>& after) {
  for (const AxisKeys* axis : kAxes)
    if (axis->support.value == support)
      before.push_back(
          {axis->key.value, text(axis->feature.value), [axis, support](const Config& c) {
             return axis->degree_in(c.parallel) > 1 &&
                    (support == AxisSupport::kRefused || on_gpu(c));
           }});
  before.insert(before.end(), after.begin(), after.end());
  return before;
}

const std::vector<UnsupportedFeature>& refused() {
  static const std::vector<UnsupportedFeature> all =
      with_axes({{"zero_optimization.offload_param.nvme_path",
                  text("parameters and optimizer state on two disks"),
                  [](const Config& c) { return uses_two_disks(c.zero); }},
                 {"zero_optimization.offload_param.device", text("quantized weights on a disk"),
                  [](const Config& c) {
                    return c.quantization.type != QuantizationType::kNone &&
                           c.zero.offload_param.device == OffloadDevice::kNvme;
                  }}},
                AxisSupport::kRefused,
                {{"optimizer.type",
                  [](const Config& c) { return cat("the optimizer ", name_of(c.optimizer.type)); },
                  [](const Config& c) {
                    // A class of PyTorch has been reported when it was read.
                    return !optimizer_traits(c.optimizer.type).offered() &&
                           c.optimizer.type != OptimizerType::kTorch;
                  }},
                 {"checkpoint.use_node_local_storage", text("checkpoints on every node's own disk"),
                  [](const Config& c) { return c.checkpoint.use_node_local_storage; }}});
  return all;
}

/// Features that have run only on CPUs and emulated GPUs. Delete a row once the feature has run on
/// a GPU (docs/benchmarks.md).
const std::vector<UnsupportedFeature>& emulated() {
  static const std::vector<UnsupportedFeature> all = with_axes(
      {}, AxisSupport::kEmulated,
      {{"communication_data_type", text("gradients sent in fp16"), [](const Config& c) {
          return on_gpu(c) && !c.fp16.enabled && communication_dtype(c) == ConfigDtype::kFp16;
        }}});
  return all;
}

/// Lists those choices of the key that the row refuses when all other keys have their defaults.
std::vector<std::string> refused_choices(const UnsupportedFeature& row, const Field& field) {
  std::vector<std::string> choices;
  for (const std::string& choice : field.choices) {
    Config config;
    field.store(config, choice);
    if (row.wanted(config)) choices.push_back(choice);
  }
  return choices;
}

}  // namespace

Position position_of_request(const Origins& origins, const std::string& key) {
  // A degree that DeepSpeed's key has set has no position of its own.
  for (const AxisKeys* axis : kAxes)
    if (key == axis->key.value && axis->deepspeed_key.value != nullptr && !origins.is_written(key))
      return origins.position(axis->deepspeed_key.value);
  return origins.position(key);
}

std::string unsupported_part(const std::string& path) {
  for (const UnsupportedFeature& row : refused()) {
    if (path != row.key) continue;
    const std::vector<std::string> choices = refused_choices(row, Schema::get().at(path));
    return choices.empty() ? row.feature({}) : join(choices, ", ");
  }
  return "";
}

bool is_only_emulated_on_gpus(const std::string& path) {
  return std::any_of(emulated().begin(), emulated().end(),
                     [&](const UnsupportedFeature& row) { return path == row.key; });
}

std::vector<std::string> features_only_emulated_on_gpus(const Config& config) {
  std::vector<std::string> features;
  for (const UnsupportedFeature& row : emulated())
    if (row.wanted(config)) features.push_back(row.feature(config));
  return features;
}

std::vector<UnsupportedRequest> unsupported_requests(const Config& config) {
  std::vector<UnsupportedRequest> missing;
  for (const UnsupportedFeature& row : refused())
    if (row.wanted(config))
      missing.push_back(
          {row.feature(config), row.key, position_of_request(config.origins, row.key)});
  const auto& foreign = config.origins.unsupported;
  missing.insert(missing.end(), foreign.begin(), foreign.end());
  return missing;
}

}  // namespace ftrun
