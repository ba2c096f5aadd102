#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "graph/layer_graph.h"

namespace ftrun::fixtures {

/// Runs a list over a memory that knows which value each of its bytes holds. Returns what a kernel
/// would have stumbled over, or "".
class OwnedMemory {
 public:
  OwnedMemory(const LayerGraph& graph, const ScratchPlan& plan)
      : graph_(graph), plan_(plan), owner_(static_cast<size_t>(plan.bytes), -1) {}

  std::string run(std::span<const Op> list) {
    for (const Op& op : list) {
      for (const ValueId id : op.in)
        if (!holds(id))
          return cat(op_text(graph_, op), ": ", graph_.at(id).name, " was overwritten");
      std::vector<ValueId> written = op.out;
      if (op.workspace >= 0) written.push_back(op.workspace);
      for (const ValueId id : written)
        if (clashes(op, id))
          return cat(op_text(graph_, op), ": ", graph_.at(id).name, " lies on an operand");
      for (const ValueId id : written) take(id);
      for (const ValueId id : written)
        if (!holds(id)) return cat(op_text(graph_, op), ": results share bytes");
    }
    return "";
  }

 private:
  bool in_scratch(ValueId id) const { return offset(id) >= 0; }
  int64_t offset(ValueId id) const { return plan_.offset[static_cast<size_t>(id)]; }

  bool holds(ValueId id) const {
    if (!in_scratch(id)) return true;
    for (int64_t b = 0; b < graph_.at(id).bytes(); ++b)
      if (owner_.at(static_cast<size_t>(offset(id) + b)) != id) return false;
    return true;
  }

  bool meets(ValueId a, ValueId b) const {
    return in_scratch(a) && in_scratch(b) && offset(a) < offset(b) + graph_.at(b).bytes() &&
           offset(b) < offset(a) + graph_.at(a).bytes();
  }

  bool clashes(const Op& op, ValueId out) const {
    for (size_t i = 0; i < op.in.size(); ++i) {
      const int operand = in_place_input(op.kind);
      const bool in_place = operand >= 0 && op.in[i] == op.in[static_cast<size_t>(operand)] &&
                            out == op.out[0] && offset(out) == offset(op.in[i]) &&
                            graph_.at(out).bytes() == graph_.at(op.in[i]).bytes();
      if (meets(op.in[i], out) && !in_place) return true;
    }
    return false;
  }

  void take(ValueId id) {
    if (!in_scratch(id)) return;
    for (int64_t b = 0; b < graph_.at(id).bytes(); ++b)
      owner_.at(static_cast<size_t>(offset(id) + b)) = id;
  }

  const LayerGraph& graph_;
  const ScratchPlan& plan_;
  std::vector<ValueId> owner_;
};

}  // namespace ftrun::fixtures
