#include "model/tensor_table.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "graph/op_spec.h"
#include "ops/kinds.h"

namespace ftrun {

std::vector<TensorTable::Lora> TensorTable::lora(const LoraModule& module) {
  const LinearProduct& first = module.products.front();
  const int64_t rank = module.low.rank;
  const bool a_term = gradient_is_term(OpKind::kLoraUp, 1, 'O');
  const std::string a_name = lora_a_name(module.path);
  const TensorId a =
      add_a(first.by_outputs ? replicated(a_name, {rank, first.inputs}, split_, a_term)
                             : split_columns(a_name, {rank, first.inputs}, split_));
  std::vector<Lora> all;
  for (const ModulePart& part : parts_of(module.path, module.products)) {
    const int64_t outputs = part.product.outputs;
    const bool term = result_is_term(OpKind::kLinear, 0, 'I');
    Lora ids{a, add_b(by_outputs(part, lora_b_name(""), {outputs, rank}, term))};
    if (module.magnitudes)
      ids.magnitudes =
          add_magnitudes(by_outputs(part, lora_magnitude_name(""), {outputs}, term), module.low);
    all.push_back(ids);
  }
  return all;
}

TensorTable::Norm TensorTable::norm(const std::string& module, const ModelConfig& c) {
  if (!c.norm_weight) return {};
  const OpKind kind = c.norm == NormKind::kLayer ? OpKind::kLayerNorm : OpKind::kRmsNorm;
  const auto vector = [&](const char* end, size_t operand) {
    const bool term = split_.sequence && gradient_is_term(kind, operand, 'N');
    return add(replicated(module + end, {c.hidden}, split_, term));
  };
  Norm ids{vector(".weight", 1)};
  if (c.has_norm_bias()) ids.bias = vector(".bias", 2);
  return ids;
}

TensorId TensorTable::shared_head_norm(std::string name, int64_t size) {
  return add(
      replicated(std::move(name), {size}, split_, gradient_is_term(OpKind::kQkNorm, 1, 'H')));
}

TensorId TensorTable::own_head_norms(const std::string& module, int64_t heads, int64_t size,
                                     int copies) {
  const size_t star = module.find('*');
  const bool is_several = star != std::string::npos;
  TensorInfo tensor =
      split_rows(cat(is_several ? module.substr(0, star - 1) : module, ".heads.weight"),
                 {heads * size}, split_, copies);
  tensor.stored = {.name = module + ".weight",
                   .shape = is_several ? Dims{size} : Dims{heads, size},
                   .pieces = is_several ? heads : 0};
  return add(std::move(tensor));
}

std::vector<TensorTable::Linear> TensorTable::linear(const std::string& module,
                                                     const std::vector<LinearProduct>& products,
                                                     bool transposed) {
  std::vector<Linear> all;
  for (const ModulePart& part : parts_of(module, products, transposed)) {
    const LinearProduct& product = part.product;
    TensorInfo weight = product_weight(product, part.name(".weight"), split_);
    part.place(weight, ".weight");
    Linear ids{add(std::move(weight))};
    if (product.bias)
      ids.bias = add(
          by_outputs(part, ".bias", {product.outputs}, gradient_is_term(OpKind::kLinear, 2, 'I')));
    all.push_back(ids);
  }
  return all;
}

std::vector<TensorTable::ModulePart> TensorTable::parts_of(
    const std::string& module, const std::vector<LinearProduct>& products, bool transposed) {
  int64_t outputs = 0;
  for (const LinearProduct& product : products) outputs += product.outputs;
  const bool is_whole = products.size() == 1 && !transposed;
  std::vector<ModulePart> parts;
  int64_t first = 0;
  for (const LinearProduct& product : products) {
    parts.push_back({module, product, is_whole, transposed, outputs, first});
    first += product.run > 0 ? product.run : product.outputs;
  }
  return parts;
}

TensorInfo TensorTable::by_outputs(const ModulePart& part, std::string_view end, Dims shape,
                                   bool term) {
  const LinearProduct& product = part.product;
  TensorInfo tensor = product.by_outputs
                          ? split_rows(part.name(end), std::move(shape), split_, product.copies)
                          : replicated(part.name(end), std::move(shape), split_, term);
  part.place(tensor, end);
  return tensor;
}

TensorId TensorTable::add_a(TensorInfo tensor) {
  const auto rank = static_cast<double>(tensor.shape[0]);
  tensor.initial = init_ == LoraInit::kGaussian ? Initial{InitialSource::kNormal, 1.0 / rank}
                   : init_ == LoraInit::kOrthogonal
                       ? Initial{InitialSource::kOrthogonalA, kOrthogonalSize}
                       : as_linear(tensor);
  return add(std::move(tensor));
}

TensorId TensorTable::add_b(TensorInfo tensor) {
  tensor.initial = init_ == LoraInit::kBothUniform ? as_linear(tensor)
                   : init_ == LoraInit::kOrthogonal
                       ? Initial{InitialSource::kOrthogonalB, kOrthogonalSize}
                       : Initial{InitialSource::kZero};
  return add(std::move(tensor));
}

TensorId TensorTable::add_magnitudes(TensorInfo tensor, const LowRank& low) {
  tensor.initial = {InitialSource::kRowLengths, low.scale};
  return add(std::move(tensor));
}

std::vector<LinearProduct> products_of(const ProductModule& module,
                                       const std::vector<LinearProduct>& all) {
  std::vector<LinearProduct> found;
  for (const LinearProduct& product : all)
    if (std::count(module.products.begin(), module.products.end(), product.projection) > 0)
      found.push_back(product);
  return found;
}

BlockTensors add_block_tensors(TensorTable& table, const ModelConfig& c, const TensorSplit& split,
                               int64_t layer, const BlockAdapter& adapter) {
  const TensorNames& names = tensor_names(c.family);
  const std::vector<ProductModule> modules = product_modules(names);
  const std::vector<LinearProduct> products = block_products(c, split);
  BlockTensors ids;
  for (const ProductModule& module : modules) {
    const std::vector<LinearProduct> module_products = products_of(module, products);
    const auto added =
        table.linear(names.in_block(layer, module.name), module_products, names.transposed);
    for (size_t i = 0; i < module_products.size(); ++i)
      ids.products[static_cast<size_t>(module_products[i].projection)] = added[i];
    if (c.qk_norm == QkNorm::kNone || module.products.back() != Projection::kO) continue;
    const std::string q_norm = names.in_block(layer, names.q_norm);
    const std::string k_norm = names.in_block(layer, names.k_norm);
    if (c.qk_norm == QkNorm::kOwnWeights) {
      ids.q_norm = table.own_head_norms(q_norm, c.query_heads, c.head_size, 1);
      ids.k_norm = table.own_head_norms(k_norm, c.kv_heads, c.head_size, kv_copies(c, split));
    } else if (c.qk_norm == QkNorm::kAllHeads) {
      ids.q_norm = table.rows(q_norm + ".weight", {c.query_heads * c.head_size});
      ids.k_norm = table.rows(k_norm + ".weight", {c.kv_heads * c.head_size}, kv_copies(c, split));
    } else {
      ids.q_norm = table.shared_head_norm(q_norm + ".weight", c.head_size);
      ids.k_norm = table.shared_head_norm(k_norm + ".weight", c.head_size);
    }
  }
  if (c.input_norm)
    ids.input_norm = table.norm(names.in_block(layer, input_norm_name(names, c)), c);
  if (c.output_norms)
    ids.attention_output_norm = table.norm(names.in_block(layer, names.attention_output_norm), c);
  if (c.mlp_norm) ids.post_norm = table.norm(names.in_block(layer, post_norm_name(names, c)), c);
  if (c.output_norms)
    ids.mlp_output_norm = table.norm(names.in_block(layer, names.mlp_output_norm), c);
  for (const ProductModule& module : modules) {
    const LowRank& low = adapter.at(module.products.front());
    if (low.rank == 0) continue;
    const std::vector<LinearProduct> module_products = products_of(module, products);
    const auto added =
        table.lora({names.in_block(layer, module.name), low, adapter.magnitudes, module_products});
    for (size_t i = 0; i < module_products.size(); ++i)
      ids.lora[static_cast<size_t>(module_products[i].projection)] = added[i];
  }
  return ids;
}

}  // namespace ftrun
