#include "plan_time.h"

#include <CLI/CLI.hpp>

#include <iostream>
#include <optional>

#include "base/amount_text.h"
#include "base/error.h"
#include "base/new_file.h"
#include "base/utf8.h"
#include "inputs/check_data_files.h"
#include "inputs/run_data.h"
#include "inputs/sequence_options.h"
#include "json_output.h"
#include "machine/machine_file.h"
#include "machine/software_stack.h"
#include "plan_json.h"
#include "sim/run_estimate.h"
#include "sim/step_trace.h"

namespace ftrun {
namespace {

DevicePrice find_price(const TimeOptions& options, const Machine& machine) {
  if (options.price.empty()) return machine.price;
  std::string problem;
  const std::optional<DevicePrice> price = parse_price(options.price, problem);
  if (!price)
    throw Error(ExitCode::kUsage, cat("--price ", problem),
                "write for example --price 2.5, or --price '2.5 USD/h'");
  return *price;
}

/// Returns the number of optimizer steps of the run; 0 if it depends on data that cannot be read.
int64_t count_planned_steps(const Config& config) {
  if (config.train.steps > 0) return config.train.steps;
  if (!has_readable_data(config)) return 0;
  try {
    return steps_of_run(config, SequenceSet(config.data.train, training_options(config)));
  } catch (const Error& error) {
    if (error.code() == ExitCode::kBug) throw;
    return 0;
  }
}

/// Returns a line such as "what if rank 5 takes 1.3 times as long: 0.072 s per step instead of
/// 0.056 s, +28.6 %".
std::string what_if_line(const std::string& what_if, double seconds, double unmodified_seconds) {
  return cat("what if ", what_if, ": ", seconds_text(seconds), " per step instead of ",
             seconds_text(unmodified_seconds), ", ",
             signed_percent_text(seconds / unmodified_seconds - 1, 1), "\n");
}

}  // namespace

void add_time_options(CLI::App& command, TimeOptions& options) {
  command
      .add_option(
          "--slow", options.slow,
          "assume that rank R takes FACTOR times as long as the others; repeat for more ranks")
      ->option_text("rank=R:FACTOR")
      ->allow_extra_args(false)
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->needs("--machine");
  command
      .add_option("--network", options.network,
                  "assume this bandwidth from one rank to other nodes (200Gb/s, 25GB/s)")
      ->option_text("RATE")
      ->needs("--machine");
  command
      .add_option(
          "--price", options.price,
          "the price of a device for an hour (2.5, or '2.5 USD/h'), for the price of the run")
      ->option_text("PRICE")
      ->needs("--machine");
}

RequestedMachine read_requested_machine(const TimeOptions& options, int64_t nodes) {
  RequestedMachine requested;
  requested.machine = read_machine_file(options.machine);
  if (!options.stack.empty())
    requested.machine = apply_stack(requested.machine, read_stack_file(options.stack));
  requested.machine.price = find_price(options, requested.machine);
  requested.unmodified_machine = requested.machine;
  requested.slow_ranks = parse_slow_ranks(options.slow);
  if (!options.network.empty()) set_network_bandwidth(options.network, nodes, requested.machine);
  requested.what_if_text =
      what_if_text(requested.slow_ranks, requested.machine, !options.network.empty());
  return requested;
}

void print_time(const LoadedConfig& loaded, const RequestedMachine& requested, int64_t nodes,
                const std::string& trace, const PageWriter& write_page,
                const RankClassPlans& class_plans, const StepPlan& plan, JsonOutput& output) {
  const Config& config = loaded.config;
  const bool needs_timeline = !trace.empty() || write_page;
  StepTimeline timeline;
  StepTime time;
  std::optional<double> unmodified_seconds;
  try {
    time =
        predict_step(class_plans, requested.machine, {nodes, config.threads, requested.slow_ranks},
                     needs_timeline ? &timeline : nullptr);
    if (!requested.what_if_text.empty())
      unmodified_seconds =
          predict_step(class_plans, requested.unmodified_machine, {nodes, config.threads}).seconds;
  } catch (const Error& error) {
    if (error.code() != ExitCode::kUsage || needs_timeline) throw;
    std::cout << "\ntime of a step: not predicted: " << terminal_text(error.what()) << '\n';
    return;
  }
  if (!trace.empty()) write_new_file(trace, step_trace_text(timeline));
  const RunEstimate run = estimate_run(config, *loaded.model, plan, time, requested.machine, nodes,
                                       count_planned_steps(config));
  const std::string text = run_estimate_text(run, time, requested.machine, config.checkpoint.every);
  std::cout << '\n' << terminal_text(text);
  if (write_page) write_page(timeline, text);
  if (unmodified_seconds)
    std::cout << what_if_line(requested.what_if_text, time.seconds, *unmodified_seconds);
  nlohmann::ordered_json json = time_json(run, time, requested.machine);
  if (unmodified_seconds)
    json["what_if"] = {{"assumed", requested.what_if_text},
                       {"seconds_as_filed", *unmodified_seconds}};
  output.add("time", json);
}

}  // namespace ftrun
