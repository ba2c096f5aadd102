#include "cudnn.h"

#include <algorithm>
#include <functional>
#include <memory>

#include "base/error.h"
#include "cuda_rig.h"
#include "kernels/cuda/cudnn_attention.h"

#include <catch2/catch.hpp>

// cuDNN's attention on an emulated cuDNN, which runs the graphs that are described to it operation by operation.

namespace ftrun {
namespace {

using emulator::cudnn;

constexpr int kNondeterministic = 4, kNotSupported = 3000;
const test::DTypes kNarrow{DType::kBF16, DType::kBF16};

/// The emulated cuDNN as it was, when the test is over.
struct RestoredCudnn {
  ~RestoredCudnn() { cudnn() = before; }
  emulator::Cudnn before = cudnn();
};

/// The tests' GPU, with cuDNN, for as long as this lives.
class WithCudnn {
 public:
  explicit WithCudnn(bool documents = false)
      : before_(test::gpu()), gpu_(open_cuda_kernels(0, {.cudnn = true, .documents = documents})) {
    test::set_gpu(gpu_.get());
    cudnn().ran.clear();
  }
  ~WithCudnn() { test::set_gpu(&before_); }
  DeviceKernels* operator->() { return gpu_.get(); }

 private:
  RestoredCudnn restored_;
  DeviceKernels& before_;
  std::unique_ptr<DeviceKernels> gpu_;
};

AttentionAttrs attrs_of(int64_t heads, int64_t kv_heads, int64_t head_size, int64_t row_tokens, int64_t window = 0) {
  return {heads, kv_heads, head_size, row_tokens, 0.3, window};
}

double error_of(const test::OperationCase& c) {
  const std::vector<test::Array> actual = test::run_on_gpu(c, kNarrow), expected = test::run_on_cpu(c, kNarrow);
  double worst = 0;
  for (size_t i = 0; i < actual.size(); ++i) worst = std::max(worst, test::relative_error(actual[i], expected[i]));
  return worst;
}

std::string refusal(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST_CASE("cudnn: what its table leaves out is computed by our kernels") {
  const DeviceInfo hopper{.compute_major = 9}, ampere{.compute_major = 8}, later{.compute_major = 12};
  const auto computes = [](const DeviceInfo& gpu, int64_t head_size, DType dtype = DType::kBF16, bool documents = false) {
    return cuda::cudnn_computes(gpu, attrs_of(8, 2, head_size, 4096), dtype, documents);
  };
  REQUIRE((computes(hopper, 128) && computes(hopper, 256) && computes(ampere, 128) && computes(ampere, 64)));
  REQUIRE_FALSE(computes(ampere, 136));
  REQUIRE_FALSE(computes(hopper, 264));
  REQUIRE_FALSE(computes(hopper, 100));
  REQUIRE_FALSE(computes(later, 128));
  REQUIRE_FALSE(computes(hopper, 128, DType::kF32));
  REQUIRE_FALSE(computes(hopper, 128, DType::kBF16, true));
  REQUIRE_FALSE(cuda::cudnn_computes(hopper, attrs_of(8, 2, 128, 1), DType::kBF16, false));
  const test::AttentionCases cases = test::attention_of_documents(attrs_of(2, 2, 16, 24), 1);
  {
    WithCudnn gpu;
    test::run_on_gpu(cases.forward, test::kDTypes[0]);
    REQUIRE(cudnn().ran.empty());
    test::run_on_gpu(cases.forward, kNarrow);
    REQUIRE_FALSE(cudnn().ran.empty());
  }
  WithCudnn gpu(true);
  REQUIRE(error_of(cases.forward) < 1e-2);
  REQUIRE(error_of(cases.backward) < 2e-2);
  REQUIRE(cudnn().ran.empty());
}

TEST_CASE("cudnn: of its engines the first is taken that repeats its bits and has a plan") {
  WithCudnn gpu;
  const test::AttentionCases cases = test::attention_of_documents(attrs_of(2, 1, 8, 9), 1);
  cudnn().engines = {{{0, kNondeterministic}}, {{0}, kNotSupported}, {{0, 1}}, {}};
  REQUIRE(error_of(cases.backward) < 2e-2);
  REQUIRE(cudnn().engine == 2);
}

TEST_CASE("cudnn: attention without such an engine is refused before the run") {
  WithCudnn gpu;
  const test::AttentionCases cases = test::attention_of_documents(attrs_of(2, 1, 8, 9), 1);
  const auto refused = [&](std::vector<emulator::Engine> engines) {
    cudnn().engines = std::move(engines);
    return refusal([&] { test::run_on_gpu(cases.backward, kNarrow); });
  };
  REQUIRE(refused({{{kNondeterministic}}}) ==
          "cuDNN 9.19.0 has no plan for attention of 2 heads of 8 elements (1 of keys) and 9 tokens, backward: it has no "
          "engine that repeats its bits\n  remedy: set kernels.attention to own");
  REQUIRE(refused({{{}, kNotSupported}}) ==
          "cuDNN 9.19.0 has no plan for attention of 2 heads of 8 elements (1 of keys) and 9 tokens, backward: "
          "NOT_SUPPORTED: the engine refuses\n  remedy: set kernels.attention to own");
}

TEST_CASE("cudnn: plans and their memory are made once for each shape, and all goes with the GPU") {
  const RestoredCudnn restored;
  {
    WithCudnn gpu;
    const test::AttentionCases cases = test::attention_of_documents(attrs_of(2, 1, 8, 9), 1), others = test::attention_of_documents(attrs_of(2, 1, 8, 10), 1);
    test::run_on_gpu(cases.forward, kNarrow);
    const int64_t made = cudnn().descriptors;
    test::run_on_gpu(cases.forward, kNarrow);
    REQUIRE(cudnn().descriptors == made);
    test::run_on_gpu(others.forward, kNarrow);
    REQUIRE(cudnn().descriptors == 2 * made);
    // A plan that needs more gets memory of its own; the first ones keep theirs, which recorded steps may know.
    cudnn().workspace_bytes = 1 << 20;
    test::run_on_gpu(cases.backward, kNarrow);
    cudnn().workspace_bytes = 4096;
    REQUIRE(error_of(cases.forward) < 1e-2);
    REQUIRE(cudnn().handles == 1);
  }
  REQUIRE(cudnn().handles == 0);
}

TEST_CASE("cudnn: a version that is too old, and a run that fails, are said so") {
  const test::AttentionCases cases = test::attention_of_documents(attrs_of(2, 1, 8, 9), 1);
  {
    const RestoredCudnn restored;
    cudnn().version = 91002;
    REQUIRE(refusal([] { open_cuda_kernels(0, {.cudnn = true}); }) ==
            "cuDNN's attention was asked for (kernels.attention), but cuDNN is 9.10.2\n"
            "  remedy: install a cuDNN 9 of version 9.19.0 or later, or set kernels.attention to own");
  }
  REQUIRE(open_cuda_kernels(0)->attention() == "own");
  WithCudnn gpu;
  cudnn().execution = kNotSupported;
  REQUIRE_THAT(refusal([&] { test::run_on_gpu(cases.forward, kNarrow); }),
               Catch::StartsWith("attention: cuDNN says NOT_SUPPORTED: the emulator was told to"));
}

}  // namespace
}  // namespace ftrun
