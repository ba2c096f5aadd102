#include "plan_memory_table.h"

#include <algorithm>
#include <cmath>
#include <iostream>
#include <optional>
#include <utility>

#include "base/amount_text.h"
#include "base/error.h"
#include "base/table.h"
#include "base/text.h"
#include "json_output.h"
#include "machine/machine_file.h"
#include "model/families.h"
#include "model/size.h"
#include "search/memory_table.h"

namespace ftrun {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kGigabyte = 1e9;
constexpr int kStages = 4;
/// The differences of the rows with this number of GPUs are explained line by line.
constexpr int64_t kExplainedGpus = 8;

/// MemoryTableGpu is a GPU with whose memory the rows are compared.
struct MemoryTableGpu {
  std::string name;
  double bytes = 0;
};

std::vector<MemoryTableGpu> gpus_of(const std::optional<Machine>& machine) {
  if (!machine) return {{"A100-40", 40e9}, {"A100, H100-80", 80e9}};
  return {{machine->name, machine->memory_capacity}};
}

std::string gigabytes(double bytes) {
  return fixed_text(bytes / kGigabyte, 2);
}

std::string fits_text(const MemoryTableRow& row, const MemoryTableGpu& gpu) {
  const bool formula = row.formula_bytes() <= gpu.bytes, planned = row.planned_bytes() <= gpu.bytes;
  if (formula == planned) return planned ? "fits" : "no";
  return planned ? "fits, but not by the formulas" : "no, but fits by the formulas";
}

Json row_json(const MemoryTableModel& model, const MemoryTableRow& row,
              const std::vector<MemoryTableGpu>& gpus) {
  Json lines = Json::array(), fits = Json::object();
  for (const MemoryTablePart& part : row.parts)
    lines.push_back({{"part", part.name},
                     {"formula", std::llround(part.formula)},
                     {"planned", std::llround(part.planned)},
                     {"why", part.why}});
  for (const MemoryTableGpu& gpu : gpus)
    fits[gpu.name] = {{"formula", row.formula_bytes() <= gpu.bytes},
                      {"planned", row.planned_bytes() <= gpu.bytes}};
  Json json{{"model", model.name},
            {"parameters", row.parameters},
            {"zero_stage", row.query.zero},
            {"gpus", row.query.ranks},
            {"row_tokens", row.query.sequence_length},
            {"recompute", name_of(row.query.recompute)},
            {"formula", std::llround(row.formula_bytes())},
            {"planned", std::llround(row.planned_bytes())},
            {"fullest", row.peak_instr},
            {"lines", lines},
            {"fits", fits}};
  if (row.step_seconds) {
    json["seconds"] = *row.step_seconds;
    json["waits"] = *row.communication_wait_share;
  }
  return json;
}

/// Prints the differences between the plan and the formulas, part by part.
void print_differences(const MemoryTableModel& model, const MemoryTableRow& row) {
  std::cout << '\n'
            << model.name << ", ZeRO " << row.query.zero << " on " << row.query.ranks
            << " GPUs, GB per GPU at its peak, " << row.peak_instr << '\n';
  std::vector<std::vector<std::string>> cells;
  for (const MemoryTablePart& part : row.parts)
    cells.push_back({part.name, gigabytes(part.formula), gigabytes(part.planned),
                     gigabytes(part.planned - part.formula), part.why});
  cells.push_back({"all", gigabytes(row.formula_bytes()), gigabytes(row.planned_bytes()),
                   gigabytes(row.planned_bytes() - row.formula_bytes()), ""});
  std::cout << format_table({"part", "formula", "planned", "difference", "why"}, cells);
}

/// Prints how close the formulas and the plan are to the numbers that textbooks state for 7 B
/// parameters on 8 GPUs.
Json print_textbook_figures(const std::vector<MemoryTableRow>& rows, double parameters) {
  Json json = Json::array();
  std::vector<std::vector<std::string>> cells;
  for (const TextbookMemory& stated : kTextbookMemory) {
    const double formula =
        textbook_state_bytes(stated.zero, kExplainedGpus) * parameters / kGigabyte +
        kTextbookActivations;
    const MemoryTableRow& row = rows[static_cast<size_t>(stated.zero)];
    cells.push_back(
        {cat("ZeRO ", stated.zero), fixed_text(stated.gigabytes, 0), fixed_text(formula, 1),
         signed_percent_text(formula / stated.gigabytes - 1, 1), gigabytes(row.planned_bytes()),
         signed_percent_text(row.planned_bytes() / (stated.gigabytes * kGigabyte) - 1, 1)});
    json.push_back({{"zero_stage", stated.zero},
                    {"stated", stated.gigabytes},
                    {"formula", formula},
                    {"planned", row.planned_bytes() / kGigabyte}});
  }
  std::cout
      << "\nround figures of textbooks for 7 B on 8 GPUs, in GB, next to the formula with "
      << fixed_text(kTextbookActivations, 0) << " GB of activations and to the plan\n"
      << format_table({"", "stated", "formula", "formula vs stated", "planned", "plan vs stated"},
                      cells)
      << "The textbook figure for ZeRO 3 (16 GB) leaves 5.5 GB for activations. Those for ZeRO 1 "
         "(52 GB) and ZeRO 2 (38 GB) are 7 GB and 5 GB above the formula.\n";
  return json;
}

/// Prints the example of 1.3 B parameters on 2 GPUs: DDP and FSDP, each with and without recompute.
Json print_two_gpus(const std::optional<Machine>& machine,
                    const std::vector<MemoryTableGpu>& gpus) {
  const MemoryTableModel model = make_memory_table_model("1.3B");
  std::vector<MemoryTableQuery> queries;
  for (const int zero : {0, 3})
    for (const RecomputeLevel recompute : {RecomputeLevel::kNone, RecomputeLevel::kFull})
      queries.push_back({.zero = zero, .ranks = 2, .recompute = recompute});
  const bool timed = machine && machine->has_gpus && machine->devices > 1;
  const std::vector<MemoryTableRow> rows =
      make_memory_table_rows(model, queries, timed ? &*machine : nullptr);
  Json json = Json::array();
  std::vector<std::vector<std::string>> cells;
  for (const MemoryTableRow& row : rows) {
    cells.push_back(
        {row.query.zero == 0 ? "DDP" : "FSDP, FULL_SHARD (ZeRO 3)",
         std::string(name_of(row.query.recompute)), gigabytes(row.formula_bytes()),
         gigabytes(row.planned_bytes()),
         row.step_seconds ? format_number("%.4g", *row.step_seconds) : "?",
         row.communication_wait_share ? percent_text(*row.communication_wait_share, 1) : "?"});
    json.push_back(row_json(model, row, gpus));
  }
  std::cout << "\n1.3 B on 2 GPUs: DDP and FSDP, GB per GPU\n"
            << format_table(
                   {"", "recompute", "formula", "planned", "step, s", "waiting for communication"},
                   cells);
  if (!timed) std::cout << "--machine FILE adds the times of a step\n";
  return json;
}

std::vector<MemoryTableModel> models_of(const MemoryTableOptions& options) {
  if (!options.model.size.empty()) return {make_memory_table_model(options.model.size)};
  if (options.model.model.empty()) return make_textbook_models();
  const NamedModel named = read_named_model(options.model);
  const ModelDescription described = build_model(named.config, {}, GraphMode::kEvaluate);
  return {{named.name, count_parameters(described).total, named.config}};
}

/// Reads the machine with whose GPU the rows are compared; nothing if the options name none.
std::optional<Machine> compared_machine(const MemoryTableOptions& options) {
  if (options.machine.empty()) return std::nullopt;
  Machine machine = read_machine_file(options.machine);
  if (machine.memory_capacity == 0)
    throw Error(ExitCode::kUsage,
                cat("the machine ", machine.name, " does not say how much memory a device has"),
                "add memory: 80 GB to the machine file");
  return machine;
}

/// ModelRows is a model with its rows: all ZeRO stages for each number of GPUs.
struct ModelRows {
  MemoryTableModel model;
  std::vector<MemoryTableRow> rows;
};

std::vector<ModelRows> compute_rows(const MemoryTableOptions& options,
                                    const std::vector<int64_t>& ranks) {
  std::vector<MemoryTableQuery> queries;
  for (const int64_t count : ranks)
    for (int zero = 0; zero < kStages; ++zero) queries.push_back({.zero = zero, .ranks = count});
  std::vector<ModelRows> rows_by_model;
  for (MemoryTableModel& model : models_of(options)) {
    std::vector<MemoryTableRow> rows = make_memory_table_rows(model, queries);
    rows_by_model.push_back({std::move(model), std::move(rows)});
  }
  return rows_by_model;
}

/// Prints the table of all rows, and returns them for --json.
Json print_rows(const std::vector<ModelRows>& rows_by_model,
                const std::vector<MemoryTableGpu>& gpus) {
  std::cout << "memory per GPU in GB (10^9 bytes); all weights are trained in bf16 with one "
               "sequence of "
            << rows_by_model.front().rows.front().query.sequence_length
            << " tokens on each GPU\n"
               "formula: per parameter 2 bytes of weights (sharded at ZeRO 3), 2 of gradients "
               "(sharded at ZeRO 2 and 3) and 8 of optimizer state (sharded at ZeRO 1 to 3); "
               "activations take 4 x batch x sequence x hidden size x layers bytes\n"
               "planned: what ftrun and its libraries would allocate\n\n";
  std::vector<std::string> headers{"model",   "ZeRO",    "GPUs",
                                   "formula", "planned", "plan vs formula"};
  for (const MemoryTableGpu& gpu : gpus)
    headers.push_back(cat(gpu.name, ", ", gigabytes(gpu.bytes)));
  std::vector<std::vector<std::string>> cells;
  Json json = Json::array();
  for (const auto& [model, rows] : rows_by_model)
    for (const MemoryTableRow& row : rows) {
      cells.push_back({model.name, std::to_string(row.query.zero), std::to_string(row.query.ranks),
                       gigabytes(row.formula_bytes()), gigabytes(row.planned_bytes()),
                       signed_percent_text(row.planned_bytes() / row.formula_bytes() - 1, 1)});
      for (const MemoryTableGpu& gpu : gpus) cells.back().push_back(fits_text(row, gpu));
      json.push_back(row_json(model, row, gpus));
    }
  std::cout << format_table(headers, cells);
  return json;
}

}  // namespace

int print_memory_table(const MemoryTableOptions& options, JsonOutput& output) {
  const std::optional<Machine> machine = compared_machine(options);
  const std::vector<MemoryTableGpu> gpus = gpus_of(machine);
  std::vector<int64_t> ranks = options.gpus;
  if (ranks.empty()) ranks = {4, kExplainedGpus, 64};
  const std::vector<ModelRows> rows_by_model = compute_rows(options, ranks);
  Json json{{"rows", print_rows(rows_by_model, gpus)}};

  const bool uses_textbook_models = !options.model.is_given();
  const auto at = std::find(ranks.begin(), ranks.end(), kExplainedGpus);
  const int64_t first = at == ranks.end() ? 0 : kStages * std::distance(ranks.begin(), at);
  const auto& [model, rows] = rows_by_model[uses_textbook_models ? 1 : 0];
  for (const int zero : {0, 3}) print_differences(model, rows[static_cast<size_t>(first + zero)]);
  if (uses_textbook_models) {
    if (at != ranks.end())
      json["stated"] =
          print_textbook_figures({rows.begin() + first, rows.begin() + first + kStages},
                                 static_cast<double>(model.parameters));
    json["two_gpus"] = print_two_gpus(machine, gpus);
  }
  output.add("table", json);
  return 0;
}

}  // namespace ftrun
