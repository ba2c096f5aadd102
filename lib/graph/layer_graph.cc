#include "graph/layer_graph.h"

#include <sstream>

namespace ftrun {

int64_t element_count(const Dims& dims) {
  int64_t count = 1;
  for (const int64_t dim : dims) count *= dim;
  return count;
}

std::string_view port_name(Port port) {
  static constexpr std::string_view kNames[] = {
#define FTRUN_PORT(kind, name) #name,
#include "graph/ports.inc"
  };
  return kNames[static_cast<size_t>(port)];
}

std::optional<BatchValueKind> batch_value_kind(Port port) {
  for (const BatchPort& known : kBatchPorts)
    if (known.port == port) return known.kind;
  return std::nullopt;
}

std::vector<ValueId> LayerGraph::values_with_role(ValueRole role) const {
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
