#include "program/gpu_overhead.h"

#include "models.h"
#include "program/plan_notes.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using testing::small_config;

constexpr int64_t kOverheadMiB = int64_t{1} << 20;

struct OverheadCase {
  bool bf16;
  int64_t head_size;
};

StepPlan plan_small_model(const Config& config) {
  return plan_steps(config, small_config(2, false), 0);
}

Config on_gpus(int64_t ranks) {
  Config config;
  config.device = DeviceKind::kCuda;
  config.zero.stage = 1;
  config.parallel.data = ranks;
  config.train_micro_batch_size_per_gpu = 3;
  config.gradient_accumulation_steps = 1;
  config.data.sequence_length = 8;
  return config;
}

TEST_CASE("memory of a GPU beyond the plan is reported with its bounds, and CPUs have none") {
  Config config = on_gpus(1);
  CHECK(gpu_overhead_text(list_gpu_overheads(config, plan_small_model(config))) ==
        "in addition to the plan, a GPU holds at most 800.00 MiB (CUDA's context and kernels: "
        "768.00 MiB; "
        "cuBLAS's workspace: 32.00 MiB)");
  config = on_gpus(2);
  config.comm.deterministic = true;
  const std::string several =
      "in addition to the plan, a GPU holds at most 1.31 GiB (CUDA's context and kernels: 768.00 "
      "MiB; "
      "cuBLAS's workspace: 32.00 MiB; "
      "NCCL's buffers, 512.00 MiB for its group: 512.00 MiB; sums in rank order "
      "(comm.deterministic), 32.00 MiB for its group: 32.00 MiB)";
  CHECK(gpu_overhead_text(list_gpu_overheads(config, plan_small_model(config))) == several);
  CHECK(total_bytes(list_gpu_overheads(config, plan_small_model(config))) ==
        (768 + 32 + 512 + 32) * kOverheadMiB);
  CHECK(list_plan_notes(config, plan_small_model(config)).back() == several);
  config.device = DeviceKind::kCpu;
  CHECK(list_gpu_overheads(config, plan_small_model(config)).empty());
}

/// Returns how many more bytes beyond the plan `attention` needs than ftrun's own kernels, for
/// heads of size 8 in bf16.
int64_t extra_overhead_bytes(AttentionChoice attention, int64_t rows, int64_t sequence_length,
                             int64_t kv_heads) {
  Config config = on_gpus(1);
  config.bf16.enabled = true;
  config.train_micro_batch_size_per_gpu = rows;
  config.data.sequence_length = sequence_length;
  ModelConfig model = small_config(2, false);
  model.head_size = 8;
  model.kv_heads = kv_heads;
  const StepPlan plan = plan_steps(config, model, 0);
  config.kernels.attention = AttentionChoice::kOwn;
  const int64_t without = total_bytes(list_gpu_overheads(config, plan));
  config.kernels.attention = attention;
  return total_bytes(list_gpu_overheads(config, plan)) - without;
}

TEST_CASE(
    "cuDNN's attention keeps the scores of what it computes at once, also where the config does "
    "not name cuDNN") {
  constexpr int64_t kLists = kOverheadMiB;
  for (const AttentionChoice step_case : {AttentionChoice::kAuto, AttentionChoice::kCudnn}) {
    // The plan has four documents per row, twelve in all; there are 4 heads, and tiles of 64
    // tokens.
    CHECK(extra_overhead_bytes(step_case, 3, 8, 4) == 12 * 4 * 64 * 64 * 2 + kLists);
    // If heads share keys, gradients of keys and values are stored for each query head.
    CHECK(extra_overhead_bytes(step_case, 3, 8, 2) == 12 * 4 * (64 * 64 + 2 * 64 * 8) * 2 + kLists);
    // The smallest piece computes one row and the two query heads of one key head at once.
    constexpr int64_t kLong = 32768;
    CHECK(extra_overhead_bytes(step_case, 2, kLong, 2) ==
          2 * (kLong * kLong + 2 * kLong * 8) * 2 + kLists);
  }
}

TEST_CASE("no memory is planned for cuDNN where cuDNN cannot compute attention") {
  Config config = on_gpus(1);
  config.kernels.attention = AttentionChoice::kCudnn;
  for (const OverheadCase& one : {OverheadCase{true, 4}, OverheadCase{false, 8}}) {
    config.bf16.enabled = one.bf16;
    ModelConfig model = small_config(2, false);
    model.head_size = one.head_size;
    CHECK(total_bytes(list_gpu_overheads(config, plan_steps(config, model, 0))) ==
          (768 + 32) * kOverheadMiB);
  }
}

}  // namespace
}  // namespace ftrun
