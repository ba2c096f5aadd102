#include "model/tensor_split.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/text.h"

namespace ftrun {
namespace {

/// What is shared out, and whether a degree shares it out evenly.
struct Shared {
  int64_t count;
  std::string what;
  std::string remedy;
};

std::string numbers(const std::vector<int64_t>& values) {
  std::vector<std::string> words;
  for (const int64_t value : values) words.push_back(std::to_string(value));
  return join(words, ", ");
}

/// "7 = 3 x 2 + 1"
std::string division(int64_t count, int64_t degree) {
  return cat(count, " = ", count / degree, " x ", degree, " + ", count % degree);
}

/// Degrees from 1 to the query heads, more than which never divide.
template <class Fits>
std::vector<int64_t> degrees(const ModelConfig& config, Fits fits) {
  std::vector<int64_t> found;
  for (int64_t degree = 1; degree <= config.query_heads; ++degree)
    if (fits(degree)) found.push_back(degree);
  return found;
}

bool kv_fit(int64_t heads, int64_t degree) { return heads % degree == 0 || degree % heads == 0; }

std::vector<Shared> shared_out(const ModelConfig& c, const BatchShape& batch, bool sequence) {
  std::vector<Shared> all{{c.query_heads, cat(c.query_heads, " query heads"), ""},
                          {c.feed_forward, cat("a feed-forward of ", c.feed_forward), ""},
                          {c.vocab_rows, cat("a vocabulary of ", c.vocab_rows, " rows"), ""}};
  if (sequence)
    all.push_back({batch.tokens(),
                   cat("the ", batch.rows, " x ", batch.row_tokens, " = ", batch.tokens(),
                       " tokens of a micro-batch"),
                   "; or set parallel.sequence: false"});
  return all;
}

}  // namespace

std::vector<std::string> check_tensor_split(const ModelConfig& config, const BatchShape& batch,
                                            const TensorSplit& split) {
  std::vector<std::string> problems;
  const int64_t degree = split.degree;
  for (const Shared& shared : shared_out(config, batch, split.sequence)) {
    if (shared.count % degree == 0) continue;
    const auto fits = [&](int64_t d) { return shared.count % d == 0; };
    problems.push_back(cat(shared.what, " cannot be shared out among ", degree, " ranks: ",
                           division(shared.count, degree), "; degrees that divide: ",
                           numbers(degrees(config, fits)), shared.remedy));
  }
  const int64_t heads = config.kv_heads;
  if (!kv_fit(heads, degree)) {
    const bool more = heads > degree;
    const auto fits = [&](int64_t d) { return kv_fit(heads, d); };
    problems.insert(problems.begin() + (config.query_heads % degree == 0 ? 0 : 1),
                    cat(heads, " key/value heads and ", degree, " ranks: neither divides the other, ",
                        division(more ? heads : degree, more ? degree : heads),
                        "; degrees that do: ", numbers(degrees(config, fits))));
  }
  return problems;
}

std::vector<int64_t> tensor_split_degrees(const ModelConfig& config, const BatchShape& batch, bool sequence) {
  return degrees(config, [&](int64_t degree) {
    return check_tensor_split(config, batch, {static_cast<int>(degree), 0, sequence}).empty();
  });
}

ModelConfig local_config(const ModelConfig& config, const TensorSplit& split) {
  ModelConfig local = config;
  local.query_heads /= split.degree;
  local.kv_heads = std::max<int64_t>(local.kv_heads / split.degree, 1);
  local.feed_forward /= split.degree;
  local.vocab_rows /= split.degree;
  return local;
}

int kv_copies(const ModelConfig& config, const TensorSplit& split) {
  return std::max(1, split.degree / static_cast<int>(config.kv_heads));
}

TensorInfo split_rows(std::string name, Dims shape, const TensorSplit& split, int copies) {
  TensorInfo tensor(std::move(name), std::move(shape));
  const int64_t rows = tensor.shape[0] * copies / split.degree;
  tensor.local.offset[0] = split.index / copies * rows;
  tensor.local.extent[0] = rows;
  tensor.copies = copies;
  tensor.partial_gradient = copies > 1;
  return tensor;
}

TensorInfo split_columns(std::string name, Dims shape, const TensorSplit& split) {
  TensorInfo tensor(std::move(name), std::move(shape));
  const int64_t columns = tensor.shape[1] / split.degree;
  tensor.local.offset[1] = split.index * columns;
  tensor.local.extent[1] = columns;
  return tensor;
}

TensorInfo replicated(std::string name, Dims shape, const TensorSplit& split, bool partial_gradient) {
  TensorInfo tensor(std::move(name), std::move(shape));
  tensor.copies = split.degree;
  tensor.partial_gradient = partial_gradient && split.degree > 1;
  return tensor;
}

}  // namespace ftrun
