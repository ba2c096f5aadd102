#include "model/tensor_table.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <variant>

#include "graph/op_spec.h"
#include "ops/kinds.h"

namespace ftrun {

std::vector<TensorTable::LoraIds> TensorTable::add_lora(const LoraModule& module) {
  const LinearLayer& first = module.linear_layers.front();
  const int64_t rank = module.low_rank.rank;
  const bool a_is_partial = gradient_is_partial(OpKind::kLoraUp, 1, 'O');
  const std::string a_name = lora_a_name(module.path);
  const TensorId a = add_lora_a(first.is_split_by_outputs
                                    ? replicate(a_name, {rank, first.inputs}, split_, a_is_partial)
                                    : split_columns(a_name, {rank, first.inputs}, split_));
  std::vector<LoraIds> all;
  for (const ModulePart& part : parts_of(module.path, module.linear_layers)) {
    const int64_t outputs = part.linear.outputs;
    const bool partial = result_is_partial(OpKind::kLinear, 0, 'I');
    LoraIds ids{a, add_lora_b(output_row_tensor(part, lora_b_name(""), {outputs, rank}, partial))};
    if (module.magnitudes)
      ids.magnitudes = add_magnitudes(
          output_row_tensor(part, lora_magnitude_name(""), {outputs}, partial), module.low_rank);
    all.push_back(ids);
  }
  return all;
}

TensorTable::NormIds TensorTable::add_norm(const std::string& module, const ModelConfig& c) {
  if (!c.norm_weight) return {};
  const OpKind kind = c.norm == NormKind::kLayer ? OpKind::kLayerNorm : OpKind::kRmsNorm;
  const auto vector = [&](const char* end, size_t operand) {
    const bool partial = split_.sequence && gradient_is_partial(kind, operand, 'N');
    return add(replicate(module + end, {c.hidden}, split_, partial));
  };
  NormIds ids{vector(".weight", 1)};
  if (c.has_norm_bias()) ids.bias = vector(".bias", 2);
  return ids;
}

TensorId TensorTable::add_shared_head_norm(std::string name, int64_t size) {
  return add(
      replicate(std::move(name), {size}, split_, gradient_is_partial(OpKind::kQkNorm, 1, 'H')));
}

TensorId TensorTable::add_per_head_norms(const std::string& module, int64_t heads, int64_t size,
                                         int copies) {
  const size_t star = module.find('*');
  const bool is_several = star != std::string::npos;
  TensorInfo tensor =
      split_rows(cat(is_several ? module.substr(0, star - 1) : module, ".heads.weight"),
                 {heads * size}, split_, copies);
  tensor.stored_location = {.name = module + ".weight",
                            .shape = is_several ? Dims{size} : Dims{heads, size},
                            .tensor_count = is_several ? heads : 0};
  return add(std::move(tensor));
}

std::vector<TensorTable::LinearIds> TensorTable::add_linear(
    const std::string& module, const std::vector<LinearLayer>& linear_layers, bool transposed) {
  std::vector<LinearIds> all;
  for (const ModulePart& part : parts_of(module, linear_layers, transposed)) {
    const LinearLayer& linear = part.linear;
    TensorInfo weight = linear_weight(linear, part.name(".weight"), split_);
    part.record_location(weight, ".weight");
    LinearIds ids{add(std::move(weight))};
    if (linear.bias)
      ids.bias = add(output_row_tensor(part, ".bias", {linear.outputs},
                                       gradient_is_partial(OpKind::kLinear, 2, 'I')));
    all.push_back(ids);
  }
  return all;
}

std::vector<TensorTable::ModulePart> TensorTable::parts_of(
    const std::string& module, const std::vector<LinearLayer>& linear_layers, bool transposed) {
  int64_t outputs = 0;
  for (const LinearLayer& linear : linear_layers) outputs += linear.outputs;
  const bool is_whole = linear_layers.size() == 1 && !transposed;
  std::vector<ModulePart> parts;
  int64_t first = 0;
  for (const LinearLayer& linear : linear_layers) {
    parts.push_back({module, linear, is_whole, transposed, outputs, first});
    first += linear.rows_together > 0 ? linear.rows_together : linear.outputs;
  }
  return parts;
}

TensorInfo TensorTable::output_row_tensor(const ModulePart& part, std::string_view end, Dims shape,
                                          bool gradient_is_partial) {
  const LinearLayer& linear = part.linear;
  TensorInfo tensor =
      linear.is_split_by_outputs
          ? split_rows(part.name(end), std::move(shape), split_, linear.copies)
          : replicate(part.name(end), std::move(shape), split_, gradient_is_partial);
  part.record_location(tensor, end);
  return tensor;
}

TensorId TensorTable::add_lora_a(TensorInfo tensor) {
  const auto rank = static_cast<double>(tensor.shape[0]);
  tensor.initial = init_ == LoraInit::kGaussian ? InitialValues{InitialSource::kNormal, 1.0 / rank}
                   : init_ == LoraInit::kOrthogonal
                       ? InitialValues{InitialSource::kOrthogonalA, kOrthogonalScale}
                       : linear_init(tensor);
  return add(std::move(tensor));
}

TensorId TensorTable::add_lora_b(TensorInfo tensor) {
  tensor.initial = init_ == LoraInit::kBothUniform ? linear_init(tensor)
                   : init_ == LoraInit::kOrthogonal
                       ? InitialValues{InitialSource::kOrthogonalB, kOrthogonalScale}
                       : InitialValues{InitialSource::kZero};
  return add(std::move(tensor));
}

TensorId TensorTable::add_magnitudes(TensorInfo tensor, const LowRankAdapter& low_rank) {
  tensor.initial = {InitialSource::kRowNorms, low_rank.scale};
  return add(std::move(tensor));
}

std::vector<LinearLayer> linear_layers_of(const LinearModule& module,
                                          const std::vector<LinearLayer>& linear_layers) {
  std::vector<LinearLayer> layers_of_module;
  for (const LinearLayer& linear : linear_layers)
    if (std::count(module.projections.begin(), module.projections.end(), linear.projection) > 0)
      layers_of_module.push_back(linear);
  return layers_of_module;
}

BlockTensors add_block_tensors(TensorTable& table, const ModelConfig& c, const TensorSplit& split,
                               int64_t layer, const BlockAdapter& adapter) {
  const TensorNames& names = tensor_names(c.family);
  const std::vector<LinearModule> modules = linear_modules(names);
  const std::vector<LinearLayer> linear_layers = block_linear_layers(c, split);
  BlockTensors ids;
  for (const LinearModule& module : modules) {
    const std::vector<LinearLayer> of_module = linear_layers_of(module, linear_layers);
    const auto added =
        table.add_linear(names.in_block(layer, module.name), of_module, names.transposed);
    for (size_t i = 0; i < of_module.size(); ++i)
      ids.linear[static_cast<size_t>(of_module[i].projection)] = added[i];
    if (c.qk_norm == QkNorm::kNone || module.projections.back() != Projection::kO) continue;
    const std::string q_norm = names.in_block(layer, names.q_norm);
    const std::string k_norm = names.in_block(layer, names.k_norm);
    if (c.qk_norm == QkNorm::kLayerNormByHead) {
      ids.q_norm = table.add_per_head_norms(q_norm, c.query_heads, c.head_size, 1);
      ids.k_norm = table.add_per_head_norms(k_norm, c.kv_heads, c.head_size, kv_copies(c, split));
    } else if (c.qk_norm == QkNorm::kAllHeads) {
      ids.q_norm = table.add_split_by_rows(q_norm + ".weight", {c.query_heads * c.head_size});
      ids.k_norm = table.add_split_by_rows(k_norm + ".weight", {c.kv_heads * c.head_size},
                                           kv_copies(c, split));
    } else {
      ids.q_norm = table.add_shared_head_norm(q_norm + ".weight", c.head_size);
      ids.k_norm = table.add_shared_head_norm(k_norm + ".weight", c.head_size);
    }
  }
  for (const BlockParameters& each : kBlockParameters) {
    const auto* const norm = std::get_if<BlockNorm>(&each.kind);
    if (norm == nullptr || !has_norm(c, *norm)) continue;
    ids.norms[static_cast<size_t>(*norm)] =
        table.add_norm(names.in_block(layer, module_name(names, c, *norm)), c);
  }
  for (const LinearModule& module : modules) {
    const LowRankAdapter& low_rank = adapter.at(module.projections.front());
    if (low_rank.rank == 0) continue;
    const std::vector<LinearLayer> of_module = linear_layers_of(module, linear_layers);
    const auto added = table.add_lora(
        {names.in_block(layer, module.name), low_rank, adapter.magnitudes, of_module});
    for (size_t i = 0; i < of_module.size(); ++i)
      ids.lora[static_cast<size_t>(of_module[i].projection)] = added[i];
  }
  return ids;
}

}  // namespace ftrun
