#include <string>
#include <vector>

#include "base/error.h"
#include "graph/layer_graph.h"
#include "kernels/device.h"
#include "kernels/kernels.h"
#include "ops/kinds.h"

#include <catch2/catch.hpp>

namespace ftrun::testing {
namespace {

// This must hold for every build and machine: without CUDA, with CUDA but no driver, and with fewer
// GPUs.
TEST_CASE("asking for a GPU that does not exist says so and what to do") {
  try {
    open_cuda_kernels(9999);
    FAIL("no error");
  } catch (const Error& e) {
    const bool without_cuda = e.code() == ExitCode::kUnsupported;
    REQUIRE((without_cuda || e.code() == ExitCode::kEnvironment));
    REQUIRE_THAT(e.message(), Catch::StartsWith("the config requests GPU 9999, but "));
    if (without_cuda)
      REQUIRE(e.message() == "the config requests GPU 9999, but this ftrun was built without CUDA");
    REQUIRE_FALSE(e.remedy().empty());
  }
}

TEST_CASE("a dtype that the CPU kernels do not support is refused by name") {
  LayerGraph graph;
  graph.values = {{"x", DType::kI64, {2, 2}}, {"y", DType::kI64, {2, 2}}};
  const Op op{OpKind::kAdd, {0, 0}, {1}, NoAttrs{}};
  std::vector<void*> storage(2, nullptr);
  try {
    run_op(graph, op, storage, {});
    FAIL("no error");
  } catch (const Error& e) {
    REQUIRE(e.code() == ExitCode::kUnsupported);
    REQUIRE(e.message() == "the CPU kernels do not support activations in I64 (add)");
    REQUIRE(e.remedy() == "train in fp32, bf16 or fp16");
  }
}

}  // namespace
}  // namespace ftrun::testing
