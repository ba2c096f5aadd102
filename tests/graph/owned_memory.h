#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "graph/layer_graph.h"
#include "graph/scratch.h"

namespace ftrun::testing {

/// OwnedMemory runs a list in a memory that remembers which value each byte holds. It returns the
/// first fault of a kernel, or of a collective that runs concurrently until its result is read; ""
/// if there is none.
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
        if (overwrites_input(op, id))
          return cat(op_text(graph_, op), ": ", graph_.at(id).name, " lies on an operand");
      for (const ValueId id : written) claim(id);
      for (const ValueId id : written)
        if (!holds(id)) return cat(op_text(graph_, op), ": results share bytes");
      end_read_by(op);
      if (is_collective(op.kind)) under_way_.push_back(&op);
      for (const Op* collective : under_way_)
        if (!keeps_operands(*collective))
          return cat(op_text(graph_, op), ": overwrites an operand of ",
                     op_text(graph_, *collective));
    }
    return "";
  }

  /// Marks a value as present before the list begins.
  void mark_present(ValueId id) { claim(id); }

 private:
  /// Ends the collective whose result an operation reads, and all collectives before it, because
  /// they run in order.
  void end_read_by(const Op& op) {
    if (is_collective(op.kind)) return;
    for (size_t i = under_way_.size(); i-- > 0;)
      if (std::find(op.in.begin(), op.in.end(), under_way_[i]->out[0]) != op.in.end()) {
        under_way_.erase(under_way_.begin(),
                         under_way_.begin() + static_cast<std::ptrdiff_t>(i) + 1);
        return;
      }
  }

  bool keeps_operands(const Op& op) const {
    const bool in_place = offset(op.in[0]) == offset(op.out[0]);
    return holds(op.out[0]) && (in_place || holds(op.in[0]));
  }

  bool in_scratch(ValueId id) const { return offset(id) >= 0; }
  int64_t offset(ValueId id) const { return plan_.offset[static_cast<size_t>(id)]; }

  bool holds(ValueId id) const {
    if (!in_scratch(id)) return true;
    for (int64_t b = 0; b < graph_.at(id).bytes(); ++b)
      if (owner_.at(static_cast<size_t>(offset(id) + b)) != id) return false;
    return true;
  }

  bool overlap(ValueId a, ValueId b) const {
    return in_scratch(a) && in_scratch(b) && offset(a) < offset(b) + graph_.at(b).bytes() &&
           offset(b) < offset(a) + graph_.at(a).bytes();
  }

  bool overwrites_input(const Op& op, ValueId out) const {
    for (size_t i = 0; i < op.in.size(); ++i) {
      if (op.in[i] == out) continue;  // changed in place
      const bool in_place = op.in[i] == in_place_input(op) && out == op.out[0] &&
                            offset(out) == offset(op.in[i]) &&
                            graph_.at(out).bytes() == graph_.at(op.in[i]).bytes();
      if (overlap(op.in[i], out) && !in_place) return true;
    }
    return false;
  }

  void claim(ValueId id) {
    if (!in_scratch(id)) return;
    for (int64_t b = 0; b < graph_.at(id).bytes(); ++b)
      owner_.at(static_cast<size_t>(offset(id) + b)) = id;
  }

  const LayerGraph& graph_;
  const ScratchPlan& plan_;
  std::vector<ValueId> owner_;
  std::vector<const Op*> under_way_;
};

}  // namespace ftrun::testing
