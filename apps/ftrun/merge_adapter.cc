#include "merge_adapter.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <vector>

#include "base/error.h"
#include "base/packed_values.h"
#include "checkpoint/weight_conversion.h"

namespace ftrun {
namespace {

/// The adapter of one matrix [outputs, inputs].
struct Adapted {
  std::string module;
  int64_t inputs = 0;
  LowRank low;
};

std::map<std::string, Adapted> adapted_matrices(const ModelDescription& model) {
  std::map<std::string, int64_t> inputs;
  for (const TensorInfo& tensor : model.tensors)
    if (tensor.shape.size() == 2) inputs[tensor.name] = tensor.shape[1];
  std::map<std::string, Adapted> all;
  for (int64_t layer = 0; layer < model.block_count; ++layer)
    for (size_t p = 0; p < kProjections; ++p) {
      const LowRank& low = model.adapter.block(layer).of[p];
      if (low.rank == 0) continue;
      const std::string module = projection_module(layer, static_cast<Projection>(p));
      all[module + ".weight"] = {module, inputs.at(module + ".weight"), low};
    }
  return all;
}

/// A base as it is trained on: the numbers that its packed weights stand for.
class Base {
 public:
  Base(const ModelDescription& model, const ModelFolder& folder, int64_t piece_elements) : format_(model.dtypes.packed), folder_(folder) {
    for (const Layer& layer : model.layers)
      for (const GraphParam& param : layer.params)
        for (const TensorId id : param.tensors)
          if (param.packed) packed_[model.tensor(id).name] = model.tensor(id).shape;
    if (packed_.empty()) return;
    require(piece_elements % kPackedRecord == 0, "pieces of whole records");
    records_.resize(static_cast<size_t>(format_.bytes(piece_elements)));
  }

  /// A piece, one tensor after the other.
  void read(const ExportPiece& piece, std::span<float> out) {
    const auto found = packed_.find(piece.tensor);
    if (found != packed_.end() && piece.tensor != tensor_) scan(piece.tensor, found->second, out.size());
    folder_.read_f32(piece.tensor, piece.begin, piece.end, out);
    if (found == packed_.end()) return;
    pack_values(format_, *scales_, piece.begin, out, 0, records_.data());
    unpack_values(format_, records_.data(), 0, out);
  }

 private:
  void scan(const std::string& tensor, const Dims& shape, size_t at_once) {
    tensor_ = tensor;
    std::vector<float> values(at_once);
    scales_ = scales_of(format_, {tensor, element_count(shape), shape.back()}, static_cast<int64_t>(at_once), [&](int64_t begin, int64_t end) {
      const std::span<float> some(values.data(), static_cast<size_t>(end - begin));
      folder_.read_f32(tensor, begin, end, some);
      return std::span<const float>(some);
    });
  }

  const PackedFormat format_;
  const ModelFolder& folder_;
  std::map<std::string, Dims> packed_;
  std::vector<std::byte> records_;
  /// Of the tensor that is read.
  std::string tensor_;
  std::optional<PackScales> scales_;
};

/// Adds adapters to what is read of a base, one matrix after the other.
class Merge {
 public:
  Merge(const ModelDescription& model, DType dtype, const ReadTrained& trained)
      : adapted_(adapted_matrices(model)), dtype_(dtype), trained_(trained) {}

  void add(const ExportPiece& piece, std::span<float> out) {
    const auto found = adapted_.find(piece.tensor);
    if (found == adapted_.end()) return;
    const Adapted& adapted = found->second;
    if (adapted.module != module_) begin(adapted);
    const int64_t width = adapted.inputs;
    for (int64_t at = piece.begin; at < piece.end;) {
      const int64_t row = at / width, first = at % width, last = std::min(width, first + piece.end - at);
      add_row(adapted, row, first, last, out.subspan(static_cast<size_t>(at - piece.begin), static_cast<size_t>(last - first)));
      at += last - first;
    }
    note_loss();
  }

  const MergeLoss& loss() const { return loss_; }

 private:
  void begin(const Adapted& adapted) {
    module_ = adapted.module;
    delta_squares_ = error_squares_ = 0;
    a_.resize(static_cast<size_t>(adapted.low.rank * adapted.inputs));
    b_.resize(static_cast<size_t>(adapted.low.rank));
    row_.resize(static_cast<size_t>(adapted.inputs));
    require(trained_(lora_a_name(module_), 0, adapted.low.rank * adapted.inputs, a_), "the adapter has its matrices");
  }

  /// Columns [first, last) of a row of W + scale B A.
  void add_row(const Adapted& adapted, int64_t row, int64_t first, int64_t last, std::span<float> out) {
    require(trained_(lora_b_name(module_), row * adapted.low.rank, (row + 1) * adapted.low.rank, b_), "the adapter has its matrices");
    std::fill(row_.begin(), row_.end(), 0.0);
    for (int64_t k = 0; k < adapted.low.rank; ++k)
      for (int64_t i = first; i < last; ++i)
        row_[static_cast<size_t>(i)] += static_cast<double>(b_[static_cast<size_t>(k)]) * a_[static_cast<size_t>(k * adapted.inputs + i)];
    for (int64_t i = first; i < last; ++i) {
      float& value = out[static_cast<size_t>(i - first)];
      const double delta = adapted.low.scale * row_[static_cast<size_t>(i)], sum = value + delta;
      value = static_cast<float>(sum);
      const float stored = dtype_ == DType::kBF16 ? f32_from_bf16(bf16_from_f32(value)) : value;
      delta_squares_ += delta * delta;
      error_squares_ += (stored - sum) * (stored - sum);
    }
  }

  void note_loss() {
    const double share = delta_squares_ > 0 ? std::sqrt(error_squares_ / delta_squares_) : 0;
    if (share > loss_.share) loss_ = {share, module_};
  }

  const std::map<std::string, Adapted> adapted_;
  DType dtype_;
  const ReadTrained& trained_;
  std::string module_;
  std::vector<float> a_, b_;
  std::vector<double> row_;
  double delta_squares_ = 0, error_squares_ = 0;
  MergeLoss loss_;
};

}  // namespace

MergeLoss export_merged(FileSystem& files, const ExportOptions& options, const ModelDescription& model, const ModelFolder& base,
                        const ReadTrained& trained) {
  std::vector<ExportTensor> tensors;
  for (const TensorInfo& tensor : model.tensors)
    if (!is_lora_name(tensor.name)) tensors.push_back({tensor.name, tensor.shape});
  Merge merge(model, options.dtype, trained);
  Base read_base(model, base, options.piece_elements);
  export_model(files, options, tensors, [&](const ExportPiece& piece, std::span<float> out) {
    if (!trained(piece.tensor, piece.begin, piece.end, out)) read_base.read(piece, out);
    merge.add(piece, out);
  });
  return merge.loss();
}

}  // namespace ftrun
