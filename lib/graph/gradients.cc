#include <utility>
#include <vector>

#include "base/error.h"
#include "graph/derivation.h"
#include "graph/op_parts.h"

namespace ftrun {
namespace {

/// `e`, the gradient that already reached x past the norm, is added by the norm's own kernel. The weight's gradient is
/// in the list of the input's: it is cheap, and deferred it would keep dy, which nothing else reads.
void norm_gradients(Derivation& d, const Op& op, ValueId x, ValueId y, ValueId rstd, ValueId weight) {
  const ValueId dy = d.result_gradient(y);
  const ValueId e = d.gradient(x);
  const ValueId x_saved = d.needed(x);
  const ValueId rstd_saved = d.needed(rstd);
  d.emit_input_grad(OpKind::kRmsNormWgrad, {dy, x_saved, rstd_saved}, {d.param_grad(weight)});
  const ValueId dx = d.new_gradient(x);
  std::vector<ValueId> in{dy, x_saved, rstd_saved, weight};
  if (e >= 0) in.push_back(e);
  d.emit_input_grad(OpKind::kRmsNormDgrad, std::move(in), {dx}, op.attrs);
  d.replace_terms(x, dx);
}

void product_weight_gradients(Derivation& d, const Op& op, ValueId dy, ValueId x) {
  if (linear_attrs(op).weight_gradient) d.emit_weight_grad(OpKind::kLinearWgrad, {dy, x}, {d.param_grad(op.in[1])});
  if (op.in.size() > 2) d.emit_weight_grad(OpKind::kBiasWgrad, {dy}, {d.param_grad(op.in[2])});
}

}  // namespace

namespace gradients_of {

void no_operand(Derivation&, const Op&) {}

void embed(Derivation& d, const Op& op) {
  d.emit_weight_grad(OpKind::kEmbedWgrad, {op.in[0], d.result_gradient(op.out[0])},
                     {d.param_grad(op.in[1])}, op.attrs);
}

void rms_norm(Derivation& d, const Op& op) {
  norm_gradients(d, op, op.in[0], op.out[0], op.out[1], op.in[1]);
}

void add_rms_norm(Derivation& d, const Op& op) {
  norm_gradients(d, op, op.out[0], op.out[1], op.out[2], op.in[2]);
  const ValueId dsum = d.gradient(op.out[0]);
  d.add_term(op.in[0], dsum);
  d.add_term(op.in[1], dsum);
}

/// The gradient by x that other operations made is added by the product. Where ranks have made shares of it, so has
/// every other product of x: their sum is what is summed over the ranks, once.
void linear(Derivation& d, const Op& op) {
  const ValueId dy = d.result_gradient(op.out[0]);
  const ValueId x = d.needed(op.in[0]);
  const int64_t ranks = linear_attrs(op).gradient_ranks;
  const bool is_last = d.is_first_reader(op, op.in[0]);
  if (ranks == 1) product_weight_gradients(d, op, dy, x);
  if (d.wants_gradient(op.in[0])) {
    const ValueId e = d.gradient(op.in[0]);
    const ValueId dx = d.new_gradient(op.in[0]);
    std::vector<ValueId> in{dy, op.in[1]};
    if (e >= 0) in.push_back(e);
    d.emit_input_grad(OpKind::kLinearDgrad, std::move(in), {dx});
    d.replace_terms(op.in[0], ranks > 1 && is_last ? d.whole_gradient(op.in[0], dx, ranks) : dx);
  }
  if (ranks == 1) return;
  d.after_collective([&d, op, dy, x] { product_weight_gradients(d, op, dy, x); });
  if (is_last && !d.passes_on_terms(op.in[0])) d.emit_waiting();
}

void lora_up(Derivation& d, const Op& op) {
  const ValueId dy = d.result_gradient(op.out[0]);
  const std::vector<ValueId> up(op.in.begin() + 2, op.in.end());
  std::vector<ValueId> grads;
  for (const ValueId b : up) grads.push_back(d.param_grad(b));
  d.emit_weight_grad(OpKind::kLoraUpWgrad, {dy, d.needed(op.in[1])}, std::move(grads), op.attrs);
  std::vector<ValueId> in{dy};
  in.insert(in.end(), up.begin(), up.end());
  const ValueId dh = d.new_gradient(op.in[1]);
  d.emit_input_grad(OpKind::kLoraUpDgrad, std::move(in), {dh}, op.attrs);
  d.add_term(op.in[0], dy);
  d.add_term(op.in[1], dh);
}

/// The lengths of rows have no gradient.
void dora_scale(Derivation& d, const Op& op) {
  const ValueId dy = d.result_gradient(op.out[0]);
  const ValueId z = d.needed(op.in[0]);
  const ValueId q = d.needed(op.in[1]);
  d.emit_weight_grad(OpKind::kDoraScaleWgrad, {dy, z, q}, {d.param_grad(op.in[2])}, op.attrs);
  if (op.in.size() > 3) d.emit_weight_grad(OpKind::kBiasWgrad, {dy}, {d.param_grad(op.in[3])});
  const ValueId dz = d.new_gradient(op.in[0]);
  d.emit_input_grad(OpKind::kDoraScaleDgrad, {dy, q, op.in[2]}, {dz}, op.attrs);
  d.add_term(op.in[0], dz);
}

void dropout(Derivation& d, const Op& op) {
  const ValueId dx = d.new_gradient(op.in[0]);
  d.emit_input_grad(OpKind::kDropout, {d.result_gradient(op.out[0])}, {dx}, op.attrs);
  d.add_term(op.in[0], dx);
  const int64_t ranks = std::get<DropoutAttrs>(op.attrs).gradient_ranks;
  if (ranks == 1 || !d.is_first_reader(op, op.in[0])) return;
  d.replace_terms(op.in[0], d.whole_gradient(op.in[0], d.gradient(op.in[0]), ranks));
  if (!d.passes_on_terms(op.in[0])) d.emit_waiting();
}

/// The weights' gradients are in the list of the input's, as those of other norms.
void qk_norm(Derivation& d, const Op& op) {
  const ValueId dy = d.result_gradient(op.out[0]);
  const ValueId qkv = d.needed(op.in[0]);
  const ValueId rstd = d.needed(op.out[1]);
  const ValueId dwq = d.param_grad(op.in[1]);
  d.emit_input_grad(OpKind::kQkNormWgrad, {dy, qkv, rstd}, {dwq, d.param_grad(op.in[2])}, op.attrs);
  const ValueId dx = d.new_gradient(op.in[0]);
  d.emit_input_grad(OpKind::kQkNormDgrad, {dy, qkv, rstd, op.in[1], op.in[2]}, {dx}, op.attrs);
  d.add_term(op.in[0], dx);
}

void rope(Derivation& d, const Op& op) {
  const ValueId dy = d.result_gradient(op.out[0]);
  const ValueId dx = d.new_gradient(op.in[0]);
  d.emit_input_grad(OpKind::kRopeDgrad, {dy, op.in[1]}, {dx}, op.attrs);
  d.add_term(op.in[0], dx);
}

void attention(Derivation& d, const Op& op) {
  const ValueId da = d.result_gradient(op.out[0]);
  const ValueId qkv = d.needed(op.in[0]);
  const ValueId a = d.needed(op.out[0]);
  const ValueId lse = d.needed(op.out[1]);
  const ValueId dx = d.new_gradient(op.in[0]);
  d.emit_input_grad(OpKind::kAttentionDgrad, {da, qkv, a, lse, op.in[1]}, {dx}, op.attrs);
  d.add_term(op.in[0], dx);
}

void swiglu(Derivation& d, const Op& op) {
  const ValueId ds = d.result_gradient(op.out[0]);
  const ValueId gu = d.needed(op.in[0]);
  const ValueId dgu = d.new_gradient(op.in[0]);
  d.emit_input_grad(OpKind::kSwiGluDgrad, {ds, gu}, {dgu});
  d.add_term(op.in[0], dgu);
}

void add(Derivation& d, const Op& op) {
  const ValueId dy = d.result_gradient(op.out[0]);
  d.add_term(op.in[0], dy);
  d.add_term(op.in[1], dy);
}

// The head's kernel made the gradient by its input while it had the logits, [N,D]. It is saved whole
// although a chunk's rows are done with the chunk: backward begins with this layer, and what it makes
// of them, d_x, is as large and read whole by the layer before. The most that lives at once is in
// the forward list, where a chunk's logits lie beside it, and passing rows on early would add d_x
// there.
void linear_cross_entropy(Derivation& d, const Op& op) {
  require(op.out.size() == 3, "a head without gradients has no backward");
  d.save(op.out[1]);
  d.add_term(op.in[0], op.out[1]);
}

// Every chunk writes its rows of one gradient, which is this rank's term of all N tokens and summed
// once they are all there. With sequence parallelism a rank needs N / t of the rows afterwards. A
// reduce-scatter a chunk would leave it these alone, but a chunk is a range of tokens, most of
// them of one rank's block: the blocks of equal size that a reduce-scatter hands out would take
// chunks of every t-th part of each block, and the weight's gradient would sum tokens in that order,
// which is not the order of the head on one rank.
void vocabulary_cross_entropy(Derivation& d, const Op& op) {
  require(op.out.size() > 1, "a head without gradients has no backward");
  const auto& attrs = std::get<VocabularyAttrs>(op.attrs);
  if (attrs.first_token > 0) return;
  d.save(op.out[1]);
  d.add_term(op.in[0], d.whole_gradient(op.in[0], op.out[1], attrs.ranks));
}

void all_reduce(Derivation& d, const Op& op) {
  if (!d.is_constant(op.in[0])) d.add_term(op.in[0], d.result_gradient(op.out[0]));
}

// Statistics of the loss have no gradient.
void all_gather(Derivation& d, const Op& op) {
  const ValueId dy = d.gradient(op.out[0]);
  if (dy >= 0) {
    const ValueId dx = d.new_gradient(op.in[0]);
    d.emit_input_grad(OpKind::kTensorReduceScatter, {dy}, {dx}, op.attrs);
    d.add_term(op.in[0], dx);
  }
  d.emit_waiting();
}

void reduce_scatter(Derivation& d, const Op& op) {
  const ValueId dx = d.new_gradient(op.in[0]);
  d.emit_for_reader(OpKind::kTensorAllGather, {d.result_gradient(op.out[0])}, {dx}, op.attrs);
  d.add_term(op.in[0], dx);
}

}  // namespace gradients_of

}  // namespace ftrun
