#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "graph/workspace.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/panels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vector_kernels.h"

namespace ftrun::cpu {

namespace {

/// The operands of one kLinearCrossEntropy. Only tokens that count are multiplied: a chunk is a run
/// of counted tokens, gathered into the workspace when masked tokens lie between them. Logits are
/// of the type T that is computed with; 16-bit operands and gradients go through the workspace's
/// rows and panel of that type, but for logits that the processor finds from bf16. A 16-bit dw is rounded once a chunk.
template <class S>
class LinearCrossEntropy {
 public:
  using T = Compute<S>;

  explicit LinearCrossEntropy(const OpCall& call)
      : call_(call),
        attrs_(call.attrs<CrossEntropyAttrs>()),
        tokens_(call.in_dims(0)[0]),
        hidden_(call.in_dims(0)[1]),
        vocabulary_(call.in_dims(1)[0]),
        place_(cross_entropy_workspace(tokens_, hidden_, vocabulary_, attrs_, sizeof(S),
                                       gradient_bytes(call))),
        x_(call.in<S>(0)),
        w_(call.in<S>(1)),
        labels_(call.in<int32_t>(2)),
        dx_(attrs_.with_gradients ? call.out<S>(1) : nullptr),
        logits_(call.workspace<T>(place_.logits)) {}

  void run() {
    const int64_t counted = find_counted();
    double sum = 0.0;
    for (int64_t first = 0; first < counted; first += place_.wide_chunk)
      sum += run_chunk(first, std::min(place_.wide_chunk, counted - first));
    if (attrs_.with_gradients && counted == 0 && !call_.accumulate())
      call_.with_gradient<S>(2, [&](auto* dw) { zero(dw, vocabulary_ * hidden_); });
    double* const loss = call_.out<double>(0);
    loss[0] += sum;
    loss[1] += static_cast<double>(counted);
  }

 private:
  static int64_t gradient_bytes(const OpCall& call) {
    int64_t bytes = sizeof(S);
    if (call.attrs<CrossEntropyAttrs>().with_gradients)
      call.with_gradient<S>(2, [&]<class G>(G*) { bytes = sizeof(G); });
    return bytes;
  }

  int32_t* counted() const { return call_.workspace<int32_t>(place_.counted); }

  template <class G>
  static void zero(G* p, int64_t count) {
    parallel_ranges(count, 1 << 16,
                    [p](int64_t begin, int64_t end) { std::fill(p + begin, p + end, G{}); });
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
        std::fill_n(dx_ + n * hidden_, hidden_, S{});
    }
    return count;
  }

  /// The tokens of one chunk.
  struct Chunk {
    const int32_t* token;
    int64_t count;
    /// 16-bit rows are always widened, others gathered unless they are neighbours.
    bool gathered;
    const T* rows;
  };

  double run_chunk(int64_t first, int64_t count) {
    const Chunk chunk = chunk_of(counted() + first, count);
    find_logits(chunk);
    const double sum = losses(chunk.token, count);
    if (!attrs_.with_gradients) return sum;
    weight_gradient(chunk, first > 0 || call_.accumulate());
    input_gradient(chunk);
    return sum;
  }

  static bool are_neighbours(const int32_t* token, int64_t count) {
    return token[count - 1] - token[0] == count - 1;
  }

  /// logits = x w^T of the chunk's tokens.
  void find_logits(const Chunk& chunk) {
    if constexpr (std::is_same_v<S, BFloat16>)
      if (multiplies_bf16() && are_neighbours(chunk.token, chunk.count))
        return gemm({Transpose::kNo, Transpose::kYes, chunk.count, vocabulary_, hidden_},
                    x_ + chunk.token[0] * hidden_, hidden_, w_, hidden_, 0.0, logits_, vocabulary_);
    for_weight_panels([&](int64_t row, int64_t rows, const T* w) {
      gemm({Transpose::kNo, Transpose::kYes, chunk.count, rows, hidden_}, chunk.rows, hidden_, w,
           hidden_, 0.0, logits_ + row, vocabulary_);
    });
  }

  Chunk chunk_of(const int32_t* token, int64_t count) {
    if constexpr (!kIsNarrow<S>)
      if (are_neighbours(token, count)) return {token, count, false, x_ + token[0] * hidden_};
    T* const rows = call_.workspace<T>(place_.rows);
    const auto& vec = vector_kernels<S>();
    for_rows(count,
             [&](int64_t i) { vec.widen(x_ + token[i] * hidden_, rows + i * hidden_, hidden_); });
    return {token, count, true, rows};
  }

  template <class F>
  void for_rows(int64_t count, F f) const {
    const int64_t grain = std::max<int64_t>(kConversionGrain / hidden_, 1);
    parallel_ranges(count, grain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) f(i);
    });
  }

  /// Calls f(first row, rows, data) for all of w in the type that is computed with.
  template <class F>
  void for_weight_panels(F f) {
    if constexpr (!kIsNarrow<S>) {
      f(0, vocabulary_, w_);
    } else {
      T* const panel = call_.workspace<T>(place_.panel);
      for (int64_t row = 0; row < vocabulary_; row += place_.panel_rows) {
        const int64_t rows = std::min(place_.panel_rows, vocabulary_ - row);
        widen_block(w_ + row * hidden_, hidden_, rows, hidden_, panel);
        f(row, rows, panel);
      }
    }
  }

  /// dw[V,D] = [dw +] dlogits^T x.
  void weight_gradient(const Chunk& chunk, bool accumulate) {
    const auto multiply = [&](int64_t row, int64_t rows, double beta, T* out) {
      gemm({Transpose::kYes, Transpose::kNo, rows, hidden_, chunk.count}, logits_ + row,
           vocabulary_, chunk.rows, hidden_, beta, out, hidden_);
    };
    call_.with_gradient<S>(2, [&]<class G>(G* dw) {
      if constexpr (!kIsNarrow<G>) {
        multiply(0, vocabulary_, accumulate ? 1.0 : 0.0, dw);
      } else {
        T* const panel = call_.workspace<T>(place_.panel);
        for (int64_t row = 0; row < vocabulary_; row += place_.panel_rows) {
          const int64_t rows = std::min(place_.panel_rows, vocabulary_ - row);
          multiply(row, rows, 0.0, panel);
          narrow_block(panel, rows, hidden_, accumulate, dw + row * hidden_, hidden_);
        }
      }
    });
  }

  /// dx = dlogits w of the chunk's tokens. Gathered rows are not needed any more: dx takes their
  /// place before it goes to its tokens.
  void input_gradient(const Chunk& chunk) {
    T* out = call_.workspace<T>(place_.rows);
    if constexpr (!kIsNarrow<S>)
      if (!chunk.gathered) out = dx_ + chunk.token[0] * hidden_;
    for_weight_panels([&](int64_t row, int64_t rows, const T* w) {
      gemm({Transpose::kNo, Transpose::kNo, chunk.count, hidden_, rows}, logits_ + row, vocabulary_,
           w, hidden_, row > 0 ? 1.0 : 0.0, out, hidden_);
    });
    if (!chunk.gathered) return;
    const auto& vec = vector_kernels<S>();
    for_rows(chunk.count, [&](int64_t i) {
      vec.narrow(out + i * hidden_, dx_ + chunk.token[i] * hidden_, hidden_);
    });
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
  double row_loss(T* row, int32_t label) {
    const auto& vec = vector_kernels<T>();
    const double at_label = row[label];
    if (!attrs_.with_gradients) {
      const RowMaxSum stats = vec.max_and_sum(row, vocabulary_);
      return stats.max + std::log(stats.sum) - at_label;
    }
    const RowMaxSum stats = vec.exponentials(row, vocabulary_);
    const double scale = call_.scalars().loss_scale;
    vec.scale(row, scale / stats.sum, vocabulary_);
    row[label] -= static_cast<T>(scale);
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
  T* logits_;
};

}  // namespace

template <class S>
void linear_cross_entropy(const OpCall& call) {
  LinearCrossEntropy<S>(call).run();
}

FTRUN_FOR_STORAGE_TYPES(linear_cross_entropy)

}  // namespace ftrun::cpu
