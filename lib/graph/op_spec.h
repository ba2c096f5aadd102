#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "graph/op.h"
#include "graph/op_parts.h"

namespace ftrun {

/// The communication that an operation is among the tensor-parallel ranks; kNone: a kernel runs it.
enum class Collective : uint8_t { kNone, kAllReduce, kAllGather, kReduceScatter };

/// All that is known of a kind: one entry a kind. What moves is each operand once, for every kind
/// (traffic_bytes).
struct OpSpec {
  OpKind kind;
  std::string_view name;
  /// Operands in the letters of op.h: dimensions of an operand are joined by commas, [optional]
  /// operands come last. Q stands for (H+2K)d, R for H+K, A for H*d, G for 2F, P for t*C, J for
  /// r1+r2+r3, M for O1+O2+O3. S is any shape, tS the blocks of t ranks of that shape.
  std::string_view shapes;
  /// The letters along which tensor-parallel ranks may share the operation out, each rank with a
  /// part of every operand that has the letter, and the whole of the others (see result_is_term and
  /// gradient_is_term). H stands for Q, R and A as well, F for G, O for M. Empty: it is not shared out, or
  /// its attributes say how (the vocabulary kinds).
  std::string_view shared_by = {};
  /// The result that the backward list makes again instead of keeping it from forward; -1: none.
  int cheap_result = -1;
  /// The input, where it is given, whose storage output 0 may lie on if nothing reads that input later; -1: none.
  int in_place = -1;
  Collective collective = Collective::kNone;
  /// Running it again would count the loss twice.
  bool once = false;
  /// The gradient operation takes what each rank found for the result, a term of a sum over the
  /// ranks (see Derivation::passes_on_terms).
  bool passes_on_terms = false;
  /// The kind that a GPU computes together with this one, in one pass over the same first operands,
  /// where it comes next in a list.
  std::optional<OpKind> gpu_pair = std::nullopt;
  /// Floating-point operations.
  double (*flops)(const LayerGraph&, const Op&) = flops_of::elements;
  /// Bytes of scratch on processors; null: none.
  int64_t (*workspace)(const LayerGraph&, const Op&) = nullptr;
  /// Bytes of scratch on a GPU; null for collectives alone.
  int64_t (*gpu_workspace)(const LayerGraph&, const Op&) = nullptr;
  /// Emits its gradient operations; null: a kind that no forward list has.
  void (*gradients)(Derivation&, const Op&) = nullptr;
};

const OpSpec& op_spec(OpKind kind);

/// Of an operation that tensor-parallel ranks share out along `letter`: true when what each makes of
/// a result is a term of a sum over the ranks (x w^T of some columns of x and w). False: it is its
/// part of the result.
bool result_is_term(OpKind kind, size_t result, char letter);

/// The same of the gradient by an operand that each rank has whole: true when each makes a term of
/// it, from its part of the results' gradients. False: each makes all of it, or it has a part of the
/// operand and of its gradient.
bool gradient_is_term(OpKind kind, size_t operand, char letter);

}  // namespace ftrun
