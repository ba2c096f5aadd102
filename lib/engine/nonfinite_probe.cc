#include "engine/nonfinite_probe.h"

#include <set>
#include <vector>

#include "base/error.h"
#include "program/layer_instr.h"

namespace ftrun {
namespace {

/// Returns the values that an instruction computes for later instructions of its list.
std::set<ValueId> values_for_later(const LayerGraph& graph, const Instr& instr) {
  const std::vector<Op>& list = op_list_of(graph, instr.kind);
  std::set<ValueId> computed;
  for (const Op& op : ops_of(graph, instr)) computed.insert(op.out.begin(), op.out.end());
  std::set<ValueId> later;
  for (auto op = list.begin() + instr.ops().first_op + instr.ops().op_count; op != list.end(); ++op)
    for (const ValueId id : op->in)
      if (computed.contains(id)) later.insert(id);
  return later;
}

}  // namespace

void NonfiniteProbe::check(const Instr& instr) {
  if (location_.instr >= 0) return;
  const LayerGraph& graph = model_.graphs[static_cast<size_t>(instr.ops().graph)];
  const std::set<ValueId> later = values_for_later(graph, instr);
  for (const Binding& binding : instr.ops().bindings) {
    const Value& value = graph.at(binding.value);
    const bool leaves =
        later.contains(binding.value) ||
        (instr.kind == InstrKind::kForward
             ? value.role == ValueRole::kOutput
             : value.role == ValueRole::kInputGrad || value.role == ValueRole::kParamGrad);
    const bool can_be_nonfinite = value.dtype == DType::kF64 || value.dtype == DType::kF32 ||
                                  value.dtype == DType::kBF16 || value.dtype == DType::kF16;
    TypedSpan numbers = span_of(program_, memory_, binding.range);
    numbers.dtype = value.dtype;
    numbers.count = binding.range.bytes / dtype_bytes(value.dtype);
    if (!leaves || !can_be_nonfinite || device_.is_finite(instr.lane, numbers)) continue;
    location_.instr = static_cast<InstrId>(&instr - program_.instrs.data());
    const std::string layer =
        instr.layer < 0 ? graph.name : model_.layers[static_cast<size_t>(instr.layer)].name;
    location_.text =
        cat(instr_label(instr), " (", layer, "): ", value.name, nonfinite_weights(instr));
    return;
  }
}

/// Returns "; the weight model.norm.weight is not finite" for each weight of the layer that is not
/// finite; "" if all are finite.
std::string NonfiniteProbe::nonfinite_weights(const Instr& instr) const {
  std::string found;
  if (instr.layer < 0) return found;
  for (const GraphParam& param : model_.layers[static_cast<size_t>(instr.layer)].params)
    for (const Binding& binding : instr.ops().bindings) {
      if (binding.value != param.value) continue;
      const TypedSpan weights = span_of(program_, memory_, binding.range);
      int64_t first = 0;
      for (const TensorId id : param.tensors) {
        const TensorInfo& tensor = model_.tensor(id);
        if (!device_.is_finite(instr.lane, weights.subspan(first, tensor.local_numel())))
          found += cat("; the weight ", tensor.name, " is not finite");
        first += tensor.local_numel();
      }
    }
  return found;
}

}  // namespace ftrun
