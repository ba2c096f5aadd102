#include "machine/machine.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/round_up.h"

namespace ftrun {

Curve::Curve(std::vector<std::pair<double, double>> points) : points_(std::move(points)) {
  for (size_t i = 0; i < points_.size(); ++i) {
    require(points_[i].first > 0 && points_[i].second > 0, "points of a curve are above 0");
    require(i == 0 || points_[i - 1].first < points_[i].first, "points of a curve ascend");
  }
}

double Curve::at(double x) const {
  require(!points_.empty(), "a curve has points");
  if (x <= points_.front().first) return points_.front().second;
  if (x >= points_.back().first) return points_.back().second;
  const auto after =
      std::upper_bound(points_.begin(), points_.end(), x,
                       [](double at, const auto& point) { return at < point.first; });
  const auto& [x1, y1] = *after;
  const auto& [x0, y0] = *(after - 1);
  const double share = std::log(x / x0) / std::log(x1 / x0);
  return y0 * std::pow(y1 / y0, share);
}

const Rates& Machine::rates_of(int ranks) const {
  require(!rates.empty(), "a machine has rates");
  for (const Rates& one : rates)
    if (one.ranks >= ranks) return one;
  return rates.back();
}

double seconds_with_slowdown(const Rates& rates, const std::string& kind, double ideal) {
  const auto found = rates.slowdowns.find(kind);
  return ideal *
         (found == rates.slowdowns.end() ? rates.default_slowdown : found->second.at(ideal));
}

namespace {

/// Returns the seconds that a curve gives for `bytes`. Beyond the last point they grow in
/// proportion to the bytes.
double seconds_at(const Curve& curve, double bytes) {
  const double last = curve.points().back().first;
  return bytes <= last ? curve.at(bytes) : curve.at(last) * bytes / last;
}

/// Computes the seconds of a collective in a ring of `ranks` ranks. `far_hops` of its hops cross
/// from one node to the next and have the latency of `link`; the others have `near_latency`.
double ring_seconds(const Link& link, double near_latency, std::string_view kind, double bytes,
                    int ranks, int far_hops) {
  if (kind == "send") return link.latency_seconds + bytes / link.bandwidth;
  const double one_pass_seconds = far_hops * link.latency_seconds +
                                  (ranks - 1 - far_hops) * near_latency +
                                  bytes * (ranks - 1) / ranks / link.bandwidth;
  return kind == "all_reduce" ? 2 * one_pass_seconds : one_pass_seconds;
}

}  // namespace

Link link_between_nodes(const Machine& machine, int ranks_on_node) {
  Link link = machine.inter_node_link;
  link.bandwidth *= ranks_on_node;
  if (machine.intra_node_link.bandwidth > 0 && ranks_on_node > 1)
    link.bandwidth = std::min(link.bandwidth, machine.intra_node_link.bandwidth);
  return link;
}

double collective_seconds(const Machine& machine, std::string_view kind, double bytes, int ranks,
                          int ranks_on_node) {
  if (ranks < 2) return 0;
  if (ranks_on_node < ranks) {
    if (machine.inter_node_link.bandwidth == 0)
      throw Error(ExitCode::kUsage,
                  cat("the machine ", machine.name,
                      " has no links.cluster, over which ranks of several nodes communicate"),
                  "add it to the machine file, or plan for one node");
    const auto nodes = static_cast<int>(divide_up(ranks, ranks_on_node));
    return ring_seconds(link_between_nodes(machine, ranks_on_node),
                        machine.intra_node_link.latency_seconds, kind, bytes, ranks, nodes - 1);
  }
  if (const auto found = machine.collectives.find(cat(kind, " ", ranks));
      found != machine.collectives.end())
    return seconds_at(found->second, bytes);
  if (machine.intra_node_link.bandwidth == 0)
    throw Error(ExitCode::kUsage,
                cat("the machine ", machine.name,
                    " has no links.node, the link between the ranks of a node"),
                "add it to the machine file, or plan for one rank");
  return ring_seconds(machine.intra_node_link, 0, kind, bytes, ranks, ranks - 1);
}

}  // namespace ftrun
