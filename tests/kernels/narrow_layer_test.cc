// These tests compare a whole layer in 16 bits, forward and backward, with the same layer in fp32.
#include <cmath>
#include <cstring>

#include "graph/builder.h"
#include "graph/scratch.h"
#include "kernels/cpu/vector_kernels.h"
#include "operation_runner.h"
#include "ops/activation/activation.h"
#include "ops/add/add.h"
#include "ops/attention/attention.h"
#include "ops/heads.h"
#include "ops/linear/linear.h"
#include "ops/norm/norm.h"
#include "ops/rope/rope.h"

#include <catch2/catch.hpp>

namespace ftrun::testing {
namespace {

constexpr int64_t kTokens = 96, kRowTokens = 48, kHidden = 64, kHead = 16, kQueryHeads = 4,
                  kKvHeads = 2, kFeedForward = 160;
constexpr int64_t kQkv = (kQueryHeads + 2 * kKvHeads) * kHead;

/// Returns a Llama block: its inputs are hidden values and the rotary table, its output is hidden
/// values.
LayerGraph narrow_block_graph(const ModelDtypes& dtypes) {
  GraphBuilder g("block", kTokens, kRowTokens, dtypes);
  const ValueId x = g.input(Port::kHidden, dtypes.compute, {kTokens, kHidden}, "x");
  const ValueId rope = g.input(Port::kRope, DType::kF32, {kTokens, kHead}, "rope");
  const ValueId starts = g.input(Port::kStarts, DType::kI32, {kTokens}, "starts");
  const HeadAttrs heads{kQueryHeads, kKvHeads, kHead};
  const ValueId norm = ops::rms_norm(g, x, g.param("norm", {kHidden}), {1e-5});
  const ValueId qkv =
      ops::rope(g, ops::linear(g, norm, g.param("qkv", {kQkv, kHidden}), g.param("bias", {kQkv})),
                rope, {heads});
  const ValueId a =
      ops::attention(g, qkv, starts, {kQueryHeads, kKvHeads, kHead, kRowTokens, 0.25});
  const auto middle =
      ops::add_rms_norm(g, x, ops::linear(g, a, g.param("o", {kHidden, kQueryHeads * kHead})),
                        g.param("norm2", {kHidden}), {1e-5});
  const ValueId gate_up =
      ops::linear(g, middle.norm, g.param("gate_up", {2 * kFeedForward, kHidden}));
  const ValueId down = ops::linear(g, ops::gated_activation(g, gate_up, Activation::kSilu),
                                   g.param("down", {kHidden, kFeedForward}));
  g.output(ops::add(g, middle.sum, down), Port::kHidden);
  return g.finish(true);
}

/// Layer is a layer where every value has separate memory.
class Layer {
 public:
  explicit Layer(const ModelDtypes& dtypes) : graph_(narrow_block_graph(dtypes)) {
    for (const Value& value : graph_.values) {
      // 0xFF bytes are NaN in every dtype, so an element that nobody wrote shows.
      memory_.emplace_back(static_cast<size_t>(value.bytes() + 64), std::byte{0xFF});
      auto address = reinterpret_cast<uintptr_t>(memory_.back().data());
      storage_.push_back(reinterpret_cast<void*>((address + 63) / 64 * 64));
    }
  }

  /// Runs forward and backward. Inputs and parameters are rounded to bf16, so that every dtype
  /// computes with the same numbers.
  void run() {
    for (size_t i = 0; i < graph_.values.size(); ++i) {
      const Value& value = graph_.values[i];
      if (value.dtype == DType::kI32)
        std::memset(storage_[i], 0, static_cast<size_t>(value.bytes()));
      else if (value.role == ValueRole::kInput || value.role == ValueRole::kParam ||
               value.role == ValueRole::kOutputGrad)
        fill(value, storage_[i]);
    }
    StepScalars scalars;
    for (const Op& op : graph_.forward) run_op(graph_, op, storage_, {false, &scalars});
    for (const Op& op : graph_.backward) run_op(graph_, op, storage_, {false, &scalars});
  }

  /// Returns the elements of a value, found by its name.
  std::vector<float> read(const std::string& name) const {
    for (size_t i = 0; i < graph_.values.size(); ++i) {
      const Value& value = graph_.values[i];
      if (value.name != name) continue;
      std::vector<float> out(static_cast<size_t>(element_count(value.dims)));
      convert(storage_[i], value.dtype, out.data(), DType::kF32, static_cast<int64_t>(out.size()));
      return out;
    }
    FAIL("no value " << name);
    return {};
  }

  const LayerGraph& graph() const { return graph_; }

 private:
  static void fill(const Value& value, void* to) {
    uint64_t seed = 7;
    for (const char c : value.name) seed = seed * 31 + static_cast<unsigned char>(c);
    Array array = random_array(value.dims, seed);
    // Weights are of size about 1 / sqrt(inputs); weights of norms are around 1.
    const bool matrix = value.role == ValueRole::kParam && value.dims.size() == 2;
    const bool norm = value.role == ValueRole::kParam && value.name.starts_with("norm");
    const double scale = matrix ? std::sqrt(3.0 / static_cast<double>(value.dims[1]))
                         : norm ? 0.2
                                : 1.0;
    std::vector<float> values;
    for (const double v : array.data)
      values.push_back(static_cast<float>(rounded(v * scale + (norm ? 1.0 : 0.0), DType::kBF16)));
    convert(values.data(), DType::kF32, to, value.dtype, static_cast<int64_t>(values.size()));
  }

  LayerGraph graph_;
  std::vector<std::vector<std::byte>> memory_;
  std::vector<void*> storage_;
};

/// Returns the root mean square of the difference, relative to the root mean square of `expected`.
double relative_rms_error(const std::vector<float>& actual, const std::vector<float>& expected) {
  double difference = 0.0, size = 0.0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double d = static_cast<double>(actual[i]) - static_cast<double>(expected[i]);
    difference += d * d;
    size += static_cast<double>(expected[i]) * static_cast<double>(expected[i]);
  }
  return std::sqrt(difference / size);
}

std::vector<std::string> results_of(const LayerGraph& graph) {
  std::vector<std::string> names;
  for (const Value& value : graph.values)
    if (value.role == ValueRole::kOutput || value.role == ValueRole::kParamGrad ||
        value.role == ValueRole::kInputGrad)
      names.push_back(value.name);
  return names;
}

/// Returns the bound of relative_rms_error(), in units of roundoff. Each of about ten roundings
/// between a parameter and a result adds an error of at most a unit / sqrt(3), and the errors of a
/// value add up like a random walk. Attention that multiplies bf16 without widening has four more
/// roundings: probabilities, their gradients, and the other factor of each.
double max_roundoffs(DType compute) {
  const bool rounds_more = compute == DType::kBF16 && isa_in_use() >= Isa::kAvx512Bf16;
  return 2.5 * (rounds_more ? std::sqrt(14.0 / 10.0) : 1.0);
}

TEST_CASE("a block in bf16 and fp16 gives fp32's results and gradients up to rounding in storage") {
  Layer wide({});
  wide.run();
  for (const ModelDtypes dtypes :
       {ModelDtypes{DType::kBF16, DType::kF32}, ModelDtypes{DType::kBF16, DType::kBF16},
        ModelDtypes{DType::kF16, DType::kF32}, ModelDtypes{DType::kF16, DType::kF16}}) {
    Layer narrow(dtypes);
    narrow.run();
    const std::vector<std::string> names = results_of(narrow.graph());
    REQUIRE(names == results_of(wide.graph()));
    REQUIRE(names.size() == 9);
    for (const std::string& name : names) {
      CAPTURE(dtype_name(dtypes.compute), dtype_name(dtypes.gradients), name);
      const double d = relative_rms_error(narrow.read(name), wide.read(name));
      REQUIRE(d < max_roundoffs(dtypes.compute) * unit_roundoff(dtypes.compute));
      REQUIRE(d > 0.05 * unit_roundoff(dtypes.compute));
    }
  }
}

TEST_CASE("the graph of a layer in bf16 holds half the bytes of activations") {
  const LayerGraph wide = narrow_block_graph({}),
                   narrow = narrow_block_graph({DType::kBF16, DType::kF32});
  // lse and rstd stay in fp32: H + 2 numbers per token.
  const int64_t statistics = kTokens * (kQueryHeads + 2) * 4;
  REQUIRE(2 * (plan_saved(narrow).bytes - statistics) == plan_saved(wide).bytes - statistics);
  for (const ValueId id : narrow.values_with_role(ValueRole::kParam)) {
    REQUIRE(narrow.at(id).dtype == DType::kBF16);
    REQUIRE(narrow.at(narrow.at(id).grad).dtype == DType::kF32);
  }
}

}  // namespace
}  // namespace ftrun::testing
