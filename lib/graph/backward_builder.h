#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "graph/layer_graph.h"

namespace ftrun {

/// BackwardBuilder builds the backward lists of a graph (derive_backward()). It visits the forward
/// list in reverse, and each kind's entry (ops/KIND/spec.cc) emits its gradient operations through
/// the public members.
class BackwardBuilder {
 public:
  /// Prepares to build. `kept[id]` says whether backward may read value `id` as forward left it.
  BackwardBuilder(LayerGraph& graph, const std::vector<bool>& kept);

  void run();

  // --- gradients of values: sums of terms, one from each operation that reads the value ---

  /// Returns the sum of the terms added to a value's gradient so far, or -1.
  ValueId sum_gradient_terms(ValueId id);
  /// Returns the gradient of an operation's result; there is none only if nothing reads the result.
  ValueId result_gradient(ValueId id);
  /// Returns whether a value is the result of an operation without gradients, for example the
  /// lengths of W's rows.
  bool is_constant(ValueId id) const;
  /// Returns whether a value gets a gradient; values of the batch do not.
  bool wants_gradient(ValueId id) const;
  void add_term(ValueId id, ValueId term);
  /// Replaces the terms of a gradient by `sum`, which holds all of them so far.
  void replace_terms(ValueId id, ValueId sum) { terms_[id] = {sum}; }
  /// Adds a value for the gradient with respect to `id`, or for a term of it.
  ValueId add_gradient_value(ValueId id);
  /// Returns the gradient of a parameter; the first call adds it.
  ValueId param_grad(ValueId param);

  // --- forward values ---

  /// Returns a forward value as backward reads it: given, saved, or recomputed at this point.
  ValueId backward_value(ValueId id);
  /// Saves a value, so that backward reads the one that forward left.
  void save_for_backward(ValueId id) { value(id).role = ValueRole::kSaved; }

  // --- operations ---

  /// Emits an operation in the list input_grad or weight_grad.
  void emit_input_grad(OpKind kind, std::vector<ValueId> in, std::vector<ValueId> out,
                       OpAttrs attrs = {});
  void emit_weight_grad(OpKind kind, std::vector<ValueId> in, std::vector<ValueId> out,
                        OpAttrs attrs = {});
  /// Emits an operation in the list of the operation that reads its result.
  void emit_for_reader(OpKind kind, std::vector<ValueId> in, std::vector<ValueId> out,
                       OpAttrs attrs);

  // --- tensor-parallel ranks ---

  /// Returns whether a value is the result of an operation whose gradient accepts each rank's
  /// partial gradient: an all-gather's gradient sums them, dropout's passes them on to its operand.
  bool accepts_partial_gradients(ValueId id) const;
  /// Returns whether `op` is the first operation of the forward list that reads the value, and so
  /// the last one in backward.
  bool is_first_reader(const Op& op, ValueId id) const;
  /// Returns the gradient with respect to `id`; `term` is this rank's partial gradient, a term of
  /// the sum over the ranks.
  ValueId reduce_partial_gradient(ValueId id, ValueId term, int64_t ranks);
  /// Delays the emission of weight gradients until after the next collective, so that they can run
  /// at the same time.
  void emit_after_collective(std::function<void()> emit) { delayed_.push_back(std::move(emit)); }
  void emit_delayed();

 private:
  /// List names the list to which an operation of backward belongs. kReader stands for the list of
  /// the operation that reads the result: it is used for a forward operation that runs again and
  /// for a gradient that is gathered.
  enum class List : uint8_t { kInputGrad, kWeightGrad, kReader };

  const Value& value(ValueId id) const { return graph_.at(id); }
  Value& value(ValueId id) { return graph_.values[static_cast<size_t>(id)]; }
  ValueId add_value(std::string name, DType dtype, Dims dims, ValueRole role);
  ValueId add_temporary_like(ValueId like, const std::string& name);
  void emit(List list, Op op);
  ValueId recompute(ValueId id);
  bool is_available(ValueId id) const;
  void recompute_op(Op op);
  void emit_gradients(const Op& op);
  void drop_short_lived();
  void add_output_gradients();
  void mark_input_gradients();
  bool saves_memory_if_run_early(size_t at) const;
  void split_lists();
  void mark_deferred();

  LayerGraph& graph_;
  const std::vector<bool>& kept_;
  std::map<ValueId, size_t> producer_;
  /// The recomputed values that can be read at this point of the backward list, by forward value.
  std::map<ValueId, ValueId> recomputed_;
  std::vector<ValueId> short_lived_;
  int recompute_depth_ = 0;
  std::vector<std::function<void()>> delayed_;
  /// The list of each operation in the backward list.
  std::vector<List> lists_;
  std::map<ValueId, std::vector<ValueId>> terms_;
};

}  // namespace ftrun
