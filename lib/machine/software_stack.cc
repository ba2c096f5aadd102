#include "machine/software_stack.h"

#include <string_view>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "base/error.h"
#include "base/precision_name.h"
#include "graph/op_spec.h"
#include "ops/kinds.h"

namespace ftrun {
namespace {

/// Returns the member of SoftwareStack that scales a kind for which machine files say how much
/// slower small operations are (matrix multiplications and attention); null for other kinds.
double SoftwareStack::*efficiency_of(OpKind kind) {
  switch (op_spec(kind).work_class) {
    case WorkClass::kMatmul:
      return &SoftwareStack::matmul_efficiency;
    case WorkClass::kAttention:
      return &SoftwareStack::attention_efficiency;
    case WorkClass::kOther:
      break;
  }
  return nullptr;
}

/// Finds the slowdown curve for small operations of a kind: the kind's own in that dtype, else its
/// own in bf16, else that of linear in bf16. Returns null if the machine has none of them.
const Curve* small_work_curve(const Rates& rates, std::string_view kind, DType dtype) {
  const std::string narrow = cat(" ", precision_name(DType::kBF16));
  for (const std::string& name :
       {cat(kind, " ", precision_name(dtype)), cat(kind, narrow), "linear" + narrow})
    if (const auto found = rates.slowdowns.find(name); found != rates.slowdowns.end())
      return &found->second;
  return nullptr;
}

Rates apply_stack(const Rates& rates, const SoftwareStack& stack) {
  Rates changed = rates;
  changed.slowdowns.clear();
  changed.default_slowdown = 1 / stack.memory_efficiency;
  for (int k = 0; k < kOpKinds; ++k)
    for (const auto& [dtype, rate] : rates.matmul_flop_rates) {
      double SoftwareStack::*const efficiency = efficiency_of(static_cast<OpKind>(k));
      if (efficiency == nullptr) continue;
      const std::string_view kind = op_name(static_cast<OpKind>(k));
      std::vector<std::pair<double, double>> points;
      if (const Curve* curve = small_work_curve(rates, kind, dtype)) points = curve->points();
      if (points.empty()) points.emplace_back(1, 1);
      const double large = points.back().second;
      for (auto& [seconds, factor] : points) factor *= 1 / (large * (stack.*efficiency));
      changed.slowdowns[cat(kind, " ", precision_name(dtype))] = Curve(std::move(points));
    }
  return changed;
}

}  // namespace

Machine apply_stack(const Machine& machine, const SoftwareStack& stack) {
  Machine changed = machine;
  changed.name = cat(machine.name, " with ", stack.name);
  for (Rates& rates : changed.rates) rates = apply_stack(rates, stack);
  changed.recomputes_whole_layers = stack.recomputes_whole_layers;
  changed.intra_node_link.bandwidth *= stack.intra_node_efficiency;
  changed.inter_node_link.bandwidth *= stack.inter_node_efficiency;
  return changed;
}

}  // namespace ftrun
