#include "machine/op_time.h"

#include <algorithm>

#include "base/error.h"
#include "base/precision_name.h"
#include "graph/cost.h"
#include "graph/layer_graph.h"
#include "graph/op_spec.h"

namespace ftrun {
namespace {

double matmul_rate(const Rates& rates, DType dtype) {
  const auto found = rates.matmul_flop_rates.find(dtype);
  if (found != rates.matmul_flop_rates.end()) return found->second;
  throw Error(
      ExitCode::kUsage,
      cat("the machine file has no rate of matrix multiplication in ", precision_name(dtype)),
      cat("add it to rates.products, or plan in ",
          precision_name(rates.matmul_flop_rates.begin()->first)));
}

}  // namespace

std::string slowdown_key(const LayerGraph& graph, const Op& op) {
  return cat(op_name(op.kind), " ", precision_name(graph.dtypes.compute));
}

double ideal_seconds(const Rates& rates, const LayerGraph& graph, const Op& op) {
  const double flop_rate = matmul_rate(rates, graph.dtypes.compute);
  double seconds = 0;
  for (const OpPass& pass : op_work(graph, op)) {
    const double arithmetic = pass.flops + kFlopsPerTranscendental * pass.transcendentals;
    seconds += std::max(arithmetic / flop_rate, pass.bytes / rates.memory_bandwidth);
  }
  return seconds;
}

double list_seconds(const Machine& machine, const Rates& rates, const LayerGraph& graph,
                    std::span<const Op> list) {
  double seconds = 0;
  for (size_t i = 0; i < list.size(); ++i) {
    // A GPU computes both operations of a pair in one pass over the operands that they share, so
    // the second one costs nothing more.
    if (machine.has_gpus && i > 0 && is_gpu_pair(list, i - 1)) continue;
    const double ideal = ideal_seconds(rates, graph, list[i]);
    seconds += std::max(seconds_with_slowdown(rates, slowdown_key(graph, list[i]), ideal),
                        machine.min_op_seconds);
  }
  return seconds;
}

}  // namespace ftrun
