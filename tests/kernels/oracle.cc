#include "oracle.h"
#include "ops/activation/activation.h"
#include "ops/attention/attention.h"
#include "ops/cross_entropy/cross_entropy.h"
#include "ops/dora/dora.h"
#include "ops/heads.h"
#include "ops/kinds.h"
#include "ops/lora/lora.h"
#include "ops/norm/norm.h"
#include "ops/rope/rope.h"
#include "ops/scale/scale.h"
#include "ops/softcap/softcap.h"
#include "ops/whole_qk_norm/whole_qk_norm.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <stdexcept>

namespace ftrun::testing {

namespace {

using at::Tensor;

Tensor tensor_of(const Array& array) {
  return at::from_blob(const_cast<double*>(array.data.data()), array.dims, at::kDouble).clone();
}

Array array_of(const Tensor& tensor) {
  const Tensor t = tensor.detach().to(at::kDouble).contiguous();
  return {t.sizes().vec(),
          std::vector<double>(t.data_ptr<double>(), t.data_ptr<double>() + t.numel())};
}

Tensor long_tensor(const std::vector<int32_t>& values) {
  Tensor t = at::empty({static_cast<int64_t>(values.size())}, at::kLong);
  for (size_t i = 0; i < values.size(); ++i)
    t[static_cast<int64_t>(i)] = static_cast<int64_t>(values[i]);
  return t;
}

struct Norm {
  Tensor y, rstd;
};
Norm rms_norm(const Tensor& x, const Tensor& w, double epsilon, double offset) {
  const Tensor rstd = at::rsqrt(x.square().mean(-1) + epsilon);
  return {x * rstd.unsqueeze(-1) * (w + offset), rstd};
}

// The parts q, k and v of qkv, each as [N, heads, d].
struct Heads {
  Tensor q, k, v;
};
Heads split_heads(const Tensor& qkv, int64_t query_heads, int64_t kv_heads, int64_t d) {
  const Tensor h = qkv.view({qkv.size(0), query_heads + 2 * kv_heads, d});
  return {h.narrow(1, 0, query_heads), h.narrow(1, query_heads, kv_heads),
          h.narrow(1, query_heads + kv_heads, kv_heads)};
}
Tensor join_heads(const Heads& h) {
  return at::cat({h.q, h.k, h.v}, 1).flatten(1);
}

std::vector<Tensor> qk_norm(const HeadAttrs& a, const std::vector<Tensor>& in) {
  const Heads h = split_heads(in[0], a.query_heads, a.kv_heads, a.head_size);
  const Norm q = rms_norm(h.q, in[1], a.epsilon, a.weight_offset);
  const Norm k = rms_norm(h.k, in[2], a.epsilon, a.weight_offset);
  return {join_heads({q.y, k.y, h.v}), at::cat({q.rstd, k.rstd}, 1)};
}

// Returns layer norms of each head; the weights of the heads are concatenated.
std::vector<Tensor> head_norm(const HeadAttrs& a, const std::vector<Tensor>& in) {
  const Heads h = split_heads(in[0], a.query_heads, a.kv_heads, a.head_size);
  std::vector<Tensor> y, mean, rstd;
  for (const auto& [x, w] : {std::pair(h.q, in[1]), std::pair(h.k, in[2])}) {
    mean.push_back(x.mean(-1));
    const Tensor centered = x - mean.back().unsqueeze(-1);
    rstd.push_back(at::rsqrt(centered.square().mean(-1) + a.epsilon));
    y.push_back(centered * rstd.back().unsqueeze(-1) * w.view({-1, a.head_size}));
  }
  return {join_heads({y[0], y[1], h.v}), at::cat(mean, 1), at::cat(rstd, 1)};
}

// Returns norms over all query heads and over all key heads. The given sums of squares are not
// read.
std::vector<Tensor> whole_qk_norm(const WholeQkNormAttrs& attrs, const std::vector<Tensor>& in) {
  const HeadAttrs& a = attrs.heads;
  const Heads h = split_heads(in[0], a.query_heads, a.kv_heads, a.head_size);
  const Norm q = rms_norm(h.q.flatten(1), in[2], a.epsilon, 0.0);
  const Norm k = rms_norm(h.k.flatten(1), in[3], a.epsilon, 0.0);
  return {at::cat({q.y, k.y, h.v.flatten(1)}, 1) + (in[1] * 0.0).sum(),
          at::cat({q.rstd.reshape({-1, 1}), k.rstd.reshape({-1, 1})}, 1)};
}

Tensor rotate_neighbors(const Tensor& x) {
  const Tensor pairs = x.unflatten(-1, {-1, 2});
  return at::stack({-pairs.select(-1, 1), pairs.select(-1, 0)}, -1).flatten(-2);
}

Tensor rotate_half(const Tensor& x) {
  const int64_t half = x.size(-1) / 2;
  return at::cat({-x.narrow(-1, half, half), x.narrow(-1, 0, half)}, -1);
}

// Returns qkv with the first elements of each q and k head rotated, two elements for each angle of
// this operation.
std::vector<Tensor> rope(const RopeAttrs& attrs, const std::vector<Tensor>& in) {
  const HeadAttrs& a = attrs.heads;
  const Heads h = split_heads(in[0], a.query_heads, a.kv_heads, a.head_size);
  const int64_t all = in[1].size(1) / 2, half = attrs.angles > 0 ? attrs.angles : all;
  const int64_t turning = 2 * half;
  const auto own = [&](int64_t first) {
    const Tensor of_angles = in[1].narrow(1, first + attrs.first_angle, half);
    const Tensor of_elements =
        attrs.pairs ? of_angles.repeat_interleave(2, 1) : of_angles.repeat({1, 2});
    return of_elements.unsqueeze(1);
  };
  const Tensor c = own(0), s = own(all);
  const auto turn = [&](const Tensor& whole) {
    const Tensor x = whole.narrow(-1, 0, turning);
    const Tensor other = attrs.pairs ? rotate_neighbors(x) : rotate_half(x);
    return at::cat({x * c + other * s, whole.narrow(-1, turning, a.head_size - turning)}, -1);
  };
  return {join_heads({turn(h.q), turn(h.k), h.v})};
}

// Returns the mask [T, T]: element [t, u] says whether token t attends to token u.
Tensor attention_mask(const AttentionAttrs& a, const int32_t* starts) {
  Tensor mask = at::zeros({a.sequence_length, a.sequence_length}, at::kBool);
  for (int64_t t = 0; t < a.sequence_length; ++t) {
    int64_t first = starts[t];
    if (a.window > 0) first = std::max(first, t - a.window + 1);
    mask[t].narrow(0, first, t - first + 1).fill_(true);
  }
  return mask;
}

std::vector<Tensor> attention(const AttentionAttrs& a, const std::vector<Tensor>& in,
                              const std::vector<int32_t>& starts) {
  const int64_t tokens = in[0].size(0), rows = tokens / a.sequence_length;
  std::vector<Tensor> outs, lses;
  for (int64_t row = 0; row < rows; ++row) {
    const Tensor qkv = in[0].narrow(0, row * a.sequence_length, a.sequence_length);
    const Heads h = split_heads(qkv, a.query_heads, a.kv_heads, a.head_size);
    const int64_t group = a.query_heads / a.kv_heads;
    const Tensor q = h.q.transpose(0, 1), k = h.k.transpose(0, 1).repeat_interleave(group, 0),
                 v = h.v.transpose(0, 1).repeat_interleave(group, 0);
    Tensor scaled = at::matmul(q, k.transpose(1, 2)) * a.scale;
    if (a.softcap > 0) scaled = at::tanh(scaled / a.softcap) * a.softcap;
    const Tensor scores = scaled.masked_fill(
        attention_mask(a, starts.data() + row * a.sequence_length).logical_not(), -INFINITY);
    outs.push_back(at::matmul(at::softmax(scores, -1), v).transpose(0, 1).flatten(1));
    lses.push_back(at::logsumexp(scores, {-1}));
  }
  return {at::cat(outs, 0), at::cat(lses, 1)};
}

Tensor activation(const OpAttrs& attrs, const Tensor& x) {
  switch (attrs.get<ActivationAttrs>().kind) {
    case Activation::kSilu:
      return at::silu(x);
    case Activation::kGelu:
      return at::gelu(x);
    case Activation::kGeluTanh:
      return at::gelu(x, "tanh");
    case Activation::kRelu:
      return at::relu(x);
    case Activation::kRelu2:
      return at::relu(x).square();
  }
  throw std::logic_error("the oracle has no such activation");
}

std::vector<Tensor> cross_entropy(const std::vector<Tensor>& in, const std::vector<int32_t>& labels,
                                  bool bf16_logits_gradient, double softcap) {
  Tensor logits = at::matmul(in[0], in[1].t());
  if (in.size() > 2) logits = logits + in[2];
  if (bf16_logits_gradient)
    logits.register_hook([](const Tensor& gradient) {
      return gradient.to(at::kFloat).to(at::kBFloat16).to(at::kDouble);
    });
  if (softcap > 0) logits = at::tanh(logits / softcap) * softcap;
  const Tensor log_p = at::log_softmax(logits, -1);
  Tensor sum = at::zeros({}, at::kDouble);
  for (const Tensor& each : in) sum = sum + (each * 0.0).sum();
  double counted = 0.0;
  for (size_t n = 0; n < labels.size(); ++n) {
    if (labels[n] < 0) continue;
    sum = sum - log_p[static_cast<int64_t>(n)][labels[n]];
    counted += 1.0;
  }
  return {at::stack({sum, at::full({}, counted, at::kDouble)})};
}

std::vector<Tensor> forward(const OracleCase& c, const std::vector<Tensor>& in) {
  switch (c.kind) {
    case OpKind::kEmbed:
      return {in[0].index_select(0, long_tensor(c.ints))};
    case OpKind::kRmsNorm: {
      const auto& attrs = c.attrs.get<NormAttrs>();
      const Norm n = rms_norm(in[0], in[1], attrs.epsilon, attrs.weight_offset);
      return {n.y, n.rstd};
    }
    case OpKind::kAddRmsNorm: {
      const Tensor sum = in[0] + in[1];
      const auto& attrs = c.attrs.get<NormAttrs>();
      const Norm n = rms_norm(sum, in[2], attrs.epsilon, attrs.weight_offset);
      return {sum, n.y, n.rstd};
    }
    case OpKind::kLayerNorm: {
      const Tensor mean = in[0].mean(-1, true), centered = in[0] - mean;
      const Tensor rstd =
          at::rsqrt(centered.square().mean(-1, true) + c.attrs.get<NormAttrs>().epsilon);
      Tensor y = centered * rstd;
      if (in.size() > 1) y = y * in[1];
      if (in.size() > 2) y = y + in[2];
      return {y, mean.squeeze(-1), rstd.squeeze(-1)};
    }
    case OpKind::kLinear: {
      const Tensor y = at::matmul(in[0], in[1].t());
      return {in.size() > 2 ? y + in[2] : y};
    }
    case OpKind::kLoraUp: {
      Tensor y = in[0].clone();
      int64_t first_rank = 0;
      for (size_t p = 2; p < in.size(); ++p) {
        const LoraAttrs::AdaptedColumns& part = c.attrs.get<LoraAttrs>().parts[p - 2];
        const Tensor h = in[1].narrow(1, first_rank, in[p].size(1));
        y.narrow(1, part.first_column, in[p].size(0)).add_(at::matmul(h, in[p].t()) * part.scale);
        first_rank += in[p].size(1);
      }
      return {y};
    }
    case OpKind::kDoraSquaredLengths: {
      std::vector<Tensor> squares;
      int64_t first_rank = 0;
      for (size_t p = 2; p < in.size(); ++p) {
        const LoraAttrs::AdaptedColumns& part = c.attrs.get<LoraAttrs>().parts[p - 2];
        const Tensor delta =
            at::matmul(in[p], in[1].narrow(0, first_rank, in[p].size(1))) * part.scale;
        squares.push_back(
            (in[0].narrow(0, part.first_column, in[p].size(0)) + delta).square().sum(1));
        first_rank += in[p].size(1);
      }
      return {at::cat(squares)};
    }
    case OpKind::kDoraScale: {
      Tensor y = in[0].clone();
      int64_t before = 0;
      for (const DoraAttrs::ScaledColumns& part : c.attrs.get<DoraAttrs>().parts) {
        const Tensor factor =
            in[2].narrow(0, before, part.columns) / in[1].narrow(0, before, part.columns).sqrt();
        y.narrow(1, part.first_column, part.columns).mul_(factor);
        before += part.columns;
      }
      return {in.size() > 3 ? y + in[3] : y};
    }
    case OpKind::kDropout:  // the second input is the mask
      return {in[0] * in[1]};
    case OpKind::kQkNorm:
      return qk_norm(c.attrs.get<HeadAttrs>(), in);
    case OpKind::kHeadNorm:
      return head_norm(c.attrs.get<HeadAttrs>(), in);
    case OpKind::kWholeQkNorm:
      return whole_qk_norm(c.attrs.get<WholeQkNormAttrs>(), in);
    case OpKind::kRope:
      return rope(c.attrs.get<RopeAttrs>(), in);
    case OpKind::kAttention:
      return attention(c.attrs.get<AttentionAttrs>(), in, c.ints);
    case OpKind::kGatedActivation:
      return {activation(c.attrs, in[0].chunk(2, 1)[0]) * in[0].chunk(2, 1)[1]};
    case OpKind::kActivation:
      return {activation(c.attrs, in[0])};
    case OpKind::kAdd:
      return {in[0] + in[1]};
    case OpKind::kScale:
      return {in[0] * c.attrs.get<ScaleAttrs>().factor};
    case OpKind::kSoftcap: {
      const double bound = c.attrs.get<SoftcapAttrs>().bound;
      return {at::tanh(in[0] / bound) * bound};
    }
    case OpKind::kLinearCrossEntropy:
      return cross_entropy(in, c.ints, c.bf16_logits_gradient,
                           c.attrs.get<CrossEntropyAttrs>().softcap);
    default:
      throw std::logic_error("the oracle has no such forward kind");
  }
}

// Returns the scalar whose gradients the oracle computes.
Tensor objective(const OracleCase& c, const std::vector<Tensor>& outputs) {
  if (c.kind == OpKind::kLinearCrossEntropy) return outputs[0][0] * c.loss_scale;
  Tensor sum = (outputs[0] * tensor_of(c.gradient)).sum();
  if (!c.second_gradient.data.empty())
    sum = sum + (outputs[1] * tensor_of(c.second_gradient)).sum();
  return sum;
}

template <class Optimizer, class Options>
std::vector<float> optimize(const OptimizerCase& c, const Options& options) {
  const auto count = static_cast<int64_t>(c.parameters.size());
  Tensor p = at::from_blob(const_cast<float*>(c.parameters.data()), {count}, at::kFloat).clone();
  p.set_requires_grad(true);
  Optimizer optimizer({p}, options);
  for (const auto& gradient : c.gradients) {
    p.mutable_grad() =
        at::from_blob(const_cast<float*>(gradient.data()), {count}, at::kFloat).clone();
    optimizer.step();
  }
  const Tensor result = p.detach().contiguous();
  return {result.data_ptr<float>(), result.data_ptr<float>() + count};
}

}  // namespace

OracleResult oracle(const OracleCase& c) {
  std::vector<Tensor> in;
  for (const Array& array : c.inputs) in.push_back(tensor_of(array).set_requires_grad(true));
  const std::vector<Tensor> outputs = forward(c, in);
  OracleResult result;
  for (const Tensor& output : outputs) result.outputs.push_back(array_of(output));
  for (const Tensor& gradient : torch::autograd::grad({objective(c, outputs)}, in))
    result.gradients.push_back(array_of(gradient));
  return result;
}

std::vector<float> oracle_adam(const OptimizerCase& c, bool decoupled, double beta1, double beta2,
                               double epsilon) {
  const auto set = [&](auto options) {
    return options.betas(std::make_tuple(beta1, beta2)).eps(epsilon).weight_decay(c.weight_decay);
  };
  if (decoupled)
    return optimize<torch::optim::AdamW>(c, set(torch::optim::AdamWOptions(c.learning_rate)));
  return optimize<torch::optim::Adam>(c, set(torch::optim::AdamOptions(c.learning_rate)));
}

std::vector<float> oracle_sgd(const OptimizerCase& c, double momentum, double dampening,
                              bool nesterov) {
  return optimize<torch::optim::SGD>(c, torch::optim::SGDOptions(c.learning_rate)
                                            .momentum(momentum)
                                            .dampening(dampening)
                                            .nesterov(nesterov)
                                            .weight_decay(c.weight_decay));
}

std::vector<float> oracle_adagrad(const OptimizerCase& c, double lr_decay,
                                  double initial_accumulator_value) {
  return optimize<torch::optim::Adagrad>(c,
                                         torch::optim::AdagradOptions(c.learning_rate)
                                             .lr_decay(lr_decay)
                                             .initial_accumulator_value(initial_accumulator_value)
                                             .weight_decay(c.weight_decay));
}

}  // namespace ftrun::testing
