#include "search/memory_table.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <variant>

#include "base/error.h"
#include "base/round_up.h"
#include "base/run_in_parallel.h"
#include "base/text.h"
#include "config/load.h"
#include "model/presets.h"
#include "model/size.h"
#include "program/gpu_overhead.h"
#include "program/memory_plan.h"
#include "program/step_plan.h"
#include "search/enumerate.h"
#include "sim/rank_class_plans.h"
#include "sim/step_time.h"

namespace ftrun {
namespace {

/// Bytes for each parameter in the textbook formulas.
constexpr double kWeights = 2, kGradients = 2, kMoments = 8;

double bytes_per_rank(double bytes, bool is_sharded, int64_t ranks) {
  return is_sharded ? bytes / static_cast<double>(ranks) : bytes;
}

/// Returns the number of nodes that the ranks of a row need.
int64_t count_nodes(const MemoryTableQuery& query, const Machine& machine) {
  return divide_up(query.ranks, int64_t{machine.devices});
}

Config make_config(const MemoryTableModel& model, const MemoryTableQuery& query,
                   const Machine* machine) {
  SearchTask task;
  task.model = model.config;
  if (machine != nullptr) task.nodes = count_nodes(query, *machine);
  std::vector<std::string> overrides = layout_overrides(query.ranks);
  for (const char* key : {"device=cuda", "model.path=model", "bf16.enabled=true"})
    overrides.emplace_back(key);
  overrides.push_back(cat("data.sequence_length=", query.sequence_length));
  task.written = load_config_text("memory table", "", overrides).written;
  task.context.plans_only = true;
  Layout layout;
  layout.data = query.ranks;
  layout.zero = query.zero;
  layout.recompute = query.recompute;
  std::variant<Config, std::string> tried = resolve_layout(task, layout);
  if (const auto* refusal = std::get_if<std::string>(&tried))
    throw Error(ExitCode::kUsage, cat(model.name, " on ", query.ranks, " GPUs: ", *refusal),
                "ask for another number of GPUs");
  return std::get<Config>(std::move(tried));
}

/// PlannedParts holds the bytes of a rank's memory at its peak, by purpose.
struct PlannedParts {
  double weights = 0, gradients = 0, moments = 0, master = 0, activations = 0, buckets = 0,
         rest = 0, libraries = 0;
  /// The instruction that runs at the peak.
  std::string peak_instr;
};

PlannedParts planned_parts(const Config& config, const StepPlan& plan) {
  const TierPlan tier = plan_memory(plan).at(Tier::kDevice);
  const StateFormula formula = state_formula(plan);
  const auto bytes_at_joint_peak = [&](Category category) {
    const auto c = static_cast<size_t>(category);
    return static_cast<double>(tier.persistent[c] + tier.bytes_at_joint_peak[c]);
  };
  PlannedParts parts;
  parts.weights = bytes_at_joint_peak(Category::kParameters);
  parts.gradients = bytes_at_joint_peak(Category::kGradients);
  const double optimizer = bytes_at_joint_peak(Category::kOptimizer);
  parts.moments = optimizer * formula.moments / (formula.moments + formula.master);
  parts.master = optimizer - parts.moments;
  parts.activations = bytes_at_joint_peak(Category::kActivations);
  parts.buckets = bytes_at_joint_peak(Category::kBuckets);
  parts.rest = static_cast<double>(tier.total) - parts.weights - parts.gradients - optimizer -
               parts.activations - parts.buckets;
  parts.peak_instr = tier.peak_instr;
  parts.libraries = static_cast<double>(total_bytes(list_gpu_overheads(config, plan)));
  return parts;
}

std::string gigabytes_text(double bytes) {
  return cat(fixed_text(bytes / 1e9, 2), " GB");
}

/// TableFacts holds what the parts of a row are made from.
struct TableFacts {
  const MemoryTableModel& model;
  const MemoryTableQuery& query;
  const PlannedParts& planned;
  /// The number of parameters that the model has.
  int64_t parameters = 0;
};

/// TableState is a state of the parameters that ZeRO shards.
struct TableState {
  const char* name = "";
  /// Bytes for each parameter in the formula, and the first ZeRO stage that divides them.
  double bytes = 0;
  int first_stage = 0;
  /// The bytes in the plan.
  double planned = 0;
  /// Says whether a part of the state may not be allocated at the peak.
  bool may_be_freed = false;
};

/// Explains why the plan of a state differs from the formula, which counts the parameters in the
/// model's name.
std::string why_state_differs(const TableFacts& facts, const TableState& state, double formula) {
  const double true_to_nominal =
      static_cast<double>(facts.parameters) / static_cast<double>(facts.model.parameters);
  std::vector<std::string> why;
  if (std::abs(true_to_nominal - 1) > 5e-4)
    why.push_back(cat("the model has ", human_count(facts.parameters), " parameters"));
  // The planned bytes beyond the formula, after the formula is scaled to the real number of
  // parameters.
  const double rest = state.planned - formula * true_to_nominal;
  if (std::abs(rest) > 1e-3 * std::max(formula, 1.0)) {
    if (state.may_be_freed && rest < 0)
      why.push_back(cat(gigabytes_text(-rest), " not allocated at ", facts.planned.peak_instr));
    else
      why.push_back(cat(gigabytes_text(rest), " of small tensors whole on each rank, and padding"));
  }
  return join(why, "; ");
}

MemoryTablePart state_part(const TableFacts& facts, const TableState& state) {
  const double formula = bytes_per_rank(state.bytes * static_cast<double>(facts.model.parameters),
                                        facts.query.zero >= state.first_stage, facts.query.ranks);
  return {cat(state.name, ", ", number_text(state.bytes), " bytes"), formula, state.planned,
          why_state_differs(facts, state, formula)};
}

MemoryTablePart master_part(const TableFacts& facts) {
  const double planned = facts.planned.master;
  return {"master copy in fp32, 4 bytes", 0, planned,
          planned > 0 ? "updates are made to weights in fp32: 16 bytes per parameter, not 12" : ""};
}

MemoryTablePart activations_part(const TableFacts& facts) {
  const ModelConfig& shape = facts.model.config;
  const double planned = facts.planned.activations;
  const double formula =
      2.0 * static_cast<double>(facts.query.sequence_length * shape.hidden * shape.layers) * 2;
  const std::string why =
      planned < formula ? cat("at ", facts.planned.peak_instr, " most of them are already freed")
      : facts.query.recompute == RecomputeLevel::kFull
          ? "each layer keeps only its input; in addition the working sets of one layer and of the "
            "loss"
          : cat(fixed_text(planned / (formula / 2), 1),
                " values of a layer's width a token (q, k, v, both halves of the MLP, sums), with "
                "the loss's logits");
  return {"activations", formula, planned, why};
}

MemoryTablePart buckets_part(const TableFacts& facts) {
  const double planned = facts.planned.buckets;
  const char* held = facts.query.zero == 3
                         ? "weights that are gathered, gradients before they are sharded"
                         : "gradients being reduce-scattered";
  return {"buckets", 0, planned, planned > 0 ? held : ""};
}

MemoryTablePart rest_part(const TableFacts& facts) {
  const double planned = facts.planned.rest;
  return {"loss, norm, gaps", 0, planned, planned > 0 ? "gaps between packed buffers" : ""};
}

MemoryTablePart libraries_part(const TableFacts& facts) {
  return {"libraries of a GPU", 0, facts.planned.libraries,
          "CUDA's context, cuBLAS, NCCL's buffers: bounds by their documentation"};
}

std::vector<MemoryTablePart> table_parts(const TableFacts& facts) {
  const PlannedParts& planned = facts.planned;
  return {state_part(facts, {"weights", kWeights, 3, planned.weights}),
          state_part(facts, {"gradients", kGradients, 2, planned.gradients, true}),
          state_part(facts, {"moments", kMoments, 1, planned.moments}),
          master_part(facts),
          activations_part(facts),
          buckets_part(facts),
          rest_part(facts),
          libraries_part(facts)};
}

/// Adds the predicted time of a step to a row.
void add_predicted_time(const MemoryTableModel& model, const Config& config, const StepPlan& plan,
                        const Machine& machine, MemoryTableRow& row) {
  const RankClassPlans all(config, model.config, 0, plan);
  const int64_t nodes = count_nodes(row.query, machine);
  const StepTime time = predict_step(all, machine, {nodes, config.threads});
  row.step_seconds = time.seconds;
  row.communication_wait_share = time.collective_wait_seconds / time.seconds;
}

}  // namespace

double MemoryTableRow::formula_bytes() const {
  return std::accumulate(
      parts.begin(), parts.end(), 0.0,
      [](double sum, const MemoryTablePart& part) { return sum + part.formula; });
}

double MemoryTableRow::planned_bytes() const {
  return std::accumulate(
      parts.begin(), parts.end(), 0.0,
      [](double sum, const MemoryTablePart& part) { return sum + part.planned; });
}

double textbook_state_bytes(int zero, int64_t ranks) {
  return bytes_per_rank(kWeights, zero >= 3, ranks) + bytes_per_rank(kGradients, zero >= 2, ranks) +
         bytes_per_rank(kMoments, zero >= 1, ranks);
}

MemoryTableRow make_memory_table_row(const MemoryTableModel& model,
                                     const MemoryTableQuery& requested, const Machine* machine) {
  MemoryTableQuery query = requested;
  if (model.config.max_positions > 0)
    query.sequence_length = std::min(query.sequence_length, model.config.max_positions);
  const Config config = make_config(model, query, machine);
  const StepPlan plan = plan_steps(config, model.config, 0);
  MemoryTableRow row;
  row.query = query;
  row.parameters = count_parameters(plan.train.model).total;
  const PlannedParts planned = planned_parts(config, plan);
  row.peak_instr = planned.peak_instr;
  row.parts = table_parts({model, query, planned, row.parameters});
  if (machine != nullptr) add_predicted_time(model, config, plan, *machine, row);
  return row;
}

std::vector<MemoryTableRow> make_memory_table_rows(const MemoryTableModel& model,
                                                   const std::vector<MemoryTableQuery>& queries,
                                                   const Machine* machine) {
  std::vector<MemoryTableRow> rows(queries.size());
  run_in_parallel(queries.size(),
                  [&](size_t i) { rows[i] = make_memory_table_row(model, queries[i], machine); });
  return rows;
}

MemoryTableModel make_memory_table_model(std::string_view parameters) {
  const int64_t count = parse_parameter_count(parameters);
  const std::string name(parameters);
  return {name, count, preset_config(preset_of_size(count), name)};
}

std::vector<MemoryTableModel> make_textbook_models() {
  std::vector<MemoryTableModel> models;
  for (const char* name : {"1B", "7B", "13B", "70B", "405B"})
    models.push_back(make_memory_table_model(name));
  return models;
}

}  // namespace ftrun
