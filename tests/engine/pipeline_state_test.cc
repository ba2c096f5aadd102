#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <mutex>
#include <set>

#include "checkpoint/save.h"
#include "engine/generate.h"
#include "kernels/kernels.h"
#include "mesh_runs.h"

#include <catch2/catch.hpp>

// These tests check what a run on pipeline stages saves, exports, evaluates and generates, and how
// it skips steps.

namespace ftrun {
namespace {

using testing::RankFixture;
using testing::saved_slices;
using testing::SavedState;
using testing::state_saved_on;
using testing::train_step;
using testing::TrainingMesh;

/// RunLayout describes the layout of a run; all places train the same model.
struct RunLayout {
  TrainingMesh mesh;
  int64_t stage = 0;
  PipelineSchedule schedule = PipelineSchedule::k1F1B;
  bool bf16 = false;
  /// Regular expressions that select the trainable parameters; empty: all are trainable.
  std::vector<std::string> only = {};

  Config config() const {
    Config config = testing::config_of_stage(stage);
    config.bf16.enabled = bf16;
    config.train.only = only;
    config.parallel.schedule = schedule;
    const bool chunks =
        schedule == PipelineSchedule::kInterleaved || schedule == PipelineSchedule::kZbV;
    config.parallel.virtual_stages = chunks ? 2 : 1;
    return config;
  }
  std::string text() const {
    return cat("stage ", stage, ", ", name_of(schedule), ", ", mesh.text(), bf16 ? ", bf16" : "");
  }
};

/// Requires that every layout reads back, bit for bit, what every other one saves, and that the
/// writer continues as if it had not saved.
void check_all_pairs(const std::vector<RunLayout>& layouts) {
  set_kernel_threads(1);
  const ModelConfig model = testing::with_layers(testing::model_of_many_blocks(true), 5);
  for (const RunLayout& writer : layouts) {
    const testing::TemporaryFolder scratch;
    const SavedState saved = state_saved_on(
        writer.config(), model, writer.mesh, [&](Rendezvous& rendezvous, RankFixture& fixture) {
          for (const int64_t number : {1, 2}) train_step(fixture, number);
          save_checkpoint(
              posix_files(), {scratch.path()}, {}, fixture.state.slices(),
              {rendezvous.rank(), rendezvous.world_size(),
               [&](const std::string& text) { return rendezvous.all_gather_text("save", text); }});
        });
    const auto resumed = [&](const RunLayout& layout, bool trains) {
      return state_saved_on(layout.config(), model, layout.mesh,
                            [&](Rendezvous&, RankFixture& fixture) {
                              Checkpoint checkpoint(scratch / "step-00000000");
                              fixture.load(checkpoint);
                              if (trains) train_step(fixture, 3);
                            });
    };
    for (const RunLayout& reader : layouts) {
      INFO(writer.text() << " -> " << reader.text());
      REQUIRE(resumed(reader, false) == saved);
    }
    INFO(writer.text());
    const SavedState straight =
        state_saved_on(writer.config(), model, writer.mesh, [&](Rendezvous&, RankFixture& fixture) {
          for (const int64_t number : {1, 2, 3}) train_step(fixture, number);
        });
    REQUIRE(straight != saved);
    REQUIRE(resumed(writer, true) == straight);
  }
}

TEST_CASE(
    "any layout reads back what another saved, bit for bit, and the same layout continues as if "
    "uninterrupted") {
  check_all_pairs({
      {{}, 0},
      {{.stages = 4}, 0, PipelineSchedule::kZbH1},
      {{.shards = 2, .stages = 2}, 3, PipelineSchedule::kInterleaved},
      {{.tensor = 2, .stages = 2}, 1, PipelineSchedule::kZbV},
      {{.tensor = 2, .shards = 2, .stages = 2}, 2},
      {{.shards = 3, .replicas = 2}, 3},
      {{.tensor = 4, .shards = 2}, 1},
  });
}

TEST_CASE("stages without trainable tensors restore a checkpoint that the other stages saved") {
  const std::vector<std::string> only{R"(layers\.1\.)"};
  check_all_pairs({{.only = only},
                   {.mesh = {.stages = 4}, .only = only},
                   {.mesh = {.shards = 2, .stages = 2}, .stage = 2, .bf16 = false, .only = only}});
}

TEST_CASE("an export collects the tensors of all stages whole") {
  set_kernel_threads(1);
  for (const bool tied : {false, true})
    for (const RunLayout& layout :
         {RunLayout{{.stages = 4}, 0},
          RunLayout{{.tensor = 2, .shards = 2, .stages = 2}, 1, PipelineSchedule::kZbV},
          RunLayout{{.shards = 2, .replicas = 2, .stages = 2}, 3}}) {
      INFO(layout.text() << (tied ? ", tied" : ""));
      const ModelConfig model = testing::with_layers(testing::model_of_many_blocks(tied), 5);
      const auto collected = testing::tensors_collected_on(layout.config(), model, layout.mesh);
      // There are nine tensors in each of five layers, the embedding, the last norm and, unless
      // tied, the head.
      REQUIRE(collected.size() == (tied ? 47 : 48));
      for (const auto& [tensor, values] : collected)
        for (size_t i = 0; i < values.size(); ++i)
          REQUIRE(values[i] == testing::weight_of(tensor, static_cast<int64_t>(i)));
    }
}

TEST_CASE(
    "ranks of all stages agree on who holds which tensors, whichever tier has the optimizer's "
    "state") {
  const ModelConfig model = testing::with_layers(testing::model_of_many_blocks(true), 5);
  for (const int64_t zero : {1, 2, 3})
    for (const double ratio : {0.4, 1.0}) {
      Config config = RunLayout{{.shards = 2, .stages = 3}, zero}.config();
      testing::offload_to(config, OffloadDevice::kCpu);
      config.zero.offload_optimizer.ratio = ratio;
      config = testing::config_on_mesh(config, {.shards = 2, .stages = 3});
      const std::vector<UnitSharding> first = plan_steps(config, model, 0).train.shardings;
      REQUIRE(std::any_of(first.begin(), first.end(),
                          [](const UnitSharding& unit) { return unit.parts == 2; }));
      for (int rank = 1; rank < 6; ++rank) {
        INFO("stage " << zero << ", ratio " << ratio << ", rank " << rank);
        REQUIRE(plan_steps(config, model, rank).train.shardings == first);
      }
    }
}

TEST_CASE("the sum of losses of an evaluation is one process's, on all ranks") {
  set_kernel_threads(1);
  const ModelConfig model = testing::with_layers(testing::model_of_many_blocks(), 5);
  const auto loss_of = [&](const RunLayout& layout) {
    std::mutex mutex;
    std::vector<double> losses;
    state_saved_on(layout.config(), model, layout.mesh, [&](Rendezvous&, RankFixture& fixture) {
      testing::set_batches(fixture, 1);
      double sum = 0;
      for (const MicroBatch& batch : fixture.batches) {
        ForwardRun run;
        run.micro_batches = {&batch, 1};
        fixture.evaluation_executor.run_forward(run);
        sum += run.result.loss_sum;
      }
      const std::lock_guard lock(mutex);
      losses.push_back(sum);
    });
    REQUIRE(losses.size() == static_cast<size_t>(layout.mesh.ranks()));
    for (const double loss : losses) REQUIRE(loss == losses.front());
    return losses.front();
  };
  const double expected = loss_of({});
  REQUIRE(std::isfinite(expected));
  for (const RunLayout& layout :
       {RunLayout{{.stages = 4}, 0, PipelineSchedule::kZbH1},
        RunLayout{{.stages = 2}, 1, PipelineSchedule::kZbV},
        RunLayout{{.tensor = 2, .stages = 2}, 2, PipelineSchedule::kInterleaved},
        RunLayout{{.shards = 2, .replicas = 2, .stages = 2}, 3}}) {
    INFO(layout.text());
    REQUIRE(loss_of(layout) == Approx(expected).epsilon(testing::kLossBound));
  }
}

TEST_CASE("all ranks of a pipeline write the tokens that one process writes") {
  set_kernel_threads(1);
  constexpr int64_t kRoom = 8;
  const ModelConfig model = testing::with_layers(testing::model_of_many_blocks(), 5);
  const auto written_on = [&](const RunLayout& layout) {
    Config config = layout.config();
    config.train_micro_batch_size_per_gpu = 1;
    std::mutex mutex;
    std::vector<std::vector<int32_t>> written;
    state_saved_on(config, model, layout.mesh, [&](Rendezvous&, RankFixture& fixture) {
      const ProgramPlan plan = plan_generation(model, fixture.plan, kRoom);
      fixture.memory.allocate(plan.program);
      Executor executor(plan.program, plan.model, fixture.memory, fixture.communicators);
      const bool has_logits = find_result_buffer(plan.program) >= 0;
      const bool last = fixture.plan.options.state.pipeline_stage ==
                        fixture.plan.options.state.pipeline.stage_of(
                            fixture.plan.options.state.pipeline.model_chunks() - 1);
      require(has_logits == last, "the stage with the head has logits");
      // The first rank of the stage that has the head chooses the tokens.
      const int head = fixture.plan.options.state.pipeline.stage_of(
          fixture.plan.options.state.pipeline.model_chunks() - 1);
      const int sampling_rank = head * layout.mesh.ranks() / layout.mesh.stages;
      const auto tokens =
          generate_tokens(executor, plan, fixture.memory, std::vector<int32_t>{3, 1, 4},
                          {.tokens = 10, .sampling_rank = sampling_rank, .has_logits = has_logits},
                          fixture.communicators.host_world);
      const std::lock_guard lock(mutex);
      written.push_back(tokens);
    });
    REQUIRE(written.size() == static_cast<size_t>(layout.mesh.ranks()));
    for (const std::vector<int32_t>& tokens : written) REQUIRE(tokens == written.front());
    return written.front();
  };
  const std::vector<int32_t> expected = written_on({});
  REQUIRE(expected.size() == 10);
  for (const RunLayout& layout :
       {RunLayout{{.stages = 2}, 0}, RunLayout{{.stages = 2}, 3, PipelineSchedule::kZbV},
        RunLayout{{.stages = 2}, 1, PipelineSchedule::kInterleaved},
        RunLayout{{.tensor = 2, .stages = 4}, 0},
        RunLayout{{.tensor = 2, .shards = 2, .stages = 2}, 3}}) {
    INFO(layout.text());
    REQUIRE(written_on(layout) == expected);
  }
}

// Steps that are not finite.

/// Returns the message of each rank after a step with a weight that is NaN.
std::vector<std::string> nonfinite_on(const RunLayout& layout, const ModelConfig& model,
                                      const std::string& weight) {
  std::vector<std::string> found(static_cast<size_t>(layout.mesh.ranks()));
  state_saved_on(
      layout.config(), model, layout.mesh, [&](Rendezvous& rendezvous, RankFixture& fixture) {
        train_step(fixture, 1);
        testing::overwrite_weight(fixture, weight, 5, std::numeric_limits<float>::quiet_NaN());
        const auto before = saved_slices(fixture.state);
        testing::set_batches(fixture, 2);
        StepRun run = fixture.prepare_step(2);
        fixture.train_executor.run(run);
        require(!run.result.finite, "every rank decides alike");
        found[static_cast<size_t>(rendezvous.rank())] =
            fixture.train_executor.find_nonfinite(run).text;
        require(!run.result.finite, "nor is it finite when it is run again");
        require(saved_slices(fixture.state) == before, "no state has changed");
        testing::overwrite_weight(fixture, weight, 5, 0.1F);
        train_step(fixture, 3);
        require(saved_slices(fixture.state) != before, "the step after it trains");
      });
  return found;
}

TEST_CASE(
    "a step with a value that is not finite changes nothing on any stage, and the stage that found "
    "the value names the layer") {
  set_kernel_threads(1);
  const ModelConfig model = testing::with_layers(testing::model_of_many_blocks(), 4);
  const std::string weight = "model.layers.2.mlp.up_proj.weight";
  const std::string expected = cat("(layers.2): sum; the weight ", weight, " is not finite");
  for (const RunLayout& layout :
       {RunLayout{{.stages = 2}, 0}, RunLayout{{.stages = 4}, 1, PipelineSchedule::kGpipe},
        RunLayout{{.shards = 2, .stages = 2}, 2, PipelineSchedule::kZbH1},
        RunLayout{{.stages = 2}, 0, PipelineSchedule::kZbV},
        RunLayout{{.stages = 2}, 1, PipelineSchedule::kInterleaved},
        RunLayout{{.shards = 2, .stages = 2}, 3},
        RunLayout{{.shards = 2, .stages = 2}, 3, PipelineSchedule::kGpipe, true},
        RunLayout{{.stages = 2}, 1, PipelineSchedule::k1F1B, true},
        RunLayout{{.stages = 2}, 0, PipelineSchedule::kInterleaved, true},
        RunLayout{{.stages = 4}, 1, PipelineSchedule::kZbH1, true},
        RunLayout{{.shards = 2, .stages = 2}, 3, PipelineSchedule::kZbV, true}}) {
    INFO(layout.text());
    const auto of_stage = testing::options_of(layout.mesh, layout.config(), model).pipeline;
    const std::vector<std::string> found = nonfinite_on(layout, model, weight);
    const int ranks_a_stage = layout.mesh.ranks() / layout.mesh.stages;
    for (size_t rank = 0; rank < found.size(); ++rank) {
      INFO("rank " << rank << ": " << found[rank]);
      // Layers are counted from the embedding, which is layer 0.
      const bool holds = of_stage.stage_has_layer(static_cast<int>(rank) / ranks_a_stage, 3);
      CHECK((found[rank].find(expected) != std::string::npos) == holds);
    }
  }
}

/// Removes a token from the rank's batches, except from one micro-batch; -1: from all of them.
void keep_token_only_in(RankFixture& fixture, int32_t token, int micro_batch) {
  for (MicroBatch& batch : fixture.batches)
    for (int32_t& id : batch.tokens)
      if (id == token) id = token + 1;
  if (micro_batch >= 0) fixture.batches[static_cast<size_t>(micro_batch)].tokens[3] = token;
}

TEST_CASE(
    "the micro-batch that first reads a value that is not finite is named by the stage that reads "
    "it, also in bf16") {
  set_kernel_threads(1);
  constexpr int32_t kToken = 7;
  constexpr int kPoisonedData = 1;
  constexpr int kPoisonedMicroBatch = 3;
  const ModelConfig model = testing::with_layers(testing::model_of_many_blocks(), 4);
  const std::string weight = "model.embed_tokens.weight";
  const std::string expected = cat("forward layer 0 mb ", kPoisonedMicroBatch,
                                   " (embed): embedding; the weight ", weight, " is not finite");
  size_t turn = 0;
  for (const PipelineSchedule schedule :
       {PipelineSchedule::kGpipe, PipelineSchedule::k1F1B, PipelineSchedule::kInterleaved,
        PipelineSchedule::kZbH1, PipelineSchedule::kZbV}) {
    const RunLayout layout{
        {.shards = 2, .stages = 2}, std::array{0, 1, 3}[turn++ % 3], schedule, true};
    INFO(layout.text());
    std::vector<std::string> found(4);
    state_saved_on(
        layout.config(), model, layout.mesh, [&](Rendezvous& rendezvous, RankFixture& fixture) {
          train_step(fixture, 1);
          testing::overwrite_weight(fixture, weight, kToken * model.hidden,
                                    std::numeric_limits<float>::quiet_NaN());
          testing::set_batches(fixture, 2);
          keep_token_only_in(fixture, kToken,
                             data_parallel_place(fixture.plan.options.state).index == kPoisonedData
                                 ? kPoisonedMicroBatch
                                 : -1);
          StepRun run = fixture.prepare_step(2);
          fixture.train_executor.run(run);
          require(!run.result.finite, "every rank decides alike");
          found[static_cast<size_t>(rendezvous.rank())] =
              fixture.train_executor.find_nonfinite(run).text;
        });
    // Ranks 0 and 1 have the first stage, ranks 2 and 3 the second; only ranks 1 and 3 have the
    // token.
    CHECK(found[0] == "");
    CHECK(found[1] == expected);
    CHECK(found[2] == "");
    CHECK(found[3].find(cat(" mb ", kPoisonedMicroBatch, " (")) != std::string::npos);
    CHECK(found[3].find("the weight") == std::string::npos);
  }
}

// Two copies of one matrix.

/// Returns the embedding's parameters and moments that a rank holds, by kind and position.
std::map<std::string, std::vector<std::byte>> tied_state(const RankFixture& fixture) {
  std::map<std::string, std::vector<std::byte>> all;
  const ProgramPlan& train = fixture.plan.train;
  for (const UnitStatePiece& piece : train.pieces)
    for (const TensorSlice& slice :
         slices_in(fixture.plan.partition.unit(piece.unit), piece.begin, piece.end)) {
      const TensorInfo& tensor = train.model.tensor(slice.tensor);
      if (tensor.name != "model.embed_tokens.weight") continue;
      const int64_t size = dtype_bytes(train.program.at(piece.range.buffer).format.dtype);
      const std::byte* at = fixture.memory.at(train.program, piece.range) +
                            (slice.position_in_unit - piece.begin) * size;
      all[cat(piece.state, " ", tensor.local.offset[0], " ", slice.offset)] = {
          at, at + slice.extent * size};
    }
  return all;
}

TEST_CASE("both copies of a tied matrix stay the same to the bit, and count once in the norm") {
  set_kernel_threads(1);
  const ModelConfig model = testing::with_layers(testing::model_of_many_blocks(true), 5);
  const auto trained = testing::train_on_mesh(testing::config_of_stage(0), model, {}, 4);
  for (const RunLayout& layout :
       {RunLayout{{.stages = 2}, 0},
        RunLayout{{.shards = 2, .stages = 4}, 0, PipelineSchedule::kZbH1},
        RunLayout{{.tensor = 2, .shards = 2, .stages = 2}, 1},
        RunLayout{{.shards = 3, .stages = 2}, 2, PipelineSchedule::kInterleaved},
        RunLayout{{.shards = 2, .replicas = 2, .stages = 2}, 3, PipelineSchedule::kGpipe}}) {
    INFO(layout.text());
    std::mutex mutex;
    std::map<std::string, std::vector<std::byte>> held;
    std::map<std::string, std::set<int>> holders;
    std::vector<double> norms;
    state_saved_on(layout.config(), model, layout.mesh,
                   [&](Rendezvous& rendezvous, RankFixture& fixture) {
                     for (int64_t step = 1; step <= 4; ++step) {
                       const double norm = train_step(fixture, step).result.gradient_norm;
                       const std::lock_guard lock(mutex);
                       if (rendezvous.rank() == 0) norms.push_back(norm);
                       for (const auto& [name, bytes] : tied_state(fixture)) {
                         const auto [known, is_new] = held.emplace(cat(step, " ", name), bytes);
                         require(is_new || known->second == bytes,
                                 cat("both stages hold the same ", name).c_str());
                         holders[name].insert(fixture.plan.options.state.pipeline_stage);
                       }
                     }
                   });
    REQUIRE_FALSE(holders.empty());
    for (const auto& [name, stages] : holders) {
      INFO(name);
      REQUIRE(stages == std::set<int>{0, layout.mesh.stages - 1});
    }
    for (size_t step = 0; step < norms.size(); ++step)
      REQUIRE(norms[step] == Approx(trained.norms[step]).epsilon(testing::kGradientNormBound));
  }
}

}  // namespace
}  // namespace ftrun
