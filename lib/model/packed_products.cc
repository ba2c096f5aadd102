#include "model/packed_products.h"

#include <string>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "model/adapter.h"
#include "model/tensor_split.h"

namespace ftrun {
namespace {

bool has_whole_rows(const TensorInfo& tensor) { return tensor.local.extent[1] == tensor.shape[1]; }

/// Whether runs of `count` elements of what the rank has are such runs of the whole tensor, counted from both first ones.
bool keeps_runs(const TensorInfo& tensor, int64_t count) {
  const int64_t columns = tensor.shape[1];
  if (has_whole_rows(tensor)) return tensor.local.offset[0] * columns % count == 0;
  return columns % count == 0 && tensor.local.offset[1] % count == 0 && tensor.local.extent[1] % count == 0;
}

std::string fault(const TensorInfo& tensor, const PackedFormat& format, bool ends_matrix) {
  const int64_t columns = tensor.local.extent[1];
  if (format.kind == PackedFormat::Kind::kInt8 && columns % format.block != 0)
    return cat("rows of ", columns, " elements are no multiple of ", format.block);
  if (!keeps_runs(tensor, format.block))
    return cat("ranks' parts of ", tensor.local.extent[0], " x ", columns, " cut blocks of ", format.block, " elements");
  if (!ends_matrix && tensor.local_numel() % kPackedRecord != 0)
    return cat(tensor.local_numel(), " elements are no multiple of ", kPackedRecord, ", and another matrix is multiplied with it");
  return "";
}

}  // namespace

PackedFormat fit_packed(const ModelConfig& config, const TensorSplit& split, PackedFormat format) {
  if (!format) return format;
  const int64_t q_rows = config.query_heads * config.head_size, kv_rows = config.kv_heads * config.head_size;
  const int copies = kv_copies(config, split);
  const auto name = [](Projection p) { return std::string(projection_name(p)); };
  // The last of those that are multiplied as one matrix ends it.
  const std::vector<std::pair<TensorInfo, bool>> products{
      {split_rows(name(Projection::kQ), {q_rows, config.hidden}, split), false},
      {split_rows(name(Projection::kK), {kv_rows, config.hidden}, split, copies), false},
      {split_rows(name(Projection::kV), {kv_rows, config.hidden}, split, copies), true},
      {split_columns(name(Projection::kO), {config.hidden, q_rows}, split), true},
      {split_rows(name(Projection::kGate), {config.feed_forward, config.hidden}, split), false},
      {split_rows(name(Projection::kUp), {config.feed_forward, config.hidden}, split), true},
      {split_columns(name(Projection::kDown), {config.hidden, config.feed_forward}, split), true}};
  std::vector<std::string> problems;
  for (const auto& [tensor, ends_matrix] : products) {
    const std::string problem = fault(tensor, format, ends_matrix);
    if (!problem.empty()) problems.push_back(cat(tensor.name, ": ", problem));
    if (format.double_quantized && !keeps_runs(tensor, kPackedRecord)) format.holds_scales = true;
  }
  if (!problems.empty())
    throw Error(ExitCode::kUsage,
                cat("quantization: the model's matrices cannot be packed so", split.degree > 1 ? cat(" on ", split.degree, " tensor-parallel ranks") : "",
                    "\n  ", join(problems, "\n  ")),
                split.degree > 1 ? "use another parallel.tensor, or leave quantization out" : "leave quantization out");
  return format;
}

}  // namespace ftrun
