#include "exec/nonfinite.h"

#include <cmath>
#include <vector>

#include "base/error.h"
#include "kernels/kernels.h"
#include "program/step_builder.h"

namespace ftrun {
namespace {

/// Names of the tensors that hold NaN or infinity, in forward order.
std::vector<std::string> nonfinite_tensors(const ModelDescription& model,
                                           const Partition& partition, const FlatLayout& layout,
                                           const float* flat) {
  std::vector<std::string> names;
  for (const Unit& unit : partition.units)
    for (const Slice& slice : unit.slices)
      if (!std::isfinite(
              sum_of_squares(flat + layout.at(unit.id) + slice.position_in_unit, slice.extent)))
        names.push_back(model.tensor(slice.tensor).name);
  return names;
}

std::string and_others(size_t count) {
  return count > 1 ? cat(" (and ", count - 1, " more)") : "";
}

}  // namespace

std::string nonfinite_place(const ModelDescription& model, const Partition& partition,
                            const RankMemory& memory) {
  const StepLayouts layouts = step_layouts(partition);
  const auto at = [&](const char* name) {
    return reinterpret_cast<const float*>(memory.persistent(name));
  };
  const auto weights =
      nonfinite_tensors(model, partition, layouts.parameters, at(buffer_names::kParameters));
  if (!weights.empty())
    return cat("the weight ", weights.front(), and_others(weights.size()), " is not finite");
  const auto gradients =
      nonfinite_tensors(model, partition, layouts.gradients, at(buffer_names::kGradients));
  if (gradients.empty()) return "";
  // Backward runs from the loss to the embedding.
  return cat("the gradient of ", gradients.back(), and_others(gradients.size()), " is not finite");
}

}  // namespace ftrun
