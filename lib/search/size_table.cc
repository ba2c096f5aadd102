#include "search/size_table.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <variant>

#include "base/error.h"
#include "base/round_up.h"
#include "base/side_by_side.h"
#include "base/text.h"
#include "config/load.h"
#include "model/presets.h"
#include "model/size.h"
#include "program/gpu_overhead.h"
#include "program/memory_plan.h"
#include "program/step_plan.h"
#include "search/enumerate.h"
#include "sim/class_plans.h"
#include "sim/step_time.h"

namespace ftrun {
namespace {

/// Bytes a parameter in the course's arithmetic.
constexpr double kWeights = 2, kGradients = 2, kMoments = 8;

double shared(double bytes, bool is_cut, int64_t ranks) {
  return is_cut ? bytes / static_cast<double>(ranks) : bytes;
}

/// Returns how many nodes the ranks of a row fill.
int64_t nodes_for(const SizeQuestion& question, const Machine& machine) {
  return divide_up(question.ranks, int64_t{machine.devices});
}

Config config_of(const SizeModel& model, const SizeQuestion& question, const Machine* machine) {
  SearchTask task;
  task.model = model.config;
  if (machine != nullptr) task.nodes = nodes_for(question, *machine);
  std::vector<std::string> overrides = layout_overrides(question.ranks);
  for (const char* key : {"device=cuda", "model.path=model", "bf16.enabled=true"})
    overrides.emplace_back(key);
  overrides.push_back(cat("data.sequence_length=", question.row));
  task.written = load_config_text("size table", "", overrides).written;
  task.context.plans_only = true;
  Layout layout;
  layout.data = question.ranks;
  layout.zero = question.zero;
  layout.recompute = question.recompute;
  std::variant<Config, std::string> tried = try_layout(task, layout);
  if (const auto* refusal = std::get_if<std::string>(&tried))
    throw Error(ExitCode::kUsage, cat(model.name, " on ", question.ranks, " GPUs: ", *refusal),
                "ask for another number of GPUs");
  return std::get<Config>(std::move(tried));
}

/// PlannedParts are a rank's bytes at its fullest moment, by what they are for.
struct PlannedParts {
  double weights = 0, gradients = 0, moments = 0, master = 0, activations = 0, buckets = 0,
         rest = 0, libraries = 0;
  /// The instruction that runs then.
  std::string fullest;
};

PlannedParts planned_parts(const Config& config, const StepPlan& plan) {
  const TierPlan tier = memory_plan(plan).at(Tier::kDevice);
  const StateFormula formula = state_formula(plan);
  const auto at_fullest = [&](Category category) {
    const auto c = static_cast<size_t>(category);
    return static_cast<double>(tier.persistent[c] + tier.at_fullest[c]);
  };
  PlannedParts parts;
  parts.weights = at_fullest(Category::kParameters);
  parts.gradients = at_fullest(Category::kGradients);
  const double optimizer = at_fullest(Category::kOptimizer);
  parts.moments = optimizer * formula.moments / (formula.moments + formula.master);
  parts.master = optimizer - parts.moments;
  parts.activations = at_fullest(Category::kActivations);
  parts.buckets = at_fullest(Category::kBuckets);
  parts.rest = static_cast<double>(tier.total) - parts.weights - parts.gradients - optimizer -
               parts.activations - parts.buckets;
  parts.fullest = tier.fullest;
  parts.libraries = static_cast<double>(total_bytes(gpu_overheads(config, plan)));
  return parts;
}

std::string gigabytes(double bytes) {
  return cat(fixed_text(bytes / 1e9, 2), " GB");
}

std::vector<SizeLine> lines_of(const SizeModel& model, const SizeQuestion& question,
                               const PlannedParts& planned, int64_t counted) {
  const auto nominal = static_cast<double>(model.parameters);
  const auto part = [&](const char* name, double bytes, int stage, double found) {
    return SizeLine{name, shared(bytes * nominal, question.zero >= stage, question.ranks), found,
                    ""};
  };
  std::vector<SizeLine> lines{part("weights, 2 bytes", kWeights, 3, planned.weights),
                              part("gradients, 2 bytes", kGradients, 2, planned.gradients),
                              part("moments, 8 bytes", kMoments, 1, planned.moments),
                              {"master copy in fp32, 4 bytes", 0, planned.master, ""},
                              {"activations", 0, planned.activations, ""},
                              {"buckets", 0, planned.buckets, ""},
                              {"loss, norm, gaps", 0, planned.rest, ""},
                              {"libraries of a GPU", 0, planned.libraries, ""}};
  const double counts = static_cast<double>(counted) / nominal;
  const std::string named = cat("the model has ", human_count(counted), " parameters");
  const bool is_named = std::abs(counts - 1) > 5e-4;
  // Bytes that the number of parameters does not explain.
  const auto beside = [&](const SizeLine& line) { return line.planned - line.formula * counts; };
  for (size_t i = 0; i < 3; ++i) {
    SizeLine& line = lines[i];
    std::vector<std::string> why;
    if (is_named) why.push_back(named);
    const double rest = beside(line);
    if (std::abs(rest) > 1e-3 * std::max(line.formula, 1.0)) {
      if (i == 1 && rest < 0)
        why.push_back(cat(gigabytes(-rest), " not there at ", planned.fullest));
      else
        why.push_back(cat(gigabytes(rest), " of small tensors whole on each rank, and padding"));
    }
    line.why = join(why, "; ");
  }
  if (planned.master > 0)
    lines[3].why = "updates are made to weights in fp32: 16 bytes a parameter, not 12";
  SizeLine& activations = lines[4];
  const ModelConfig& shape = model.config;
  activations.formula = 2.0 * static_cast<double>(question.row * shape.hidden * shape.layers) * 2;
  activations.why =
      planned.activations < activations.formula
          ? cat("at ", planned.fullest, " most of them are used up")
      : question.recompute == RecomputeLevel::kFull
          ? "a layer keeps its input alone; one layer's and the loss's working sets beside them"
          : cat(fixed_text(planned.activations / (activations.formula / 2), 1),
                " values of a layer's width a token (q, k, v, both halves of the MLP, sums), with "
                "the loss's logits");
  if (planned.buckets > 0)
    lines[5].why = question.zero == 3 ? "weights that are gathered, gradients before they are cut"
                                      : "gradients on their way to their shards";
  lines[6].why = planned.rest > 0 ? "what packing leaves free between buffers" : "";
  lines[7].why = "CUDA's context, cuBLAS, NCCL's buffers: bounds by their documentation";
  return lines;
}

/// Adds the time of a step, where the machine has all its rates.
void add_time(const SizeModel& model, const Config& config, const StepPlan& plan,
              const Machine& machine, SizeRow& row) {
  const ClassPlans all(config, model.config, 0, plan);
  const int64_t nodes = nodes_for(row.question, machine);
  const StepTime time = predict_step(all, machine, {nodes, config.threads});
  row.seconds = time.seconds;
  row.waits = time.communication / time.seconds;
}

}  // namespace

double SizeRow::formula() const {
  return std::accumulate(lines.begin(), lines.end(), 0.0,
                         [](double sum, const SizeLine& line) { return sum + line.formula; });
}

double SizeRow::planned() const {
  return std::accumulate(lines.begin(), lines.end(), 0.0,
                         [](double sum, const SizeLine& line) { return sum + line.planned; });
}

double formula_state_bytes(int zero, int64_t ranks) {
  return shared(kWeights, zero >= 3, ranks) + shared(kGradients, zero >= 2, ranks) +
         shared(kMoments, zero >= 1, ranks);
}

SizeRow size_row(const SizeModel& model, const SizeQuestion& asked, const Machine* machine) {
  SizeQuestion question = asked;
  if (model.config.max_positions > 0)
    question.row = std::min(question.row, model.config.max_positions);
  const Config config = config_of(model, question, machine);
  const StepPlan plan = plan_steps(config, model.config, 0);
  SizeRow row;
  row.question = question;
  row.counted = count_parameters(plan.train.model).total;
  const PlannedParts parts = planned_parts(config, plan);
  row.fullest = parts.fullest;
  row.lines = lines_of(model, question, parts, row.counted);
  if (machine != nullptr) add_time(model, config, plan, *machine, row);
  return row;
}

std::vector<SizeRow> size_rows(const SizeModel& model, const std::vector<SizeQuestion>& questions,
                               const Machine* machine) {
  std::vector<SizeRow> rows(questions.size());
  side_by_side(questions.size(),
               [&](size_t i) { rows[i] = size_row(model, questions[i], machine); });
  return rows;
}

SizeModel size_model(std::string_view parameters) {
  const int64_t count = parse_parameter_count(parameters);
  const std::string name(parameters);
  return {name, count, preset_config(preset_of_size(count), name)};
}

std::vector<SizeModel> exercise_models() {
  std::vector<SizeModel> models;
  for (const char* name : {"1B", "7B", "13B", "70B", "405B"}) models.push_back(size_model(name));
  return models;
}

}  // namespace ftrun
