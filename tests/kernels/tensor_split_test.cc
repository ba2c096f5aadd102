// These tests compare the layers of tensor-parallel ranks, run in lockstep, with the layers of the
// whole model.
#include <cmath>

#include "axes/tensor/split.h"
#include "lockstep.h"
#include "model/decoder.h"
#include "operation_runner.h"

#include <catch2/catch.hpp>

namespace ftrun::testing {
namespace {

struct Case {
  std::string name;
  std::string family = "llama";
  int64_t query_heads = 4;
  int64_t kv_heads = 2;
  int64_t window = 0;
  bool tied = false;
  bool qkv_bias = false;
  bool other_biases = false;
  bool qk_norm = false;
  /// Adds adapters to all linear layers of the first block, and to two of the second.
  bool adapted = false;
  double dropout = 0;
};

Adapter adapter_of(const Case& c) {
  Adapter adapter;
  if (!c.adapted) return adapter;
  adapter.dropout = c.dropout;
  adapter.blocks.resize(2);
  for (size_t p = 0; p < kProjections; ++p)
    adapter.blocks[0].by_projection[p] = {static_cast<int64_t>(p) + 2,
                                          0.5 + 0.25 * static_cast<double>(p)};
  adapter.blocks[1].by_projection[static_cast<size_t>(Projection::kV)] = {3, 2.0};
  adapter.blocks[1].by_projection[static_cast<size_t>(Projection::kDown)] = {1, 1.0};
  return adapter;
}

ModelConfig config_of(const Case& c) {
  ModelConfig config;
  config.family = c.family;
  config.vocab_rows = 48;
  config.hidden = 20;
  config.feed_forward = 36;
  config.layers = 2;
  config.query_heads = c.query_heads;
  config.kv_heads = c.kv_heads;
  config.head_size = 6;
  config.tied = c.tied;
  config.qkv_bias = c.qkv_bias;
  config.attention_out_bias = c.other_biases;
  config.mlp_bias = c.other_biases;
  if (c.qk_norm) config.qk_norm = QkNorm::kEachHead;
  config.windows = {c.window, 0};
  return config;
}

const std::vector<Case>& cases() {
  static const std::vector<Case> kCases{
      {"llama"},
      {"llama with biases", "llama", 12, 6, 0, true, true, true},
      {"mistral with a window", "mistral", 12, 4, 5},
      {"qwen2", "qwen2", 12, 2, 0, true, true},
      {"qwen3", "qwen3", 12, 1, 0, false, true, false, true},
      {"qwen3, tied", "qwen3", 12, 12, 7, true, false, true, true},
      {"qwen2 with adapters", "qwen2", 12, 2, 0, true, true, false, false, true},
      {"llama with biases and adapters", "llama", 12, 6, 5, false, true, true, false, true},
      {"llama with adapters that drop", "llama", 12, 6, 0, false, false, false, false, true, 0.25},
  };
  return kCases;
}

constexpr BatchShape kBatch{2, 12};

struct BuildOptions {
  GraphMode mode = GraphMode::kTrain;
  BatchShape batch = kBatch;
  RecomputePolicy recompute = {};
  ModelDtypes dtypes = {DType::kF64, DType::kF64};
};

// Calls the decoder's own builder, because a config cannot ask for fp64, which these tests use.
Lockstep make_lockstep(const Case& c, const BuildOptions& options, int degree, bool sequence) {
  const ModelConfig config = config_of(c);
  std::vector<ModelDescription> ranks;
  for (int rank = 0; rank < degree; ++rank)
    ranks.push_back(build_decoder(config, options.batch, options.mode, options.dtypes,
                                  {options.recompute}, {degree, rank, sequence}, adapter_of(c)));
  Lockstep made(std::move(ranks));
  made.scalars.token_loss_factor = 0.125F;
  made.scalars.dropout_key = dropout_key(3, 1);
  return made;
}

double largest_magnitude(const std::vector<double>& numbers) {
  double maximum = 0.0;
  for (const double v : numbers) maximum = std::max(maximum, std::abs(v));
  return maximum;
}

void require_near(const NamedNumbers& actual, const NamedNumbers& expected, double tolerance) {
  REQUIRE(actual.size() == expected.size());
  for (const auto& [name, numbers] : expected) {
    INFO(name);
    const std::vector<double>& found = actual.at(name);
    REQUIRE(found.size() == numbers.size());
    REQUIRE(largest_magnitude(numbers) > 0.0);
    double difference = 0.0;
    for (size_t i = 0; i < numbers.size(); ++i) {
      const double d = std::abs(found[i] - numbers[i]);
      difference = std::isfinite(d) ? std::max(difference, d) : INFINITY;
    }
    REQUIRE(difference <= tolerance * largest_magnitude(numbers));
  }
}

bool divides(const ModelConfig& config, const BatchShape& batch, int degree) {
  return tensor_split_problems(config, degree).empty() && batch.tokens() % degree == 0;
}

constexpr double kTolerance = 1e-12;

TEST_CASE("tensor-parallel ranks compute the whole model's loss and gradients") {
  int compared = 0;
  for (const Case& c : cases()) {
    const ModelConfig config = config_of(c);
    const TokenBatch batch = token_batch(kBatch, config.vocab_rows, 5);
    Lockstep whole = make_lockstep(c, {}, 1, true);
    whole.step(batch);
    const NamedNumbers expected = whole.results();
    for (const int degree : {2, 3, 4})
      for (const bool sequence : {true, false}) {
        if (!divides(config, kBatch, degree)) continue;
        CAPTURE(c.name, degree, sequence);
        Lockstep split = make_lockstep(c, {}, degree, sequence);
        split.step(batch);
        require_near(split.results(), expected, kTolerance);
        ++compared;
      }
  }
  REQUIRE(compared >= 30);
}

TEST_CASE(
    "tensor-parallel ranks compute the same whatever is recomputed, and in any order of weights' "
    "gradients") {
  for (const size_t which : {1, 4, 5, 7, 8}) {
    const ModelConfig config = config_of(cases()[which]);
    const TokenBatch batch = token_batch(kBatch, config.vocab_rows, 4);
    Lockstep whole = make_lockstep(cases()[which], {}, 1, true);
    whole.step(batch);
    const NamedNumbers expected = whole.results();
    for (const RecomputePolicy policy : {RecomputePolicy{},
                                         {RecomputeLevel::kSelective},
                                         {RecomputeLevel::kSelective, 0.2},
                                         {RecomputeLevel::kFull}})
      for (const bool sequence : {true, false})
        for (const bool deferred : {true, false}) {
          CAPTURE(cases()[which].name, static_cast<int>(policy.level), policy.budget, sequence,
                  deferred);
          Lockstep split = make_lockstep(cases()[which], {.recompute = policy}, 2, sequence);
          split.step(batch, false, deferred);
          require_near(split.results(), expected, kTolerance);
        }
  }
}

TEST_CASE(
    "tensor-parallel ranks add the gradients of several micro-batches, whose tokens fill several "
    "chunks",
    "[long]") {
  const BatchShape shape{88, 12};  // 1056 tokens: four chunks of 256 tokens and one of 32
  for (const size_t which : {0, 5, 6}) {
    const ModelConfig config = config_of(cases()[which]);
    // In the second batch the first chunk has no labels.
    const TokenBatch first = token_batch(shape, config.vocab_rows, 3),
                     second = token_batch(shape, config.vocab_rows, 0, 600);
    Lockstep whole = make_lockstep(cases()[which], {.batch = shape}, 1, true);
    whole.step(second);
    whole.step(first, true);
    for (const bool sequence : {true, false}) {
      CAPTURE(cases()[which].name, sequence);
      Lockstep split = make_lockstep(cases()[which], {.batch = shape}, 4, sequence);
      split.step(second);
      split.step(first, true);
      require_near(split.results(), whole.results(), kTolerance);
    }
  }
}

TEST_CASE("tensor-parallel ranks evaluate the whole model's loss and compute its logits") {
  for (const GraphMode mode : {GraphMode::kEvaluate, GraphMode::kLogits})
    for (const Case& c : cases()) {
      const ModelConfig config = config_of(c);
      const TokenBatch batch = token_batch(kBatch, config.vocab_rows, 7);
      Lockstep whole = make_lockstep(c, {.mode = mode}, 1, true);
      whole.step(batch);
      for (const int degree : {2, 3, 4})
        for (const bool sequence : {true, false}) {
          if (!divides(config, kBatch, degree)) continue;
          CAPTURE(c.name, degree, sequence, static_cast<int>(mode));
          Lockstep split = make_lockstep(c, {.mode = mode}, degree, sequence);
          split.step(batch);
          require_near(split.results(), whole.results(), kTolerance);
        }
    }
}

TEST_CASE("a batch without labels gives tensor-parallel ranks a loss and gradients of 0") {
  const ModelConfig config = config_of(cases()[1]);
  const TokenBatch batch = token_batch(kBatch, config.vocab_rows, 1);
  Lockstep split = make_lockstep(cases()[1], {}, 2, true);
  split.step(batch);
  for (const auto& [name, numbers] : split.results()) {
    INFO(name);
    if (name.starts_with("hidden")) continue;
    REQUIRE(largest_magnitude(numbers) == 0.0);
  }
}

/// Returns the root mean square of the difference, relative to the root mean square of `expected`.
double relative_rms_error(const std::vector<double>& actual, const std::vector<double>& expected) {
  double difference = 0.0, size = 0.0;
  for (size_t i = 0; i < expected.size(); ++i) {
    difference += (actual[i] - expected[i]) * (actual[i] - expected[i]);
    size += expected[i] * expected[i];
  }
  return std::sqrt(difference / size);
}

TEST_CASE(
    "tensor-parallel ranks in fp32 and 16 bits come as close to fp64 as the whole model does") {
  const ModelConfig config = config_of(cases()[1]);
  const TokenBatch batch = token_batch(kBatch, config.vocab_rows, 5);
  Lockstep exact = make_lockstep(cases()[1], {}, 1, true);
  exact.step(batch);
  const NamedNumbers expected = exact.results();
  for (const ModelDtypes dtypes :
       {ModelDtypes{DType::kF32, DType::kF32}, ModelDtypes{DType::kBF16, DType::kF32},
        ModelDtypes{DType::kBF16, DType::kBF16}, ModelDtypes{DType::kF16, DType::kF32}}) {
    Lockstep whole = make_lockstep(cases()[1], {.dtypes = dtypes}, 1, true);
    whole.step(batch);
    const NamedNumbers plain = whole.results();
    for (const bool sequence : {true, false}) {
      Lockstep split = make_lockstep(cases()[1], {.dtypes = dtypes}, 2, sequence);
      split.step(batch);
      for (const auto& [name, numbers] : split.results()) {
        CAPTURE(dtype_name(dtypes.compute), dtype_name(dtypes.gradients), sequence, name);
        const double least = unit_roundoff(dtypes.compute);
        REQUIRE(relative_rms_error(numbers, expected.at(name)) <
                2.0 * relative_rms_error(plain.at(name), expected.at(name)) + 2.0 * least);
      }
    }
  }
}

}  // namespace
}  // namespace ftrun::testing
