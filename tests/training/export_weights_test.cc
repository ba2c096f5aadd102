#include "training/export_weights.h"

#include <array>
#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "inputs/export_options.h"
#include "rank_fixture.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

/// Writes a model folder with small_model(), from which a run can start.
void write_model(const std::string& folder) {
  std::filesystem::copy(testing::model_folder(testing::small_model()).path(), folder);
  write_file_atomic(posix_files(), folder + "/config.json",
                    R"({"model_type": "llama", "vocab_size": 32,
      "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
      "num_key_value_heads": 2, "head_dim": 4, "rms_norm_eps": 1e-5, "hidden_act": "silu",
      "max_position_embeddings": 64, "tie_word_embeddings": false})");
}

Config run_in(const std::string& scratch) {
  Config config = testing::config_of_stage(3);
  config.model.path = scratch + "/model";
  config.output_dir = scratch + "/out";
  config.parallel.data = 2;
  config.train_batch_size = 8;
  return config;
}

/// Returns the errors of two ranks that export together; `before_piece` is called before each
/// piece. A rank that fails waits until the other one has failed too, because otherwise the end of
/// its groups would make the other one fail earlier.
std::vector<std::string> export_on_two(
    const Config& config, const std::function<void(int rank, int piece)>& before_piece,
    const std::function<void(int rank, const ExportResult&)>& then) {
  return testing::errors_on_ranks(2, [&](Rendezvous& rendezvous, Communicator& group) {
    TrainingSetup setup(config, PlannedModel(config, group.rank()),
                        testing::communicators_of(group), "results");
    setup.state().load(setup.folder());
    int pieces = 0;
    const std::function<bool()> must_stop = [&] {
      before_piece(group.rank(), pieces++);
      double stops = 0;
      group.all_reduce(&stops, 1, DType::kF64, ReduceOp::kSum, {"stops"}).wait();
      return stops > 0;
    };
    try {
      then(group.rank(), export_weights(config, setup, group.rank() == 0, must_stop));
    } catch (const Error&) {
      rendezvous.all_gather_text("failed", "", WaitPolicy::kWhileAlive);
      throw;
    }
  });
}

TEST_CASE(
    "a failure of the writer within a piece ends the export of all ranks at once, with its cause") {
  const testing::TemporaryFolder scratch;
  write_model(scratch / "model");
  const Config config = run_in(scratch.path());
  const auto fail = [](int rank, int piece) {
    if (rank == 0 && piece == 2) throw Error(ExitCode::kEnvironment, "Input/output error");
  };
  const std::vector<std::string> messages =
      export_on_two(config, fail, [](int, const ExportResult&) {});
  REQUIRE(messages[0] == "Input/output error");
  // An error at the groups' time limit would say that the rank has waited.
  REQUIRE_THAT(messages[1],
               Catch::StartsWith("rank 1 lost a peer in ") && Catch::Contains("rank 0"));
  REQUIRE_FALSE(std::filesystem::exists(export_folder(config)));
}

TEST_CASE("a failure of the writer between pieces is reported when the other ranks are done") {
  const testing::TemporaryFolder scratch;
  write_model(scratch / "model");
  const Config config = run_in(scratch.path());
  std::filesystem::create_directories(export_folder(config));
  write_file_atomic(posix_files(), export_folder(config) + "/of-somebody", "");
  std::array<bool, 2> failed{};
  const auto none = [](int, int) {};
  testing::require_no_failures(
      export_on_two(config, none, [&](int rank, const ExportResult& result) {
        REQUIRE_FALSE(result.stopped);
        failed[static_cast<size_t>(rank)] = result.failure != nullptr;
      }));
  REQUIRE(failed == std::array{true, false});
}

}  // namespace
}  // namespace ftrun
