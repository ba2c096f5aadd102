#include "graph/layer_graph.h"

#include <algorithm>
#include <array>
#include <set>
#include <sstream>

#include "base/error.h"
#include "graph/shapes.h"

namespace ftrun {

int64_t element_count(const Dims& dims) {
  int64_t count = 1;
  for (const int64_t dim : dims) count *= dim;
  return count;
}

std::string_view port_name(Port port) {
  static constexpr std::array<std::string_view, 9> kNames{
      "none", "tokens", "positions", "starts", "labels", "hidden", "rope", "logits", "loss"};
  return kNames[static_cast<size_t>(port)];
}

std::vector<ValueId> LayerGraph::with_role(ValueRole role) const {
  std::vector<ValueId> found;
  for (size_t i = 0; i < values.size(); ++i)
    if (values[i].role == role) found.push_back(static_cast<ValueId>(i));
  return found;
}

ValueId LayerGraph::find(ValueRole role, Port port) const {
  for (size_t i = 0; i < values.size(); ++i)
    if (values[i].role == role && values[i].port == port) return static_cast<ValueId>(i);
  return -1;
}

namespace {

bool is_given(ValueRole role, bool backward) {
  switch (role) {
    case ValueRole::kInput:
    case ValueRole::kParam: return true;
    case ValueRole::kSaved:
    case ValueRole::kOutputGrad: return backward;
    default: return false;
  }
}

void check_list(const LayerGraph& graph, std::span<const Op> list, bool backward, std::set<ValueId>& written) {
  std::set<ValueId> defined;
  for (const Op& op : list) {
    for (const ValueId id : op.in) {
      const Value& value = graph.at(id);
      if (!is_given(value.role, backward) && !defined.contains(id))
        bug(cat(graph.name, ": ", op_text(graph, op), " reads ", value.name, " before it exists"));
    }
    for (const ValueId id : op.out) {
      const Value& value = graph.at(id);
      // Read and written by one operation: it changes what is there.
      const bool changed = std::find(op.in.begin(), op.in.end(), id) != op.in.end();
      if (is_given(value.role, backward) || (!written.insert(id).second && !changed))
        bug(cat(graph.name, ": ", op_text(graph, op), " writes ", value.name, " a second time"));
      defined.insert(id);
    }
    if (const std::string fault = shape_fault(graph, op); !fault.empty())
      bug(cat(graph.name, ": ", op_text(graph, op), " ", fault));
  }
}

}  // namespace

void check_graph(const LayerGraph& graph) {
  std::set<ValueId> written;
  check_list(graph, graph.forward, false, written);
  check_list(graph, graph.backward, true, written);
}

std::string op_text(const LayerGraph& graph, const Op& op) {
  std::ostringstream out;
  const auto put = [&](ValueId id) {
    const Value& value = graph.at(id);
    out << ' ' << value.name << ":[";
    for (size_t i = 0; i < value.dims.size(); ++i) out << (i > 0 ? "," : "") << value.dims[i];
    out << ']';
  };
  out << op_name(op.kind);
  for (const ValueId id : op.in) put(id);
  out << " ->";
  for (const ValueId id : op.out) put(id);
  return out.str();
}

}  // namespace ftrun
