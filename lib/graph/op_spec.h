#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "graph/op.h"
#include "graph/op_parts.h"

namespace ftrun {

/// OpCollective is the communication that an operation performs among the ranks that its
/// CollectiveAttrs name; kNone: a kernel runs it.
enum class OpCollective : uint8_t {
  kNone,
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kShift
};

/// OpSpec holds what planning knows of a kind: its entry in the table (ops/KIND/spec.cc).
struct OpSpec {
  /// "linear_dgrad", ...: unique.
  std::string_view name;
  /// Operands in letters: N = B*T tokens of a micro-batch (B rows of T tokens), D hidden, H query
  /// heads, K key/value heads, d head size, E its elements that rotate, F feed-forward, V
  /// vocabulary rows, C tokens of a chunk, I and O of a product. Dimensions of an operand are
  /// joined by commas, [optional] operands come last; one that may be left out before another has
  /// a different number of dimensions from the next. Q stands for (H+2K)d, R for H+K, A for H*d, U
  /// for K*d, G for 2F, P for t*C, J for r1+r2+r3, M for O1+O2+O3. S is any shape, tS the blocks of
  /// t ranks of that shape.
  std::string_view shapes;
  /// The letters along which tensor-parallel ranks may share the operation out, each rank with a
  /// part of every operand that has the letter, and the whole of the others (see result_is_term and
  /// gradient_is_term). H stands for Q, R, A and U as well, F for G, O for M. Empty: it is not
  /// shared out, or its attributes say how (the vocabulary kinds).
  std::string_view shared_by = {};
  /// The result that the backward list makes again instead of keeping it from forward; -1: none.
  int cheap_result = -1;
  /// The input, where it is given, whose storage output 0 may lie on if nothing reads that input
  /// later; -1: none.
  int in_place = -1;
  OpCollective collective = OpCollective::kNone;
  /// Running it again would count the loss twice.
  bool once = false;
  /// The gradient operation takes what each rank found for the result, a term of a sum over the
  /// ranks (see Derivation::passes_on_terms).
  bool passes_on_terms = false;
  /// The kind that a GPU computes together with this one, in one pass over the same first operands,
  /// where it comes next in a list.
  std::optional<OpKind> gpu_pair = std::nullopt;
  /// Adds what letters stand for by the attributes only (heads, ranks t); null: nothing.
  void (*letters)(const Op&, std::map<std::string, int64_t>&) = nullptr;
  /// The cheaper operation that makes the other results where backward has result 0; null: the
  /// operation itself is run again.
  Op (*from_first_result)(const Op&) = nullptr;
  /// The results from this one on are gradients of parameters, of which the last ones are left out
  /// where their parameters are frozen; -1: none are.
  int parameter_gradient = -1;
  /// The result whose form is the device's own, so that devices' results cannot be compared; -1:
  /// none.
  int private_result = -1;
  /// Bytes that a library of the GPU may keep beside the plan's scratch; null: none.
  int64_t (*gpu_library_bytes)(const LayerGraph&, const Op&) = nullptr;
  /// Arithmetic and memory traffic (graph/cost.h).
  OpWork (*work)(const LayerGraph&, const Op&) = work_of::elements;
  /// Bytes of scratch on processors; null: none.
  int64_t (*workspace)(const LayerGraph&, const Op&) = nullptr;
  /// Bytes of scratch on a GPU; null for collectives only.
  int64_t (*gpu_workspace)(const LayerGraph&, const Op&) = nullptr;
  /// Emits its gradient operations; null: a kind that no forward list has.
  void (*gradients)(Derivation&, const Op&) = nullptr;
};

/// Returns the entry of a kind (ops/table.cc).
const OpSpec& op_spec(OpKind kind);

// The operations that derivation itself emits.

/// Makes sum = a + b, of one shape (ops/add/spec.cc).
Op sum_of(ValueId a, ValueId b, ValueId sum);
/// Makes whole = the sum of `term` over the tensor-parallel ranks (ops/collective/spec.cc).
Op sum_over_ranks(ValueId term, ValueId whole, int64_t ranks);

/// Says whether list[i] and the operation after it are computed by a GPU in one pass
/// (OpSpec::gpu_pair): the first one's scratch then lives until the second is done.
bool is_gpu_pair(std::span<const Op> list, size_t i);

/// Says whether a result of an operation that tensor-parallel ranks share out along `letter` is a
/// term: true when what each rank makes of it is a term of a sum over the ranks (x w^T of some
/// columns of x and w). False: each rank makes its part of the result.
bool result_is_term(OpKind kind, size_t result, char letter);

/// Says whether the gradient with respect to an operand is a term: true when each rank has all of
/// the operand and makes a term of its gradient from its part of the results' gradients. False:
/// each rank makes the whole gradient, or has a part of the operand and of its gradient.
bool gradient_is_term(OpKind kind, size_t operand, char letter);

}  // namespace ftrun
