#pragma once

#include <array>
#include <cstddef>
#include <initializer_list>
#include <span>

#include "graph/op.h"

namespace ftrun {

struct LayerGraph;

/// OpPass is one pass of an operation over memory, with the arithmetic that runs at the same
/// time.
struct OpPass {
  /// Floating-point operations; multiply and add count as two.
  double flops = 0;
  /// Exponentials, hyperbolic tangents, sines and the like.
  double transcendentals = 0;
  /// Bytes read plus written beyond the caches.
  double bytes = 0;
};

/// OpWork describes the work of an operation as passes, each of which begins when the previous one
/// ends. A parameter's gradient counts as written once, although a list that adds to it also reads
/// it.
class OpWork {
 public:
  /// The maximum number of passes of an operation: the head has one for the bias, the logits, the
  /// losses and each of three gradients.
  static constexpr size_t kMaxPasses = 6;

  OpWork(const OpPass& pass) : OpWork({pass}) {}
  OpWork(std::initializer_list<OpPass> passes);

  void add(const OpPass& pass);

  const OpPass* begin() const { return passes_.data(); }
  const OpPass* end() const { return passes_.data() + count_; }
  /// Returns the sum of all passes.
  OpPass total() const;

 private:
  std::array<OpPass, kMaxPasses> passes_{};
  size_t count_ = 0;
};

/// Computes the work of one operation of a list.
OpWork op_work(const LayerGraph& graph, const Op& op);
/// Returns the floating-point operations of all passes of an operation.
double op_flops(const LayerGraph& graph, const Op& op);
/// Returns the bytes that all passes of an operation move.
double traffic_bytes(const LayerGraph& graph, const Op& op);

/// Returns the floating-point operations of the multiplication of `x` by the matrix `w`.
double flops_of_matmul(const LayerGraph& graph, ValueId x, ValueId w);
/// Returns the bytes of all operands, each counted once.
double operand_bytes(const LayerGraph& graph, const Op& op);
/// Returns the number of elements of all results.
double result_elements(const LayerGraph& graph, const Op& op);

/// The floating-point operations that a machine does in the time in which it moves one byte: 4 on a
/// two-core server, 20 in fp32 on an accelerator. It gives a cost to norms, rotations and gated
/// products, which move many bytes and do little arithmetic.
inline constexpr double kFlopsPerByte = 16.0;
/// The floating-point operations of an exponential: a polynomial of six terms and the scaling by a
/// power of two.
inline constexpr double kFlopsPerTranscendental = 16.0;

/// Returns the time of an operation in units of one floating-point operation: the sum over its
/// passes of max(arithmetic, kFlopsPerByte * bytes).
double op_cost(const LayerGraph& graph, const Op& op);
/// Returns the cost of operations that run one after another.
double op_list_cost(const LayerGraph& graph, std::span<const Op> list);

}  // namespace ftrun
