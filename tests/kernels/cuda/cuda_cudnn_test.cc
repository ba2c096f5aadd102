#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "gpu_operation_cases.h"
#include "ops/attention/attention.h"

#include <catch2/catch.hpp>

// These tests compare cuDNN's attention with the CPU's. On a GPU they use cuDNN itself, elsewhere
// an emulated cuDNN that runs the described graphs operation by operation.

namespace ftrun {
namespace {

/// Makes kernels with cuDNN the GPU under test until the destructor restores the previous one.
class WithCudnn {
 public:
  explicit WithCudnn(bool documents = false)
      : before_(testing::gpu()),
        gpu_(open_cuda_kernels(before_.info().index,
                               {.cudnn = CudnnUse::kAlways, .documents = documents})) {
    testing::set_gpu(gpu_.get());
  }
  ~WithCudnn() { testing::set_gpu(&before_); }
  DeviceKernels* operator->() { return gpu_.get(); }

 private:
  DeviceKernels& before_;
  std::unique_ptr<DeviceKernels> gpu_;
};

constexpr testing::DTypes kNarrow{DType::kBF16, DType::kBF16};

double largest_error(const testing::OperationCase& c) {
  const std::vector<testing::Array> actual = testing::run_on_gpu(c, kNarrow),
                                    expected = testing::run_on_cpu(c, kNarrow);
  double worst = 0;
  for (size_t i = 0; i < actual.size(); ++i)
    worst = std::max(worst, testing::relative_error(actual[i], expected[i]));
  return worst;
}

TEST_CASE(
    "cuda: cuDNN's attention and gradients agree with the CPU, with grouped heads, windows and "
    "several rows") {
  WithCudnn gpu;
  REQUIRE_THAT(gpu->library_use().chosen, Catch::StartsWith("cudnn 9."));
  for (const auto& [attrs, rows] :
       std::vector<std::pair<AttentionAttrs, int64_t>>{{{2, 2, 16, 24, 0.3, 0}, 1},
                                                       {{4, 2, 8, 13, 0.3, 0}, 3},
                                                       {{3, 1, 8, 20, 0.3, 5}, 2},
                                                       {{1, 1, 24, 2, 0.3, 0}, 1},
                                                       {{2, 1, 64, 70, 0.1, 0}, 1}}) {
    CAPTURE(attrs.query_heads, attrs.kv_heads, attrs.head_size, attrs.sequence_length, attrs.window,
            rows);
    const testing::AttentionCases cases = testing::attention_of_documents(attrs, rows);
    REQUIRE(largest_error(cases.forward) < 1e-2);
    REQUIRE(largest_error(cases.backward) < 2e-2);
  }
}

struct DocumentCase {
  AttentionAttrs attrs;
  int64_t rows;
  std::vector<int64_t> lengths;
};

// Query heads, key heads, head size, tokens of a row, scale, window; number of rows; lengths of the
// documents. For rows of up to 256 tokens, cuDNN's list has slots for four documents per row.
const std::vector<DocumentCase> kDocuments{
    {{2, 2, 16, 24, 0.3, 0}, 1, {24}},
    {{2, 2, 16, 24, 0.3, 0}, 1, {7, 1, 16}},
    {{4, 2, 8, 20, 0.3, 0}, 3, {9, 4, 1, 6, 20, 2, 1, 1}},
    {{3, 1, 8, 24, 0.3, 5}, 2, {11, 13, 3}},
    // This row has more documents than the list has slots; ftrun's own kernels compute the last
    // ones.
    {{2, 1, 8, 70, 0.3, 0}, 2, {40, 2, 3, 4, 2, 5, 6, 2, 7, 2, 3, 9}},
    // The first of these has only documents of one token; the second, whose row needs three lists,
    // has a list with one document.
    {{2, 1, 8, 16, 0.3, 0}, 1, {1}},
    {{2, 1, 8, 300, 0.3, 0}, 1, {200, 61, 1, 38}},
};

TEST_CASE(
    "cuda: cuDNN's attention of documents agrees with the CPU, with single tokens, windows and "
    "more documents than slots") {
  WithCudnn gpu(true);
  for (const DocumentCase& c : kDocuments) {
    const testing::AttentionCases cases =
        testing::attention_of_documents(c.attrs, c.rows, c.lengths);
    CAPTURE(c.attrs.query_heads, c.attrs.sequence_length, c.attrs.window, c.rows, c.lengths);
    CHECK(largest_error(cases.forward) < 1e-2);
    CHECK(largest_error(cases.backward) < 2e-2);
  }
  // On other GPUs ftrun's own kernels compute documents.
  if (gpu->info().compute_major == 9)
    REQUIRE_THAT(gpu->library_use().in_use, Catch::StartsWith("cudnn 9."));
}

TEST_CASE(
    "cuda: attention whose starts are not those of documents is computed by ftrun's kernels") {
  WithCudnn gpu(true);
  const AttentionAttrs attrs{2, 1, 8, 24, 0.3, 0};
  testing::AttentionCases cases = testing::attention_of_documents(attrs, 1, {12});
  for (testing::OperationCase* c : {&cases.forward, &cases.backward}) c->in.back().ints[18] = 5;
  REQUIRE(largest_error(cases.forward) < 1e-2);
  REQUIRE(largest_error(cases.backward) < 3e-2);
}

TEST_CASE("cuda: cuDNN's attention of large documents is near our kernels', and repeats its bits",
          "[gpu]") {
  for (const DocumentCase& c :
       std::vector<DocumentCase>{{{8, 2, 64, 2048, 0.1, 0}, 2, {700, 511, 1, 90, 1100, 33, 257}},
                                 {{8, 2, 128, 4096, 0.1, 0}, 1, {512, 300, 1, 1, 2500, 17}},
                                 {{4, 4, 128, 1024, 0.1, 100}, 2, {300, 20, 500}},
                                 {{2, 2, 64, 1024, 0.1, 0}, 1, {3, 2}}}) {
    const testing::AttentionCases cases =
        testing::attention_of_documents(c.attrs, c.rows, c.lengths);
    CAPTURE(c.attrs.query_heads, c.attrs.sequence_length, c.attrs.window, c.rows, c.lengths);
    for (const testing::OperationCase* each : {&cases.forward, &cases.backward}) {
      const std::vector<testing::Array> own = testing::run_on_gpu(*each, kNarrow);
      WithCudnn gpu(true);
      const std::vector<testing::Array> theirs = testing::run_on_gpu(*each, kNarrow);
      for (size_t i = 0; i < own.size(); ++i)
        CHECK(testing::relative_error(theirs[i], own[i]) < 2e-2);
      const auto bits = testing::bits_on_gpu(*each, kNarrow);
      for (int again = 0; again < 3; ++again) CHECK((testing::bits_on_gpu(*each, kNarrow) == bits));
    }
  }
}

}  // namespace
}  // namespace ftrun
