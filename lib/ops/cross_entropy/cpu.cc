#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "kernels/cpu/matmul.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/panels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vector_kernels.h"
#include "ops/cross_entropy/cross_entropy.h"
#include "ops/cross_entropy/workspace.h"

namespace ftrun::cpu {

namespace {

/// Head computes the matrix multiplications of the head, only for tokens that count. A chunk has
/// some of these tokens; if masked tokens lie between them, it gathers them into the workspace.
/// Logits have the type T = Compute<S>; 16-bit operands and gradients pass through rows and a panel
/// of type T in the workspace. If the CPU multiplies bf16 as it is stored, the operands of all
/// three multiplications are bf16: the gradient of the logits is rounded to bf16, like all other
/// gradients of activations, and sums are fp32. A 16-bit dw is rounded once for each chunk.
/// Operands 0, 1, 2 are x, w and labels; result 1 is dx.
template <class S>
class Head {
 public:
  using T = Compute<S>;

  /// Chunk describes the tokens of one chunk.
  struct Chunk {
    const int32_t* token;
    int64_t count;
    /// Says whether the rows of x lie in the workspace, because the tokens are not neighbors, or
    /// because 16-bit rows were widened.
    bool gathered;
    /// The rows of x. `rows` if multiplications compute in T, `stored_rows` if bf16 is multiplied
    /// as it is stored; the other one is null.
    const T* rows;
    const S* stored_rows;
  };

  /// Prepares the head; `bias` is null where there is none or the operation makes no logits;
  /// `results` says which results of the operation are dw and the bias' gradient.
  Head(const OpCall& call, const CrossEntropyWorkspace& layout, bool gradients, T* logits,
       const S* bias, const HeadGradientIndices& results)
      : call_(call),
        bias_(bias),
        results_(results),
        tokens_(call.in_dims(0)[0]),
        hidden_(call.in_dims(0)[1]),
        vocabulary_(call.in_dims(1)[0]),
        layout_(layout),
        x_(call.in<S>(0)),
        w_(call.in<S>(1)),
        labels_(call.in<int32_t>(2)),
        dx_(gradients ? call.out<S>(1) : nullptr),
        logits_(logits) {
    if constexpr (std::is_same_v<S, BFloat16>) direct_ = multiplies_bf16();
  }

  int64_t tokens() const { return tokens_; }
  int64_t vocabulary() const { return vocabulary_; }
  int32_t label(int64_t token) const { return labels_[token]; }
  T* logits(int64_t row) const { return logits_ + row * vocabulary_; }
  int32_t* counted_tokens() const { return call_.workspace<int32_t>(layout_.counted); }

  /// Returns the bytes of dw's elements.
  static int64_t gradient_bytes(const OpCall& call, const HeadGradientIndices& results) {
    int64_t bytes = sizeof(S);
    if (results.weight > 0)
      call.with_gradient<S>(results.weight, [&]<class G>(G*) { bytes = sizeof(G); });
    return bytes;
  }

  /// Lists the tokens that count among [first, first + count); masked ones get no gradient. Labels
  /// are below `rows`.
  int64_t list_counted_tokens(int64_t first, int64_t count, int64_t rows) {
    int64_t counted_count = 0;
    for (int64_t n = first; n < first + count; ++n) {
      if (labels_[n] >= rows)
        bug(cat("label ", labels_[n], " at position ", n,
                " of a micro-batch is outside the vocabulary of ", rows));
      if (labels_[n] >= 0)
        counted_tokens()[counted_count++] = static_cast<int32_t>(n);
      else if (dx_ != nullptr)
        std::fill_n(dx_ + n * hidden_, hidden_, S{});
    }
    return counted_count;
  }

  /// Sets dw and the gradient of the bias to 0, for a micro-batch without a token that counts.
  void clear_parameter_gradients() {
    const auto clear = [&](size_t result, int64_t elements) {
      if (result == 0) return;
      call_.with_gradient<S>(result, [&]<class G>(G* gradient) {
        parallel_ranges(elements, 1 << 16, [gradient](int64_t begin, int64_t end) {
          std::fill(gradient + begin, gradient + end, G{});
        });
      });
    };
    clear(results_.weight, vocabulary_ * hidden_);
    clear(results_.bias, vocabulary_);
  }

  /// Adds the bias, if there is one, to a row of logits.
  void add_bias(T* row) const {
    if (bias_ == nullptr) return;
    for_pieces(0, vocabulary_, [&](int64_t at, int64_t count) {
      std::array<T, kBiasPiece> piece;
      widen_elements(bias_ + at, piece.data(), count);
      for (int64_t i = 0; i < count; ++i) row[at + i] += piece[static_cast<size_t>(i)];
    });
  }

  /// Computes the gradients of the parameters that have one, from the chunk's tokens.
  void compute_parameter_gradients(const Chunk& chunk, bool accumulate) {
    if (results_.weight > 0) compute_weight_gradient(chunk, accumulate);
    if (results_.bias > 0) compute_bias_gradient(chunk.count, accumulate);
  }

  Chunk gather_chunk(const int32_t* token, int64_t count) {
    const S* const first = x_ + token[0] * hidden_;
    const bool neighbors = are_neighbors(token, count);
    if constexpr (!kIsNarrow<S>) {
      if (neighbors) return {token, count, false, first, nullptr};
    } else if (direct_) {
      if (neighbors) return {token, count, false, nullptr, first};
      S* const rows = call_.workspace<S>(layout_.rows);
      for_rows(count, [&](int64_t i) {
        std::copy_n(x_ + token[i] * hidden_, hidden_, rows + i * hidden_);
      });
      return {token, count, true, nullptr, rows};
    }
    T* const rows = call_.workspace<T>(layout_.rows);
    const auto& vec = vector_kernels<S>();
    for_rows(count,
             [&](int64_t i) { vec.widen(x_ + token[i] * hidden_, rows + i * hidden_, hidden_); });
    return {token, count, true, rows, nullptr};
  }

  /// Computes logits = x w^T for the chunk's tokens.
  void compute_logits(const Chunk& chunk) {
    if constexpr (std::is_same_v<S, BFloat16>)
      if (direct_)
        return matmul({Transpose::kNo, Transpose::kYes, chunk.count, vocabulary_, hidden_},
                      chunk.stored_rows, hidden_, w_, hidden_, 0.0, logits_, vocabulary_);
    for_weight_panels([&](int64_t row, int64_t rows, const T* w) {
      matmul({Transpose::kNo, Transpose::kYes, chunk.count, rows, hidden_}, chunk.rows, hidden_, w,
             hidden_, 0.0, logits_ + row, vocabulary_);
    });
  }

  /// Converts a row of the gradient of the logits to the form that the multiplications read: rounds
  /// it to bf16, in place, if they multiply bf16.
  void round_gradient(T* row) const {
    if constexpr (std::is_same_v<S, BFloat16>)
      if (direct_) vector_kernels<S>().narrow(row, reinterpret_cast<S*>(row), vocabulary_);
  }

  /// Computes dx = dlogits w for the chunk's tokens. The gathered rows of x are no longer needed,
  /// so dx overwrites them before it is written to its tokens.
  void compute_input_gradient(const Chunk& chunk) {
    T* out = call_.workspace<T>(layout_.rows);
    if constexpr (!kIsNarrow<S>)
      if (!chunk.gathered) out = dx_ + chunk.token[0] * hidden_;
    multiply_by_weight(chunk, out);
    if constexpr (!kIsNarrow<S>)
      if (!chunk.gathered) return;
    const auto& vec = vector_kernels<S>();
    for_rows(chunk.count, [&](int64_t i) {
      vec.narrow(out + i * hidden_, dx_ + chunk.token[i] * hidden_, hidden_);
    });
  }

 private:
  /// The number of elements of the bias that are converted to T at a time.
  static constexpr int64_t kBiasPiece = 1024;

  /// Calls f(first element, count) for each piece of [begin, end).
  template <class F>
  static void for_pieces(int64_t begin, int64_t end, F f) {
    for (int64_t at = begin; at < end; at += kBiasPiece) f(at, std::min(kBiasPiece, end - at));
  }

  /// Computes dw[V,D] = [dw +] dlogits^T x.
  void compute_weight_gradient(const Chunk& chunk, bool accumulate) {
    const auto multiply = [&](int64_t row, int64_t rows, double beta, T* out) {
      if constexpr (std::is_same_v<S, BFloat16>)
        if (direct_)
          return matmul({Transpose::kYes, Transpose::kNo, rows, hidden_, chunk.count},
                        rounded_gradients() + row, rounded_stride(), chunk.stored_rows, hidden_,
                        beta, out, hidden_);
      matmul({Transpose::kYes, Transpose::kNo, rows, hidden_, chunk.count}, logits_ + row,
             vocabulary_, chunk.rows, hidden_, beta, out, hidden_);
    };
    call_.with_gradient<S>(results_.weight, [&]<class G>(G* dw) {
      if constexpr (!kIsNarrow<G>) {
        multiply(0, vocabulary_, accumulate ? 1.0 : 0.0, dw);
      } else {
        T* const panel = call_.workspace<T>(layout_.panel);
        for (int64_t row = 0; row < vocabulary_; row += layout_.panel_rows) {
          const int64_t rows = std::min(layout_.panel_rows, vocabulary_ - row);
          multiply(row, rows, 0.0, panel);
          narrow_block(panel, rows, hidden_, accumulate, dw + row * hidden_, hidden_);
        }
      }
    });
  }

  /// Computes dbias[V] = [dbias +] the sum over the first `rows` rows of dlogits, in their order.
  void compute_bias_gradient(int64_t rows, bool accumulate) {
    call_.with_gradient<S>(results_.bias, [&]<class G>(G* gradient) {
      parallel_ranges(vocabulary_, kBiasPiece, [&](int64_t begin, int64_t end) {
        for_pieces(begin, end, [&](int64_t at, int64_t count) {
          std::array<T, kBiasPiece> sums{};
          if (accumulate) widen_elements(gradient + at, sums.data(), count);
          for (int64_t row = 0; row < rows; ++row) add_gradients(row, at, count, sums.data());
          narrow_elements(sums.data(), gradient + at, count);
        });
      });
    });
  }

  /// Adds elements [at, at + count) of a row of dlogits, as round_gradient() left it, to `sums`.
  void add_gradients(int64_t row, int64_t at, int64_t count, T* sums) const {
    if constexpr (std::is_same_v<S, BFloat16>) {
      if (direct_) {
        std::array<T, kBiasPiece> piece;
        widen_elements(rounded_gradients() + row * rounded_stride() + at, piece.data(), count);
        for (int64_t i = 0; i < count; ++i) sums[i] += piece[static_cast<size_t>(i)];
        return;
      }
    }
    const T* const gradients = logits(row) + at;
    for (int64_t i = 0; i < count; ++i) sums[i] += gradients[i];
  }

  static bool are_neighbors(const int32_t* token, int64_t count) {
    return token[count - 1] - token[0] == count - 1;
  }

  template <class F>
  void for_rows(int64_t count, F f) const {
    const int64_t grain = std::max<int64_t>(kConversionGrain / hidden_, 1);
    parallel_ranges(count, grain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) f(i);
    });
  }

  /// Returns the rows of logits() after round_gradient().
  const S* rounded_gradients() const { return reinterpret_cast<const S*>(logits_); }
  int64_t rounded_stride() const {
    return vocabulary_ * static_cast<int64_t>(sizeof(T) / sizeof(S));
  }

  /// Computes out[count,D] = dlogits w.
  void multiply_by_weight(const Chunk& chunk, T* out) {
    if constexpr (std::is_same_v<S, BFloat16>)
      if (direct_)
        return matmul({Transpose::kNo, Transpose::kNo, chunk.count, hidden_, vocabulary_},
                      rounded_gradients(), rounded_stride(), w_, hidden_, 0.0, out, hidden_);
    for_weight_panels([&](int64_t row, int64_t rows, const T* w) {
      matmul({Transpose::kNo, Transpose::kNo, chunk.count, hidden_, rows}, logits_ + row,
             vocabulary_, w, hidden_, row > 0 ? 1.0 : 0.0, out, hidden_);
    });
  }

  /// Calls f(first row, rows, data) for panels of w, in type T, that together cover w.
  template <class F>
  void for_weight_panels(F f) {
    if constexpr (!kIsNarrow<S>) {
      f(0, vocabulary_, w_);
    } else {
      T* const panel = call_.workspace<T>(layout_.panel);
      for (int64_t row = 0; row < vocabulary_; row += layout_.panel_rows) {
        const int64_t rows = std::min(layout_.panel_rows, vocabulary_ - row);
        widen_block(w_ + row * hidden_, hidden_, rows, hidden_, panel);
        f(row, rows, panel);
      }
    }
  }

  const OpCall& call_;
  const S* bias_;
  HeadGradientIndices results_;
  int64_t tokens_, hidden_, vocabulary_;
  CrossEntropyWorkspace layout_;
  const S* x_;
  const S* w_;
  const int32_t* labels_;
  S* dx_;
  T* logits_;
  /// Says whether bf16 is multiplied as it is stored.
  bool direct_ = false;
};

/// RowLoss holds the loss of a row, and whether the label is its most likely token.
struct RowLoss {
  double loss = 0.0;
  bool correct = false;
};

/// RowSums holds the sums of the losses and of the correct predictions of several rows.
struct RowSums {
  double losses = 0.0;
  int64_t correct = 0;
};

/// Makes the result of a row in an evaluation. Rounding may make a loss negative, so it is at least
/// 0; a row whose loss is not finite is not counted as correct.
RowLoss evaluate_row(double loss, bool likeliest) {
  return {loss < 0 ? 0.0 : loss, likeliest && std::isfinite(loss)};
}

/// Calls row(i), which returns a RowLoss, for each row on several threads, and sums the results.
/// Losses are added in the order of the rows; counts are integers, so their order does not matter.
template <class Row>
RowSums sum_row_losses(double* losses, int64_t rows, Row row) {
  std::atomic<int64_t> correct = 0;
  parallel_ranges(rows, 1, [&](int64_t begin, int64_t end) {
    int64_t correct_rows = 0;
    for (int64_t i = begin; i < end; ++i) {
      const RowLoss of_row = row(i);
      losses[i] = of_row.loss;
      correct_rows += of_row.correct ? 1 : 0;
    }
    correct += correct_rows;
  });
  return {std::accumulate(losses, losses + rows, 0.0), correct};
}

/// Returns whether `label` is the first of the largest logits of `row`.
template <class T>
bool is_likeliest(const T* row, int64_t label, T largest) {
  return row[label] == largest && std::find(row, row + label, largest) == row + label;
}

/// LogitCap bounds the logits of a row, and computes how the bound changes their gradients; with a
/// softcap of 0 it does nothing.
template <class T>
struct LogitCap {
  double softcap;
  /// The number of logits of a row that belong to the vocabulary.
  int64_t width;

  /// Replaces logits by capped logits.
  void apply(T* row) const {
    if (softcap > 0) vector_kernels<T>().softcap(row, row, softcap, width);
  }
  /// Returns the largest logit of a row and the sum of exp(logit - largest). Without a cap,
  /// replaces the logits by these exponentials.
  SoftmaxStatistics exponentiate(T* row) const {
    const auto& vec = vector_kernels<T>();
    return softcap > 0 ? vec.max_and_sum(row, width) : vec.exponentials(row, width);
  }
  /// Converts the row that exponentiate() left to the gradient of the softmax of the logits.
  /// `own_max` is the maximum of this row, `max` and `sum` are those of the whole vocabulary.
  void write_softmax_gradient(T* row, double own_max, double max, double sum, double scale) const {
    const auto& vec = vector_kernels<T>();
    if (softcap > 0)
      vec.capped_softmax(row, max, scale / sum, softcap, width);
    else
      vec.scale(row, scale * std::exp(own_max - max) / sum, width);
  }
  /// Returns d capped / d logit at a capped logit.
  double slope(double capped) const {
    const double tangent = softcap > 0 ? capped / softcap : 0.0;
    return 1.0 - tangent * tangent;
  }
};

/// LinearCrossEntropy runs one operation of kind kLinearCrossEntropy.
template <class S>
class LinearCrossEntropy {
 public:
  using T = Compute<S>;

  explicit LinearCrossEntropy(const OpCall& call)
      : call_(call),
        gradients_(call.attrs<CrossEntropyAttrs>().with_gradients),
        results_(head_gradients_of(call.op())),
        layout_(cross_entropy_workspace(call.in_dims(0)[0], call.in_dims(0)[1], call.in_dims(1)[0],
                                        call.attrs<CrossEntropyAttrs>(), sizeof(S),
                                        Head<S>::gradient_bytes(call, results_))),
        head_(call, layout_, gradients_, call.workspace<T>(layout_.logits),
              call.has_in(3) ? call.in<S>(3) : nullptr, results_),
        cap_{call.attrs<CrossEntropyAttrs>().softcap, head_.vocabulary()} {}

  void run() {
    const int64_t counted = head_.list_counted_tokens(0, head_.tokens(), head_.vocabulary());
    RowSums sums;
    for (int64_t first = 0; first < counted; first += layout_.wide_chunk) {
      const RowSums more = run_chunk(first, std::min(layout_.wide_chunk, counted - first));
      sums.losses += more.losses;
      sums.correct += more.correct;
    }
    if (gradients_ && counted == 0 && !call_.accumulates()) head_.clear_parameter_gradients();
    double* const loss = call_.out<double>(0);
    loss[0] += sums.losses;
    loss[1] += static_cast<double>(gradients_ ? counted : sums.correct);
  }

 private:
  RowSums run_chunk(int64_t first, int64_t count) {
    const auto chunk = head_.gather_chunk(head_.counted_tokens() + first, count);
    head_.compute_logits(chunk);
    const RowSums sums = sum_row_losses(
        call_.workspace<double>(layout_.losses), count,
        [&](int64_t i) { return compute_row_loss(head_.logits(i), head_.label(chunk.token[i])); });
    if (!gradients_) return sums;
    head_.compute_parameter_gradients(chunk, first > 0 || call_.accumulates());
    head_.compute_input_gradient(chunk);
    return sums;
  }

  /// Computes the loss of one row from its log-sum-exp, and then, while the row is in the cache,
  /// its gradient (softmax - onehot) * token_loss_factor in place, in the form that the
  /// multiplications read.
  RowLoss compute_row_loss(T* row, int32_t label) {
    head_.add_bias(row);
    cap_.apply(row);
    const double label_logit = row[label];
    if (!gradients_) {
      const SoftmaxStatistics stats = vector_kernels<T>().max_and_sum(row, head_.vocabulary());
      return evaluate_row(stats.max + std::log(stats.sum) - label_logit,
                          is_likeliest(row, label, static_cast<T>(stats.max)));
    }
    const SoftmaxStatistics stats = cap_.exponentiate(row);
    const double scale = call_.scalars().token_loss_factor;
    cap_.write_softmax_gradient(row, stats.max, stats.max, stats.sum, scale);
    row[label] -= static_cast<T>(scale * cap_.slope(label_logit));
    head_.round_gradient(row);
    return {stats.max + std::log(stats.sum) - label_logit};
  }

  const OpCall& call_;
  bool gradients_;
  HeadGradientIndices results_;
  CrossEntropyWorkspace layout_;
  Head<S> head_;
  LogitCap<T> cap_;
};

/// kVocabularyLogits and kVocabularyCrossEntropy both use the counted tokens of a chunk: these are
/// the first rows of its logits, statistics and label_logit; other rows are 0. Each of the two
/// lists these tokens itself, which is cheap: C labels, compared with a multiplication of C V D
/// operations. A list passed from one to the other would be one more value of the graph, with a
/// layout on which all devices would have to agree.
template <class S>
struct VocabularyChunk {
  using T = Compute<S>;

  VocabularyChunk(const OpCall& call, int64_t chunk_tokens, T* logits, const S* bias,
                  const HeadGradientIndices& results)
      : attrs(call.attrs<VocabularyAttrs>()),
        tokens(chunk_tokens),
        layout(vocabulary_workspace(chunk_tokens, call.in_dims(0)[1], call.in_dims(1)[0], sizeof(S),
                                    Head<S>::gradient_bytes(call, results))),
        head(call, layout, results.weight > 0, logits, bias, results),
        cap{attrs.softcap, attrs.unpadded_rows(head.vocabulary())} {
    counted = head.list_counted_tokens(attrs.first_token, tokens, attrs.ranks * head.vocabulary());
  }

  /// Returns the row of w that is the label of counted token i, or -1 where another rank has it.
  int64_t local_label(int64_t i) const {
    const int64_t row = head.label(head.counted_tokens()[i]) - attrs.rank * head.vocabulary();
    return row >= 0 && row < head.vocabulary() ? row : -1;
  }

  const VocabularyAttrs& attrs;
  int64_t tokens;
  CrossEntropyWorkspace layout;
  Head<S> head;
  LogitCap<T> cap;
  int64_t counted = 0;
};

/// JoinedRow is the log-sum-exp of a token from all ranks' {largest, sum of exp(logit - largest)}.
struct JoinedRow {
  double max = -std::numeric_limits<double>::infinity();
  double sum = 0.0;

  double log_sum_exp() const { return max + std::log(sum); }
};

/// Returns whether label_logit, column `local_label` of this rank's block, is the first of the
/// largest logits of token i in all ranks' blocks. `statistics` holds the largest logit of each
/// block.
template <class T>
bool is_likeliest(const T* logits, int64_t local_label, T label_logit, const T* statistics,
                  int64_t rank, int64_t ranks, int64_t rows, int64_t i) {
  for (int64_t other_rank = 0; other_rank < ranks; ++other_rank) {
    const T largest = statistics[2 * (other_rank * rows + i)];
    if (other_rank < rank ? largest >= label_logit : largest > label_logit) return false;
  }
  return is_likeliest(logits, local_label, label_logit);
}

/// Joins the statistics of row `row` from the blocks of all ranks, each with `rows` rows, in the
/// order of the ranks.
template <class T>
JoinedRow join_statistics(const T* statistics, int64_t ranks, int64_t rows, int64_t row) {
  JoinedRow joined;
  for (int64_t rank = 0; rank < ranks; ++rank)
    joined.max = std::max<double>(joined.max, statistics[2 * (rank * rows + row)]);
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const T* const of_rank = statistics + 2 * (rank * rows + row);
    joined.sum +=
        static_cast<double>(of_rank[1]) * std::exp(static_cast<double>(of_rank[0]) - joined.max);
  }
  return joined;
}

}  // namespace

template <class S>
void linear_cross_entropy(const OpCall& call) {
  LinearCrossEntropy<S>(call).run();
}

/// Computes the logits and their statistics. If gradients follow, leaves the rows as
/// LogitCap::exponentiate() leaves them.
template <class S>
void vocabulary_logits(const OpCall& call) {
  using T = Compute<S>;
  T* const logits = call.out<T>(0);
  T* const statistics = call.out<T>(1);
  T* const label_logit = call.out<T>(2);
  VocabularyChunk<S> chunk(call, call.out_dims(0)[0], logits,
                           call.has_in(3) ? call.in<S>(3) : nullptr, {});
  const int64_t width = chunk.head.vocabulary(), uncounted = chunk.tokens - chunk.counted;
  std::fill_n(logits + chunk.counted * width, uncounted * width, T{});
  std::fill_n(statistics + 2 * chunk.counted, 2 * uncounted, T{});
  std::fill_n(label_logit, chunk.tokens, T{});
  if (chunk.counted == 0) return;
  chunk.head.compute_logits(chunk.head.gather_chunk(chunk.head.counted_tokens(), chunk.counted));
  parallel_ranges(chunk.counted, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      T* const row = chunk.head.logits(i);
      chunk.head.add_bias(row);
      chunk.cap.apply(row);
      if (const int64_t label = chunk.local_label(i); label >= 0) label_logit[i] = row[label];
      const SoftmaxStatistics row_statistics =
          chunk.attrs.with_gradients ? chunk.cap.exponentiate(row)
                                     : vector_kernels<T>().max_and_sum(row, chunk.cap.width);
      statistics[2 * i] = static_cast<T>(row_statistics.max);
      statistics[2 * i + 1] = static_cast<T>(row_statistics.sum);
    }
  });
}

template <class S>
void vocabulary_cross_entropy(const OpCall& call) {
  using T = Compute<S>;
  const bool gradients = call.attrs<VocabularyAttrs>().with_gradients;
  VocabularyChunk<S> chunk(call, call.in_dims(3)[0],
                           gradients ? call.out<T>(call.op().out.size() - 1) : nullptr, nullptr,
                           vocabulary_gradients_of(call.op()));
  const T* const logits = call.in<T>(3);
  const T* const statistics = call.in<T>(4);
  const T* const label_logit = call.in<T>(5);
  const double scale = gradients ? call.scalars().token_loss_factor : 0.0;
  // The function replaces the exponentials by (softmax - onehot) * token_loss_factor.
  const auto compute_gradient = [&](int64_t i, int64_t label, const JoinedRow& joined) {
    T* const row = chunk.head.logits(i);
    const double own_max = statistics[2 * (chunk.attrs.rank * chunk.tokens + i)];
    chunk.cap.write_softmax_gradient(row, own_max, joined.max, joined.sum, scale);
    std::fill(row + chunk.cap.width, row + chunk.head.vocabulary(), T{});
    if (label >= 0) row[label] -= static_cast<T>(scale * chunk.cap.slope(label_logit[i]));
    chunk.head.round_gradient(row);
  };
  const RowSums sums = sum_row_losses(
      call.workspace<double>(chunk.layout.losses), chunk.counted, [&](int64_t i) -> RowLoss {
        const JoinedRow joined = join_statistics(statistics, chunk.attrs.ranks, chunk.tokens, i);
        const int64_t label = chunk.local_label(i);
        if (gradients) compute_gradient(i, label, joined);
        if (label < 0) return {};
        const double loss = joined.log_sum_exp() - static_cast<double>(label_logit[i]);
        if (gradients) return {loss};
        return evaluate_row(
            loss, is_likeliest(logits + i * chunk.head.vocabulary(), label, label_logit[i],
                               statistics, chunk.attrs.rank, chunk.attrs.ranks, chunk.tokens, i));
      });
  double* const loss = call.out<double>(0);
  loss[0] += sums.losses;
  if (!gradients) {
    loss[1] += static_cast<double>(sums.correct);
    return;
  }
  for (int64_t i = 0; i < chunk.counted; ++i) loss[1] += chunk.local_label(i) < 0 ? 0.0 : 1.0;
  const bool adds = chunk.attrs.first_token > 0 || call.accumulates();
  if (chunk.counted == 0) {
    if (!adds) chunk.head.clear_parameter_gradients();
    return;
  }
  const auto rows = chunk.head.gather_chunk(chunk.head.counted_tokens(), chunk.counted);
  chunk.head.compute_parameter_gradients(rows, adds);
  chunk.head.compute_input_gradient(rows);
}

FTRUN_FOR_STORAGE_TYPES(linear_cross_entropy)
FTRUN_FOR_STORAGE_TYPES(vocabulary_logits)
FTRUN_FOR_STORAGE_TYPES(vocabulary_cross_entropy)

}  // namespace ftrun::cpu
