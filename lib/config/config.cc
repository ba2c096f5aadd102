#include "config/config.h"

#include <algorithm>

namespace ftrun {

const Origin* Origins::find(const std::string& path) const {
  const auto it = keys.find(path);
  return it == keys.end() ? nullptr : &it->second;
}

bool Origins::is_written(const std::string& path) const {
  const Origin* origin = find(path);
  return origin != nullptr && !origin->is_auto;
}

bool Origins::is_auto(const std::string& path) const {
  const Origin* origin = find(path);
  return origin != nullptr && origin->is_auto;
}

Position Origins::position(const std::string& path) const {
  const Origin* origin = find(path);
  return origin == nullptr ? Position{} : origin->at;
}

bool is_traced(const TraceConfig& trace, int64_t step) {
  return std::find(trace.steps.begin(), trace.steps.end(), step) != trace.steps.end();
}

std::optional<MatmulLibrary> pinned_matmul_library(const KernelsConfig& config) {
  switch (config.matmul) {
    case MatmulChoice::kAuto:
      break;
    case MatmulChoice::kMkl:
      return MatmulLibrary::kMkl;
    case MatmulChoice::kOneDnn:
      return MatmulLibrary::kOneDnn;
    case MatmulChoice::kOpenBlas:
      return MatmulLibrary::kOpenBlas;
  }
  return std::nullopt;
}

std::optional<bool> attention_on_matrix_units(const KernelsConfig& config) {
  switch (config.attention) {
    case AttentionChoice::kOwn:
      return false;
    case AttentionChoice::kAmx:
      return true;
    case AttentionChoice::kAuto:
    case AttentionChoice::kCudnn:
      break;
  }
  return std::nullopt;
}

ConfigDtype training_dtype(const Config& config) {
  if (config.fp16.enabled) return ConfigDtype::kFp16;
  return config.bf16.enabled ? ConfigDtype::kBf16 : ConfigDtype::kFp32;
}

ConfigDtype gradient_dtype(const Config& config) {
  const ConfigDtype wanted = config.data_types.grad_accum_dtype;
  return wanted == ConfigDtype::kModel ? training_dtype(config) : wanted;
}

ConfigDtype communication_dtype(const Config& config) {
  const ConfigDtype wanted = config.reduction.communication_data_type;
  return wanted == ConfigDtype::kModel ? gradient_dtype(config) : wanted;
}

ConfigDtype master_dtype(const Config& config) {
  return config.bf16.enabled && config.bf16.bf16_master_weights_and_grads ? ConfigDtype::kBf16
                                                                          : ConfigDtype::kFp32;
}

const std::string& disk_folder(const ZeroConfig& zero) {
  const bool optimizer = zero.offload_optimizer.device == OffloadDevice::kNvme;
  return optimizer ? zero.offload_optimizer.nvme_path : zero.offload_param.nvme_path;
}

}  // namespace ftrun
