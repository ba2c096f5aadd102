#include "engine/replica_check.h"

#include <optional>
#include <random>

#include "cluster/failure_summary.h"
#include "mesh_runs.h"
#include "partition/flat_layout.h"
#include "rank_fixture.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using testing::RankFixture;

ReplicaCheck make_check(const RankFixture& fixture, Rendezvous& rendezvous) {
  return {fixture.plan, fixture.memory,
          [&rendezvous](const std::string& text) {
            return rendezvous.all_gather_text("replicas", text);
          },
          [&fixture](std::span<double> numbers) {
            fixture.communicators.host_world
                ->all_reduce(numbers.data(), static_cast<int64_t>(numbers.size()), DType::kF64,
                             ReduceOp::kSum, {"replicas"})
                .wait();
          }};
}

/// Returns the message of the check on each rank. The check passes after a step, and runs again
/// after `corrupt` was called on each rank.
std::vector<std::string> check_messages(
    const Config& plain, const testing::TrainingMesh& mesh,
    const std::function<void(int, RankFixture&)>& corrupt, bool compares = true,
    const std::function<std::string(int, const std::function<void()>&)>& read =
        [](int, const std::function<void()>& check) { return testing::error_text_of(check); }) {
  Config config = testing::config_on_mesh(plain, mesh);
  config.parallel.virtual_stages = 1;
  const ModelConfig model = testing::with_layers(testing::model_of_many_blocks(), 4);
  std::vector<std::string> messages(static_cast<size_t>(mesh.ranks()));
  testing::run_on_mesh(testing::options_of(mesh, config, model),
                       [&](Rendezvous& rendezvous, const RankCommunicators& communicators) {
                         RankFixture fixture(config, model, communicators);
                         const ReplicaCheck check = make_check(fixture, rendezvous);
                         require(check.has_replicas() == compares, "what ranks hold alike");
                         testing::train_step(fixture, 1);
                         check.compare_replicas(1);
                         corrupt(rendezvous.rank(), fixture);
                         messages[static_cast<size_t>(rendezvous.rank())] =
                             read(rendezvous.rank(), [&] { check.compare_replicas(2); });
                       });
  return messages;
}

/// Runs the check, and returns which rank a supervisor blames if only this rank reports the error.
std::string blame_of(int rank, const std::function<void()>& check) {
  try {
    check();
  } catch (const Error& error) {
    const FailureSummary summary =
        summarize_failures({.exits = {{.rank = rank, .exit_code = 5}},
                            .reports = {make_failure_report(rank, error, error)},
                            .log_of = {}});
    return cat(summary.rank, summary.belongs_to_rank ? " fails" : " tells");
  }
  return "";
}

constexpr const char* kRemedy =
    "\n  remedy: check the memory, CPUs and GPUs of these machines (dmesg, nvidia-smi -q); "
    "--resume auto continues from the last checkpoint, before which this was compared too (if the "
    "ranks run on different CPU models, rounding may differ: set train.check_replicas: 0)";

const char* const kMatrix = "model.layers.1.mlp.down_proj.weight";

void overwrite_on_rank(int rank, int here, RankFixture& fixture) {
  if (rank == here) testing::overwrite_weight(fixture, kMatrix, 5, 0.25F);
}

TEST_CASE("if one rank of three has other bits, all ranks name it") {
  const std::string expected =
      cat("rank 1 holds other bits than ranks 0 and 2 of ", kMatrix,
          " (parameters) after step 2, which must be equal on all: a memory "
          "or CPU error there changed them",
          kRemedy);
  for (const int64_t stage : {0, 1, 2}) {
    INFO("stage " << stage);
    REQUIRE(check_messages(testing::config_of_stage(stage), {.shards = 3},
                           [](int rank, RankFixture& fixture) {
                             overwrite_on_rank(1, rank, fixture);
                           }) == std::vector<std::string>(3, expected));
  }
  REQUIRE(check_messages(testing::config_of_stage(3), {.replicas = 3},
                         [](int rank, RankFixture& fixture) {
                           overwrite_on_rank(1, rank, fixture);
                         }) == std::vector<std::string>(3, expected));
}

TEST_CASE(
    "bits that differ on one of three ranks are that rank's failure; with two ranks, nobody knows "
    "whose they are") {
  const auto corrupt = [](int rank, RankFixture& fixture) { overwrite_on_rank(1, rank, fixture); };
  REQUIRE(check_messages(testing::config_of_stage(0), {.shards = 3}, corrupt, true, blame_of) ==
          std::vector<std::string>(3, "1 fails"));
  REQUIRE(check_messages(testing::config_of_stage(0), {.shards = 2}, corrupt, true, blame_of) ==
          std::vector<std::string>{"0 tells", "1 tells"});
}

TEST_CASE("both ranks of two that differ are named") {
  const std::string expected =
      cat("ranks 0 and 1 do not hold the same bits of ", kMatrix,
          " (parameters) after step 2, which must be equal: a memory or CPU "
          "error on one of them changed them",
          kRemedy);
  REQUIRE(check_messages(testing::config_of_stage(0), {.shards = 2},
                         [](int rank, RankFixture& fixture) {
                           overwrite_on_rank(1, rank, fixture);
                         }) == std::vector<std::string>(2, expected));
}

TEST_CASE("replicas of shards compare their own shard, and stages of a pipeline their own layers") {
  const std::vector<std::string> sharded =
      check_messages(testing::config_of_stage(3), {.shards = 2, .replicas = 2},
                     [](int rank, RankFixture& fixture) { overwrite_on_rank(3, rank, fixture); });
  REQUIRE_THAT(sharded[0],
               Catch::StartsWith(cat("ranks 1 and 3 do not hold the same bits of ", kMatrix)));
  const char* const last = "model.layers.3.mlp.down_proj.weight";
  const std::vector<std::string> staged = check_messages(
      testing::config_of_stage(0), {.shards = 2, .stages = 2}, [&](int rank, RankFixture& fixture) {
        if (rank == 3) testing::overwrite_weight(fixture, last, 5, 0.25F);
      });
  REQUIRE_THAT(staged[0],
               Catch::StartsWith(cat("ranks 2 and 3 do not hold the same bits of ", last)));
}

TEST_CASE("tensor-parallel ranks compare the tensors that none of them splits") {
  const std::vector<std::string> norms = check_messages(
      testing::config_of_stage(1), {.tensor = 2}, [](int rank, RankFixture& fixture) {
        if (rank == 1) testing::overwrite_weight(fixture, "model.norm.weight", 3, 0.25F);
      });
  REQUIRE_THAT(norms[0],
               Catch::StartsWith(
                   "ranks 0 and 1 do not hold the same bits of model.norm.weight (parameters)"));
}

TEST_CASE("no replicas are compared if all state is sharded") {
  REQUIRE(check_messages(
              testing::config_of_stage(3), {.shards = 2},
              [](int rank, RankFixture& fixture) { overwrite_on_rank(1, rank, fixture); },
              false) == std::vector<std::string>(2));
}

TEST_CASE(
    "any flipped bit of a state that other ranks hold is found, and no normal step is mistaken for "
    "one") {
  const Config config = testing::config_on_mesh(testing::config_of_stage(0), {.shards = 3});
  const ModelConfig model = testing::model_of_many_blocks();
  testing::run_on_mesh(1, 3, [&](Rendezvous& rendezvous, const RankCommunicators& communicators) {
    RankFixture fixture(config, model, communicators);
    const ReplicaCheck check = make_check(fixture, rendezvous);
    std::mt19937 random(7);
    for (int64_t step = 1; step <= 40; ++step) {
      if (step <= 5) testing::train_step(fixture, step);
      check.compare_replicas(step);
      const int culprit = static_cast<int>(random() % 3);
      const UnitStatePiece& piece =
          fixture.plan.train.pieces[random() % fixture.plan.train.pieces.size()];
      const std::vector<TensorSlice> slices =
          slices_in(fixture.plan.partition.unit(piece.unit), piece.begin, piece.end);
      const TensorSlice& slice = slices[random() % slices.size()];
      const int64_t size =
          dtype_bytes(fixture.plan.train.program.at(piece.range.buffer).format.dtype);
      const int64_t byte = (slice.position_in_unit - piece.begin) * size +
                           static_cast<int64_t>(random()) % (slice.extent * size);
      const auto bit = static_cast<std::byte>(1U << (random() % 8));
      std::byte& there = fixture.memory.at(fixture.plan.train.program, piece.range)[byte];
      if (rendezvous.rank() == culprit) there ^= bit;
      const std::string message = testing::error_text_of([&] { check.compare_replicas(step); });
      require(message.starts_with(cat("rank ", culprit, " holds other bits than ranks ")),
              message.c_str());
      require(message.find(fixture.plan.train.model.tensor(slice.tensor).name) != std::string::npos,
              message.c_str());
      if (rendezvous.rank() == culprit) there ^= bit;
    }
  });
}

}  // namespace
}  // namespace ftrun
