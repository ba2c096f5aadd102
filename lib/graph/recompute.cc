#include "graph/recompute.h"

#include <algorithm>
#include <span>

#include "graph/cost.h"
#include "graph/derive.h"
#include "graph/layer_graph.h"
#include "graph/op_spec.h"
#include "graph/scratch.h"

namespace ftrun {
namespace {

/// The largest number of operations for which every choice of keeping or recomputing their results
/// is tried: 2^8 lists take some milliseconds. Of more operations, those with the largest results
/// (in bytes) are considered.
constexpr size_t kMaxCandidates = 8;

bool can_run_again(OpKind kind) {
  return !op_spec(kind).must_not_recompute;
}

/// Returns the cheap result of an operation; -1 where it has none.
ValueId cheap_result_of(const Op& op) {
  const int cheap = op_spec(op.kind).cheap_result;
  return cheap >= 0 ? op.out[static_cast<size_t>(cheap)] : -1;
}

/// Keeps everything but cheap results. Goes through the operations once, without a search for each
/// value's producer, because the list of a head has thousands of operations.
std::vector<bool> keep_all_but_cheap(const LayerGraph& graph) {
  std::vector<bool> kept(graph.values.size(), true);
  for (const Op& op : graph.forward)
    if (const ValueId id = cheap_result_of(op); id >= 0) kept[static_cast<size_t>(id)] = false;
  return kept;
}

void drop_results(const Op& op, std::vector<bool>& kept) {
  for (const ValueId id : op.out) kept[static_cast<size_t>(id)] = false;
}

LayerGraph derive_copy(const LayerGraph& graph, const std::vector<bool>& kept) {
  LayerGraph copy = graph;
  derive_backward_keeping(copy, kept);
  return copy;
}

/// Lists the forward operations that can run again and whose results are kept when nothing is
/// recomputed (`plain`), those with the most bytes first.
std::vector<const Op*> recomputable_ops(const LayerGraph& graph, const LayerGraph& plain) {
  std::vector<std::pair<int64_t, const Op*>> found;
  for (const Op& op : graph.forward) {
    int64_t bytes = 0;
    for (const ValueId id : op.out)
      if (plain.at(id).role == ValueRole::kSaved) bytes += plain.at(id).bytes();
    if (bytes > 0 && can_run_again(op.kind)) found.emplace_back(bytes, &op);
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<const Op*> ops;
  for (const auto& [bytes, op] : found)
    if (ops.size() < kMaxCandidates) ops.push_back(op);
  return ops;
}

int64_t count_collectives(std::span<const Op> list) {
  return std::count_if(list.begin(), list.end(),
                       [](const Op& op) { return is_collective(op.kind); });
}

/// Chooses the values to keep within a budget. Communication is never repeated, because its cost is
/// not known here.
std::vector<bool> keep_within_budget(const LayerGraph& graph, double budget) {
  const LayerGraph plain = derive_copy(graph, keep_all_but_cheap(graph));
  // Every choice keeps a subset of the values that `plain` keeps. Keeping any other value would
  // only serve to recompute a value of the same size.
  std::vector<bool> base(graph.values.size());
  for (size_t i = 0; i < base.size(); ++i) base[i] = plain.values[i].role == ValueRole::kSaved;
  const double limit =
      op_list_cost(plain, plain.backward) + budget * op_list_cost(graph, graph.forward);
  const std::vector<const Op*> ops = recomputable_ops(graph, plain);
  std::vector<bool> best = base;
  std::pair<int64_t, double> least{plan_saved(plain).bytes, op_list_cost(plain, plain.backward)};
  for (size_t choice = 1; choice < size_t{1} << ops.size(); ++choice) {
    std::vector<bool> kept = base;
    for (size_t i = 0; i < ops.size(); ++i)
      if ((choice >> i & 1) != 0) drop_results(*ops[i], kept);
    const LayerGraph trial = derive_copy(graph, kept);
    const std::pair<int64_t, double> cost{plan_saved(trial).bytes,
                                          op_list_cost(trial, trial.backward)};
    if (cost.second > limit || cost >= least) continue;
    if (count_collectives(trial.backward) > count_collectives(plain.backward)) continue;
    least = cost;
    best = std::move(kept);
  }
  return best;
}

}  // namespace

bool is_cheap_result(const LayerGraph& graph, ValueId id) {
  // This function is called for some hundred lists of a block, so it looks up the kind of the
  // value's producer only.
  const auto maker = std::find_if(graph.forward.begin(), graph.forward.end(), [&](const Op& op) {
    return std::find(op.out.begin(), op.out.end(), id) != op.out.end();
  });
  return maker != graph.forward.end() && cheap_result_of(*maker) == id;
}

std::vector<bool> choose_kept_values(const LayerGraph& graph, const RecomputePolicy& policy) {
  if (policy.level == RecomputeLevel::kSelective) return keep_within_budget(graph, policy.budget);
  std::vector<bool> kept = keep_all_but_cheap(graph);
  if (policy.level == RecomputeLevel::kFull)
    for (const Op& op : graph.forward)
      if (can_run_again(op.kind)) drop_results(op, kept);
  return kept;
}

}  // namespace ftrun
