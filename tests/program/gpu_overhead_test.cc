#include "program/gpu_overhead.h"

#include "models.h"
#include "program/plan_notes.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using fixtures::small_config;

constexpr int64_t kOverheadMiB = int64_t{1} << 20;

StepPlan planned(const Config& config) { return plan_steps(config, small_config(2, false), 0); }

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

TEST_CASE("what a GPU holds beside the plan is said with its bounds, and nothing is on processors") {
  Config config = on_gpus(1);
  CHECK(gpu_overhead_text(gpu_overheads(config, planned(config))) ==
        "beside the plan, a GPU holds at most 800.00 MiB (CUDA's context and kernels: 768.00 MiB; cuBLAS's workspace: 32.00 MiB)");
  config = on_gpus(2);
  config.comm.deterministic = true;
  const std::string several =
      "beside the plan, a GPU holds at most 1.31 GiB (CUDA's context and kernels: 768.00 MiB; cuBLAS's workspace: 32.00 MiB; "
      "NCCL's buffers, 512.00 MiB for its group: 512.00 MiB; sums in rank order (comm.deterministic), 32.00 MiB for its group: "
      "32.00 MiB)";
  CHECK(gpu_overhead_text(gpu_overheads(config, planned(config))) == several);
  CHECK(total_bytes(gpu_overheads(config, planned(config))) == (768 + 32 + 512 + 32) * kOverheadMiB);
  CHECK(plan_notes(config, planned(config)).back() == several);
  config.device = DeviceKind::kCpu;
  CHECK(gpu_overheads(config, planned(config)).empty());
}

TEST_CASE("cuDNN's attention keeps up to two copies of the queries' gradient in fp32") {
  Config config = on_gpus(1);
  const int64_t without = total_bytes(gpu_overheads(config, planned(config)));
  config.kernels.attention = AttentionChoice::kCudnn;
  const StepPlan plan = planned(config);
  CHECK(plan.train.model.batch.tokens() == 24);
  // 24 tokens, 4 heads of 4 elements and a sum.
  CHECK(total_bytes(gpu_overheads(config, plan)) - without == 2 * 24 * 4 * 5 * 4);
}

}  // namespace
}  // namespace ftrun
