#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/collective_kind.h"
#include "graph/op.h"
#include "graph/op_parts.h"

namespace ftrun {

/// WorkClass is a class of operations for which a software stack has a speed of its own
/// (machine/software_stack.h).
enum class WorkClass : uint8_t { kOther, kMatmul, kAttention };

/// OpSpec holds everything that planning knows about a kind: its entry in the table
/// (ops/KIND/spec.cc).
struct OpSpec {
  /// The unique name: "linear_dgrad", ...
  std::string_view name;
  /// The shapes of the operands and of the results: "N,I O,I [O] -> N,O". Operands are separated by
  /// spaces, and dimensions of an operand by commas. A dimension is a letter (the table of
  /// ops/README.md), a number, or a sum or product of these: H+K, 2F, (H+2K)d. The operand S has
  /// any shape, and tS has t blocks of that shape, one of each rank. [Optional] operands are last;
  /// if one may be left out before another, the two differ in their number of dimensions.
  std::string_view shapes;
  /// The letters along which tensor-parallel ranks may split the operation. Each rank has a part of
  /// every operand that has the letter, and all of the other operands (result_is_partial() and
  /// gradient_is_partial()). Letters of sums and products count, and K counts as H. Empty: the
  /// operation is not split, or its attributes say how (the vocabulary kinds).
  std::string_view split_along = {};
  /// The result that the backward list recomputes instead of keeping it from forward; -1: none.
  int cheap_result = -1;
  /// The input, where it is given, whose storage output 0 may reuse if nothing reads that input
  /// later; -1: none.
  int in_place_input = -1;
  /// The communication that the operation performs among the ranks that its CollectiveAttrs name;
  /// no value: a kernel runs it.
  std::optional<CollectiveKind> collective = std::nullopt;
  /// Says whether the operation must not run again in backward, because it would count the loss
  /// twice.
  bool must_not_recompute = false;
  /// Says whether the gradient operation accepts each rank's partial gradient of the result, a term
  /// of a sum over the ranks (BackwardBuilder::accepts_partial_gradients()).
  bool accepts_partial_gradients = false;
  /// The kind that a GPU computes together with this one, in one pass over the same first operands,
  /// if its operation is the next one in a list. The line of this kind in ops/kinds.inc is an
  /// FTRUN_PAIRED_OP.
  std::optional<OpKind> gpu_pair = std::nullopt;
  /// Adds the sizes of dimensions that only the attributes give (heads, ranks t); null: there are
  /// none.
  void (*add_letter_sizes)(const Op&, std::map<std::string, int64_t>&) = nullptr;
  /// Returns the cheaper operation that computes the other results when backward has result 0;
  /// null: the operation itself is run again.
  Op (*from_first_result)(const Op&) = nullptr;
  /// The first result that is a gradient of a parameter; so are all later ones, and the last of
  /// them are left out where their parameters are frozen. -1: there are none.
  int parameter_gradient = -1;
  /// The result whose form depends on the device, so that results of devices cannot be compared;
  /// -1: none.
  int device_specific_result = -1;
  /// Returns the bytes that a GPU library may allocate in addition to the planned scratch; null:
  /// none.
  int64_t (*gpu_library_bytes)(const LayerGraph&, const Op&) = nullptr;
  WorkClass work_class = WorkClass::kOther;
  /// Returns the arithmetic and the memory traffic (graph/cost.h).
  OpWork (*work)(const LayerGraph&, const Op&) = work_of::elements;
  /// Returns the bytes of scratch on CPUs; null: none.
  int64_t (*workspace)(const LayerGraph&, const Op&) = nullptr;
  /// Returns the bytes of scratch on a GPU; null for collectives only.
  int64_t (*gpu_workspace)(const LayerGraph&, const Op&) = nullptr;
  /// Emits the gradient operations; null: no forward list has the kind.
  void (*gradients)(BackwardBuilder&, const Op&) = nullptr;
};

/// Returns the entry of a kind (ops/table.cc).
const OpSpec& op_spec(OpKind kind);

// The functions below make the operations that BackwardBuilder itself emits for every kind.

/// Makes the operation sum = a + b of values of one shape (ops/add/spec.cc).
Op add_op(ValueId a, ValueId b, ValueId sum);
/// Makes the operation that sums `term` over the tensor-parallel ranks into `sum`
/// (ops/collective/spec.cc).
Op all_reduce_op(ValueId term, ValueId sum, int64_t ranks);

/// Returns whether a GPU computes list[i] and the next operation in one pass (OpSpec::gpu_pair);
/// the scratch of the first then lives until the second is done.
bool is_gpu_pair(std::span<const Op> list, size_t i);

/// Returns whether each rank computes a partial result, which is summed over the ranks, if
/// tensor-parallel ranks divide the operation along `letter` (x w^T of some columns of x and w).
/// False: each rank computes its part of the result.
bool result_is_partial(OpKind kind, size_t result, char letter);

/// Returns whether each rank computes a partial gradient with respect to an operand: it has the
/// whole operand and uses its part of the results' gradients. False: each rank computes the whole
/// gradient, or has a part of the operand and of its gradient.
bool gradient_is_partial(OpKind kind, size_t operand, char letter);

}  // namespace ftrun
