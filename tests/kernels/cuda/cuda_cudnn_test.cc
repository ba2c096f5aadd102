#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "cuda_rig.h"

#include <catch2/catch.hpp>

// cuDNN's attention against the CPU's: on a GPU cuDNN itself, elsewhere an emulated one that runs the graphs described to
// it operation by operation.

namespace ftrun {
namespace {

/// The tests' GPU, with cuDNN, for as long as this lives.
class WithCudnn {
 public:
  WithCudnn() : before_(test::gpu()), gpu_(open_cuda_kernels(before_.info().index, {.cudnn = true})) {
    test::set_gpu(gpu_.get());
  }
  ~WithCudnn() { test::set_gpu(&before_); }
  DeviceKernels* operator->() { return gpu_.get(); }

 private:
  DeviceKernels& before_;
  std::unique_ptr<DeviceKernels> gpu_;
};

double error_of(const test::OperationCase& c) {
  constexpr test::DTypes kNarrow{DType::kBF16, DType::kBF16};
  const std::vector<test::Array> actual = test::run_on_gpu(c, kNarrow), expected = test::run_on_cpu(c, kNarrow);
  double worst = 0;
  for (size_t i = 0; i < actual.size(); ++i) worst = std::max(worst, test::relative_error(actual[i], expected[i]));
  return worst;
}

TEST_CASE("cuda: cuDNN's attention and gradients are the CPU's, with grouped heads, windows and several rows") {
  WithCudnn gpu;
  REQUIRE_THAT(gpu->attention(), Catch::StartsWith("cudnn 9."));
  for (const auto& [attrs, rows] : std::vector<std::pair<AttentionAttrs, int64_t>>{{{2, 2, 16, 24, 0.3, 0}, 1},
                                                                                   {{4, 2, 8, 13, 0.3, 0}, 3},
                                                                                   {{3, 1, 8, 20, 0.3, 5}, 2},
                                                                                   {{1, 1, 24, 2, 0.3, 0}, 1},
                                                                                   {{2, 1, 64, 70, 0.1, 0}, 1}}) {
    CAPTURE(attrs.query_heads, attrs.kv_heads, attrs.head_size, attrs.row_tokens, attrs.window, rows);
    const test::AttentionCases cases = test::attention_of_documents(attrs, rows);
    REQUIRE(error_of(cases.forward) < 1e-2);
    REQUIRE(error_of(cases.backward) < 2e-2);
  }
}

}  // namespace
}  // namespace ftrun
