#include "merge_adapter.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <vector>

#include "base/error.h"
#include "checkpoint/weight_conversion.h"
#include "inputs/export_options.h"
#include "inputs/row_norms.h"
#include "inputs/weights_check.h"

namespace ftrun {
namespace {

/// AdaptedMatrix is the adapter of one matrix [outputs, inputs].
struct AdaptedMatrix {
  std::string module;
  /// The module's path in the model's files. The adapter's matrix A is named after it.
  std::string file_module;
  int64_t outputs = 0;
  int64_t inputs = 0;
  LowRankAdapter low_rank;
  bool has_magnitudes = false;
};

std::map<std::string, AdaptedMatrix> list_adapted_matrices(const ModelDescription& model) {
  // `low_ranks` holds the adapter of each module, by the module's path in the model's files.
  std::map<std::string, LowRankAdapter> low_ranks;
  const TensorNames& names = tensor_names(model.family);
  for (int64_t layer = 0; layer < model.block_count; ++layer) {
    const BlockAdapter& block = model.adapter.block(layer);
    for (const LinearModule& module : linear_modules(names))
      low_ranks[names.in_block(layer, module.name)] = block.at(module.projections.front());
  }
  std::map<std::string, const TensorInfo*> tensors;
  for (const TensorInfo& tensor : model.tensors) tensors[tensor.name] = &tensor;
  std::map<std::string, AdaptedMatrix> matrices;
  for (const TensorInfo& b : model.tensors) {
    if (!is_lora_name(b.name) || b.name != lora_b_name(lora_module(b.name))) continue;
    const std::string module = lora_module(b.name), file_module = lora_module(b.file_name());
    const Dims& shape = tensors.at(module + ".weight")->shape;
    matrices[module + ".weight"] = {module,
                                    file_module,
                                    shape[0],
                                    shape[1],
                                    low_ranks.at(file_module),
                                    tensors.contains(lora_magnitude_name(module))};
  }
  return matrices;
}

/// AdapterMerge adds adapters to the tensors of a base model as they are read, one matrix after
/// another.
class AdapterMerge {
 public:
  AdapterMerge(const ModelDescription& model, DType dtype, const TrainedTensorReader& trained,
               BaseWeights& base)
      : adapted_(list_adapted_matrices(model)), dtype_(dtype), trained_(trained), base_(base) {}

  void add_adapter(const ExportPiece& piece, std::span<float> out) {
    const auto entry = adapted_.find(piece.tensor);
    if (entry == adapted_.end()) return;
    const AdaptedMatrix& adapted = entry->second;
    if (adapted.module != module_) begin_matrix(adapted);
    const int64_t width = adapted.inputs;
    for (int64_t element = piece.begin; element < piece.end;) {
      const int64_t row = element / width, first = element % width,
                    last = std::min(width, first + piece.end - element);
      add_row(row, first, last,
              out.subspan(static_cast<size_t>(element - piece.begin),
                          static_cast<size_t>(last - first)));
      element += last - first;
    }
    record_rounding();
  }

  const MergeRounding& rounding() const { return rounding_; }

 private:
  void begin_matrix(const AdaptedMatrix& adapted) {
    module_ = adapted.module;
    delta_squares_ = error_squares_ = 0;
    row_.resize(static_cast<size_t>(adapted.inputs));
    rows_ = {.inputs = adapted.inputs,
             .rank = adapted.low_rank.rank,
             .scale = adapted.low_rank.scale,
             .a = std::vector<float>(static_cast<size_t>(adapted.low_rank.rank * adapted.inputs))};
    require(trained_(lora_a_name(adapted.file_module), 0, std::ssize(rows_.a), rows_.a),
            "the adapter has its matrices");
    rows_.read_b = [this](int64_t row, std::span<float> out) {
      require(trained_(lora_b_name(module_), row * rows_.rank, (row + 1) * rows_.rank, out),
              "the adapter has its matrices");
    };
    factors_.assign(static_cast<size_t>(adapted.outputs), 1.0);
    if (adapted.has_magnitudes) find_factors();
  }

  /// Computes the factor by which each row of W + scale B A is multiplied (DoRA): its magnitude
  /// divided by its length. A row of zeros stays zero.
  void find_factors() {
    std::vector<float> magnitudes(factors_.size());
    require(trained_(lora_magnitude_name(module_), 0, std::ssize(magnitudes), magnitudes),
            "the adapter has its magnitudes");
    compute_row_norms(base_, module_ + ".weight", rows_, 0, factors_);
    for (size_t o = 0; o < factors_.size(); ++o)
      factors_[o] = factors_[o] > 0 ? magnitudes[o] / factors_[o] : 0;
  }

  /// Replaces columns [first, last) of a row of W in `out` by those of W + scale B A, multiplied by
  /// the row's factor.
  void add_row(int64_t row, int64_t first, int64_t last, std::span<float> out) {
    rows_.compute_row(row, first, last, std::span(row_).first(static_cast<size_t>(last - first)));
    for (int64_t i = first; i < last; ++i) {
      float& value = out[static_cast<size_t>(i - first)];
      const double sum = (value + row_[static_cast<size_t>(i - first)]) *
                         factors_[static_cast<size_t>(row)],
                   delta = sum - value;
      value = static_cast<float>(sum);
      const float stored = rounded_to(dtype_, value);
      delta_squares_ += delta * delta;
      error_squares_ += (stored - sum) * (stored - sum);
    }
  }

  void record_rounding() {
    const double share = delta_squares_ > 0 ? std::sqrt(error_squares_ / delta_squares_) : 0;
    if (share > rounding_.lost_share) rounding_ = {share, module_};
  }

  const std::map<std::string, AdaptedMatrix> adapted_;
  DType dtype_;
  const TrainedTensorReader& trained_;
  BaseWeights& base_;
  std::string module_;
  AdapterRows rows_;
  std::vector<double> row_, factors_;
  double delta_squares_ = 0, error_squares_ = 0;
  MergeRounding rounding_;
};

}  // namespace

MergeRounding export_merged(FileSystem& files, const ExportOptions& options,
                            const ModelDescription& model, const ModelFolder& base,
                            const TrainedTensorReader& trained) {
  check_model_weights(model, base);
  const std::vector<ExportTensor> tensors = export_tensors(options, model);
  BaseWeights weights(model, base);
  AdapterMerge merge(model, options.dtype, trained, weights);
  export_model(files, options, tensors, [&](const ExportPiece& piece, std::span<float> out) {
    if (!trained(piece.tensor, piece.begin, piece.end, out))
      weights.read(piece.tensor, piece.begin, piece.end, out);
    merge.add_adapter(piece, out);
  });
  return merge.rounding();
}

}  // namespace ftrun
