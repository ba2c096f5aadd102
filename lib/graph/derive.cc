#include <map>
#include <utility>

#include "base/error.h"
#include "graph/layer_graph.h"

namespace ftrun {
namespace {

enum class List { kInputGrad, kWeightGrad };

/// Walks the forward list in reverse and emits each kind's gradient operations.
class Deriver {
 public:
  explicit Deriver(LayerGraph& graph) : graph_(graph) {
    for (size_t i = 0; i < graph.forward.size(); ++i)
      for (const ValueId id : graph.forward[i].out) producer_[id] = i;
  }

  void run() {
    start_from_outputs();
    for (size_t i = graph_.forward.size(); i-- > 0;) derive(Op(graph_.forward[i]));
    finish_inputs();
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
    (list == List::kInputGrad ? graph_.input_grad : graph_.weight_grad).push_back(op);
    graph_.backward.push_back(std::move(op));
  }

  /// The gradient of a parameter, made when first asked for.
  ValueId param_grad(ValueId param) {
    if (value(param).grad < 0) {
      const ValueId grad = add_value("d_" + value(param).name, value(param).dtype, Dims(value(param).dims),
                                     ValueRole::kParamGrad);
      value(param).grad = grad;
    }
    return value(param).grad;
  }

  /// A forward value as backward sees it: given, made again by a cheap kind, or saved.
  ValueId needed(ValueId id, List list) {
    const ValueRole role = value(id).role;
    if (role == ValueRole::kInput || role == ValueRole::kParam || role == ValueRole::kSaved) return id;
    require(role == ValueRole::kTemp, "backward needs a value that leaves the layer");
    // Input gradients may run before all weight gradients, so they cannot read what those made again.
    for (const List made_for : {List::kInputGrad, list})
      if (const auto again = remade_.find({id, made_for}); again != remade_.end()) return again->second;
    const Op& maker = graph_.forward[producer_.at(id)];
    if (is_cheap(maker.kind) && is_remade(maker, id)) return remake(Op(maker), id, list);
    value(id).role = ValueRole::kSaved;
    return id;
  }

  /// rstd is a number a token and the sum of a residual cannot be made again: both are saved.
  static bool is_remade(const Op& maker, ValueId id) {
    switch (maker.kind) {
      case OpKind::kRmsNorm: return id == maker.out[0];
      case OpKind::kAddRmsNorm: return id == maker.out[1];
      default: return true;
    }
  }

  ValueId remake(Op maker, ValueId id, List list) {
    const ValueId again = temp_like(id, value(id).name + ".again");
    remade_[{id, list}] = again;
    if (maker.kind == OpKind::kSwiGlu) {
      emit(list, OpKind::kSwiGlu, {needed(maker.in[0], list)}, {again});
      return again;
    }
    // A residual norm is made again from the saved sum.
    const bool residual = maker.kind == OpKind::kAddRmsNorm;
    const ValueId x = needed(residual ? maker.out[0] : maker.in[0], list);
    const ValueId rstd = temp_like(maker.out[residual ? 2 : 1], value(id).name + ".rstd.again");
    emit(list, OpKind::kRmsNorm, {x, maker.in[residual ? 2 : 1]}, {again, rstd}, maker.attrs);
    return again;
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
    emit(List::kWeightGrad, OpKind::kEmbedWgrad, {op.in[0], result_gradient(op.out[0])}, {param_grad(op.in[1])});
  }

  /// `e`, the gradient that already reached x past the norm, is added by the norm's own kernel.
  void derive_norm(const Op& op, ValueId x, ValueId y, ValueId rstd, ValueId weight) {
    const ValueId dy = result_gradient(y);
    const ValueId e = gradient(x);
    const ValueId x_saved = needed(x, List::kInputGrad);
    const ValueId rstd_saved = needed(rstd, List::kInputGrad);
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
    const ValueId x = needed(op.in[0], List::kWeightGrad);
    emit(List::kWeightGrad, OpKind::kLinearWgrad, {dy, x}, {param_grad(op.in[1])});
    if (op.in.size() > 2) emit(List::kWeightGrad, OpKind::kBiasWgrad, {dy}, {param_grad(op.in[2])});
    if (!wants_gradient(op.in[0])) return;
    const ValueId dx = temp_like(op.in[0], "d_" + value(op.in[0]).name);
    emit(List::kInputGrad, OpKind::kLinearDgrad, {dy, op.in[1]}, {dx});
    add_term(op.in[0], dx);
  }

  void derive_qk_norm(const Op& op) {
    const ValueId dy = result_gradient(op.out[0]);
    const ValueId qkv = needed(op.in[0], List::kInputGrad);
    const ValueId rstd = needed(op.out[1], List::kInputGrad);
    emit(List::kWeightGrad, OpKind::kQkNormWgrad, {dy, qkv, rstd},
         {param_grad(op.in[1]), param_grad(op.in[2])}, op.attrs);
    const ValueId dx = temp_like(qkv, "d_" + value(qkv).name);
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
    const ValueId qkv = needed(op.in[0], List::kInputGrad);
    const ValueId a = needed(op.out[0], List::kInputGrad);
    const ValueId lse = needed(op.out[1], List::kInputGrad);
    const ValueId dx = temp_like(qkv, "d_" + value(qkv).name);
    emit(List::kInputGrad, OpKind::kAttentionDgrad, {da, qkv, a, lse, op.in[1]}, {dx}, op.attrs);
    add_term(op.in[0], dx);
  }

  void derive_swiglu(const Op& op) {
    const ValueId ds = result_gradient(op.out[0]);
    const ValueId gu = needed(op.in[0], List::kInputGrad);
    const ValueId dgu = temp_like(gu, "d_" + value(gu).name);
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
  std::map<ValueId, size_t> producer_;
  std::map<std::pair<ValueId, List>, ValueId> remade_;
  std::map<ValueId, std::vector<ValueId>> terms_;
};

}  // namespace

void derive_backward(LayerGraph& graph) { Deriver(graph).run(); }

}  // namespace ftrun
