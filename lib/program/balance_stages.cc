#include "program/balance_stages.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "graph/cost.h"

namespace ftrun {
namespace {

double price_of(const LayerGraph& graph, const std::vector<Op>& list) {
  double price = 0;
  for (const Op& op : list) price += op_price(graph, op);
  return price;
}

double parameters_of(const ModelDescription& model, const Layer& layer) {
  int64_t elements = 0;
  for (const GraphParam& param : layer.params)
    for (const TensorId tensor : param.tensors) elements += model.tensor(tensor).numel();
  return static_cast<double>(elements);
}

double weight_of(const ModelDescription& model, const Layer& layer, BalanceBy by) {
  switch (by) {
    case BalanceBy::kPrice: {
      const PhaseSeconds prices = phase_prices(model.graph_of(layer));
      return prices.forward + prices.backward;
    }
    case BalanceBy::kParameters:
      return parameters_of(model, layer);
    case BalanceBy::kLayers:
      return 1;
    case BalanceBy::kBlocks:
      return layer.kind == LayerKind::kBlock ? 1 : 0;
  }
  bug("what parts of a pipeline are balanced by");
}

constexpr int64_t kNone = INT64_MAX;

/// The heaviest layer's weight in whole units; squares of sums of a thousand layers fit.
constexpr double kUnits = 1 << 20;

/// Cuts blocks into parts by dynamic programming over (blocks left, parts left).
class Cut {
 public:
  Cut(const std::vector<double>& weights, int parts)
      : blocks_(static_cast<int>(weights.size()) - 2), parts_(parts) {
    require(parts > 0 && parts <= blocks_, "at least one block for each part of a pipeline");
    const double most = *std::max_element(weights.begin(), weights.end());
    for (const double weight : weights) {
      const auto units = static_cast<int64_t>(std::llround(weight / most * kUnits));
      sums_.push_back(sums_.back() + units);
    }
  }

  std::vector<int64_t> counts() const {
    const auto heavier = [](int64_t part, int64_t rest) { return std::max(part, rest); };
    const int64_t limit = fill(
        kNone, [](int64_t part) { return part; }, heavier)[parts_][0];
    const auto square = [](int64_t part) { return part * part; };
    const auto sum = [](int64_t part, int64_t rest) { return part + rest; };
    const Table best = fill(limit, square, sum);
    std::vector<int64_t> counts;
    int from = 0;
    for (int left = parts_; left > 0; --left) {
      int to = from + 1;
      while (!is_best(best, left, from, to, limit)) ++to;
      counts.push_back(to - from);
      from = to;
    }
    return counts;
  }

 private:
  /// [parts left][first block]: the best that can be made of the blocks from there on.
  using Table = std::vector<std::vector<int64_t>>;

  /// Weight of blocks [from, to) as a part that `left` - 1 others follow.
  int64_t weight(int left, int from, int to) const {
    const auto first = static_cast<size_t>(left == parts_ ? 0 : from + 1);
    const auto end = static_cast<size_t>(left == 1 ? blocks_ + 2 : to + 1);
    return sums_[end] - sums_[first];
  }

  template <typename Value, typename Join>
  Table fill(int64_t limit, const Value& value, const Join& join) const {
    Table best(static_cast<size_t>(parts_) + 1,
               std::vector<int64_t>(static_cast<size_t>(blocks_) + 1, kNone));
    best[0][static_cast<size_t>(blocks_)] = 0;
    for (int left = 1; left <= parts_; ++left)
      for (int from = 0; from < blocks_; ++from)
        for (int to = from + 1; to <= blocks_; ++to) {
          const int64_t rest = best[static_cast<size_t>(left) - 1][static_cast<size_t>(to)];
          const int64_t part = weight(left, from, to);
          if (rest == kNone || part > limit) continue;
          int64_t& known = best[static_cast<size_t>(left)][static_cast<size_t>(from)];
          known = std::min(known, join(value(part), rest));
        }
    return best;
  }

  bool is_best(const Table& best, int left, int from, int to, int64_t limit) const {
    const int64_t rest = best[static_cast<size_t>(left) - 1][static_cast<size_t>(to)];
    const int64_t part = weight(left, from, to);
    return rest != kNone && part <= limit &&
           part * part + rest == best[static_cast<size_t>(left)][static_cast<size_t>(from)];
  }

  const int blocks_;
  const int parts_;
  std::vector<int64_t> sums_{0};  // of the first k layers
};

}  // namespace

PhaseSeconds phase_prices(const LayerGraph& graph) {
  return {.forward = price_of(graph, graph.forward),
          .backward = price_of(graph, graph.backward),
          .input_grad = price_of(graph, graph.input_grad),
          .weight_grad = price_of(graph, graph.weight_grad)};
}

std::vector<PhaseSeconds> part_prices(const ModelDescription& model, const PipelineLayout& layout) {
  std::vector<PhaseSeconds> parts(static_cast<size_t>(layout.parts()));
  for (size_t l = 0; l < model.layers.size(); ++l) {
    const PhaseSeconds prices = phase_prices(model.graph_of(model.layers[l]));
    PhaseSeconds& part = parts[static_cast<size_t>(layout.part_with(static_cast<int32_t>(l)))];
    part.forward += prices.forward;
    part.backward += prices.backward;
    part.input_grad += prices.input_grad;
    part.weight_grad += prices.weight_grad;
  }
  return parts;
}

std::vector<int64_t> balanced_blocks(const std::vector<double>& weights, int parts) {
  return Cut(weights, parts).counts();
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
                              ChunkPlacement placement, BalanceBy by) {
  require(model.mode == Mode::kTrain, "a pipeline is balanced by what training costs");
  std::vector<double> weights;
  for (const Layer& layer : model.layers) weights.push_back(weight_of(model, layer, by));
  return layout_of_blocks(stages, chunks, placement, balanced_blocks(weights, stages * chunks));
}

}  // namespace ftrun
