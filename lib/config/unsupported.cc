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
std::string normalized_path(const std::string& path) {
  const std::string plain = std::filesystem::path(path).lexically_normal().string();
  return plain.size() > 1 && plain.back() == '/' ? plain.substr(0, plain.size() - 1) : plain;
}

bool uses_two_disks(const ZeroConfig& zero) {
  const OffloadParamConfig& parameters = zero.offload_param;
  const OffloadOptimizerConfig& optimizer = zero.offload_optimizer;
  return parameters.device == OffloadDevice::kNvme && optimizer.device == OffloadDevice::kNvme &&
         normalized_path(parameters.nvme_path) != normalized_path(optimizer.nvme_path);
}

bool runs_on_gpu(const Config& config) {
  return config.device == DeviceKind::kCuda;
}

/// UnsupportedFeature is a feature whose keys are read and checked, but which cannot run yet.
/// Deleting a row enables the feature; axes have AxisKeys::support instead.
struct UnsupportedFeature {
  const char* key;
  std::function<std::string(const Config&)> feature;
  std::function<bool(const Config&)> is_requested;
};

auto constant_text(const char* feature) {
  return [feature](const Config&) { return std::string(feature); };
}

/// Lists `first_rows`, rows for the axes with this support, and `last_rows`. Emulated axes count
/// only on GPUs.
std::vector<UnsupportedFeature> add_axis_features(
    std::vector<UnsupportedFeature> first_rows, AxisSupport support,
    const std::vector<UnsupportedFeature>& last_rows) {
  for (const AxisKeys* axis : kAxes)
    if (axis->support.value == support)
      first_rows.push_back(
          {axis->key.value, constant_text(axis->feature.value), [axis, support](const Config& c) {
             return axis->degree_in(c.parallel) > 1 &&
                    (support == AxisSupport::kRefused || runs_on_gpu(c));
           }});
  first_rows.insert(first_rows.end(), last_rows.begin(), last_rows.end());
  return first_rows;
}

const std::vector<UnsupportedFeature>& refused_features() {
  static const std::vector<UnsupportedFeature> all = add_axis_features(
      {{"zero_optimization.offload_param.nvme_path",
        constant_text("parameters and optimizer state on two disks"),
        [](const Config& c) { return uses_two_disks(c.zero); }},
       {"zero_optimization.offload_param.device", constant_text("quantized weights on a disk"),
        [](const Config& c) {
          return c.quantization.type != QuantizationType::kNone &&
                 c.zero.offload_param.device == OffloadDevice::kNvme;
        }}},
      AxisSupport::kRefused,
      {{"optimizer.type",
        [](const Config& c) { return cat("the optimizer ", name_of(c.optimizer.type)); },
        [](const Config& c) {
          // A class of PyTorch has been reported when it was read.
          return !optimizer_traits(c.optimizer.type).is_offered() &&
                 c.optimizer.type != OptimizerType::kTorch;
        }},
       {"checkpoint.use_node_local_storage", constant_text("checkpoints on every node's own disk"),
        [](const Config& c) { return c.checkpoint.use_node_local_storage; }}});
  return all;
}

/// Features that have run only on CPUs and emulated GPUs. Delete a row once the feature has run on
/// a GPU (docs/benchmarks.md).
const std::vector<UnsupportedFeature>& emulated_features() {
  static const std::vector<UnsupportedFeature> all = add_axis_features(
      {}, AxisSupport::kEmulated,
      {{"communication_data_type", constant_text("gradients sent in fp16"), [](const Config& c) {
          return runs_on_gpu(c) && !c.fp16.enabled && communication_dtype(c) == ConfigDtype::kFp16;
        }}});
  return all;
}

/// Lists those choices of the key that the row refuses when all other keys have their defaults.
std::vector<std::string> refused_choices(const UnsupportedFeature& row, const Field& field) {
  std::vector<std::string> choices;
  for (const std::string& choice : field.choices) {
    Config config;
    field.store(config, choice);
    if (row.is_requested(config)) choices.push_back(choice);
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
  for (const UnsupportedFeature& row : refused_features()) {
    if (path != row.key) continue;
    const std::vector<std::string> choices = refused_choices(row, Schema::get().at(path));
    return choices.empty() ? row.feature({}) : join(choices, ", ");
  }
  return "";
}

bool is_only_emulated_on_gpus(const std::string& path) {
  return std::any_of(emulated_features().begin(), emulated_features().end(),
                     [&](const UnsupportedFeature& row) { return path == row.key; });
}

std::vector<std::string> features_only_emulated_on_gpus(const Config& config) {
  std::vector<std::string> features;
  for (const UnsupportedFeature& row : emulated_features())
    if (row.is_requested(config)) features.push_back(row.feature(config));
  return features;
}

std::vector<UnsupportedRequest> unsupported_requests(const Config& config) {
  std::vector<UnsupportedRequest> requests;
  for (const UnsupportedFeature& row : refused_features())
    if (row.is_requested(config))
      requests.push_back(
          {row.feature(config), row.key, position_of_request(config.origins, row.key)});
  const auto& deepspeed_requests = config.origins.unsupported;
  requests.insert(requests.end(), deepspeed_requests.begin(), deepspeed_requests.end());
  return requests;
}

}  // namespace ftrun
