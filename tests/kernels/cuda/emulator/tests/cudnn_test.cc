#include "cudnn.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "base/error.h"
#include "gpu_operation_cases.h"
#include "kernels/cuda/cudnn_attention.h"
#include "ops/attention/attention.h"
#include "ops/attention/gpu_workspace.h"
#include "thrown_error.h"

#include <catch2/catch.hpp>

// These tests run cuDNN's attention on an emulated cuDNN, which executes the described graphs
// operation by operation.

namespace ftrun {
namespace {

using emulator::cudnn;

constexpr int kNondeterministic = 4, kNotSupported = 3000;
const testing::DTypes kNarrow{DType::kBF16, DType::kBF16};

/// Restores the settings of the emulated cuDNN at the end of a test.
struct RestoredCudnn {
  ~RestoredCudnn() { cudnn() = before; }
  emulator::Cudnn before = cudnn();
};

/// Makes kernels with cuDNN the GPU under test until the destructor restores the previous one.
class WithCudnn {
 public:
  explicit WithCudnn(bool documents = false, CudnnUse use = CudnnUse::kAlways)
      : before_(testing::gpu()),
        gpu_(open_cuda_kernels(0, {.cudnn = use, .documents = documents})) {
    testing::set_gpu(gpu_.get());
    cudnn().ran.clear();
  }
  ~WithCudnn() { testing::set_gpu(&before_); }
  DeviceKernels* operator->() { return gpu_.get(); }

 private:
  RestoredCudnn restored_;
  DeviceKernels& before_;
  std::unique_ptr<DeviceKernels> gpu_;
};

AttentionAttrs attrs_of(int64_t heads, int64_t kv_heads, int64_t head_size, int64_t sequence_length,
                        int64_t window = 0) {
  return {heads, kv_heads, head_size, sequence_length, 0.3, window};
}

double largest_error(const testing::OperationCase& c) {
  const std::vector<testing::Array> actual = testing::run_on_gpu(c, kNarrow),
                                    expected = testing::run_on_cpu(c, kNarrow);
  double worst = 0;
  for (size_t i = 0; i < actual.size(); ++i)
    worst = std::max(worst, testing::relative_error(actual[i], expected[i]));
  return worst;
}

TEST_CASE("cudnn: ftrun's kernels compute what cuDNN does not support") {
  constexpr int64_t kMemory = int64_t{80} << 30;
  const DeviceInfo hopper{.compute_major = 9, .memory_bytes = kMemory},
      ampere{.compute_major = 8, .memory_bytes = kMemory},
      later{.compute_major = 12, .memory_bytes = kMemory};
  const auto computes = [](const DeviceInfo& gpu, int64_t head_size, DType dtype = DType::kBF16,
                           bool documents = false) {
    return cuda::cudnn_supports(gpu, attrs_of(8, 2, head_size, 4096), dtype, 4096, documents);
  };
  REQUIRE((computes(hopper, 128) && computes(hopper, 256) && computes(ampere, 128) &&
           computes(ampere, 64)));
  REQUIRE_FALSE(computes(ampere, 136));
  REQUIRE_FALSE(computes(hopper, 264));
  REQUIRE_FALSE(computes(hopper, 100));
  REQUIRE_FALSE(computes(later, 128));
  REQUIRE_FALSE(computes(hopper, 128, DType::kF32));
  REQUIRE(computes(hopper, 128, DType::kBF16, true));
  REQUIRE_FALSE(computes(ampere, 128, DType::kBF16, true));
  REQUIRE_FALSE(cuda::cudnn_supports(hopper, attrs_of(8, 2, 128, 1), DType::kBF16, 1, false));
  // The first case has 2^31 elements of qkv; the second needs a workspace of more than an eighth of
  // the memory.
  REQUIRE_FALSE(cuda::cudnn_supports(hopper, attrs_of(8, 2, 128, 4096), DType::kBF16,
                                     int64_t{1} << 21, true));
  REQUIRE_FALSE(cuda::cudnn_supports({.compute_major = 9, .memory_bytes = int64_t{2} << 30},
                                     attrs_of(8, 2, 128, 4096), DType::kBF16, 4096, false));
  const testing::AttentionCases cases = testing::attention_of_documents(attrs_of(2, 2, 16, 24), 1);
  {
    WithCudnn gpu;
    testing::run_on_gpu(cases.forward, testing::kDTypes[0]);
    REQUIRE(cudnn().ran.empty());
    testing::run_on_gpu(cases.forward, kNarrow);
    REQUIRE_FALSE(cudnn().ran.empty());
  }
}

TEST_CASE(
    "cudnn: kWhereMeasured uses cuDNN on a GPU where it was measured, and our kernels where cuDNN "
    "cannot") {
  const testing::AttentionCases cases = testing::attention_of_documents(attrs_of(2, 1, 8, 9), 1);
  {
    WithCudnn gpu(false, CudnnUse::kWhereMeasured);
    REQUIRE(largest_error(cases.forward) < 1e-2);
    REQUIRE(gpu->library_use().in_use == "cudnn 9.19.0");
    REQUIRE(gpu->library_use().notice == "");
  }
  {
    WithCudnn gpu(false, CudnnUse::kWhereMeasured);
    cudnn().engines = {{{}, kNotSupported}};
    REQUIRE(largest_error(cases.forward) < 1e-2);
    REQUIRE(largest_error(cases.backward) < 2e-2);
    REQUIRE(cudnn().ran.empty());
    REQUIRE(gpu->library_use().in_use == "own");
    REQUIRE_THAT(gpu->library_use().notice,
                 Catch::StartsWith("cuDNN 9.19.0 has no plan for attention of 2 heads"));
  }
  for (const auto& [head_size, computes] : {std::pair(64, "own"), {128, "cudnn 9.19.0"}}) {
    WithCudnn gpu(true, CudnnUse::kWhereMeasured);
    REQUIRE(largest_error(
                testing::attention_of_documents(attrs_of(1, 1, head_size, 9), 1).forward) < 1e-2);
    REQUIRE(gpu->library_use().in_use == computes);
  }
  const RestoredCudnn restored;
  cudnn().version = 91002;
  {
    const auto gpu = open_cuda_kernels(0, {.cudnn = CudnnUse::kWhereMeasured});
    REQUIRE(gpu->library_use().chosen == "own");
    REQUIRE(gpu->library_use().notice == "cuDNN cannot compute attention: it is version 9.10.2");
  }
  ::emulator::runtime().compute_major = 8;
  const auto other = open_cuda_kernels(0, {.cudnn = CudnnUse::kWhereMeasured});
  ::emulator::runtime().compute_major = 9;
  REQUIRE(other->library_use().chosen == "own");
  REQUIRE(other->library_use().notice == "");
}

TEST_CASE("cudnn: cuDNN computes documents until its slots are taken, and our kernels the others") {
  WithCudnn gpu(true);
  const AttentionAttrs attrs = attrs_of(1, 1, 8, 24);
  const auto matmuls_run = [&](const std::vector<int64_t>& lengths) {
    cudnn().ran.clear();
    REQUIRE(largest_error(testing::attention_of_documents(attrs, 1, lengths).forward) < 1e-2);
    return std::count(cudnn().ran.begin(), cudnn().ran.end(), "matmul");
  };
  // A graph has two matrix multiplications. Rows of 24 tokens need one graph, with four slots for
  // documents; rows of 300 would need three graphs.
  REQUIRE(matmuls_run({7, 17}) == 2);
  REQUIRE(matmuls_run({2}) == 2);
  REQUIRE(gpu_document_groups(48, 24).size() == 1);
  REQUIRE(gpu_document_groups(48, 24)[0].slots == 8);
  const std::vector<GpuDocumentGroup> groups = gpu_document_groups(4096, 4096);
  const std::vector<std::pair<int64_t, int64_t>> expected{
      {4096, 1}, {2048, 3}, {1024, 7}, {512, 15}, {256, 64}};
  REQUIRE(groups.size() == expected.size());
  for (size_t i = 0; i < groups.size(); ++i) {
    REQUIRE(groups[i].max_tokens == expected[i].first);
    REQUIRE(groups[i].slots == expected[i].second);
  }
}

/// Runs attention and its gradient on random bf16 numbers in host memory. Scores are limited to a
/// number of bytes, so heads and rows are computed in parts.
class HostAttention {
 public:
  HostAttention(const AttentionAttrs& attrs, int64_t tokens)
      : qkv_(bits(tokens * (attrs.query_heads + 2 * attrs.kv_heads) * attrs.head_size, 1)),
        da_(bits(tokens * attrs.query_heads * attrs.head_size, 2)),
        a_(da_.size()),
        dqkv_(qkv_.size()),
        lse_(attrs.query_heads * tokens),
        delta_(lse_.size()) {
    given_.qkv = qkv_.data();
    given_.a = a_.data();
    given_.lse = lse_.data();
    given_.da = da_.data();
    given_.dqkv = dqkv_.data();
    given_.delta = delta_.data();
    given_.attrs = attrs;
    given_.tokens = tokens;
  }

  std::pair<std::vector<uint16_t>, std::vector<uint16_t>> compute(int64_t part_bytes) {
    cuda::CudnnAttention cudnn(cuda::load_cudnn(), true, part_bytes);
    for (const bool backward : {false, true})
      cudnn.prepare(given_.attrs, given_.tokens, false, backward);
    cudnn.forward(given_, nullptr, nullptr);
    cudnn.backward(given_, nullptr, nullptr);
    return {a_, dqkv_};
  }

 private:
  /// Returns bf16 numbers between -1 and 1.
  static std::vector<uint16_t> bits(int64_t count, int seed) {
    const std::vector<std::byte> bytes =
        testing::to_bytes(testing::random_array({count}, seed), DType::kBF16);
    std::vector<uint16_t> made(count);
    std::memcpy(made.data(), bytes.data(), bytes.size());
    return made;
  }

  std::vector<uint16_t> qkv_, da_, a_, dqkv_;
  std::vector<float> lse_, delta_;
  cuda::Attention given_{};
};

TEST_CASE("cudnn: documents are computed in parts, of heads first, then of lists") {
  const AttentionAttrs attrs = attrs_of(4, 2, 8, 8192);
  const auto sizes = [&](int64_t bytes) {
    std::vector<std::pair<int64_t, int64_t>> found;
    for (const CudnnPart& part : cudnn_parts(attrs, 2 * 8192, true, bytes))
      found.emplace_back(part.sequences, part.kv_heads);
    return found;
  };
  const std::vector<std::pair<int64_t, int64_t>> whole{{2, 2},  {6, 2},  {14, 2},
                                                       {30, 2}, {62, 2}, {256, 2}};
  REQUIRE(sizes(int64_t{1} << 40) == whole);
  const std::vector<std::pair<int64_t, int64_t>> parts{{1, 1},  {3, 1},  {14, 1},
                                                       {30, 2}, {62, 2}, {256, 2}};
  REQUIRE(sizes(int64_t{256} << 20) == parts);
}

TEST_CASE("cudnn: rows and heads that are computed in parts have the same bits") {
  const RestoredCudnn restored;
  const AttentionAttrs attrs = attrs_of(4, 2, 8, 8);
  HostAttention attention(attrs, 24);
  const auto matmuls_run = [] {
    return std::count(cudnn().ran.begin(), cudnn().ran.end(), "matmul");
  };
  cudnn().ran.clear();
  const auto whole = attention.compute(1 << 20);
  const int64_t once = matmuls_run();
  // The scores of a row and head count as 64 x 64. The first limit holds one row with all heads,
  // the others one head of keys.
  for (const auto& [bytes, runs] :
       std::vector<std::pair<int64_t, int64_t>>{{4 * 8192, 3}, {2 * 8192, 6}, {1, 6}}) {
    cudnn().ran.clear();
    REQUIRE((attention.compute(bytes) == whole));
    REQUIRE(matmuls_run() == runs * once);
  }
}

TEST_CASE("cudnn: the first engine that repeats its bits and has a plan is used") {
  WithCudnn gpu;
  const testing::AttentionCases cases = testing::attention_of_documents(attrs_of(2, 1, 8, 9), 1);
  cudnn().engines = {{{0, kNondeterministic}}, {{0}, kNotSupported}, {{0, 1}}, {}};
  REQUIRE(largest_error(cases.backward) < 2e-2);
  REQUIRE(cudnn().engine == 2);
}

TEST_CASE("cudnn: attention without an engine that repeats its bits is refused before the run") {
  WithCudnn gpu;
  const testing::AttentionCases cases = testing::attention_of_documents(attrs_of(2, 1, 8, 9), 1);
  const auto refused = [&](std::vector<emulator::Engine> engines) {
    cudnn().engines = std::move(engines);
    return testing::error_text_of([&] { testing::run_on_gpu(cases.backward, kNarrow); });
  };
  REQUIRE(
      refused({{{kNondeterministic}}}) ==
      "cuDNN 9.19.0 has no plan for attention of 2 heads of 8 elements (1 of keys) and 9 "
      "tokens, backward: it has no deterministic engine\n  remedy: set kernels.attention: own");
  REQUIRE(refused({{{}, kNotSupported}}) ==
          "cuDNN 9.19.0 has no plan for attention of 2 heads of 8 elements (1 of keys) and 9 "
          "tokens, backward: "
          "NOT_SUPPORTED: the engine refuses\n  remedy: set kernels.attention: own");
}

TEST_CASE("cudnn: plans and their memory are made once for each shape, and freed with the GPU") {
  const RestoredCudnn restored;
  {
    WithCudnn gpu;
    const testing::AttentionCases cases = testing::attention_of_documents(attrs_of(2, 1, 8, 9), 1),
                                  others =
                                      testing::attention_of_documents(attrs_of(2, 1, 8, 10), 1);
    testing::run_on_gpu(cases.forward, kNarrow);
    const int64_t made = cudnn().descriptors;
    testing::run_on_gpu(cases.forward, kNarrow);
    REQUIRE(cudnn().descriptors == made);
    testing::run_on_gpu(others.forward, kNarrow);
    REQUIRE(cudnn().descriptors == 2 * made);
    // A plan that needs a larger workspace gets a new one. The first plans keep theirs, because
    // captured steps may hold its address.
    cudnn().workspace_bytes = 1 << 20;
    testing::run_on_gpu(cases.backward, kNarrow);
    cudnn().workspace_bytes = 4096;
    REQUIRE(largest_error(cases.forward) < 1e-2);
    REQUIRE(cudnn().handles == 1);
  }
  REQUIRE(cudnn().handles == 0);
}

TEST_CASE("cudnn: a version that is too old and a run that fails are reported") {
  const testing::AttentionCases cases = testing::attention_of_documents(attrs_of(2, 1, 8, 9), 1);
  {
    const RestoredCudnn restored;
    cudnn().version = 91002;
    REQUIRE(
        testing::error_text_of([] { open_cuda_kernels(0, {.cudnn = CudnnUse::kAlways}); }) ==
        "cuDNN cannot compute attention: it is version 9.10.2\n"
        "  remedy: install a cuDNN 9 of version 9.19.0 or later, or set kernels.attention: own");
  }
  REQUIRE(open_cuda_kernels(0)->library_use().chosen == "own");
  WithCudnn gpu;
  cudnn().execution = kNotSupported;
  REQUIRE_THAT(testing::error_text_of([&] { testing::run_on_gpu(cases.forward, kNarrow); }),
               Catch::StartsWith(
                   "attention failed: cuDNN reported NOT_SUPPORTED: the emulator was told to"));
}

}  // namespace
}  // namespace ftrun
