#include "search/node_ranks.h"

#include "base/round_up.h"

namespace ftrun {

int64_t ranks_per_node(const Layout& layout, int64_t nodes) {
  return divide_up(layout.ranks(), nodes);
}

NodeSpan node_span_of(int64_t members, int64_t stride, const Layout& layout, int64_t nodes) {
  if (nodes == 1) return NodeSpan::kNone;
  const int64_t here = ranks_per_node(layout, nodes);
  if ((members - 1) * stride >= here) return NodeSpan::kAll;
  return here % (members * stride) == 0 ? NodeSpan::kNone : NodeSpan::kSome;
}

}  // namespace ftrun
