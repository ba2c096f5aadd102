#include "axes/pipeline/balance_stages.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/error.h"
#include "graph/cost.h"

namespace ftrun {
namespace {

double parameters_of(const ModelDescription& model, const Layer& layer) {
  int64_t elements = 0;
  for (const GraphParam& param : layer.params)
    for (const TensorId tensor : param.tensors) elements += model.tensor(tensor).numel();
  return static_cast<double>(elements);
}

double load_of(const ModelDescription& model, const Layer& layer, PipelineBalance balance) {
  switch (balance) {
    case PipelineBalance::kCost: {
      const PhaseSeconds costs = phase_costs(model.graph_of(layer));
      return costs.forward + costs.backward;
    }
    case PipelineBalance::kParameters:
      return parameters_of(model, layer);
    case PipelineBalance::kLayers:
      return 1;
    case PipelineBalance::kBlocks:
      return layer.kind == LayerKind::kBlock ? 1 : 0;
  }
  bug("unknown PipelineBalance");
}

constexpr int64_t kNone = INT64_MAX;

/// The load of the heaviest layer in whole units, and the maximum number of units of all layers
/// together, whose square fits 64 bits.
constexpr double kUnits = 1 << 20;
constexpr double kMaxUnits = 3e9;

/// StageCut cuts blocks into chunks. It finds the smallest possible load of the heaviest chunk by
/// bisection. Then, with no chunk heavier than that, it finds the smallest sum of squares by
/// dynamic programming over (chunks left, first block).
class StageCut {
 public:
  StageCut(const std::vector<double>& loads, int chunks)
      : blocks_(static_cast<int>(loads.size()) - 2), chunks_(chunks) {
    require(chunks > 0 && chunks <= blocks_, "each chunk of a pipeline has at least one block");
    for (const int64_t load : round_loads(loads)) sums_.push_back(sums_.back() + load);
  }

  std::vector<int64_t> find_block_counts() {
    limit_ = find_least_limit();
    fill_best_sums();
    std::vector<int64_t> counts;
    int from = 0;
    for (int left = chunks_; left > 0; --left) {
      int to = from + 1;
      while (best_with_first_chunk(left, from, to) != best(left, from)) ++to;
      counts.push_back(to - from);
      from = to;
    }
    return counts;
  }

 private:
  /// Returns the load of blocks [from, to), with the embedding before the first and the head after
  /// the last.
  int64_t load(int from, int to) const {
    const int first = from == 0 ? 0 : from + 1;
    const int end = to == blocks_ ? blocks_ + 2 : to + 1;
    return sums_[static_cast<size_t>(end)] - sums_[static_cast<size_t>(first)];
  }

  /// Returns whether chunks of at most `limit` can hold all blocks. If fewer chunks suffice, so
  /// does this number: there are enough blocks, and cutting a chunk in two does not make it
  /// heavier.
  bool fits_in_chunks(int64_t limit) const {
    int chunks = 0;
    for (int from = 0; from < blocks_; ++chunks) {
      int to = from;
      while (to < blocks_ && load(from, to + 1) <= limit) ++to;
      if (to == from) return false;
      from = to;
    }
    return chunks <= chunks_;
  }

  int64_t find_least_limit() const {
    int64_t too_light = -1, enough = sums_.back();
    while (enough - too_light > 1) {
      const int64_t middle = too_light + (enough - too_light) / 2;
      (fits_in_chunks(middle) ? enough : too_light) = middle;
    }
    return enough;
  }

  /// Returns the cell for the smallest sum of squares of the blocks from `from` on in `left`
  /// chunks.
  int64_t& best(int left, int from) {
    return best_[static_cast<size_t>(left) * static_cast<size_t>(blocks_ + 1) +
                 static_cast<size_t>(from)];
  }

  /// Returns the smallest sum of squares with [from, to) as the first chunk; kNone if there is
  /// none.
  int64_t best_with_first_chunk(int left, int from, int to) {
    const int64_t rest = best(left - 1, to), first = load(from, to);
    return rest == kNone || first > limit_ ? kNone : first * first + rest;
  }

  void fill_best_sums() {
    best_.assign(static_cast<size_t>(chunks_ + 1) * static_cast<size_t>(blocks_ + 1), kNone);
    best(0, blocks_) = 0;
    for (int left = 1; left <= chunks_; ++left)
      for (int from = 0; from < blocks_; ++from)
        for (int to = from + 1; to <= blocks_ && load(from, to) <= limit_; ++to)
          best(left, from) = std::min(best(left, from), best_with_first_chunk(left, from, to));
  }

  const int blocks_;
  const int chunks_;
  std::vector<int64_t> sums_{0};  // of the first k layers
  int64_t limit_ = 0;             // of the heaviest chunk
  std::vector<int64_t> best_;     // [chunks left][first block]
};

}  // namespace

PhaseSeconds phase_costs(const LayerGraph& graph) {
  return {.forward = op_list_cost(graph, graph.forward),
          .backward = op_list_cost(graph, graph.backward),
          .input_grad = op_list_cost(graph, graph.input_grad),
          .weight_grad = op_list_cost(graph, graph.weight_grad)};
}

std::vector<PhaseSeconds> chunk_costs(const ModelDescription& model, const PipelineLayout& layout) {
  std::vector<PhaseSeconds> chunks(static_cast<size_t>(layout.model_chunks()));
  for (size_t l = 0; l < model.layers.size(); ++l) {
    const PhaseSeconds costs = phase_costs(model.graph_of(model.layers[l]));
    PhaseSeconds& chunk =
        chunks[static_cast<size_t>(layout.model_chunk_of_layer(static_cast<int32_t>(l)))];
    chunk.forward += costs.forward;
    chunk.backward += costs.backward;
    chunk.input_grad += costs.input_grad;
    chunk.weight_grad += costs.weight_grad;
  }
  return chunks;
}

std::vector<double> layer_loads(const ModelDescription& model, PipelineBalance balance) {
  require(model.mode == GraphMode::kTrain, "a pipeline is balanced by what training costs");
  std::vector<double> loads;
  std::map<int64_t, double> weight_of_graph;
  for (const Layer& layer : model.layers) {
    if (balance != PipelineBalance::kCost) {
      loads.push_back(load_of(model, layer, balance));
      continue;
    }
    const auto [known, added] = weight_of_graph.try_emplace(layer.graph, 0);
    if (added) known->second = load_of(model, layer, balance);
    loads.push_back(known->second);
  }
  return loads;
}

std::vector<int64_t> round_loads(const std::vector<double>& loads) {
  const double heaviest = *std::max_element(loads.begin(), loads.end());
  const double units = std::min(kUnits, kMaxUnits / static_cast<double>(loads.size()));
  std::vector<int64_t> rounded;
  for (const double load : loads) rounded.push_back(std::llround(load / heaviest * units));
  return rounded;
}

std::vector<int64_t> balance_blocks(const std::vector<double>& loads, int chunks) {
  return StageCut(loads, chunks).find_block_counts();
}

PipelineLayout layout_of_blocks(int stages, int chunks, ChunkPlacement placement,
                                const std::vector<int64_t>& blocks) {
  std::vector<int32_t> first{0};
  int32_t next = 1;  // after the embedding
  for (const int64_t count : blocks) first.push_back(next += static_cast<int32_t>(count));
  ++first.back();  // the head
  return {stages, chunks, placement, std::move(first)};
}

PipelineLayout balance_stages(const ModelDescription& model, int stages, int chunks,
                              ChunkPlacement placement, PipelineBalance balance) {
  return layout_of_blocks(stages, chunks, placement,
                          balance_blocks(layer_loads(model, balance), stages * chunks));
}

}  // namespace ftrun
