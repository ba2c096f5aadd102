#include "axes/tensor/split.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/round_up.h"
#include "base/text.h"

namespace ftrun {
namespace {

/// DividedQuantity is a quantity that is divided evenly among the ranks. With `allows_copies` there
/// may be more ranks than there are of it; several ranks then hold the same part.
struct DividedQuantity {
  int64_t count;
  std::string text;
  bool allows_copies = false;
  /// Says whether the quantity is rows that are padded: the last rank may have fewer of its own
  /// than the others, but at least one.
  bool is_padded = false;

  bool fits(int64_t degree) const {
    if (is_padded) return (degree - 1) * divide_up(count, degree) < count;
    return count % degree == 0 || (allows_copies && degree % count == 0);
  }
};

std::vector<DividedQuantity> divided_quantities(const ModelConfig& c) {
  std::vector<DividedQuantity> quantities{
      {c.query_heads, cat(c.query_heads, " query heads")},
      {c.kv_heads, cat(c.kv_heads, " key/value heads"), true},
      {c.feed_forward, cat("a feed-forward of ", c.feed_forward)},
      {.count = c.vocab_rows,
       .text = cat("a vocabulary of ", c.vocab_rows, " rows"),
       .is_padded = true}};
  if (c.learned_positions)
    quantities.push_back({.count = c.max_positions + c.position_offset,
                          .text = cat("vectors for ", c.max_positions, " positions"),
                          .is_padded = true});
  return quantities;
}

/// Lists the degrees that fit, from 1 to the number of query heads; larger ones never divide these.
template <class Fits>
std::vector<int64_t> list_fitting_degrees(const ModelConfig& config, Fits fits) {
  std::vector<int64_t> degrees;
  for (int64_t degree = 1; degree <= config.query_heads; ++degree)
    if (fits(degree)) degrees.push_back(degree);
  return degrees;
}

/// Formats a division: "7 = 3 x 2 + 1".
std::string division_text(int64_t count, int64_t degree) {
  return cat(count, " = ", count / degree, " x ", degree, " + ", count % degree);
}

std::string problem_text(const ModelConfig& config, const DividedQuantity& quantity,
                         int64_t degree) {
  const auto fit = list_fitting_degrees(config, [&](int64_t d) { return quantity.fits(d); });
  if (quantity.allows_copies)
    return cat(quantity.text, " and ", degree, " ranks, neither of which divides the other: ",
               division_text(std::max(quantity.count, degree), std::min(quantity.count, degree)),
               "; degrees that work: ", join_numbers(fit, ", "));
  if (quantity.is_padded)
    return cat(quantity.text, ", ", divide_up(quantity.count, degree),
               " per rank, leaves none for ", "the last of ", degree,
               " ranks; degrees that work: ", join_numbers(fit, ", "));
  return cat(quantity.text, " cannot be shared out among ", degree,
             " ranks: ", division_text(quantity.count, degree),
             "; degrees that work: ", join_numbers(fit, ", "));
}

}  // namespace

std::vector<std::string> tensor_split_problems(const ModelConfig& config, int64_t degree) {
  std::vector<std::string> problems;
  for (const DividedQuantity& quantity : divided_quantities(config))
    if (!quantity.fits(degree)) problems.push_back(problem_text(config, quantity, degree));
  return problems;
}

std::vector<int64_t> tensor_split_degrees(const ModelConfig& config) {
  return list_fitting_degrees(
      config, [&](int64_t degree) { return tensor_split_problems(config, degree).empty(); });
}

BatchShape pad_sequence_length(BatchShape batch, const TensorSplit& split) {
  if (!split.sequence) return batch;
  const int64_t unit = split.degree / std::gcd<int64_t>(split.degree, batch.sequences);
  const int64_t padded = round_up(batch.sequence_length, unit);
  batch.sequence_padding += padded - batch.sequence_length;
  batch.sequence_length = padded;
  return batch;
}

int64_t hidden_tokens(const BatchShape& batch, const TensorSplit& split) {
  return split.sequence ? batch.tokens() / split.degree : batch.tokens();
}

void check_tensor_split(const ModelConfig& config, const TensorSplit& split) {
  require(split.degree > 0 && split.index >= 0 && split.index < split.degree,
          "the rank belongs to the tensor-parallel group");
  const std::vector<std::string> problems = tensor_split_problems(config, split.degree);
  if (problems.empty()) return;
  throw Error(ExitCode::kUsage,
              cat("the model cannot be split over ", split.degree, " tensor-parallel ranks\n  ",
                  join(problems, "\n  ")),
              cat("set parallel.tensor to one of these degrees: ",
                  join_numbers(tensor_split_degrees(config), ", ")));
}

ModelConfig local_config(const ModelConfig& config, const TensorSplit& split) {
  ModelConfig local = config;
  local.query_heads /= split.degree;
  local.kv_heads = std::max<int64_t>(local.kv_heads / split.degree, 1);
  local.feed_forward /= split.degree;
  local.vocab_rows = divide_up(local.vocab_rows, split.degree);
  return local;
}

int kv_copies(const ModelConfig& config, const TensorSplit& split) {
  return std::max(1, split.degree / static_cast<int>(config.kv_heads));
}

TensorInfo split_rows(std::string name, Dims shape, const TensorSplit& split, int copies) {
  TensorInfo tensor(std::move(name), std::move(shape));
  const int64_t rows = divide_up(tensor.shape[0] * copies, split.degree);
  tensor.local.offset[0] = split.index / copies * rows;
  tensor.local.extent[0] = std::min(rows, tensor.shape[0] - tensor.local.offset[0]);
  tensor.padding = rows * (tensor.numel() / tensor.shape[0]) - tensor.local.numel();
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

TensorInfo replicate(std::string name, Dims shape, const TensorSplit& split,
                     bool gradient_is_partial) {
  TensorInfo tensor(std::move(name), std::move(shape));
  tensor.copies = split.degree;
  tensor.partial_gradient = gradient_is_partial && split.degree > 1;
  return tensor;
}

Box box_of_rank(const TensorInfo& tensor, int index) {
  Box box = tensor.local;
  for (size_t d = 0; d < box.extent.size(); ++d) {
    if (box.extent[d] == tensor.shape[d]) continue;
    const int64_t each = tensor.rank_extent(d);
    box.offset[d] = index / tensor.copies * each;
    box.extent[d] = std::min(each, tensor.shape[d] - box.offset[d]);
  }
  return box;
}

}  // namespace ftrun
