#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"
#include "machine/machine.h"
#include "model/model_config.h"

namespace ftrun {

/// MemoryTableModel is a model in a memory table.
struct MemoryTableModel {
  std::string name;
  /// The number of parameters in the model's name: "7 B" is 7,000,000,000.
  int64_t parameters = 0;
  ModelConfig config;
};

/// MemoryTableQuery requests one row of a memory table: the memory that a GPU needs where `ranks`
/// GPUs train a model in bf16 with AdamW, on a row of `row` tokens each.
struct MemoryTableQuery {
  int zero = 0;
  int64_t ranks = 1;
  int64_t row = 4096;
  RecomputeLevel recompute = RecomputeLevel::kNone;
};

/// MemoryTablePart is a part of a rank's memory in bytes, by textbook formulas and in the plan.
struct MemoryTablePart {
  std::string part;
  double formula = 0;
  double planned = 0;
  /// The reason for the difference; "" if it is negligible.
  std::string why;
};

/// MemoryTableRow is the answer to a query.
struct MemoryTableRow {
  MemoryTableQuery question;
  /// The number of parameters that the model has.
  int64_t counted = 0;
  /// Weights, gradients, moments, master copy, activations, buckets, the rest, memory of libraries:
  /// together they are exactly what ftrun allocates at its peak and what a GPU holds besides.
  std::vector<MemoryTablePart> lines;
  /// The instruction that runs at the peak.
  std::string peak_instr;
  /// The share of a step in which computation waits for communication, and the seconds of the step,
  /// if a machine is given.
  std::optional<double> communication_wait_share;
  std::optional<double> step_seconds;

  /// Return the bytes of all lines, by textbook formulas, or in the plan.
  double formula() const;
  double planned() const;
};

/// Answers a query by textbook formulas (2 bytes of weights, 2 of gradients and 8 of moments
/// a parameter, divided by the ranks from stage 3, 2 and 1 on; activations 2 b s h L 2 bytes) and
/// by the plan of a rank of GPUs. If `machine` is given, the time of a step on enough nodes is
/// predicted. Rows have fewer tokens than requested if the model has fewer positions.
MemoryTableRow size_row(const MemoryTableModel& model, const MemoryTableQuery& asked,
                        const Machine* machine = nullptr);

/// Answers all queries concurrently.
std::vector<MemoryTableRow> size_rows(const MemoryTableModel& model,
                                      const std::vector<MemoryTableQuery>& questions,
                                      const Machine* machine = nullptr);

/// Makes the models of textbook exercises: 1, 7, 13, 70 and 405 billion parameters.
std::vector<MemoryTableModel> textbook_models();

/// Makes a model of about this many parameters, which are its name ("7B").
MemoryTableModel size_model(std::string_view parameters);

/// TextbookSize is the memory in GB that a GPU needs according to textbooks for 7 billion
/// parameters on 8 GPUs, with activations of some 10 GB.
struct TextbookSize {
  int zero = 0;
  double gigabytes = 0;
};
/// The activations in the textbook sizes, in GB.
inline constexpr double kTextbookActivations = 10;
/// The sizes that textbooks state, by ZeRO stage.
inline constexpr std::array<TextbookSize, 4> kTextbookSizes{{{0, 95}, {1, 52}, {2, 38}, {3, 16}}};

/// Returns the bytes for each parameter on each rank by textbook formulas, without activations:
/// 12 at stage 0.
double formula_state_bytes(int zero, int64_t ranks);

}  // namespace ftrun
