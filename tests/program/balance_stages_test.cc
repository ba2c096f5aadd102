#include "axes/pipeline/balance_stages.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <tuple>

#include "models.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using namespace testing;

using Counts = std::vector<int64_t>;

/// Returns the load of each chunk if the chunks have `counts` blocks; embedding and head are in the
/// first and the last chunk.
std::vector<double> loads_of(const std::vector<double>& loads, const Counts& counts) {
  std::vector<double> chunks;
  size_t at = 1;
  for (const int64_t count : counts) {
    chunks.push_back(0);
    for (int64_t i = 0; i < count; ++i) chunks.back() += loads[at++];
  }
  chunks.front() += loads.front();
  chunks.back() += loads.back();
  return chunks;
}

/// Returns what a cut minimizes, in order of importance: the heaviest chunk, the sum of squares,
/// and the numbers of blocks of the first chunks.
std::tuple<double, double, Counts> quality_of_cut(const std::vector<double>& loads,
                                                  const Counts& counts) {
  const std::vector<double> chunks = loads_of(loads, counts);
  return {*std::max_element(chunks.begin(), chunks.end()),
          std::inner_product(chunks.begin(), chunks.end(), chunks.begin(), 0.0), counts};
}

/// Calls `visit` with every way to cut `blocks` blocks into `chunks` chunks of at least one.
void visit_cuts(int64_t blocks, int chunks, Counts& begun,
                const std::function<void(const Counts&)>& visit) {
  if (chunks == 1) {
    begun.push_back(blocks);
    visit(begun);
    begun.pop_back();
    return;
  }
  for (int64_t count = 1; count <= blocks - chunks + 1; ++count) {
    begun.push_back(count);
    visit_cuts(blocks - count, chunks - 1, begun, visit);
    begun.pop_back();
  }
}

TEST_CASE(
    "no other division of the layers has a lower maximum cost of a chunk, or chunks that are more "
    "even") {
  std::mt19937_64 random(7);
  for (int i = 0; i < 300; ++i) {
    const auto blocks = static_cast<int64_t>(1 + random() % 10);
    const int chunks = static_cast<int>(1 + random() % static_cast<uint64_t>(blocks));
    // The loads are multiples of 1/16 of the heaviest one, so that they can be compared exactly.
    std::vector<double> loads{16};
    for (int64_t l = 0; l <= blocks; ++l)
      loads.push_back(random() % 3 == 0 ? static_cast<double>(random() % 17) : 4);
    std::shuffle(loads.begin(), loads.end(), random);
    Counts best, begun;
    visit_cuts(blocks, chunks, begun, [&](const Counts& counts) {
      if (best.empty() || quality_of_cut(loads, counts) < quality_of_cut(loads, best))
        best = counts;
    });
    REQUIRE(balance_blocks(loads, chunks) == best);
  }
}

TEST_CASE("equal blocks are shared out equally, fewer in the first chunks") {
  const auto equal = [](size_t blocks, int chunks, double embedding, double head) {
    std::vector<double> loads(blocks + 2, 1.0);
    loads.front() = embedding;
    loads.back() = head;
    return balance_blocks(loads, chunks);
  };
  CHECK(equal(8, 4, 0, 0) == Counts{2, 2, 2, 2});
  CHECK(equal(10, 4, 0, 0) == Counts{2, 2, 3, 3});
  CHECK(equal(10, 4, 0, 1) == Counts{2, 3, 3, 2});
  CHECK(equal(15, 2, 0.01, 0.75) == Counts{8, 7});
  CHECK(equal(16, 4, 1, 4) == Counts{4, 5, 5, 2});
  CHECK(equal(3, 3, 100, 100) == Counts{1, 1, 1});
  CHECK_THROWS(equal(3, 4, 0, 0));
}

TEST_CASE("the chunks of a large model have all of its layers") {
  std::vector<double> loads(132, 1e15);
  loads.back() = 1.2e15;
  const Counts counts = balance_blocks(loads, 64);
  CHECK(counts.size() == 64);
  CHECK(std::accumulate(counts.begin(), counts.end(), int64_t{0}) == 130);
  CHECK(quality_of_cut(loads, counts) <= quality_of_cut(loads, [] {
          Counts other(64, 2);
          other[0] = other[1] = 3;
          return other;
        }()));
}

TEST_CASE("many layers are divided as evenly as few layers") {
  const Counts counts = balance_blocks(std::vector<double>(5002, 3.0), 10);
  CHECK(*std::max_element(counts.begin(), counts.end()) == 501);
  CHECK(std::accumulate(counts.begin(), counts.end(), int64_t{0}) == 5000);
}

TEST_CASE("embedding and head are added to the blocks of the first and last chunk") {
  const PipelineLayout layout = layout_of_blocks(2, 2, ChunkPlacement::kLoop, {1, 3, 2, 2});
  CHECK(layout.layers_of(0, 10) == LayerRange{0, 2});
  CHECK(layout.layers_of(1, 10) == LayerRange{2, 5});
  CHECK(layout.layers_of(3, 10) == LayerRange{7, 10});
  const PipelineLayout bare = layout_of_blocks(4, 1, ChunkPlacement::kLoop, {0, 3, 3, 0});
  CHECK(bare.layers_of(0, 8) == LayerRange{0, 1});
  CHECK(bare.layers_of(3, 8) == LayerRange{7, 8});
  CHECK_THROWS(layout_of_blocks(3, 1, ChunkPlacement::kLoop, {3, 0, 3}));
}

ModelDescription model_of(const ModelConfig& config, const RecomputeOptions& recompute = {}) {
  return build_model(config, {2, 4}, GraphMode::kTrain, {}, recompute);
}

Counts blocks_of(const ModelDescription& model, const PipelineLayout& layout) {
  Counts counts;
  for (int chunk = 0; chunk < layout.model_chunks(); ++chunk) {
    const LayerRange range = layout.layers_of(chunk, static_cast<int32_t>(model.layers.size()));
    counts.push_back(
        std::count_if(model.layers.begin() + range.first, model.layers.begin() + range.end,
                      [](const Layer& layer) { return layer.kind == LayerKind::kBlock; }));
  }
  return counts;
}

TEST_CASE("embedding and head that cost as much as some blocks leave their stages fewer of them") {
  ModelConfig config = small_config(12, false);
  config.vocab_rows = 2000;
  const ModelDescription model = model_of(config);
  const PipelineLayout layout = balance_stages(model, 3, 1, ChunkPlacement::kLoop);
  const Counts counts = blocks_of(model, layout);
  CHECK(counts[0] < counts[1]);
  CHECK(counts[2] < counts[1]);
  CHECK(counts[0] + counts[1] + counts[2] == 12);
  const auto by = [&](PipelineBalance what) {
    return blocks_of(model, balance_stages(model, 3, 1, ChunkPlacement::kLoop, what));
  };
  CHECK(by(PipelineBalance::kBlocks) == Counts{4, 4, 4});
  CHECK(by(PipelineBalance::kLayers) == Counts{3, 5, 4});
  // A block has 1,952 parameters; each matrix of the vocabulary has 32,000.
  CHECK(by(PipelineBalance::kParameters) == Counts{1, 10, 1});
  CHECK_THROWS(balance_stages(build_model(config, {2, 4}, GraphMode::kEvaluate), 3, 1,
                              ChunkPlacement::kLoop));
}

TEST_CASE("a head that costs almost as much as a block takes the place of a block") {
  ModelConfig config = small_config(15, false);
  config.hidden = 1024;
  config.feed_forward = 2816;
  config.query_heads = 16;
  config.head_size = 64;
  config.vocab_rows = 8192;
  config.kv_heads = 4;
  const ModelDescription model = build_model(config, {1, 512}, GraphMode::kTrain);
  CHECK(blocks_of(model, balance_stages(model, 2, 1, ChunkPlacement::kLoop)) == Counts{8, 7});
}

TEST_CASE("blocks that recompute their forward in backward count as more expensive") {
  // Blocks 0, 7 and 14 of 15 recompute.
  RecomputeOptions recompute;
  recompute.policy.level = RecomputeLevel::kFull;
  recompute.every = 7;
  const ModelDescription model = model_of(small_config(15, false), recompute);
  const PhaseSeconds again = phase_costs(model.graph_of(model.layers[1]));
  const PhaseSeconds once = phase_costs(model.graph_of(model.layers[2]));
  CHECK(again.forward == once.forward);
  // The second run of forward omits results that backward does not read: the sum that leaves the
  // block, and the matrix multiplication before that sum.
  CHECK(again.backward > once.backward + 0.5 * once.forward);
  CHECK(again.backward < once.backward + once.forward);
}

TEST_CASE("a chunk costs as much as its layers together") {
  const ModelDescription model = model_of(small_config(6, false));
  const PipelineLayout layout = layout_of_blocks(2, 2, ChunkPlacement::kV, {1, 2, 1, 2});
  const std::vector<PhaseSeconds> chunks = chunk_costs(model, layout);
  REQUIRE(chunks.size() == 4);
  PhaseSeconds all;
  for (const Layer& layer : model.layers) {
    const PhaseSeconds costs = phase_costs(model.graph_of(layer));
    all.forward += costs.forward;
    all.backward += costs.backward;
    all.input_grad += costs.input_grad;
    all.weight_grad += costs.weight_grad;
  }
  const auto sum = [&](double PhaseSeconds::*phase) {
    double total = 0;
    for (const PhaseSeconds& chunk : chunks) total += chunk.*phase;
    return total;
  };
  CHECK(sum(&PhaseSeconds::forward) == all.forward);
  CHECK(sum(&PhaseSeconds::backward) == all.backward);
  CHECK(sum(&PhaseSeconds::input_grad) == all.input_grad);
  CHECK(sum(&PhaseSeconds::weight_grad) == all.weight_grad);
  const PhaseSeconds block = phase_costs(model.graph_of(model.layers[1]));
  CHECK(chunks[1].weight_grad == 2 * block.weight_grad);
  CHECK(chunks[2].forward == block.forward);
  CHECK(block.weight_grad > 0);
}

}  // namespace
}  // namespace ftrun
