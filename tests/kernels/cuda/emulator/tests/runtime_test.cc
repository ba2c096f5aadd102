#include <cuda_runtime_api.h>

#include <algorithm>

#include "base/error.h"
#include "base/rank_error.h"
#include "gpu_operation_cases.h"
#include "graph/builder.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/device.h"
#include "ops/attention/attention.h"
#include "ops/cross_entropy/cross_entropy.h"
#include "ops/embedding/gpu_workspace.h"
#include "ops/kinds.h"
#include "thrown_error.h"

#include <catch2/catch.hpp>

// These tests check how the kernels' library uses CUDA's runtime, where only the emulator can
// observe it.

namespace ftrun {
namespace {

/// Restores the settings of the emulated runtime at the end of a test.
struct RestoredRuntime {
  ~RestoredRuntime() { emulator::runtime() = before; }
  emulator::Runtime before = emulator::runtime();
};

struct Shape {
  int64_t head_size = 0;
  DType dtype = DType::kBF16;
};

LayerGraph attention_of(const Shape& shape, OpKind kind) {
  LayerGraph graph;
  const auto add = [&](std::vector<int64_t> dims, DType dtype) {
    Value value;
    value.name = cat("v", graph.values.size());
    value.dims = std::move(dims);
    value.dtype = dtype;
    graph.values.push_back(value);
    return static_cast<ValueId>(graph.values.size()) - 1;
  };
  const ValueId in = add({64, 3 * shape.head_size}, shape.dtype),
                out = add({64, shape.head_size}, shape.dtype);
  const Op op{kind, {in}, {out}, AttentionAttrs{1, 1, shape.head_size, 64, 1.0, 0}, -1};
  (kind == OpKind::kAttention ? graph.forward : graph.backward).push_back(op);
  return graph;
}

std::string refusal(const Shape& shape, OpKind kind) {
  return testing::error_text_of([&] { open_cuda_kernels(0)->prepare(attention_of(shape, kind)); });
}

TEST_CASE("cuda runtime: an event that is not done yet does not fail the next kernel") {
  const RestoredRuntime restored;
  const auto gpu = open_cuda_kernels(0);
  const DeviceStream stream = gpu->create_stream(false);
  const DeviceEvent event = gpu->create_event(false);
  emulator::runtime().event_has_come = false;
  REQUIRE_FALSE(gpu->is_done(event));
  float from[4] = {1, 2, 3, 4}, to[4] = {};
  gpu->convert(from, DType::kF32, to, DType::kF32, 4, stream);  // this call checks the last error
  REQUIRE(to[3] == 4);
  emulator::runtime().event_has_come = true;
  REQUIRE(gpu->is_done(event));
}

void first_kernel() {}
void second_kernel() {}

TEST_CASE(
    "cuda runtime: shared memory beyond the default is requested once per kernel and GPU, and "
    "again for a larger request") {
  const RestoredRuntime restored;
  const auto asks = [](void (*kernel)(), size_t bytes) {
    const int64_t before = emulator::runtime().attributes_set;
    cuda::request_shared_memory(reinterpret_cast<const void*>(kernel), bytes);
    return emulator::runtime().attributes_set - before;
  };
  const auto given = [](void (*kernel)()) {
    return emulator::shared_asked(reinterpret_cast<const void*>(kernel));
  };
  REQUIRE(asks(first_kernel, 60'000) == 1);
  REQUIRE(asks(first_kernel, 60'000) == 0);
  REQUIRE(asks(first_kernel, 50'000) == 0);
  REQUIRE(given(first_kernel) == 60'000);
  REQUIRE(asks(first_kernel, 70'000) == 1);
  REQUIRE(asks(second_kernel, 50'000) == 1);
  emulator::runtime().device = 1;
  REQUIRE(asks(first_kernel, 50'000) == 1);
  REQUIRE(given(first_kernel) == 50'000);
  emulator::runtime().device = 0;
  REQUIRE(given(first_kernel) == 70'000);
  // Refusals are not remembered: a request for more than the GPU has is refused each time.
  for (int time = 0; time < 2; ++time)
    REQUIRE_THROWS_AS(asks(second_kernel, emulator::runtime().block_shared + 1), RankError);
  REQUIRE(given(second_kernel) == 50'000);
}

TEST_CASE("cuda runtime: a thread that waits for the GPU sleeps") {
  const RestoredRuntime restored;
  const auto gpu = open_cuda_kernels(0);
  REQUIRE(emulator::runtime().device_flags == cudaDeviceScheduleBlockingSync);
  gpu->create_event(false, true);
  REQUIRE(emulator::runtime().event_flags == (cudaEventBlockingSync | cudaEventDisableTiming));
}

TEST_CASE("cuda runtime: events that no host waits for interrupt no host") {
  const RestoredRuntime restored;
  const auto gpu = open_cuda_kernels(0);
  gpu->create_event(false);
  REQUIRE(emulator::runtime().event_flags == cudaEventDisableTiming);
  gpu->create_event(true);
  REQUIRE(emulator::runtime().event_flags == cudaEventDefault);
}

testing::Operand activation_operand(testing::Array array) {
  return testing::Operand::activation(std::move(array));
}

/// Returns how many kernels compute the gradients of a norm of 9 rows.
int64_t norm_launches(int64_t width, bool together) {
  testing::Array rstd = testing::random_array({9}, 1);
  const std::vector<testing::Operand> in{activation_operand(testing::random_array({9, width}, 2)),
                                         activation_operand(testing::random_array({9, width}, 3)),
                                         testing::Operand::floats(rstd),
                                         activation_operand(testing::random_array({width}, 4))};
  const RestoredRuntime restored;
  emulator::runtime().launches = 0;
  testing::norm_gradient_bits(in, {DType::kBF16, DType::kF32}, together,
                              testing::Operand::gradient({width}));
  return emulator::runtime().launches;
}

TEST_CASE(
    "cuda runtime: the gradients of a norm read their rows once if the operations are next to each "
    "other") {
  for (const int64_t width : {64, 576, 2048, 8192}) {
    CAPTURE(width);
    REQUIRE(norm_launches(width, false) == 3);
    REQUIRE(norm_launches(width, true) == 2);
  }
  REQUIRE(norm_launches(13, true) == 3);
  REQUIRE(norm_launches(16384, true) == 3);
}

TEST_CASE(
    "cuda runtime: the head's multiplications have rows and extents that fast kernels take, "
    "whatever the vocabulary") {
  std::vector<int32_t> labels;
  for (int32_t n = 0; n < 128; ++n) labels.push_back(n % 5 == 0 ? -100 : n);
  const testing::OperationCase c{
      OpKind::kLinearCrossEntropy,
      CrossEntropyAttrs{true, 64},
      {activation_operand(testing::random_array({128, 64}, 1)),
       activation_operand(testing::random_array({133, 64}, 2)), testing::Operand::tokens(labels)},
      {testing::Operand::loss(0.0, 0.0), testing::Operand::out({128, 64}),
       testing::Operand::gradient(std::vector<int64_t>{133, 64})}};
  const RestoredRuntime restored;
  for (const testing::DTypes dtypes : testing::kDTypes) {
    emulator::runtime().unaligned_matmuls = emulator::runtime().matmuls_not_multiple_of_8 = 0;
    testing::run_on_gpu(c, dtypes);
    REQUIRE(emulator::runtime().unaligned_matmuls == 0);
    REQUIRE(emulator::runtime().matmuls_not_multiple_of_8 == 0);
  }
}

/// Returns the gradient of an embedding table of 40 rows, where row 7 occurs most often.
testing::OperationCase hot_row_case(int64_t width) {
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < 3000; ++i) tokens.push_back(i % 5 == 0 ? i % 40 : 7);
  const auto count = static_cast<int64_t>(tokens.size());
  return {OpKind::kEmbedWgrad,
          NoAttrs{},
          {testing::Operand::tokens(tokens),
           activation_operand(testing::random_array({count, width}, 2))},
          {testing::Operand::gradient(std::vector<int64_t>{40, width})}};
}

/// Sums a column of row 7 in the kernel's order: for each list of tokens that a block collects, in
/// parts of kEmbedPart.
float hot_sum(const testing::OperationCase& c, int64_t width, int64_t column) {
  constexpr int kFoundAtATime = 2048 - 256;  // 256 tokens more still fit in a list of 2048
  std::vector<std::vector<float>> lists(1);
  int found = 0;
  for (size_t n = 0; n < c.in[0].ints.size(); ++n) {
    if (n > 0 && n % 256 == 0 && found > kFoundAtATime) {
      lists.emplace_back();
      found = 0;
    }
    if (c.in[0].ints[n] < 32) ++found;  // the first block's rows
    if (c.in[0].ints[n] == 7)
      lists.back().push_back(static_cast<float>(
          c.in[1].content->data[n * static_cast<size_t>(width) + static_cast<size_t>(column)]));
  }
  float sum = 0.0F;
  for (const std::vector<float>& list : lists)
    for (size_t first = 0; first < list.size(); first += kEmbedPart) {
      float part = 0.0F;
      for (size_t i = first; i < std::min(first + kEmbedPart, list.size()); ++i) part += list[i];
      sum += part;
    }
  return sum;
}

TEST_CASE(
    "cuda runtime: a token that occurs often is added in parts, with the same bits in whatever "
    "order blocks run") {
  const RestoredRuntime restored;
  for (const int64_t width : {3, 8}) {
    CAPTURE(width);
    const testing::OperationCase c = hot_row_case(width);
    emulator::runtime().last_block_first = false;
    emulator::runtime().launches = 0;
    const auto bits = testing::bits_on_gpu(c, testing::kDTypes[0]);
    REQUIRE(emulator::runtime().launches == 3);
    emulator::runtime().last_block_first = true;
    REQUIRE(testing::bits_on_gpu(c, testing::kDTypes[0]) == bits);
    const auto* const found = reinterpret_cast<const float*>(bits[0].data());
    for (int64_t column = 0; column < width; ++column)
      REQUIRE(found[7 * width + column] == hot_sum(c, width, column));
  }
}

void do_nothing(int) {}

std::string refused_start(const cuda::Launch& shape) {
  try {
    cuda::launch(shape, do_nothing, 0);
  } catch (const Error& error) {
    return error.message();
  }
  return "";
}

TEST_CASE("cuda runtime: the emulator refuses each kernel that a GPU would refuse") {
  const std::string refusal = "starting a kernel failed: CUDA reported an error, of the emulator";
  REQUIRE(refused_start({dim3(1, 3, 2), dim3(32, 32), 1000}) == "");
  REQUIRE(refused_start({1, dim3(32, 33)}) == refusal);
  REQUIRE(refused_start({1, dim3(1, 1, 65)}) == refusal);
  REQUIRE(refused_start({dim3(1, 65536), 1}) == refusal);
  REQUIRE(refused_start({dim3(1, 1, 65536), 1}) == refusal);
  REQUIRE(refused_start({1, 1, 232449}) == refusal);
}

TEST_CASE("cuda runtime: a GPU is known by its UUID") {
  REQUIRE(open_cuda_kernels(0)->info().uuid == "GPU-01234567-ff00-0000-0000-000000000000");
}

TEST_CASE(
    "cuda runtime: heads whose tiles do not fit the GPU's shared memory are refused with the "
    "arithmetic") {
  const RestoredRuntime restored;
  for (const int64_t head_size : {64, 128, 192, 256})
    for (const DType dtype : {DType::kF32, DType::kBF16})
      for (const OpKind kind : {OpKind::kAttention, OpKind::kAttentionDgrad})
        REQUIRE(refusal({head_size, dtype}, kind) == "");
  emulator::runtime().block_shared = 101376;  // of compute capability 8.6 and 8.9
  for (const OpKind kind : {OpKind::kAttention, OpKind::kAttentionDgrad}) {
    for (const int64_t head_size : {64, 128})
      for (const DType dtype : {DType::kF32, DType::kBF16})
        REQUIRE(refusal({head_size, dtype}, kind) == "");
    for (const int64_t head_size : {192, 256})
      REQUIRE(refusal({head_size, DType::kBF16}, kind) == "");
  }
  emulator::runtime().block_shared = 98000;
  REQUIRE(refusal({192, DType::kBF16}, OpKind::kAttentionDgrad) ==
          "the gradient of attention with heads of 192 elements in bf16 needs 98688 bytes of "
          "shared memory per block "
          "(192 rows of 256 x 2 bytes and 384); the emulator, on the host of compute "
          "capability 9.0 has 98000\n"
          "  remedy: train this model on a GPU of compute capability 8.0 or 9.0, or set "
          "device: cpu");
  emulator::runtime().block_shared = 101376;
  REQUIRE_THAT(
      refusal({256, DType::kF32}, OpKind::kAttention),
      Catch::StartsWith(
          "attention with heads of 256 elements in fp32 needs 102912 bytes of shared memory per "
          "block (3 tiles of 32 x 257 x 4 bytes and 4224); "));
  REQUIRE(refusal({128, DType::kF32}, OpKind::kAttentionDgrad) == "");
  REQUIRE_THAT(
      refusal({512, DType::kBF16}, OpKind::kAttention),
      Catch::StartsWith("attention heads of 512 elements are too large for the CUDA kernels"));
}

}  // namespace
}  // namespace ftrun
