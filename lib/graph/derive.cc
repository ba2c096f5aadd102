#include "graph/derive.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "base/error.h"
#include "graph/layer_graph.h"
#include "graph/recompute.h"
#include "graph/workspace.h"

namespace ftrun {
namespace {

/// kReader: goes to the list that reads it: a forward operation run again, a gradient gathered.
enum class List : uint8_t { kInputGrad, kWeightGrad, kReader };

/// Walks the forward list in reverse and emits each kind's gradient operations.
class Deriver {
 public:
  Deriver(LayerGraph& graph, const std::vector<bool>& kept) : graph_(graph), kept_(kept) {
    for (size_t i = 0; i < graph.forward.size(); ++i)
      for (const ValueId id : graph.forward[i].out) producer_[id] = i;
  }

  void run() {
    start_from_outputs();
    for (size_t i = graph_.forward.size(); i-- > 0;) {
      derive(Op(graph_.forward[i]));
      forget_passing();
    }
    finish_inputs();
    split_lists();
  }

 private:
  Value& value(ValueId id) { return graph_.values[static_cast<size_t>(id)]; }

  ValueId add_value(std::string name, DType dtype, Dims dims, ValueRole role) {
    graph_.values.push_back({std::move(name), dtype, std::move(dims), role, Port::kNone, -1});
    return static_cast<ValueId>(graph_.values.size()) - 1;
  }

  ValueId temp_like(ValueId like, const std::string& name) {
    return add_value(name, value(like).dtype, Dims(value(like).dims), ValueRole::kTemp);
  }

  void emit(List list, OpKind kind, std::vector<ValueId> in, std::vector<ValueId> out,
            OpAttrs attrs = NoAttrs{}) {
    Op op{kind, std::move(in), std::move(out), std::move(attrs), -1};
    const int64_t scratch = workspace_bytes(graph_, op);
    if (scratch > 0)
      op.workspace = add_value(cat(op_name(kind), ".workspace"), DType::kU8, {scratch}, ValueRole::kWorkspace);
    lists_.push_back(list);
    graph_.backward.push_back(std::move(op));
  }

  /// Input gradients may run before all weight gradients: what they read, directly or through
  /// other operations run again, is made in their own list.
  void split_lists() {
    std::set<ValueId> read;
    for (size_t i = lists_.size(); i-- > 0;) {
      const Op& op = graph_.backward[i];
      if (lists_[i] == List::kReader)
        lists_[i] = std::any_of(op.out.begin(), op.out.end(), [&](ValueId id) { return read.contains(id); })
                        ? List::kInputGrad
                        : List::kWeightGrad;
      if (lists_[i] == List::kInputGrad) read.insert(op.in.begin(), op.in.end());
    }
    for (size_t i = 0; i < lists_.size(); ++i)
      (lists_[i] == List::kInputGrad ? graph_.input_grad : graph_.weight_grad).push_back(graph_.backward[i]);
    mark_deferred();
  }

  /// What crosses from the one list to the other: gradients of products, and forward values that
  /// the input gradients made again.
  void mark_deferred() {
    std::set<ValueId> made;
    for (const Op& op : graph_.input_grad) made.insert(op.out.begin(), op.out.end());
    for (const Op& op : graph_.weight_grad)
      for (const ValueId id : op.in)
        if (made.contains(id) && value(id).role == ValueRole::kTemp) value(id).role = ValueRole::kDeferred;
  }

  /// The gradient of a parameter, made when first asked for.
  ValueId param_grad(ValueId param) {
    if (value(param).grad < 0) {
      const ValueId grad = add_value("d_" + value(param).name, graph_.dtypes.gradients, Dims(value(param).dims),
                                     ValueRole::kParamGrad);
      value(param).grad = grad;
    }
    return value(param).grad;
  }

  /// A forward value as backward sees it: given, saved, or made again right here.
  ValueId needed(ValueId id) {
    const ValueRole role = value(id).role;
    if (role == ValueRole::kInput || role == ValueRole::kParam || role == ValueRole::kSaved) return id;
    require(role == ValueRole::kTemp, "backward needs a value that leaves the layer");
    if (kept_[static_cast<size_t>(id)]) {
      value(id).role = ValueRole::kSaved;
      return id;
    }
    const auto again = again_.find(id);
    return again != again_.end() ? again->second : make_again(id);
  }

  ValueId make_again(ValueId id) {
    ++depth_;
    const Op maker = graph_.forward[producer_.at(id)];
    if (maker.kind == OpKind::kAddRmsNorm && id != maker.out[0] && has(maker.out[0])) {
      run_again({OpKind::kRmsNorm, {maker.out[0], maker.in[2]}, {maker.out[1], maker.out[2]}, maker.attrs, -1});
    } else {
      run_again(maker);
    }
    --depth_;
    return again_.at(id);
  }

  /// True for a value that needs no operation: the norm of a residual sum is made from the sum.
  bool has(ValueId id) const { return kept_[static_cast<size_t>(id)] || again_.contains(id); }

  void run_again(Op op) {
    for (ValueId& in : op.in) in = needed(in);
    for (ValueId& out : op.out) {
      const ValueId again = temp_like(out, value(out).name + ".again");
      again_[out] = again;
      // A cheap value on the way to another one is made once more where it is read, not held.
      if (depth_ > 1 && is_cheap_result(graph_, out)) passing_.push_back(out);
      out = again;
    }
    emit(List::kReader, op.kind, std::move(op.in), std::move(op.out), std::move(op.attrs));
  }

  void forget_passing() {
    for (const ValueId id : passing_) again_.erase(id);
    passing_.clear();
  }

  void start_from_outputs() {
    for (const ValueId id : graph_.with_role(ValueRole::kOutput)) {
      if (value(id).port != Port::kHidden) continue;
      const ValueId grad = temp_like(id, "d_" + value(id).name);
      value(grad).role = ValueRole::kOutputGrad;
      value(grad).port = Port::kHidden;
      value(id).grad = grad;
      terms_[id].push_back(grad);
    }
  }

  /// The sum of what was added to a value's gradient so far, or -1.
  ValueId gradient(ValueId id) {
    std::vector<ValueId>& terms = terms_[id];
    while (terms.size() > 1) {
      const ValueId sum = temp_like(terms[0], value(terms[0]).name + ".sum");
      emit(List::kInputGrad, OpKind::kAdd, {terms[0], terms[1]}, {sum});
      terms.erase(terms.begin());
      terms[0] = sum;
    }
    return terms.empty() ? -1 : terms[0];
  }

  /// The gradient of what an operation made: there is one unless nothing reads the result.
  ValueId result_gradient(ValueId id) {
    const ValueId grad = gradient(id);
    if (grad < 0) bug(cat(graph_.name, ": nothing reads ", value(id).name));
    return grad;
  }

  bool wants_gradient(ValueId id) {
    return value(id).role != ValueRole::kInput || value(id).port == Port::kHidden;
  }

  void add_term(ValueId id, ValueId grad) {
    if (wants_gradient(id)) terms_[id].push_back(grad);
  }

  void derive(Op op) {
    switch (op.kind) {
      case OpKind::kEmbed: return derive_embed(op);
      case OpKind::kVocabularyLogits: return;
      case OpKind::kVocabularyCrossEntropy: return derive_vocabulary_head(op);
      case OpKind::kTensorAllReduce: return add_term(op.in[0], result_gradient(op.out[0]));
      case OpKind::kTensorAllGather: return derive_all_gather(op);
      case OpKind::kTensorReduceScatter: return derive_reduce_scatter(op);
      case OpKind::kRopeTable: return;
      case OpKind::kRmsNorm: return derive_norm(op, op.in[0], op.out[0], op.out[1], op.in[1]);
      case OpKind::kAddRmsNorm: return derive_add_norm(op);
      case OpKind::kLinear: return derive_linear(op);
      case OpKind::kQkNorm: return derive_qk_norm(op);
      case OpKind::kRope: return derive_rope(op);
      case OpKind::kAttention: return derive_attention(op);
      case OpKind::kSwiGlu: return derive_swiglu(op);
      case OpKind::kAdd: return derive_add(op);
      case OpKind::kLinearCrossEntropy: return derive_head(op);
      default: bug(cat("no backward for ", op_name(op.kind), " in a forward list"));
    }
  }

  void derive_embed(const Op& op) {
    emit(List::kWeightGrad, OpKind::kEmbedWgrad, {op.in[0], result_gradient(op.out[0])}, {param_grad(op.in[1])},
         op.attrs);
  }

  /// `e`, the gradient that already reached x past the norm, is added by the norm's own kernel.
  void derive_norm(const Op& op, ValueId x, ValueId y, ValueId rstd, ValueId weight) {
    const ValueId dy = result_gradient(y);
    const ValueId e = gradient(x);
    const ValueId x_saved = needed(x);
    const ValueId rstd_saved = needed(rstd);
    emit(List::kWeightGrad, OpKind::kRmsNormWgrad, {dy, x_saved, rstd_saved}, {param_grad(weight)});
    const ValueId dx = temp_like(x, "d_" + value(x).name);
    std::vector<ValueId> in{dy, x_saved, rstd_saved, weight};
    if (e >= 0) in.push_back(e);
    emit(List::kInputGrad, OpKind::kRmsNormDgrad, std::move(in), {dx}, op.attrs);
    terms_[x] = {dx};
  }

  void derive_add_norm(const Op& op) {
    derive_norm(op, op.out[0], op.out[1], op.out[2], op.in[2]);
    const ValueId dsum = gradient(op.out[0]);
    add_term(op.in[0], dsum);
    add_term(op.in[1], dsum);
  }

  void derive_linear(const Op& op) {
    const ValueId dy = result_gradient(op.out[0]);
    const ValueId x = needed(op.in[0]);
    const bool summed = linear_attrs(op).gradient_ranks > 1;
    if (!summed) emit_weight_gradients(op, dy, x);
    if (wants_gradient(op.in[0])) {
      const ValueId dx = temp_like(op.in[0], "d_" + value(op.in[0]).name);
      emit(List::kInputGrad, OpKind::kLinearDgrad, {dy, op.in[1]}, {dx});
      add_term(op.in[0], summed ? whole_gradient(op.in[0], dx, linear_attrs(op).gradient_ranks) : dx);
    }
    if (!summed) return;
    waiting_.push_back({op, dy, x});
    if (!is_gathered(op.in[0])) emit_waiting();
  }

  void emit_weight_gradients(const Op& op, ValueId dy, ValueId x) {
    emit(List::kWeightGrad, OpKind::kLinearWgrad, {dy, x}, {param_grad(op.in[1])});
    if (op.in.size() > 2) emit(List::kWeightGrad, OpKind::kBiasWgrad, {dy}, {param_grad(op.in[2])});
  }

  void emit_waiting() {
    for (const Waiting& w : std::exchange(waiting_, {})) emit_weight_gradients(w.op, w.dy, w.x);
  }

  /// Made by an all-gather, whose gradient sums what the ranks found.
  bool is_gathered(ValueId id) const {
    const auto maker = producer_.find(id);
    return maker != producer_.end() && graph_.forward[maker->second].kind == OpKind::kTensorAllGather;
  }

  /// The gradient by `id` of which `share` is this rank's share.
  ValueId whole_gradient(ValueId id, ValueId share, int64_t ranks) {
    if (is_gathered(id)) return share;
    const ValueId whole = temp_like(share, value(share).name + ".summed");
    emit(List::kInputGrad, OpKind::kTensorAllReduce, {share}, {whole}, TensorGroupAttrs{ranks});
    return whole;
  }

  /// Statistics of the loss have no gradient.
  void derive_all_gather(const Op& op) {
    const ValueId dy = gradient(op.out[0]);
    if (dy >= 0) {
      const ValueId dx = temp_like(op.in[0], "d_" + value(op.in[0]).name);
      emit(List::kInputGrad, OpKind::kTensorReduceScatter, {dy}, {dx}, op.attrs);
      add_term(op.in[0], dx);
    }
    emit_waiting();
  }

  void derive_reduce_scatter(const Op& op) {
    const ValueId dx = temp_like(op.in[0], "d_" + value(op.in[0]).name);
    emit(List::kReader, OpKind::kTensorAllGather, {result_gradient(op.out[0])}, {dx}, op.attrs);
    add_term(op.in[0], dx);
  }

  void derive_qk_norm(const Op& op) {
    const ValueId dy = result_gradient(op.out[0]);
    const ValueId qkv = needed(op.in[0]);
    const ValueId rstd = needed(op.out[1]);
    emit(List::kWeightGrad, OpKind::kQkNormWgrad, {dy, qkv, rstd},
         {param_grad(op.in[1]), param_grad(op.in[2])}, op.attrs);
    const ValueId dx = temp_like(qkv, "d_" + value(op.in[0]).name);
    emit(List::kInputGrad, OpKind::kQkNormDgrad, {dy, qkv, rstd, op.in[1], op.in[2]}, {dx}, op.attrs);
    add_term(op.in[0], dx);
  }

  void derive_rope(const Op& op) {
    const ValueId dy = result_gradient(op.out[0]);
    const ValueId dx = temp_like(op.in[0], "d_" + value(op.in[0]).name);
    emit(List::kInputGrad, OpKind::kRopeDgrad, {dy, op.in[1]}, {dx}, op.attrs);
    add_term(op.in[0], dx);
  }

  void derive_attention(const Op& op) {
    const ValueId da = result_gradient(op.out[0]);
    const ValueId qkv = needed(op.in[0]);
    const ValueId a = needed(op.out[0]);
    const ValueId lse = needed(op.out[1]);
    const ValueId dx = temp_like(qkv, "d_" + value(op.in[0]).name);
    emit(List::kInputGrad, OpKind::kAttentionDgrad, {da, qkv, a, lse, op.in[1]}, {dx}, op.attrs);
    add_term(op.in[0], dx);
  }

  void derive_swiglu(const Op& op) {
    const ValueId ds = result_gradient(op.out[0]);
    const ValueId gu = needed(op.in[0]);
    const ValueId dgu = temp_like(gu, "d_" + value(op.in[0]).name);
    emit(List::kInputGrad, OpKind::kSwiGluDgrad, {ds, gu}, {dgu});
    add_term(op.in[0], dgu);
  }

  void derive_add(const Op& op) {
    const ValueId dy = result_gradient(op.out[0]);
    add_term(op.in[0], dy);
    add_term(op.in[1], dy);
  }

  /// The head's kernel made the gradient by its input while it had the logits.
  void derive_head(const Op& op) {
    require(op.out.size() == 3, "a head without gradients has no backward");
    value(op.out[1]).role = ValueRole::kSaved;
    add_term(op.in[0], op.out[1]);
  }

  /// Every chunk writes its rows of one gradient.
  void derive_vocabulary_head(const Op& op) {
    require(op.out.size() > 1, "a head without gradients has no backward");
    const auto& attrs = std::get<VocabularyAttrs>(op.attrs);
    if (attrs.first_token > 0) return;
    value(op.out[1]).role = ValueRole::kSaved;
    add_term(op.in[0], whole_gradient(op.in[0], op.out[1], attrs.ranks));
  }

  void finish_inputs() {
    for (const ValueId id : graph_.with_role(ValueRole::kInput)) {
      if (value(id).port != Port::kHidden) continue;
      const ValueId grad = gradient(id);
      require(grad >= 0 && value(grad).role == ValueRole::kTemp, "the input's gradient is made by the layer");
      value(grad).role = ValueRole::kInputGrad;
      value(grad).port = Port::kHidden;
      value(id).grad = grad;
    }
  }

  LayerGraph& graph_;
  /// By value: backward may read it from what forward left, should it need it.
  const std::vector<bool>& kept_;
  std::map<ValueId, size_t> producer_;
  /// What is made again at this point of the backward list, by the forward value.
  std::map<ValueId, ValueId> again_;
  std::vector<ValueId> passing_;
  int depth_ = 0;
  /// Products whose weight gradients come behind the next collective.
  struct Waiting {
    Op op;
    ValueId dy, x;
  };
  std::vector<Waiting> waiting_;
  /// Of each operation in the backward list.
  std::vector<List> lists_;
  std::map<ValueId, std::vector<ValueId>> terms_;
};

}  // namespace

void derive_keeping(LayerGraph& graph, const std::vector<bool>& kept) { Deriver(graph, kept).run(); }

void derive_backward(LayerGraph& graph, const RecomputePolicy& policy) {
  derive_keeping(graph, choose_kept(graph, policy));
}

}  // namespace ftrun
