// These tests check the loop of steps itself, over fake parts that record its calls.
#include "training/training_loop.h"

#include <algorithm>
#include <csignal>
#include <limits>
#include <string>
#include <vector>

#include "base/error.h"
#include "fake_run.h"
#include "inputs/checkpoint_fields.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using testing::FakeRun;
using Calls = std::vector<std::string>;

constexpr double kInfinite = std::numeric_limits<double>::infinity();

/// Returns a run that does not evaluate, does not export, and saves nothing before its end.
Config plain_config() {
  Config config;
  config.train_batch_size = 4;
  config.checkpoint.every = 0;
  config.model_export.enabled = false;
  config.train.check_replicas = 1000;
  return config;
}

/// Returns a run that evaluates one set every `every` steps.
Config evaluating_config(int64_t every, Config config = plain_config()) {
  config.data.validation = {"v.bin"};
  config.train.evaluation.every = every;
  return config;
}

/// Returns a run that evaluates after each step, keeps the best, and stops after three evaluations
/// without improvement.
Config keep_best_config() {
  Config config = evaluating_config(1);
  config.checkpoint.keep_best.metric = "validation.loss";
  config.train.early_stopping.metric = "validation.loss";
  config.train.early_stopping.patience = 3;
  return config;
}

/// Returns the calls whose first word is in `words`.
Calls calls_named(const FakeRun& run, const Calls& words) {
  Calls found;
  for (const std::string& call : run.calls)
    if (std::find(words.begin(), words.end(), call.substr(0, call.find(' '))) != words.end())
      found.push_back(call);
  return found;
}

/// Returns "code: message" of the error with which a run ends.
std::string run_error(FakeRun& run) {
  try {
    run.loop().run();
  } catch (const Error& error) {
    return cat(static_cast<int>(error.code()), ": ", error.message());
  }
  return "none";
}

/// Restores the progress of `before` from its checkpoint's record, as another start does.
void restore(FakeRun& run, const FakeRun& before) {
  CheckpointMeta meta;
  before.progress.add_to(meta);
  run.progress.restore(meta);
  run.resumed = true;
}

TEST_CASE("a step reads, trains, evaluates, records and saves, in this order") {
  Config config = evaluating_config(2);
  config.checkpoint.every = 1;
  FakeRun run(config, 3);
  run.loop().run();
  CHECK(run.calls == Calls{"evaluate 0",
                           "record 0",
                           "texts 0",  //
                           "next 1",
                           "run 1",
                           "measurements 1",
                           "details 1",
                           "slow 1",
                           "record 1",
                           "data",  //
                           "await before saving",
                           "check 1",
                           "save 1",  //
                           "next 2",
                           "run 2",
                           "measurements 2",
                           "details 2",
                           "slow 2",
                           "evaluate 2",
                           "record 2",
                           "texts 2",
                           "data",
                           "await before saving",
                           "check 2",
                           "save 2",  //
                           "next 3",
                           "run 3",
                           "measurements 3",
                           "details 3",
                           "slow 3",
                           "evaluate 3",
                           "record 3",
                           "data",
                           "await before saving",
                           "check 3"});
  REQUIRE(run.metrics.size() == 4);
  CHECK_FALSE(run.metrics[0].trained);
  CHECK(run.metrics[2].evaluations.size() == 1);
  CHECK(run.metrics[3].samples == 12);
  CHECK(run.metrics[3].loss == 2);
  CHECK(run.metrics[3].data_wait_seconds == 0.25);
  CHECK(run.metrics[3].step_seconds == 1);
  CHECK(run.metrics[3].tokens_per_second == 10);
  CHECK(run.progress.tokens == 30);
}

TEST_CASE(
    "the last checkpoint waits for the data's fingerprint, and is saved once more only if that is "
    "missing") {
  Config config = plain_config();
  config.model_export.enabled = true;
  FakeRun run(config, 1);
  TrainingLoop loop = run.loop();
  loop.run();
  run.calls.clear();
  loop.save_last();
  CHECK(run.calls == Calls{"check 1", "await", "save 1", "agree"});
  CHECK(run.printed.empty());

  FakeRun unread(plain_config(), 1);
  unread.fingerprint = "";
  TrainingLoop last = unread.loop();
  last.run();
  unread.calls.clear();
  last.save_last();
  CHECK(unread.calls == Calls{"check 1", "await", "save 1 of unknown data"});
  CHECK(unread.printed ==
        Calls{"the last checkpoint does not record the data's fingerprint, because the run ended "
              "before it had read all data: a resume cannot check that the data is the same"});
  last.save_last();
  CHECK(unread.printed.size() == 1);  // the checkpoint exists
}

TEST_CASE(
    "a stop signal of any rank ends the run after the step that reported it, and the state is "
    "saved") {
  Config config = evaluating_config(1);
  config.checkpoint.every = 2;
  FakeRun run(config, 9);
  run.step_changes[3] = [](StepRun& step) {
    step.result.flags_of_all_ranks.add(RankFlag::kTerminate);
  };
  TrainingLoop loop = run.loop();
  loop.run();
  CHECK(run.stop.signal() == SIGTERM);
  CHECK(run.progress.step == 3);
  // There is no evaluation between the signal and the save.
  CHECK(calls_named(run, {"evaluate", "save"}) ==
        Calls{"evaluate 0", "evaluate 1", "evaluate 2", "save 2", "save 3"});
  CHECK(run.calls.back() == "save 3");
  run.calls.clear();
  loop.save_last();
  CHECK(run.calls == Calls{"save 3"});  // neither checks nor waits
}

TEST_CASE("a resumed run that stops before it knows its data saves at once, and says so once") {
  for (const bool resumed : {true, false}) {
    FakeRun run(plain_config(), 9);
    run.resumed = resumed;
    run.fingerprint = "";
    run.step_changes[2] = [](StepRun& step) {
      step.result.flags_of_all_ranks.add(RankFlag::kTerminate);
    };
    TrainingLoop loop = run.loop();
    loop.run();
    loop.save_last();
    CHECK(calls_named(run, {"save"}) == Calls(2, "save 2 of unknown data"));
    CHECK(calls_named(run, {"await"}).empty());
    CHECK(run.printed.size() == (resumed ? 1U : 0U));
  }
}

TEST_CASE("a rank reports its own signal with its next step") {
  FakeRun run(plain_config(), 9);
  run.step_changes[2] = [&](StepRun&) { run.own_signal = SIGUSR1; };
  run.loop().run();
  CHECK(run.progress.step == 3);
  CHECK(run.stop.signal() == SIGUSR1);
}

TEST_CASE("a signal that arrives while a save blocks training ends the run without another step") {
  Config config = plain_config();
  config.checkpoint.every = 2;
  FakeRun run(config, 9);
  run.slow_saves = true;
  run.agreed_signal = SIGINT;
  run.loop().run();
  CHECK(run.progress.step == 2);
  CHECK(calls_named(run, {"save", "agree"}) == Calls{"save 2", "agree"});
  CHECK(run.stop.signal_name() == std::string("SIGINT"));

  FakeRun quick(config, 4);
  quick.agreed_signal = SIGINT;
  quick.loop().run();
  CHECK(quick.progress.step == 4);  // a copy is too short for an agreement
}

TEST_CASE("an evaluation that a signal ends does not count, and the step is recorded and saved") {
  FakeRun run(keep_best_config(), 9);
  run.losses = {{1, 3}};
  run.stopped_evaluation = 2;
  run.agreed_signal = SIGTERM;
  run.loop().run();
  CHECK(run.progress.step == 2);
  CHECK(run.progress.evaluations.last_step() == 1);
  REQUIRE(run.metrics.size() == 3);
  CHECK(run.metrics[2].evaluations.empty());
  CHECK(run.printed == Calls{"the evaluation after step 2 stopped by SIGTERM"});
  CHECK(calls_named(run, {"save"}) == Calls{"save 1", "save 2"});
}

TEST_CASE("a run that was stopped before its first step saves nothing") {
  FakeRun run(evaluating_config(1), 3);
  run.stopped_evaluation = 0;
  run.agreed_signal = SIGTERM;
  TrainingLoop loop = run.loop();
  loop.run();
  loop.save_last();
  CHECK(run.calls == Calls{"evaluate 0", "agree"});
}

TEST_CASE("evaluations come before the first step, every so many steps and after the last one") {
  FakeRun run(evaluating_config(3), 7);
  run.loop().run();
  CHECK(calls_named(run, {"evaluate"}) ==
        Calls{"evaluate 0", "evaluate 3", "evaluate 6", "evaluate 7"});
  FakeRun ends(evaluating_config(0), 4);
  ends.loop().run();
  CHECK(calls_named(ends, {"evaluate"}) == Calls{"evaluate 0", "evaluate 4"});
  FakeRun none(plain_config(), 4);
  none.loop().run();
  CHECK(calls_named(none, {"evaluate", "texts"}).empty());
}

TEST_CASE("evaluations by time follow the clock of the first rank") {
  Config config = evaluating_config(0);
  config.train.evaluation.every_minutes = 1;
  FakeRun run(config, 10);
  run.seconds_of_step = 25;
  run.loop().run();
  // Flags are sent at the beginning of a step: at 75 s that of step 4, at 175 s that of step 8.
  CHECK(calls_named(run, {"evaluate"}) ==
        Calls{"evaluate 0", "evaluate 4", "evaluate 8", "evaluate 10"});

  FakeRun other(config, 4);
  other.seconds_of_step = 1000;
  other.plan.is_first = false;
  other.step_changes[2] = [](StepRun& step) {
    step.result.flags_of_all_ranks.add(RankFlag::kEvaluationDue);
  };
  other.loop().run();
  CHECK(calls_named(other, {"evaluate"}) == Calls{"evaluate 0", "evaluate 2", "evaluate 4"});
}

TEST_CASE(
    "the best state is saved and named in run.json, and early stopping ends a run that no longer "
    "improves") {
  FakeRun run(keep_best_config(), 20);
  run.losses = {{1, 5}, {2, 4}, {3, 6}, {4, 4}, {5, 4.5}};
  run.loop().run();
  CHECK(calls_named(run, {"save"}) == Calls{"save 1", "save 2"});
  REQUIRE(run.manifest.best.has_value());
  CHECK(run.manifest.best->step == 2);
  CHECK(run.manifest.best->value == 4);
  CHECK(run.progress.step == 5);
  CHECK(run.loop().has_ended());
}

TEST_CASE(
    "a resumed run continues the record of evaluations, and stops where it would have stopped") {
  FakeRun before(keep_best_config(), 3);
  before.losses = {{1, 5}, {2, 4}, {3, 6}};
  before.loop().run();
  FakeRun run(keep_best_config(), 20);
  restore(run, before);
  run.losses = {{4, 4.5}, {5, 4.5}, {6, 1}};
  run.loop().run();
  // The evaluation after step 3 is not repeated. The one after step 4 is no better than the one
  // after step 2.
  CHECK(calls_named(run, {"evaluate", "recorded"}) == Calls{"evaluate 4", "evaluate 5"});
  CHECK(calls_named(run, {"save"}).empty());
  CHECK(run.progress.step == 5);
  REQUIRE(run.progress.evaluations.best());
  CHECK(run.progress.evaluations.best()->step == 2);
}

TEST_CASE("a resumed run makes the evaluation that a signal prevented, unless it was recorded") {
  Config config = keep_best_config();
  config.train.evaluation.every = 2;
  FakeRun before(config, 9);
  before.step_changes[2] = [](StepRun& step) {
    step.result.flags_of_all_ranks.add(RankFlag::kTerminate);
  };
  before.loop().run();
  REQUIRE(before.progress.step == 2);

  FakeRun run(config, 3);
  restore(run, before);
  run.losses = {{2, 4}, {3, 5}};
  run.loop().run();
  CHECK(Calls(run.calls.begin(), run.calls.begin() + 6) ==
        Calls{"recorded 2", "evaluate 2", "record 2", "texts 2", "await before saving", "save 2"});

  FakeRun known(config, 3);
  restore(known, before);
  known.recorded_losses = {{2, 4}};
  known.losses = {{3, 5}};
  known.loop().run();
  CHECK(Calls(known.calls.begin(), known.calls.begin() + 3) ==
        Calls{"recorded 2", "await before saving", "save 2"});
  CHECK(known.progress.evaluations.best()->value == 4);

  FakeRun not_due(config, 4);
  FakeRun after_three(config, 3);
  after_three.step_changes[3] = [](StepRun& step) {
    step.result.flags_of_all_ranks.add(RankFlag::kTerminate);
  };
  after_three.loop().run();
  restore(not_due, after_three);
  not_due.loop().run();
  CHECK(calls_named(not_due, {"evaluate", "recorded"}) == Calls{"evaluate 4"});
}

TEST_CASE(
    "steps that are not finite are counted, only the first of consecutive ones is searched, and "
    "the next step gets their update number") {
  FakeRun run(plain_config(), 6);
  for (const int64_t step : {2, 3, 5})
    run.step_changes[step] = [](StepRun& found) { found.result.gradient_norm = kInfinite; };
  run.loop().run();
  CHECK(run.progress.skipped.total() == 3);
  CHECK(run.updates == std::vector<int64_t>{1, 2, 2, 2, 3, 3});
  CHECK(calls_named(run, {"find"}) == Calls{"find 2", "find 5"});
  REQUIRE(run.warnings.size() == 3);
  CHECK(run.warnings[1] ==
        "step 3: the loss or the gradient is not finite; the update was skipped (2 in a row): "
        "first met by rank 1, forward layer 2");
  CHECK(run.manifest.counters.at("skipped_steps") == 3);
  REQUIRE(run.metrics.size() == 6);
  CHECK(run.metrics[1].skipped);
  CHECK_FALSE(run.metrics[3].skipped);
  CHECK(run.metrics[2].step == 3);
}

TEST_CASE("an overflow halves the next step's loss scale, and a resumed run continues with it") {
  Config config = plain_config();
  config.zero.stage = 1;
  config.fp16.enabled = true;
  config.fp16.initial_scale_power = 4;
  config.fp16.hysteresis = 1;
  FakeRun run(config, 3);
  run.step_changes[2] = [](StepRun& found) { found.result.loss_sum = kInfinite; };
  run.loop().run();
  // The loss scales are divided by 10 counted tokens.
  CHECK(run.scales == std::vector<double>{1.6F, 1.6F, 0.8F});
  CHECK(calls_named(run, {"find"}).empty());
  CHECK(run.metrics[1].loss_scale == 16);
  FakeRun next(config, 4);
  restore(next, run);
  next.loop().run();
  CHECK(next.scales == std::vector<double>{0.8F});
  CHECK(next.updates == std::vector<int64_t>{3});
}

TEST_CASE(
    "too many consecutive steps that are not finite end the run, which records but does not save "
    "them") {
  Config config = plain_config();
  config.train.max_nonfinite_steps = 2;
  config.checkpoint.every = 1;
  FakeRun run(config, 6);
  for (const int64_t step : {2, 3})
    run.step_changes[step] = [](StepRun& found) { found.result.loss_sum = kInfinite; };
  CHECK(run_error(run) ==
        "7: step 3: the loss or the gradient was not finite for 2 steps in a row: first met by "
        "rank 1, forward layer 2");
  CHECK(run.calls.back() == "record 3");

  FakeRun nothing(plain_config(), 2);
  for (const int64_t step : {1, 2})
    nothing.step_changes[step] = [](StepRun& found) { found.result.loss_sum = kInfinite; };
  CHECK(run_error(nothing) ==
        "7: the loss or the gradient was not finite in all 2 steps: first met by rank 1, forward "
        "layer 2: nothing was trained");

  Config half = plain_config();
  half.fp16.enabled = true;
  half.fp16.hysteresis = 1;
  FakeRun overflows(half, 2);
  for (const int64_t step : {1, 2})
    overflows.step_changes[step] = [](StepRun& found) { found.result.loss_sum = kInfinite; };
  CHECK(run_error(overflows) ==
        "7: the loss or the gradient was not finite in all 2 steps: nothing was trained");
}

TEST_CASE("consecutive steps that are not finite are counted across a resume") {
  Config config = plain_config();
  config.train.max_nonfinite_steps = 3;
  const auto be_infinite = [](StepRun& found) { found.result.gradient_norm = kInfinite; };
  FakeRun before(config, 3);
  for (const int64_t step : {2, 3}) before.step_changes[step] = be_infinite;
  CHECK(run_error(before) == "none");
  FakeRun run(config, 9);
  restore(run, before);
  run.step_changes[4] = be_infinite;
  CHECK(run_error(run) ==
        "7: step 4: the loss or the gradient was not finite for 3 steps in a row: first met by "
        "rank 1, forward layer 2");

  FakeRun finite(config, 6);
  restore(finite, before);
  for (const int64_t step : {5, 6}) finite.step_changes[step] = be_infinite;
  CHECK(run_error(finite) == "none");
  CheckpointMeta meta;
  finite.progress.add_to(meta);
  CHECK(meta.extra.at(kNonfiniteRecord) == "2");
  meta.extra.erase(kNonfiniteRecord);  // as in a checkpoint whose last step was finite
  finite.progress.restore(meta);
  CHECK(finite.progress.skipped.consecutive() == 0);
}

TEST_CASE("a resumed run without a finite step fails as untrained") {
  FakeRun run(plain_config(), 3);
  run.progress.step = 1;
  run.progress.skipped.restore(1, std::nullopt);
  for (const int64_t step : {2, 3})
    run.step_changes[step] = [](StepRun& found) { found.result.loss_sum = kInfinite; };
  CHECK(run_error(run) ==
        "7: the loss or the gradient was not finite in all 3 steps: first met by rank 1, forward "
        "layer 2: nothing was trained");
}

TEST_CASE(
    "a failure in the middle of a step leaves the progress of the previous step, and saves "
    "nothing") {
  Config config = plain_config();
  config.checkpoint.every = 1;
  FakeRun run(config, 6);
  run.step_changes[3] = [](StepRun&) {
    throw Error(ExitCode::kPeerLost, "rank 1 is gone", "look at its log");
  };
  CHECK(run_error(run) == "6: rank 1 is gone");
  CHECK(run.progress.step == 2);
  CHECK(run.progress.tokens == 20);
  CHECK(run.calls.back() == "run 3");
  CHECK(calls_named(run, {"save"}) == Calls{"save 1", "save 2"});
}

TEST_CASE("replicas are compared every so many steps and before each save") {
  Config config = plain_config();
  config.train.check_replicas = 3;
  config.checkpoint.every = 4;
  FakeRun run(config, 7);
  run.loop().run();
  CHECK(calls_named(run, {"check", "save"}) == Calls{"check 3", "check 4", "save 4", "check 6"});
}

TEST_CASE("replicas are compared once after a step, and never if no comparison is wanted") {
  Config config = plain_config();
  config.checkpoint.every = 1;
  FakeRun run(config, 2);
  TrainingLoop loop = run.loop();
  loop.run();
  loop.save_last();
  CHECK(calls_named(run, {"check", "save"}) == Calls{"check 1", "save 1", "check 2", "save 2"});

  config.train.check_replicas = 0;
  FakeRun without(config, 2);
  TrainingLoop unchecked = without.loop();
  unchecked.run();
  unchecked.save_last();
  CHECK(calls_named(without, {"check", "save"}) == Calls{"save 1", "save 2"});
}

TEST_CASE(
    "a stop lead that is too short is reported as soon as it is measured, whether or not run.json "
    "can be written") {
  FakeRun run(plain_config(), 4);
  run.stop_lead = StopLead(10, false);
  run.seconds_of_step = 30;
  run.updates_fail = true;
  CHECK(run_error(run) == "none");
  REQUIRE(run.warnings.size() == 1);
  CHECK(run.warnings[0].starts_with(
      "--stop-lead 10.0 s is too short: a stop may take 2 x 30.0 s (longest step) = 60.0 s"));

  FakeRun saving(plain_config(), 2);
  saving.save_seconds = 3;
  saving.loop().run();
  CHECK(saving.manifest.counters.at("longest_save_milliseconds") == 3000);
  CHECK(saving.manifest.counters.at("longest_step_milliseconds") == 1000);
}

TEST_CASE("a run whose labels are all masked says so once, and slow ranks are named and counted") {
  FakeRun run(plain_config(), 3);
  StepBatch batch;
  run.next_step_batch = [&] {
    batch.counted_tokens_global = run.progress.step < 2 ? 0 : 10;
    return Loader::FetchedBatch{batch, 0.25};
  };
  for (const int64_t step : {1, 2})
    run.step_changes[step] = [](StepRun& found) {
      found.result.loss_sum = found.result.counted_tokens = 0;
    };
  run.loop().run();
  REQUIRE(run.warnings.size() == 1);
  CHECK(run.warnings[0].starts_with("step 1: all labels are masked"));

  FakeRun slow(plain_config(), 2);
  slow.slow_ranks = {"rank 3 is slow"};
  slow.loop().run();
  CHECK(slow.warnings == Calls{"rank 3 is slow", "rank 3 is slow"});
  CHECK(slow.manifest.counters.at("slow_rank_warnings") == 2);
}

}  // namespace
}  // namespace ftrun
