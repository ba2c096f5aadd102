#include "engine/generate.h"

#include <algorithm>
#include <mutex>

#include "rank_fixture.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

constexpr int64_t kRoom = 8;  // the length of a row, in tokens
constexpr int32_t kVocabulary = 32;

/// GeneratorFixture is a model with a generation program in addition to its training and evaluation
/// programs.
struct GeneratorFixture {
  GeneratorFixture()
      : fixture(run_of_one_row(), testing::small_model(), *single_rank.group),
        plan(plan_generation(testing::small_model(), fixture.plan, kRoom)),
        executor(plan.program, plan.model, allocated(), fixture.communicators) {}

  static Config run_of_one_row() {
    Config config = testing::small_run_config();
    config.train_micro_batch_size_per_gpu = 1;
    return config;
  }
  const RankMemory& allocated() {
    fixture.memory.allocate(plan.program);
    return fixture.memory;
  }
  std::vector<int32_t> write(const std::vector<int32_t>& prompt, const GenerateOptions& options) {
    return generate_tokens(executor, plan, fixture.memory, prompt, options);
  }

  testing::SingleRank single_rank;
  testing::RankFixture fixture;
  ProgramPlan plan;
  Executor executor;
};

/// The loss of token `next` after the tokens `context`, by the evaluation program (the
/// cross-entropy at one position), and the number of positions where `next` is the most likely
/// token (0 or 1).
struct TokenScore {
  double loss;
  double correct;
};
TokenScore score_token(GeneratorFixture& generator, const std::vector<int32_t>& context,
                       int32_t next) {
  MicroBatch batch = testing::random_batch({1, kRoom}, 3);
  std::fill(batch.tokens.begin(), batch.tokens.end(), 0);
  std::fill(batch.labels.begin(), batch.labels.end(), -100);
  const size_t used = std::min<size_t>(kRoom, context.size());
  std::copy(context.end() - static_cast<std::ptrdiff_t>(used), context.end(), batch.tokens.begin());
  batch.labels[used - 1] = next;
  ForwardRun run;
  run.micro_batches = {&batch, 1};
  generator.fixture.evaluation_executor.run_forward(run);
  return {run.result.loss_sum, run.result.correct_tokens};
}

TEST_CASE(
    "without a temperature, each new token is the likeliest one, also past the end of the row") {
  GeneratorFixture generator;
  const std::vector<int32_t> prompt{3, 1, 4};
  std::vector<int32_t> context = prompt;
  std::vector<int32_t> expected;
  for (int i = 0; i < 10; ++i) {
    std::vector<double> losses;
    std::vector<double> correct;
    for (int32_t next = 0; next < kVocabulary; ++next) {
      const TokenScore judged = score_token(generator, context, next);
      losses.push_back(judged.loss);
      correct.push_back(judged.correct);
    }
    expected.push_back(
        static_cast<int32_t>(std::min_element(losses.begin(), losses.end()) - losses.begin()));
    // A single position has a label, so `correct` is 1 for the most likely token and 0 for all
    // others.
    std::vector<double> right(losses.size(), 0.0);
    right[static_cast<size_t>(expected.back())] = 1.0;
    REQUIRE(correct == right);
    context.push_back(expected.back());
  }
  REQUIRE(generator.write(prompt, {.tokens = 10}) == expected);
  REQUIRE(generator.write(prompt, {.tokens = 4}) ==
          std::vector<int32_t>(expected.begin(), expected.begin() + 4));
}

TEST_CASE("a token that ends the text is not part of the text") {
  GeneratorFixture generator;
  const std::vector<int32_t> free = generator.write({5, 6}, {.tokens = 6});
  REQUIRE(free.size() == 6);
  const auto first = std::find(free.begin(), free.end(), free[3]);
  REQUIRE(generator.write({5, 6}, {.tokens = 6, .stop_ids = {free[3]}}) ==
          std::vector<int32_t>(free.begin(), first));
}

TEST_CASE("with a temperature, the seed decides; a low temperature gives the likeliest tokens") {
  GeneratorFixture generator;
  const GenerateOptions warm{.tokens = 12, .temperature = 1.5, .seed = 1};
  GenerateOptions other = warm;
  other.seed = 2;
  REQUIRE(generator.write({7}, warm) == generator.write({7}, warm));
  REQUIRE(generator.write({7}, warm) != generator.write({7}, other));
  REQUIRE(generator.write({7}, {.tokens = 12, .temperature = 1e-6, .seed = 3}) ==
          generator.write({7}, {.tokens = 12}));
}

TEST_CASE("tensor-parallel ranks write what one process writes, all of them the same") {
  GeneratorFixture one;
  const std::vector<int32_t> prompt{3, 1, 4};
  const std::vector<int32_t> expected = one.write(prompt, {.tokens = 10});
  for (const int degree : {2, 4})
    for (const int64_t stage : {0, 3}) {
      INFO("tensor " << degree << ", stage " << stage);
      StateOptions mesh;
      mesh.tensor.count = degree;
      mesh.tensor_copies = degree / 2;
      mesh.data.count = stage == 3 ? 2 : 1;
      std::mutex mutex;
      std::vector<std::vector<int32_t>> written;
      testing::run_on_mesh(mesh, [&](Rendezvous&, const RankCommunicators& communicators) {
        Config config = testing::config_of_stage(stage);
        config.train_micro_batch_size_per_gpu = 1;
        config.parallel.tensor = degree;
        testing::RankFixture fixture(config, testing::small_model(), communicators);
        const ProgramPlan plan = plan_generation(testing::small_model(), fixture.plan, kRoom);
        fixture.memory.allocate(plan.program);
        Executor executor(plan.program, plan.model, fixture.memory, fixture.communicators);
        const auto tokens = generate_tokens(executor, plan, fixture.memory, prompt, {.tokens = 10},
                                            communicators.host_world);
        const std::lock_guard lock(mutex);
        written.push_back(tokens);
      });
      REQUIRE(written.size() == static_cast<size_t>(degree * mesh.data.count));
      for (const std::vector<int32_t>& tokens : written) REQUIRE(tokens == expected);
    }
}

}  // namespace
}  // namespace ftrun
