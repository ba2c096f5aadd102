#include <cmath>
#include <cstring>
#include <limits>

#include "../rank_fixture.h"
#include "base/text.h"
#include "checkpoint/checkpoint_manifest.h"
#include "engine/compare_kernels.h"
#include "engine/generate.h"
#include "gpu_under_test.h"
#include "kernels/kernels.h"

#include <catch2/catch.hpp>

// These tests compare whole training runs of a small model with the CUDA kernels and on the CPU.

namespace ftrun {
namespace {

using testing::RankFixture;

constexpr int kSteps = 3;

/// Changes a config so that rounding errors stay small. Adam divides by the size of a gradient:
/// with its usual epsilon, a gradient that consists of rounding errors alone would move its weight
/// as far as any other gradient does.
Config with_small_rounding_errors(Config config) {
  config.optimizer.eps = 1e-2;
  return config;
}

std::vector<float> to_floats(const std::vector<std::byte>& bytes, DType dtype) {
  std::vector<float> all(bytes.size() / static_cast<size_t>(dtype_bytes(dtype)));
  convert(bytes.data(), dtype, all.data(), DType::kF32, static_cast<int64_t>(all.size()));
  return all;
}

/// Lists dtypes by "tensor.kind".
std::map<std::string, DType> dtypes_of(const ModelState& state) {
  std::map<std::string, DType> dtypes;
  for (const StateSlice& slice : state.slices())
    dtypes[cat(slice.tensor, ".", slice.kind)] = slice.dtype;
  return dtypes;
}

/// Requires that weights and states differ by at most `tolerance` times the largest value of their
/// tensor.
void require_close(const ModelState& on_cpu, const ModelState& on_gpu, double tolerance) {
  const auto expected = testing::saved_contents(on_cpu);
  const auto found = testing::saved_contents(on_gpu);
  REQUIRE(found.size() == expected.size());
  const std::map<std::string, DType> dtypes = dtypes_of(on_gpu);
  for (const auto& [name, bytes] : expected) {
    const DType dtype = dtypes.at(name);
    const std::vector<float> a = to_floats(bytes, dtype), b = to_floats(found.at(name), dtype);
    double largest = 0, off = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      largest = std::max(largest, std::abs(static_cast<double>(a[i])));
      off = std::max(off, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
    }
    INFO(name << ": largest " << largest << ", off by " << off);
    REQUIRE(off <= tolerance * largest);
  }
}

/// Returns the same config, but planned for the GPU's kernels.
Config for_gpu(Config config) {
  config.device = DeviceKind::kCuda;
  return config;
}

void compare_with_cpu(const Config& config, double loss_tolerance, double state_tolerance) {
  testing::SingleRank single_rank;
  const std::unique_ptr<Gpu> gpu = testing::open_gpu_under_test();
  RankFixture cpu_fixture(config, testing::small_model(), *single_rank.group);
  RankFixture gpu_fixture(for_gpu(config), testing::small_model(),
                          testing::communicators_of(*single_rank.group), gpu.get());
  // The scale keeps small gradients from becoming 0 in fp16.
  if (config.fp16.enabled) cpu_fixture.gradient_divisor = gpu_fixture.gradient_divisor = 4096;
  for (int64_t step = 1; step <= kSteps; ++step) {
    const StepRun a = cpu_fixture.train(step), b = gpu_fixture.train(step);
    REQUIRE(b.result.finite);
    REQUIRE(b.result.counted_tokens == a.result.counted_tokens);
    REQUIRE(b.result.loss_sum == Approx(a.result.loss_sum).epsilon(loss_tolerance));
    REQUIRE(b.result.gradient_norm == Approx(a.result.gradient_norm).epsilon(20 * loss_tolerance));
  }
  require_close(cpu_fixture.state, gpu_fixture.state, state_tolerance);
}

constexpr OffloadDevice kNone = OffloadDevice::kNone, kCpu = OffloadDevice::kCpu,
                        kNvme = OffloadDevice::kNvme;

// This case has each stage and each tier once; tests/engine/gpu_test.cc tests every combination of
// them, with the CPU's kernels.
TEST_CASE(
    "cuda: training in fp32 gives the CPU's losses, weights and states at every stage and "
    "tier") {
  set_kernel_threads(1);
  for (const auto& [stage, device] :
       {std::pair(0, kNone), {1, kNvme}, {2, kCpu}, {3, kNone}, {3, kCpu}, {3, kNvme}}) {
    INFO("stage " << stage << ", " << name_of(device));
    Config config = with_small_rounding_errors(testing::config_of_stage(stage));
    testing::offload_to(config, device);
    config.zero.overlap_comm = true;
    compare_with_cpu(config, 1e-5, 1e-4);
  }
}

TEST_CASE("cuda: training in bf16 gives the CPU's losses and weights within bf16's precision") {
  set_kernel_threads(1);
  for (const auto& [stage, device] : {std::pair(0, kNone), {3, kCpu}}) {
    INFO("stage " << stage << ", " << name_of(device));
    Config config = with_small_rounding_errors(testing::config_of_stage(stage));
    config.bf16.enabled = true;
    testing::offload_to(config, device);
    compare_with_cpu(config, 5e-3, 5e-2);
  }
}

TEST_CASE("cuda: training in fp16 gives the CPU's losses and weights within fp16's precision") {
  set_kernel_threads(1);
  for (const auto& [stage, device] : {std::pair(0, kNone), {3, kCpu}}) {
    INFO("stage " << stage << ", " << name_of(device));
    Config config = with_small_rounding_errors(testing::config_of_stage(stage));
    config.fp16.enabled = true;
    testing::offload_to(config, device);
    compare_with_cpu(config, 2e-3, 2e-2);
  }
}

TEST_CASE("cuda: training with moments and master weights in bf16 gives the CPU's losses") {
  set_kernel_threads(1);
  for (const auto& [stage, device] : {std::pair(1, kNone), {3, kCpu}}) {
    INFO("stage " << stage << ", " << name_of(device));
    Config config = with_small_rounding_errors(testing::config_of_stage(stage));
    config.bf16.enabled = config.bf16.bf16_optimizer_states = true;
    config.bf16.bf16_master_weights_and_grads = stage == 1;
    testing::offload_to(config, device);
    compare_with_cpu(config, 5e-3, 5e-2);
  }
}

TEST_CASE("cuda: training adapters with magnitudes (DoRA) gives the CPU's losses and weights") {
  set_kernel_threads(1);
  for (const bool bf16 : {false, true}) {
    Config config = with_small_rounding_errors(testing::with_dropout(testing::config_of_stage(2)));
    config.adapter.use_dora = true;
    config.bf16.enabled = bf16;
    compare_with_cpu(config, bf16 ? 5e-3 : 1e-5, bf16 ? 5e-2 : 1e-4);
  }
}

TEST_CASE(
    "cuda: training in bf16 on rows of documents, with cuDNN if present, gives the CPU's losses "
    "and weights") {
  set_kernel_threads(1);
  testing::SingleRank single_rank;
  Config config = with_small_rounding_errors(testing::config_of_stage(0));
  config.bf16.enabled = true;
  config.data.sequence_length = 16;
  ModelConfig model = testing::small_model();
  model.head_size = 128;
  const std::unique_ptr<Gpu> gpu =
      testing::open_gpu_under_test({}, {.cudnn = CudnnUse::kWhereMeasured, .documents = true});
  RankFixture cpu_fixture(config, model, *single_rank.group);
  RankFixture gpu_fixture(for_gpu(config), model, testing::communicators_of(*single_rank.group),
                          gpu.get());
  for (const LayerGraph& graph : gpu_fixture.plan.train.model.graphs) gpu->kernels().prepare(graph);
  cpu_fixture.change_batch = gpu_fixture.change_batch = [](int64_t step, MicroBatch& batch) {
    // Each row holds documents of 9, 1 and 6 tokens. In step 2 a row holds 8 documents, more than
    // the lists of documents for rows of 16 tokens have room for.
    for (size_t i = 0; i < batch.starts.size(); ++i) {
      const auto t = static_cast<int32_t>(i % 16);
      batch.starts[i] = step == 2 ? t / 2 * 2 : t < 9 ? 0 : t == 9 ? 9 : 10;
    }
  };
  for (int64_t step = 1; step <= kSteps; ++step) {
    const double expected = cpu_fixture.train(step).result.loss_sum;
    REQUIRE(gpu_fixture.train(step).result.loss_sum == Approx(expected).epsilon(5e-3));
  }
  require_close(cpu_fixture.state, gpu_fixture.state, 5e-2);
  REQUIRE(gpu->kernels().library_use().in_use == gpu->kernels().library_use().chosen);
}

TEST_CASE("cuda: adapters with dropout drop the same elements as on the CPU") {
  set_kernel_threads(1);
  for (const bool bf16 : {false, true}) {
    Config config = with_small_rounding_errors(testing::with_dropout(testing::config_of_stage(2)));
    config.bf16.enabled = bf16;
    config.recompute.policy = RecomputeLevel::kFull;
    compare_with_cpu(config, bf16 ? 5e-3 : 1e-5, bf16 ? 5e-2 : 1e-4);
  }
}

TEST_CASE("cuda: recompute and activations kept on the host change no bit of a GPU's results") {
  set_kernel_threads(1);
  testing::SingleRank single_rank;
  const auto trained = [&](const std::function<void(Config&)>& change) {
    Config config = for_gpu(testing::config_of_stage(2));
    change(config);
    const std::unique_ptr<Gpu> gpu = testing::open_gpu_under_test();
    RankFixture fixture(config, testing::small_model(),
                        testing::communicators_of(*single_rank.group), gpu.get());
    for (int64_t step = 1; step <= kSteps; ++step) fixture.train(step);
    return testing::saved_contents(fixture.state);
  };
  const auto expected = trained([](Config&) {});
  REQUIRE(trained([](Config&) {}) == expected);
  REQUIRE(trained([](Config& c) {
            c.recompute.policy = RecomputeLevel::kFull;
            c.activation_checkpointing.cpu_checkpointing = true;
            c.zero.overlap_comm = true;
          }) == expected);
}

TEST_CASE("cuda: the operations of every kind of program agree with the CPU's on a small model") {
  set_kernel_threads(1);
  const auto compared = [](const std::function<void(Config&, ModelConfig&)>& change) {
    Config config = for_gpu(testing::config_of_stage(0));
    ModelConfig model = testing::small_model();
    change(config, model);
    const std::unique_ptr<Gpu> gpu = testing::open_gpu_under_test();
    const KernelComparison found = compare_kernels(config, model, 0, *gpu);
    INFO(found.worst_operation << ", off by " << found.largest_difference);
    REQUIRE(found.operations > 30);
    REQUIRE(found.largest_difference > 0);
    return found;
  };
  REQUIRE(compared([](Config&, ModelConfig&) {}).largest_difference < 1e-4);
  compared([](Config& c, ModelConfig& m) {
    c.bf16 = {
        .enabled = true, .bf16_master_weights_and_grads = true, .bf16_optimizer_states = true};
    c.parallel.tensor = 2;
    c.data.packing = SequencePacking::kDocuments;
    m.qk_norm = QkNorm::kEachHead;
    m.qkv_bias = true;
  });
  compared([](Config& c, ModelConfig& m) {
    c.fp16.enabled = true;
    c.recompute.policy = RecomputeLevel::kFull;
    m.tied = true;
    m.vocab_rows = 33;
  });
  compared([](Config& c, ModelConfig& m) {
    c.bf16.enabled = true;
    testing::remove_norm_weights(m);
  });
  const KernelComparison plain =
      compared([](Config& c, ModelConfig&) { c = for_gpu(testing::with_dropout(c)); });
  const KernelComparison dora = compared([](Config& c, ModelConfig&) {
    c = for_gpu(testing::with_dropout(c));
    c.adapter.use_dora = true;
    c.bf16.enabled = true;
    c.quantization.type = QuantizationType::kNf4;
  });
  REQUIRE(dora.operations > plain.operations);
}

TEST_CASE(
    "cuda: a step with a value that is not finite changes nothing, and the first such value is "
    "located") {
  set_kernel_threads(1);
  testing::SingleRank single_rank;
  const std::unique_ptr<Gpu> gpu = testing::open_gpu_under_test();
  RankFixture fixture(for_gpu(testing::small_run_config()), testing::small_model(),
                      testing::communicators_of(*single_rank.group), gpu.get());
  fixture.train(1);
  const auto before = testing::saved_contents(fixture.state);
  StepRun run = fixture.prepare_step(2);
  run.scalars.token_loss_factor = std::numeric_limits<float>::infinity();
  fixture.train_executor.run(run);
  REQUIRE_FALSE(run.result.finite);
  REQUIRE_THAT(fixture.train_executor.find_nonfinite(run).text,
               Catch::StartsWith("backward layer 3 mb 0 (head): "));
  REQUIRE(testing::saved_contents(fixture.state) == before);
  REQUIRE(fixture.train(2).result.finite);
}

}  // namespace
}  // namespace ftrun
