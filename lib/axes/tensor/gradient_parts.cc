#include "axes/tensor/gradient_parts.h"

#include "axes/tensor/split.h"
#include "base/error.h"

namespace ftrun {

std::map<GroupId, std::vector<UnitRange>> tensor_partial_gradients(const Unit& unit,
                                                                   const ModelDescription& model,
                                                                   const StateOptions& options,
                                                                   const GroupCollection& groups) {
  std::map<GroupId, std::vector<UnitRange>> parts;
  for (const TensorSlice& slice : unit.slices) {
    const TensorInfo& tensor = model.tensor(slice.tensor);
    if (tensor.copies == 1 || !tensor.partial_gradient) continue;
    const bool is_whole_group = tensor.copies == options.tensor.count;
    parts[is_whole_group ? groups.tensor : groups.tensor_copies].push_back(
        {slice.position_in_unit, slice.position_in_unit + slice.extent});
  }
  return parts;
}

std::vector<GradientNormRange> gradient_norm_ranges(const Unit& unit,
                                                    const ModelDescription& model) {
  if (!unit.trainable) return {};
  std::vector<GradientNormRange> ranges;
  for (const TensorSlice& slice : unit.slices) {
    const int copies = model.tensor(slice.tensor).copies;
    if (!ranges.empty() && ranges.back().copies == copies) continue;
    const int64_t begin = ranges.empty() ? 0 : slice.position_in_unit;
    if (!ranges.empty()) ranges.back().elements.end = begin;
    ranges.push_back({{begin, unit.padded_numel}, copies});
  }
  require(!ranges.empty(), "a unit holds tensors");
  return ranges;
}

BlockMap block_map(const TensorInfo& tensor, const TensorSlice& slice, int rank) {
  const Box box = box_of_rank(tensor, rank);
  BlockMap map{.offset = slice.offset};
  int64_t inner = 1;
  for (size_t d = tensor.shape.size(); d-- > 0; inner *= tensor.shape[d]) {
    if (box.extent[d] == tensor.shape[d]) continue;
    require(map.row_elements == BlockMap::kEndless,
            "tensor ranks cut a tensor along one dimension");
    map.first_element = box.offset[d] * inner;
    map.rank_row_elements = box.extent[d] * inner;
    map.row_elements = tensor.shape[d] * inner;
  }
  return map;
}

}  // namespace ftrun
