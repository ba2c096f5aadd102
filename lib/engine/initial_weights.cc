#include "engine/initial_weights.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <numbers>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

#include "base/checksum.h"
#include "base/error.h"
#include "base/mix_bits.h"
#include "base/run_in_parallel.h"
#include "inputs/row_norms.h"
#include "inputs/weights_check.h"
#include "kernels/kernels.h"

namespace ftrun {
namespace {

/// Maps the upper 24 bits to a number in [0, 1).
double to_unit_interval(uint64_t bits) {
  return static_cast<double>(bits >> 40) * 0x1p-24;
}

uint64_t key_of(std::string_view name, uint64_t seed) {
  return splitmix64(seed ^ splitmix64(xxh3(name.data(), name.size())));
}

/// Returns the standard normal number of an element (Box-Muller transform of two hashes of its
/// position).
double normal(uint64_t key, int64_t position) {
  const uint64_t bits = splitmix64(key ^ static_cast<uint64_t>(position));
  return std::sqrt(-2 * std::log(1 - to_unit_interval(bits))) *
         std::cos(2 * std::numbers::pi * to_unit_interval(splitmix64(bits)));
}

/// Makes a matrix of orthonormal rows from normal numbers by the Gram-Schmidt process, which runs
/// twice to remove rounding errors.
std::vector<std::vector<double>> random_orthogonal(int64_t rows, uint64_t key) {
  std::vector<std::vector<double>> q;
  for (int64_t r = 0; r < rows; ++r) {
    std::vector<double>& row = q.emplace_back(static_cast<size_t>(rows));
    for (int64_t c = 0; c < rows; ++c) row[static_cast<size_t>(c)] = normal(key, r * rows + c);
    for (int pass = 0; pass < 2; ++pass)
      for (size_t before = 0; before + 1 < q.size(); ++before) {
        const double along = std::inner_product(row.begin(), row.end(), q[before].begin(), 0.0);
        for (size_t c = 0; c < row.size(); ++c) row[c] -= along * q[before][c];
      }
    const double length = std::sqrt(std::inner_product(row.begin(), row.end(), row.begin(), 0.0));
    for (double& value : row) value /= length;
  }
  return q;
}

/// Returns the orthogonal matrix of a module. Each thread caches the last one, because the tensors
/// of a module are made in many short ranges that all need it.
const std::vector<std::vector<double>>& orthogonal_of(int64_t rows, uint64_t key) {
  struct CachedMatrix {
    int64_t rows = 0;
    uint64_t key = 0;
    std::vector<std::vector<double>> q;
  };
  thread_local CachedMatrix known;
  if (known.rows != rows || known.key != key) known = {rows, key, random_orthogonal(rows, key)};
  return known.q;
}

/// Makes elements of A or B from the orthogonal matrix Q of the module and a matrix N of normal
/// numbers; each tensor has its own N. Element (i, j) of A is the sum over k of Q(2k, i) N(k, j);
/// element (o, i) of B is the sum over k of N(o, k) Q(2k + 1, i).
void make_orthogonal(const TensorInfo& tensor, uint64_t seed, int64_t begin, int64_t end,
                     std::span<float> out) {
  const bool is_a = tensor.initial.source == InitialSource::kOrthogonalA;
  const int64_t rank = tensor.shape[is_a ? 0 : 1], columns = tensor.shape[1], half = rank / 2;
  const std::string_view name = tensor.name;
  if (begin == end) return;
  const auto& q = orthogonal_of(rank, key_of(lora_module(tensor.file_name()), seed));
  const uint64_t key = key_of(name, seed);
  // The numbers N that several elements share. For A these are the columns of the range (only some
  // columns if the range lies in one row); for B, one row of N.
  std::vector<double> numbers;
  const bool in_a_row = begin / columns == (end - 1) / columns;
  const int64_t first = in_a_row ? begin % columns : 0, width = in_a_row ? end - begin : columns;
  if (is_a)
    for (int64_t k = 0; k < half; ++k)
      for (int64_t c = first; c < first + width; ++c)
        numbers.push_back(normal(key, k * columns + c));
  int64_t row = -1;
  for (int64_t e = begin; e < end; ++e) {
    const auto at_row = e / columns, at_column = e % columns;
    if (!is_a && std::exchange(row, at_row) != at_row) {
      numbers.clear();
      for (int64_t k = 0; k < half; ++k) numbers.push_back(normal(key, at_row * half + k));
    }
    double sum = 0;
    for (int64_t k = 0; k < half; ++k)
      sum += is_a ? q[static_cast<size_t>(2 * k)][static_cast<size_t>(at_row)] *
                        numbers[static_cast<size_t>(k * width + at_column - first)]
                  : q[static_cast<size_t>(2 * k + 1)][static_cast<size_t>(at_column)] *
                        numbers[static_cast<size_t>(k)];
    out[static_cast<size_t>(e - begin)] = static_cast<float>(tensor.initial.magnitude * sum);
  }
}

/// Rounds values to a dtype. The parts are so small that convert() does not use other threads.
void round_to(DType dtype, std::span<float> values) {
  constexpr size_t kPart = 4096;
  if (dtype_bytes(dtype) >= dtype_bytes(DType::kF32)) return;
  std::array<std::byte, kPart * sizeof(uint16_t)> rounded;
  for (size_t at = 0; at < values.size(); at += kPart) {
    const auto count = static_cast<int64_t>(std::min(kPart, values.size() - at));
    convert(values.data() + at, DType::kF32, rounded.data(), dtype, count);
    convert(rounded.data(), dtype, values.data() + at, DType::kF32, count);
  }
}

}  // namespace

void compute_initial_values(const TensorInfo& tensor, uint64_t seed, int64_t begin, int64_t end,
                            std::span<float> out) {
  require(static_cast<int64_t>(out.size()) == end - begin,
          "`out` has an element for each of the range");
  const InitialSource kind = tensor.initial.source;
  if (kind == InitialSource::kOrthogonalA || kind == InitialSource::kOrthogonalB)
    return make_orthogonal(tensor, seed, begin, end, out);
  const uint64_t key = key_of(tensor.name, seed);
  for (int64_t i = begin; i < end; ++i) {
    double value = 0;
    if (kind == InitialSource::kUniform)
      value = tensor.initial.magnitude *
              (2 * to_unit_interval(splitmix64(key ^ static_cast<uint64_t>(i))) - 1);
    if (kind == InitialSource::kNormal) value = tensor.initial.magnitude * normal(key, i);
    out[static_cast<size_t>(i - begin)] = static_cast<float>(value);
  }
}

void InitialWeights::check_fit(const ModelDescription& model) {
  model_ = &model;
  check_model_weights(model, folder_);
  if (adapter_ != nullptr) stored_ = locate_adapter_tensors(model, *adapter_);
}

void InitialWeights::read(const TensorInfo& tensor, int64_t begin, int64_t end,
                          std::span<float> out) const {
  if (const auto stored = stored_.find(tensor.name); stored != stored_.end())
    return read_adapter_tensor(*adapter_, stored->second, begin, end, out);
  if (tensor.initial.source == InitialSource::kRowNorms) return copy_row_norms(tensor, begin, out);
  if (tensor.initial.source != InitialSource::kFolder)
    return compute_initial_values(tensor, seed_, begin, end, out);
  folder_.read_f32(tensor.name, begin, end, out);
}

const TensorInfo& InitialWeights::tensor_of(const std::string& name) const {
  const auto is_named = [&](const TensorInfo& tensor) { return tensor.name == name; };
  const auto found = std::find_if(model_->tensors.begin(), model_->tensors.end(), is_named);
  if (found == model_->tensors.end()) bug(cat("the model has no ", name));
  return *found;
}

void InitialWeights::measure_row_norms(const std::vector<TensorPart>& wanted, size_t threads) {
  require(model_ != nullptr, "norms of rows are requested after check_fit");
  for (const TensorPart& part : wanted)
    if (!stored_.contains(part.tensor->name))
      row_norms_[part.tensor->name] = {
          part.begin, std::vector<float>(static_cast<size_t>(part.end - part.begin))};
  run_in_parallel(
      wanted.size(),
      [&](size_t i) {
        if (const auto found = row_norms_.find(wanted[i].tensor->name); found != row_norms_.end())
          measure(*wanted[i].tensor, found->second);
      },
      threads);
}

/// Measures the row norms of the weights as layers read them: rounds the values to the dtype of
/// the layers first.
void InitialWeights::measure(const TensorInfo& magnitudes, RowNorms& norms) const {
  const std::string module = lora_module(magnitudes.name);
  // Linear layers that are parts of one module of the files share A.
  const TensorInfo& a = tensor_of(lora_a_name(lora_module(magnitudes.file_name())));
  const TensorInfo& b = tensor_of(lora_b_name(module));
  const auto to_layer_values = [&](std::span<float> values) {
    round_to(model_->dtypes.compute, values);
  };
  AdapterRows adapter{
      .inputs = a.shape[1], .rank = a.shape[0], .scale = magnitudes.initial.magnitude, .a = {}};
  if (b.initial.source != InitialSource::kZero) {
    adapter.a.resize(static_cast<size_t>(a.numel()));
    read(a, 0, a.numel(), adapter.a);
    to_layer_values(adapter.a);
    adapter.read_b = [&](int64_t row, std::span<float> out) {
      read(b, row * adapter.rank, (row + 1) * adapter.rank, out);
      to_layer_values(out);
    };
  }
  BaseWeights base(*model_, folder_);
  std::vector<double> exact(norms.values.size());
  compute_row_norms(base, module + ".weight", adapter, norms.begin, exact, to_layer_values);
  std::transform(exact.begin(), exact.end(), norms.values.begin(),
                 [](double length) { return static_cast<float>(length); });
}

void InitialWeights::copy_row_norms(const TensorInfo& magnitudes, int64_t begin,
                                    std::span<float> out) const {
  const auto found = row_norms_.find(magnitudes.name);
  if (found == row_norms_.end()) bug(cat(magnitudes.name, " is read before it is measured"));
  const auto& [first, values] = found->second;
  require(begin >= first && begin - first + std::ssize(out) <= std::ssize(values),
          "the elements were measured before");
  std::copy_n(values.begin() + (begin - first), out.size(), out.begin());
}

void InitialWeights::release(const TensorInfo& tensor, int64_t begin, int64_t end) const {
  if (tensor.initial.source == InitialSource::kFolder) folder_.release(tensor.name, begin, end);
}

}  // namespace ftrun
