#include "graph/derive.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/error.h"
#include "graph/backward_builder.h"
#include "graph/op_parts.h"
#include "graph/op_spec.h"
#include "graph/op_workspace.h"

namespace ftrun {

BackwardBuilder::BackwardBuilder(LayerGraph& graph, const std::vector<bool>& kept)
    : graph_(graph), kept_(kept) {
  for (size_t i = 0; i < graph.forward.size(); ++i)
    for (const ValueId id : graph.forward[i].out) producer_[id] = i;
}

void BackwardBuilder::run() {
  add_output_gradients();
  for (size_t i = graph_.forward.size(); i-- > 0;) {
    emit_gradients(graph_.forward[i]);
    drop_short_lived();
  }
  mark_input_gradients();
  split_lists();
  mark_deferred();
}

void BackwardBuilder::emit_gradients(const Op& op) {
  const OpSpec& spec = op_spec(op.kind);
  if (spec.gradients == nullptr) bug(cat("no backward for ", spec.name, " in a forward list"));
  spec.gradients(*this, op);
}

ValueId BackwardBuilder::add_value(std::string name, DType dtype, Dims dims, ValueRole role) {
  graph_.values.push_back({std::move(name), dtype, std::move(dims), role, Port::kNone, -1});
  return static_cast<ValueId>(graph_.values.size()) - 1;
}

ValueId BackwardBuilder::add_temporary_like(ValueId like, const std::string& name) {
  return add_value(name, value(like).dtype, Dims(value(like).dims), ValueRole::kTemp);
}

ValueId BackwardBuilder::add_gradient_value(ValueId id) {
  return add_temporary_like(id, "d_" + value(id).name);
}

void BackwardBuilder::emit(List list, Op op) {
  const int64_t scratch = workspace_bytes(graph_, op);
  if (scratch > 0)
    op.workspace = add_value(cat(op_name(op.kind), ".workspace"), DType::kU8, {scratch},
                             ValueRole::kWorkspace);
  lists_.push_back(list);
  graph_.backward.push_back(std::move(op));
}

void BackwardBuilder::emit_input_grad(OpKind kind, std::vector<ValueId> in,
                                      std::vector<ValueId> out, OpAttrs attrs) {
  emit(List::kInputGrad, {kind, std::move(in), std::move(out), std::move(attrs), -1});
}

void BackwardBuilder::emit_weight_grad(OpKind kind, std::vector<ValueId> in,
                                       std::vector<ValueId> out, OpAttrs attrs) {
  emit(List::kWeightGrad, {kind, std::move(in), std::move(out), std::move(attrs), -1});
}

void BackwardBuilder::emit_for_reader(OpKind kind, std::vector<ValueId> in,
                                      std::vector<ValueId> out, OpAttrs attrs) {
  emit(List::kReader, {kind, std::move(in), std::move(out), std::move(attrs), -1});
}

ValueId BackwardBuilder::param_grad(ValueId param) {
  if (value(param).grad < 0) {
    const ValueId grad = add_value("d_" + value(param).name, graph_.dtypes.gradients,
                                   Dims(value(param).dims), ValueRole::kParamGrad);
    value(param).grad = grad;
  }
  return value(param).grad;
}

ValueId BackwardBuilder::backward_value(ValueId id) {
  const ValueRole role = value(id).role;
  if (role == ValueRole::kInput || role == ValueRole::kParam || role == ValueRole::kSaved)
    return id;
  require(role == ValueRole::kTemp, "backward needs a value that leaves the layer");
  if (kept_[static_cast<size_t>(id)]) {
    save_for_backward(id);
    return id;
  }
  const auto recomputed = recomputed_.find(id);
  return recomputed != recomputed_.end() ? recomputed->second : recompute(id);
}

ValueId BackwardBuilder::recompute(ValueId id) {
  ++recompute_depth_;
  const Op maker = graph_.forward[producer_.at(id)];
  const auto from_first_result = op_spec(maker.kind).from_first_result;
  const bool has_first =
      from_first_result != nullptr && id != maker.out[0] && is_available(maker.out[0]);
  recompute_op(has_first ? from_first_result(maker) : maker);
  --recompute_depth_;
  return recomputed_.at(id);
}

/// Returns whether backward can read a value already, because forward kept it or backward has
/// recomputed it.
bool BackwardBuilder::is_available(ValueId id) const {
  return kept_[static_cast<size_t>(id)] || recomputed_.contains(id);
}

void BackwardBuilder::recompute_op(Op op) {
  for (ValueId& in : op.in) in = backward_value(in);
  for (ValueId& out : op.out) {
    const ValueId again = add_temporary_like(out, cat(value(out).name, kRecomputedSuffix));
    recomputed_[out] = again;
    // A cheap value that was recomputed only for another value is computed again at its next reader
    // instead of being kept.
    if (recompute_depth_ > 1 && is_cheap_result(graph_, out)) short_lived_.push_back(out);
    out = again;
  }
  emit_for_reader(op.kind, std::move(op.in), std::move(op.out), std::move(op.attrs));
}

void BackwardBuilder::drop_short_lived() {
  for (const ValueId id : short_lived_) recomputed_.erase(id);
  short_lived_.clear();
}

void BackwardBuilder::add_output_gradients() {
  for (const ValueId id : graph_.values_with_role(ValueRole::kOutput)) {
    if (value(id).port != Port::kHidden) continue;
    const ValueId grad = add_gradient_value(id);
    value(grad).role = ValueRole::kOutputGrad;
    value(grad).port = Port::kHidden;
    value(id).grad = grad;
    terms_[id].push_back(grad);
  }
}

void BackwardBuilder::mark_input_gradients() {
  for (const ValueId id : graph_.values_with_role(ValueRole::kInput)) {
    if (value(id).port != Port::kHidden) continue;
    const ValueId grad = sum_gradient_terms(id);
    require(grad >= 0 && value(grad).role == ValueRole::kTemp,
            "the input's gradient is made by the layer");
    value(grad).role = ValueRole::kInputGrad;
    value(grad).port = Port::kHidden;
    value(id).grad = grad;
  }
}

/// Returns whether running operation `at` of the backward list with the input gradients saves
/// memory. The operation recomputes a value that only weight gradients read. If it ran with these,
/// the operands that only it reads would have to be kept until then; if it runs earlier, its result
/// is kept instead. (Gate and up of a gated activation have twice the bytes of its result.)
bool BackwardBuilder::saves_memory_if_run_early(size_t at) const {
  const Op& op = graph_.backward[at];
  if (is_collective(op.kind)) return false;
  int64_t saves = 0;
  for (const ValueId id : op.in) {
    const ValueRole role = value(id).role;
    if (role == ValueRole::kParam || role == ValueRole::kInput) continue;
    bool made_later = false, read_else = false;
    for (size_t i = 0; i < lists_.size(); ++i) {
      if (i == at || lists_[i] != List::kWeightGrad) continue;
      const Op& other = graph_.backward[i];
      made_later |= std::find(other.out.begin(), other.out.end(), id) != other.out.end();
      read_else |= std::find(other.in.begin(), other.in.end(), id) != other.in.end();
    }
    if (made_later) return false;
    if (!read_else) saves += value(id).bytes();
  }
  for (const ValueId id : op.out) saves -= value(id).bytes();
  return saves > 0;
}

/// Splits backward into two lists, so that input gradients can run before all weight gradients.
/// Values that input gradients read, directly or through recomputed values, are computed in their
/// list. A value that only weight gradients read is computed there too if it is smaller than its
/// operands, because one of the two must be kept.
void BackwardBuilder::split_lists() {
  std::set<ValueId> read;
  std::vector<size_t> for_weight_grads;
  for (size_t i = lists_.size(); i-- > 0;) {
    const Op& op = graph_.backward[i];
    const bool for_reader = lists_[i] == List::kReader;
    if (for_reader)
      lists_[i] =
          std::any_of(op.out.begin(), op.out.end(), [&](ValueId id) { return read.contains(id); })
              ? List::kInputGrad
              : List::kWeightGrad;
    if (lists_[i] == List::kInputGrad) read.insert(op.in.begin(), op.in.end());
    if (for_reader && lists_[i] == List::kWeightGrad) for_weight_grads.push_back(i);
  }
  for (const size_t i : for_weight_grads)
    if (saves_memory_if_run_early(i)) lists_[i] = List::kInputGrad;
  for (size_t i = 0; i < lists_.size(); ++i)
    (lists_[i] == List::kInputGrad ? graph_.input_grad : graph_.weight_grad)
        .push_back(graph_.backward[i]);
}

/// Marks the values that pass from one list to the other: gradients of linear layers, and forward
/// values that the input gradients recompute.
void BackwardBuilder::mark_deferred() {
  std::set<ValueId> made;
  for (const Op& op : graph_.input_grad) made.insert(op.out.begin(), op.out.end());
  for (const Op& op : graph_.weight_grad)
    for (const ValueId id : op.in)
      if (made.contains(id) && value(id).role == ValueRole::kTemp)
        value(id).role = ValueRole::kDeferred;
}

ValueId BackwardBuilder::sum_gradient_terms(ValueId id) {
  std::vector<ValueId>& terms = terms_[id];
  while (terms.size() > 1) {
    const ValueId sum = add_temporary_like(terms[0], value(terms[0]).name + ".sum");
    emit(List::kInputGrad, add_op(terms[0], terms[1], sum));
    terms.erase(terms.begin());
    terms[0] = sum;
  }
  return terms.empty() ? -1 : terms[0];
}

ValueId BackwardBuilder::result_gradient(ValueId id) {
  const ValueId grad = sum_gradient_terms(id);
  if (grad < 0) bug(cat(graph_.name, ": nothing reads ", value(id).name));
  return grad;
}

bool BackwardBuilder::is_constant(ValueId id) const {
  const auto maker = producer_.find(id);
  return maker != producer_.end() &&
         op_spec(graph_.forward[maker->second].kind).gradients == gradients_of::none;
}

bool BackwardBuilder::wants_gradient(ValueId id) const {
  return value(id).role != ValueRole::kInput || value(id).port == Port::kHidden;
}

void BackwardBuilder::add_term(ValueId id, ValueId term) {
  if (wants_gradient(id)) terms_[id].push_back(term);
}

bool BackwardBuilder::accepts_partial_gradients(ValueId id) const {
  const auto maker = producer_.find(id);
  return maker != producer_.end() &&
         op_spec(graph_.forward[maker->second].kind).accepts_partial_gradients;
}

bool BackwardBuilder::is_first_reader(const Op& op, ValueId id) const {
  const auto reads = [id](const Op& other) {
    return std::count(other.in.begin(), other.in.end(), id) > 0;
  };
  return std::find_if(graph_.forward.begin(), graph_.forward.end(), reads)->out == op.out;
}

ValueId BackwardBuilder::reduce_partial_gradient(ValueId id, ValueId term, int64_t ranks) {
  if (accepts_partial_gradients(id)) return term;
  const ValueId whole = add_temporary_like(term, value(term).name + ".summed");
  emit(List::kInputGrad, all_reduce_op(term, whole, ranks));
  return whole;
}

void BackwardBuilder::emit_delayed() {
  for (const auto& emit : std::exchange(delayed_, {})) emit();
}

void gradients_of::none(BackwardBuilder& /*builder*/, const Op& /*op*/) {}

void derive_backward_keeping(LayerGraph& graph, const std::vector<bool>& kept) {
  BackwardBuilder(graph, kept).run();
}

void derive_backward(LayerGraph& graph, const RecomputePolicy& policy) {
  derive_backward_keeping(graph, choose_kept_values(graph, policy));
  graph.recompute = policy.level;
}

}  // namespace ftrun
