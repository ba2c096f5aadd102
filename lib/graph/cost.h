#pragma once

#include <array>
#include <cstddef>
#include <initializer_list>
#include <span>

#include "graph/op.h"

namespace ftrun {

struct LayerGraph;

/// Pass is a pass of an operation over memory, with the arithmetic that runs at the same time.
struct Pass {
  /// Floating-point operations; multiply and add count as two.
  double flops = 0;
  /// Exponentials, tangents, sines and their like.
  double transcendentals = 0;
  /// Bytes read plus written beyond the caches.
  double bytes = 0;
};

/// OpWork is what an operation does: its passes, each of which begins when the one before it ends.
/// A gradient of a parameter counts as written once; the list that adds to it reads it, too.
class OpWork {
 public:
  /// The bias, the logits, the losses and three gradients of the head.
  static constexpr size_t kMostPasses = 6;

  OpWork(const Pass& pass) : OpWork({pass}) {}
  OpWork(std::initializer_list<Pass> passes);

  void add(const Pass& pass);

  const Pass* begin() const { return passes_.data(); }
  const Pass* end() const { return passes_.data() + count_; }
  /// Returns the sum of all passes.
  Pass total() const;

 private:
  std::array<Pass, kMostPasses> passes_{};
  size_t count_ = 0;
};

/// Computes the work of one operation of a list.
OpWork work(const LayerGraph& graph, const Op& op);
/// Returns the floating-point operations of all passes of an operation.
double flops(const LayerGraph& graph, const Op& op);
/// Returns the bytes that all passes of an operation move.
double traffic_bytes(const LayerGraph& graph, const Op& op);

/// Returns the floating-point operations of a product of each row of `x` with all of `w`.
double product_flops(const LayerGraph& graph, ValueId x, ValueId w);
/// Returns the bytes of all operands, each counted once.
double operand_bytes(const LayerGraph& graph, const Op& op);
/// Returns the number of elements of all results.
double result_elements(const LayerGraph& graph, const Op& op);

/// Operations a machine does in the time it moves one byte: 4 on a two-core server, 20 in fp32 on
/// an accelerator. It keeps the cost of norms, rotations and gated products from being nothing.
inline constexpr double kFlopsPerByte = 16.0;
/// Operations that an exponential takes: a polynomial of six terms and the scaling by a power of
/// two.
inline constexpr double kFlopsPerTranscendental = 16.0;

/// Returns the time of an operation in the unit that one floating-point operation takes: the sum
/// over its passes of max(arithmetic, kFlopsPerByte * bytes).
double op_cost(const LayerGraph& graph, const Op& op);
/// Returns the cost of operations that run one after another.
double list_cost(const LayerGraph& graph, std::span<const Op> list);

}  // namespace ftrun
