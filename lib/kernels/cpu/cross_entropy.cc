#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "graph/workspace.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vector_kernels.h"

namespace ftrun::cpu {

namespace {

/// The operands of one kLinearCrossEntropy. Only tokens that count are multiplied: a chunk is a run
/// of counted tokens, gathered into the workspace when masked tokens lie between them.
template <class S>
class LinearCrossEntropy {
 public:
  explicit LinearCrossEntropy(const OpCall& call)
      : call_(call),
        attrs_(call.attrs<CrossEntropyAttrs>()),
        tokens_(call.in_dims(0)[0]),
        hidden_(call.in_dims(0)[1]),
        vocabulary_(call.in_dims(1)[0]),
        place_(cross_entropy_workspace(tokens_, hidden_, vocabulary_, attrs_, sizeof(S))),
        x_(call.in<S>(0)),
        w_(call.in<S>(1)),
        labels_(call.in<int32_t>(2)),
        dx_(attrs_.with_gradients ? call.out<S>(1) : nullptr),
        dw_(attrs_.with_gradients ? call.out<S>(2) : nullptr),
        logits_(call.workspace<S>(place_.logits)) {}

  void run() {
    const int64_t counted = find_counted();
    double sum = 0.0;
    for (int64_t first = 0; first < counted; first += place_.chunk)
      sum += run_chunk(first, std::min(place_.chunk, counted - first));
    if (attrs_.with_gradients && counted == 0 && !call_.accumulate())
      zero(dw_, vocabulary_ * hidden_);
    double* const loss = call_.out<double>(0);
    loss[0] += sum;
    loss[1] += static_cast<double>(counted);
  }

 private:
  int32_t* counted() const { return call_.workspace<int32_t>(place_.counted); }

  static void zero(S* p, int64_t count) {
    parallel_ranges(count, 1 << 16,
                    [p](int64_t begin, int64_t end) { std::fill(p + begin, p + end, S{0}); });
  }

  /// Lists the tokens that count; masked ones get no gradient.
  int64_t find_counted() {
    int64_t count = 0;
    for (int64_t n = 0; n < tokens_; ++n) {
      if (labels_[n] >= vocabulary_)
        bug(cat("label ", labels_[n], " at position ", n,
                " of a micro-batch is outside the vocabulary of ", vocabulary_));
      if (labels_[n] >= 0)
        counted()[count++] = static_cast<int32_t>(n);
      else if (dx_ != nullptr)
        std::fill_n(dx_ + n * hidden_, hidden_, S{0});
    }
    return count;
  }

  double run_chunk(int64_t first, int64_t count) {
    const int32_t* const token = counted() + first;
    const bool neighbours = token[count - 1] - token[0] == count - 1;
    S* const gathered = call_.workspace<S>(place_.rows);
    if (!neighbours)
      for (int64_t i = 0; i < count; ++i)
        std::copy_n(x_ + token[i] * hidden_, hidden_, gathered + i * hidden_);
    const S* const rows = neighbours ? x_ + token[0] * hidden_ : gathered;
    gemm({Transpose::kNo, Transpose::kYes, count, vocabulary_, hidden_}, rows, hidden_, w_, hidden_,
         0.0, logits_, vocabulary_);
    const double sum = losses(token, count);
    if (!attrs_.with_gradients) return sum;
    const double beta = first > 0 || call_.accumulate() ? 1.0 : 0.0;
    gemm({Transpose::kYes, Transpose::kNo, vocabulary_, hidden_, count}, logits_, vocabulary_, rows,
         hidden_, beta, dw_, hidden_);
    S* const dx = neighbours ? dx_ + token[0] * hidden_ : gathered;
    gemm({Transpose::kNo, Transpose::kNo, count, hidden_, vocabulary_}, logits_, vocabulary_, w_,
         hidden_, 0.0, dx, hidden_);
    if (!neighbours)
      for (int64_t i = 0; i < count; ++i)
        std::copy_n(gathered + i * hidden_, hidden_, dx_ + token[i] * hidden_);
    return sum;
  }

  /// Sum of the chunk's losses in the order of the tokens; with gradients logits become dlogits.
  double losses(const int32_t* token, int64_t count) {
    double* const loss = call_.workspace<double>(place_.losses);
    parallel_ranges(count, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        loss[i] = row_loss(logits_ + i * vocabulary_, labels_[token[i]]);
    });
    double sum = 0.0;
    for (int64_t i = 0; i < count; ++i) sum += loss[i];
    return sum;
  }

  /// One row while it is in the cache: log-sum-exp, then (softmax - onehot) * loss_scale in place.
  double row_loss(S* row, int32_t label) {
    const auto& vec = vector_kernels<S>();
    const double at_label = row[label];
    if (!attrs_.with_gradients) {
      const RowMaxSum stats = vec.max_and_sum(row, vocabulary_);
      return stats.max + std::log(stats.sum) - at_label;
    }
    const RowMaxSum stats = vec.exponentials(row, vocabulary_);
    const double scale = call_.scalars().loss_scale;
    vec.scale(row, scale / stats.sum, vocabulary_);
    row[label] -= static_cast<S>(scale);
    return stats.max + std::log(stats.sum) - at_label;
  }

  const OpCall& call_;
  const CrossEntropyAttrs& attrs_;
  int64_t tokens_, hidden_, vocabulary_;
  CrossEntropyWorkspace place_;
  const S* x_;
  const S* w_;
  const int32_t* labels_;
  S* dx_;
  S* dw_;
  S* logits_;
};

}  // namespace

template <class S>
void linear_cross_entropy(const OpCall& call) {
  LinearCrossEntropy<S>(call).run();
}

template void linear_cross_entropy<float>(const OpCall&);
template void linear_cross_entropy<double>(const OpCall&);

}  // namespace ftrun::cpu
