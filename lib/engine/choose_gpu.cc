#include "engine/choose_gpu.h"

#include <map>

#include "base/error.h"
#include "base/text.h"

namespace ftrun {
namespace {

/// Returns whether the host memory of offloaded state is pinned: it is, unless the config offloads
/// state with `pin_memory` false.
bool pins_memory(const Config& config) {
  const OffloadParamConfig& parameters = config.zero.offload_param;
  const OffloadOptimizerConfig& optimizer = config.zero.offload_optimizer;
  return (parameters.device == OffloadDevice::kNone || parameters.pin_memory) &&
         (optimizer.device == OffloadDevice::kNone || optimizer.pin_memory);
}

CudnnUse cudnn_use(AttentionChoice choice) {
  switch (choice) {
    case AttentionChoice::kAuto:
      return CudnnUse::kWhereMeasured;
    case AttentionChoice::kCudnn:
      return CudnnUse::kAlways;
    case AttentionChoice::kOwn:
    case AttentionChoice::kAmx:
      break;
  }
  return CudnnUse::kNever;
}

}  // namespace

int gpu_of_rank(int local_rank, int visible_gpus) {
  if (local_rank < visible_gpus || visible_gpus == 0) return local_rank;  // opening it says why
  if (visible_gpus == 1) return 0;
  throw Error(ExitCode::kUsage,
              cat("this rank is number ", local_rank, " of its machine, and its process sees ",
                  visible_gpus, " GPUs"),
              "start one rank per GPU, check CUDA_VISIBLE_DEVICES, or set device: cpu");
}

std::unique_ptr<Gpu> open_gpu(const Config& config, const LaunchEnvironment& launch) {
  const int index = gpu_of_rank(launch.local_rank, count_cuda_devices());
  return std::make_unique<Gpu>(
      open_cuda_kernels(index, {.cudnn = cudnn_use(config.kernels.attention),
                                .documents = config.data.packing == SequencePacking::kDocuments}),
      GpuOptions{.pin_memory = pins_memory(config),
                 .timed = config.wall_clock_breakdown,
                 .step_graph = config.kernels.step_graph});
}

std::string gpu_label(const DeviceInfo& gpu, const std::string& host) {
  return cat(gpu.uuid, " (", gpu.bus_id, " of ", host, ")");
}

void check_distinct_gpus(const std::vector<std::string>& labels) {
  std::map<std::string, size_t> taken;
  for (size_t rank = 0; rank < labels.size(); ++rank) {
    const auto [other, is_new] =
        taken.emplace(labels[rank].substr(0, labels[rank].find(' ')), rank);
    if (is_new) continue;
    throw Error(ExitCode::kUsage,
                cat("ranks ", other->second, " and ", rank, " have the same GPU, ", labels[rank]),
                "start one rank per GPU; if the launcher makes one GPU visible to each process, it "
                "must be a different one for each (CUDA_VISIBLE_DEVICES)");
  }
}

}  // namespace ftrun
