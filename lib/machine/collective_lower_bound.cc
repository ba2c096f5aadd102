#include "machine/collective_lower_bound.h"

#include <algorithm>

#include "base/error.h"

namespace ftrun {

double collective_seconds_lower_bound(const Machine& machine, std::string_view kind, double bytes,
                                      int ranks, NodeSpan node_span) {
  if (ranks < 2 || bytes <= 0) return 0;
  const auto seconds_over = [&](const Link& link) {
    if (link.bandwidth == 0) return 0.0;
    Machine bare;
    bare.intra_node_link = {0, link.bandwidth};
    return collective_seconds(bare, kind, bytes, ranks, ranks);
  };
  // A ring enters a node through the links of one rank up to those of all devices of the node. The
  // smaller of the two times is the lower bound.
  const double across = std::min(seconds_over(machine.inter_node_link),
                                 seconds_over(link_between_nodes(machine, machine.devices)));
  if (node_span == NodeSpan::kAll) return across;
  double seconds = seconds_over(machine.intra_node_link);
  if (const auto found = machine.collectives.find(cat(kind, " ", ranks));
      found != machine.collectives.end()) {
    double best = 0;
    for (const auto& [x, y] : found->second.points()) best = std::max(best, x / y);
    seconds = bytes / best;
  }
  return node_span == NodeSpan::kSome ? std::min(seconds, across) : seconds;
}

}  // namespace ftrun
