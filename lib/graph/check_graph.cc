#include "graph/check_graph.h"

#include <algorithm>
#include <set>
#include <span>
#include <string>

#include "base/error.h"
#include "graph/layer_graph.h"
#include "graph/shapes.h"

namespace ftrun {

namespace {

bool is_given(ValueRole role, bool backward) {
  switch (role) {
    case ValueRole::kInput:
    case ValueRole::kParam:
      return true;
    case ValueRole::kSaved:
    case ValueRole::kOutputGrad:
      return backward;
    default:
      return false;
  }
}

/// ListCheck checks the operations of lists that run one after another, and tracks which values
/// exist.
class ListCheck {
 public:
  explicit ListCheck(const LayerGraph& graph) : graph_(graph) {}

  void run(std::span<const Op> list, bool backward) {
    for (const Op& op : list) {
      for (const ValueId id : op.in) read(op, id, backward);
      for (const ValueId id : op.out) write(op, id, backward);
      if (const std::string fault = shape_fault(graph_, op); !fault.empty())
        bug(cat(graph_.name, ": ", op_text(graph_, op), " ", fault));
    }
  }

  /// Ends the forward list. Its values no longer exist; those that it left for backward are given
  /// there.
  void end_forward() { defined_.clear(); }
  void end_input_grad() {
    std::erase_if(defined_, [&](ValueId id) { return graph_.at(id).role == ValueRole::kTemp; });
  }

 private:
  void read(const Op& op, ValueId id, bool backward) const {
    const Value& value = graph_.at(id);
    if (!is_given(value.role, backward) && !defined_.contains(id))
      bug(cat(graph_.name, ": ", op_text(graph_, op), " reads ", value.name, " before it exists"));
  }

  void write(const Op& op, ValueId id, bool backward) {
    const Value& value = graph_.at(id);
    // An operation that reads and writes the same value updates it in place.
    const bool changed = std::find(op.in.begin(), op.in.end(), id) != op.in.end();
    if (is_given(value.role, backward) || (!written_.insert(id).second && !changed))
      bug(cat(graph_.name, ": ", op_text(graph_, op), " writes ", value.name, " a second time"));
    defined_.insert(id);
  }

  const LayerGraph& graph_;
  std::set<ValueId> defined_;
  std::set<ValueId> written_;
};

}  // namespace

void check_graph(const LayerGraph& graph) {
  ListCheck interleaved(graph);
  interleaved.run(graph.forward, false);
  interleaved.end_forward();
  ListCheck deferred = interleaved;
  interleaved.run(graph.backward, true);
  deferred.run(graph.input_grad, true);
  deferred.end_input_grad();
  deferred.run(graph.weight_grad, true);
}

}  // namespace ftrun
