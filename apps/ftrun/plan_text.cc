#include "plan_text.h"

#include <cmath>
#include <map>
#include <numeric>

#include "base/error.h"
#include "base/table.h"
#include "base/text.h"
#include "program/state_spec.h"

namespace ftrun {
namespace {

bool is_state(Category category) {
  return category == Category::kParameters || category == Category::kGradients ||
         category == Category::kOptimizer;
}

std::string per_parameter(int64_t bytes, int64_t parameters) {
  return parameters == 0
             ? ""
             : fixed_text(static_cast<double>(bytes) / static_cast<double>(parameters), 3);
}

void add_tier_rows(Tier tier, const TierPlan& plan, int64_t parameters,
                   std::vector<std::vector<std::string>>& rows) {
  const std::string name(tier_name(tier));
  for (size_t c = 0; c < kCategoryCount; ++c) {
    const auto category = static_cast<Category>(c);
    const int64_t bytes = plan.bytes_of(category);
    if (bytes > 0)
      rows.push_back({name, std::string(category_name(category)), std::to_string(bytes),
                      human_bytes(bytes),
                      is_state(category) ? per_parameter(bytes, parameters) : ""});
  }
  rows.push_back({name, "all", std::to_string(plan.total), human_bytes(plan.total),
                  per_parameter(plan.total, parameters)});
}

std::string peak_text(Tier tier, const TierPlan& plan) {
  const int64_t used_bytes =
      std::accumulate(plan.bytes_at_joint_peak.begin(), plan.bytes_at_joint_peak.end(), int64_t{0});
  return cat(
      tier_name(tier), ": peak at ", plan.peak_instr, ", with ", human_bytes(plan.arenas),
      " in addition to what is kept from step to step: ", categories_text(plan.bytes_at_joint_peak),
      plan.arenas > used_bytes ? cat(", unused ", human_bytes(plan.arenas - used_bytes)) : "",
      "\n");
}

}  // namespace

std::string memory_plan_text(const MemoryPlan& memory, int64_t parameters) {
  std::vector<std::vector<std::string>> rows;
  std::string peaks;
  for (const Tier tier : kTiers) {
    const TierPlan& plan = memory.at(tier);
    if (plan.total == 0) continue;
    add_tier_rows(tier, plan, parameters, rows);
    if (plan.arenas > 0) peaks += peak_text(tier, plan);
  }
  return format_table({"tier", "category", "bytes", "", "B/parameter"}, rows) +
         "each category at its own peak; \"all\" is what is allocated\n" + peaks;
}

namespace {

std::string coefficient_text(double value, const std::string& parameters) {
  return cat(number_text(value), " ", parameters);
}

/// Returns a formula as text: "4 Psi + 12 Psi/2". The secondary shards come last.
std::string formula_text(const StateFormula& formula, int stage, int ranks,
                         const std::string& parameters) {
  const double optimizer = formula.moments + formula.master;
  double replicated = stage < 1 ? optimizer : 0;
  replicated += stage < 2 ? formula.gradients : 0;
  replicated += stage < 3 ? formula.weights : 0;
  const double sharded = formula.weights + formula.gradients + optimizer - replicated;
  std::vector<std::string> parts;
  if (replicated > 0) parts.push_back(coefficient_text(replicated, parameters));
  if (sharded > 0) parts.push_back(cat(coefficient_text(sharded, parameters), "/", ranks));
  if (stage == 3 && formula.secondary_shards > 1)
    parts.push_back(
        cat(coefficient_text(formula.weights, parameters), "/", formula.secondary_shards));
  return join(parts, " + ");
}

/// UsedParameters counts the parameters that the ranks of one shard group use. With tensor
/// parallelism or a pipeline, these are only a part of the model.
struct UsedParameters {
  int64_t used = 0;
  int64_t total = 0;

  /// Returns "1000", or "500 of 1000" if the ranks use only a part of the model.
  std::string text() const {
    return used == total ? std::to_string(used) : cat(used, " of ", total);
  }
};

UsedParameters count_used_parameters(const StepPlan& plan, bool trainable) {
  const StateOptions& state = plan.options.state;
  UsedParameters counts;
  for (const Unit& unit : plan.partition.units)
    if (unit.trainable == trainable &&
        stages_of(unit, state.pipeline).contains(state.pipeline_stage))
      counts.used += unit.numel;
  for (const TensorInfo& tensor : plan.train.model.tensors)
    if (tensor.trainable == trainable) counts.total += tensor.numel();
  return counts;
}

/// Returns the mean bytes of a frozen parameter over quantized and other parameters, rounded to the
/// four decimals that are shown.
double frozen_weight_bytes(const StepPlan& plan, double plain) {
  double elements = 0, bytes = 0;
  for (const Unit& unit : plan.partition.units) {
    if (unit.trainable ||
        !stages_of(unit, plan.options.state.pipeline).contains(plan.options.state.pipeline_stage))
      continue;
    const auto count = static_cast<double>(unit.numel);
    elements += count;
    bytes += count * (unit.quantized
                          ? static_cast<double>(plan.train.model.dtypes.quantized.record_bytes()) /
                                kQuantizedRecord
                          : plain);
  }
  return elements > 0 ? std::round(bytes / elements * 1e4) / 1e4 : plain;
}

/// ModelStateFormulas holds the formulas for the memory of the trained parameters (Psi), and of the
/// frozen parameters (Phi), which have only weights.
class ModelStateFormulas {
 public:
  ModelStateFormulas(const StepPlan& plan, const StateFormula& formula)
      : trained_(count_used_parameters(plan, true)),
        frozen_(count_used_parameters(plan, false)),
        formula_(formula) {
    frozen_formula_.weights = frozen_weight_bytes(plan, formula.weights);
    frozen_formula_.secondary_shards = formula.secondary_shards;
  }

  /// Returns the formula as text: "4 Psi + 12 Psi/2 + 4 Phi".
  std::string formula(int stage, int ranks) const {
    const std::string text = formula_text(formula_, stage, ranks, "Psi");
    return frozen_.used == 0 ? text
                             : cat(text, " + ", formula_text(frozen_formula_, stage, ranks, "Phi"));
  }
  double bytes(int stage, int ranks) const {
    return formula_.bytes(stage, ranks) * static_cast<double>(trained_.used) +
           frozen_formula_.bytes(stage, ranks) * static_cast<double>(frozen_.used);
  }
  std::string parameters_text() const {
    return frozen_.used == 0
               ? cat("Psi = ", trained_.text(), " parameters")
               : cat("Psi = ", trained_.text(), " parameters that train and Phi = ", frozen_.text(),
                     " frozen ones, which have only weights");
  }

 private:
  UsedParameters trained_, frozen_;
  StateFormula formula_, frozen_formula_;
};

std::string deviation_text(double value, double reference) {
  const double percent = 100 * (value - reference) / reference;
  return cat(percent < 0 ? "" : "+", fixed_text(percent, 2), " %");
}

}  // namespace

std::string state_formula_text(const StepPlan& plan, const MemoryPlan& memory) {
  const int own_stage = plan.options.state.zero_stage,
            ranks = state_place(plan.options.state).count;
  const StateFormula plan_formula = state_formula(plan);
  StateFormula without_master = plan_formula;
  without_master.master = 0;
  without_master.gradients = plan_formula.weights;
  const ModelStateFormulas formulas(plan, plan_formula), narrow(plan, without_master);
  const auto planned = static_cast<double>(model_state_bytes(memory));
  std::vector<std::vector<std::string>> rows;
  for (int stage = 0; stage <= 3; ++stage) {
    std::vector<std::string> row{cat("stage ", stage), formulas.formula(stage, ranks),
                                 fixed_text(formulas.bytes(stage, ranks), 0)};
    if (plan_formula.master > 0) {
      row.push_back(narrow.formula(stage, ranks));
      row.push_back(fixed_text(narrow.bytes(stage, ranks), 0));
    }
    if (stage == own_stage) {
      row.push_back(fixed_text(planned, 0));
      row.push_back(deviation_text(planned, formulas.bytes(stage, ranks)));
    }
    rows.push_back(row);
  }
  std::vector<std::string> headers{"", "formula"};
  if (plan_formula.master > 0)
    headers.insert(headers.end(),
                   {"bytes, with master copy", "formula, without", "bytes, without"});
  else
    headers.emplace_back("bytes");
  headers.insert(headers.end(), {"planned", "difference"});
  std::string text =
      cat("model states of ", formulas.parameters_text(), ": weights ",
          number_text(plan_formula.weights), ", gradients ", number_text(plan_formula.gradients),
          ", moments ", number_text(plan_formula.moments));
  if (plan_formula.master > 0) text += cat(", master copy ", number_text(plan_formula.master));
  return text + cat(" = ", number_text(plan_formula.bytes()), " bytes per parameter") +
         (plan_formula.master > 0
              ? cat(" (", number_text(without_master.bytes()),
                    " without a master copy and with gradients in the dtype of the weights)")
              : "") +
         "\n" + format_table(headers, rows);
}

std::string savings_text(const std::vector<MemorySaving>& savings) {
  if (savings.empty()) return "";
  std::vector<std::vector<std::string>> rows;
  for (const MemorySaving& saving : savings)
    rows.push_back({saving.change, std::to_string(saving.bytes), human_bytes(saving.bytes)});
  return "memory that each change alone would save\n" + format_table({"change", "bytes", ""}, rows);
}

}  // namespace ftrun
