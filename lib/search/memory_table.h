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

/// MemoryTableQuery requests one row of a memory table: the memory that each GPU needs if `ranks`
/// GPUs train a model in bf16 with AdamW, each on a sequence of `sequence_length` tokens.
struct MemoryTableQuery {
  int zero = 0;
  int64_t ranks = 1;
  int64_t sequence_length = 4096;
  RecomputeLevel recompute = RecomputeLevel::kNone;
};

/// MemoryTablePart is a part of a rank's memory in bytes, by textbook formulas and in the plan.
struct MemoryTablePart {
  std::string name;
  double formula = 0;
  double planned = 0;
  /// The reason for the difference; "" if it is negligible.
  std::string why;
};

/// MemoryTableRow is the answer to a query.
struct MemoryTableRow {
  MemoryTableQuery query;
  /// The number of parameters that the model has.
  int64_t parameters = 0;
  /// Weights, gradients, moments, master copy, activations, buckets, the rest, and the memory of
  /// libraries. Their sum is exactly the memory that ftrun has allocated at its peak, plus the
  /// bound for libraries on a GPU.
  std::vector<MemoryTablePart> parts;
  /// The instruction that runs at the peak.
  std::string peak_instr;
  /// The share of a step in which computation waits for communication, and the seconds of the step,
  /// if a machine is given.
  std::optional<double> communication_wait_share;
  std::optional<double> step_seconds;

  /// Return the bytes of all parts by textbook formulas, and in the plan.
  double formula_bytes() const;
  double planned_bytes() const;
};

/// Answers a query by textbook formulas and by the plan of a GPU rank. The formulas count for each
/// parameter 2 bytes of weights (divided by the number of ranks at ZeRO stage 3), 2 of gradients
/// (divided at stages 2 and 3) and 8 of moments (divided at stages 1 to 3). Activations take 2 b s
/// h L values of 2 bytes (batch, sequence, hidden size, layers). If `machine` is given, the time of
/// a step on enough nodes is predicted. The sequence is shorter than requested if the model has
/// fewer positions.
MemoryTableRow make_memory_table_row(const MemoryTableModel& model,
                                     const MemoryTableQuery& requested,
                                     const Machine* machine = nullptr);

/// Answers all queries concurrently.
std::vector<MemoryTableRow> make_memory_table_rows(const MemoryTableModel& model,
                                                   const std::vector<MemoryTableQuery>& queries,
                                                   const Machine* machine = nullptr);

/// Makes the models of textbook exercises: 1, 7, 13, 70 and 405 billion parameters.
std::vector<MemoryTableModel> make_textbook_models();

/// Makes a model of about this many parameters; `parameters` is also its name ("7B").
MemoryTableModel make_memory_table_model(std::string_view parameters);

/// TextbookMemory is the memory in GB that textbooks state for each of 8 GPUs that train 7 billion
/// parameters, with about 10 GB of activations.
struct TextbookMemory {
  int zero = 0;
  double gigabytes = 0;
};
/// The activations in the figures of textbooks, in GB.
inline constexpr double kTextbookActivations = 10;
/// The memory that textbooks state, by ZeRO stage.
inline constexpr std::array<TextbookMemory, 4> kTextbookMemory{
    {{0, 95}, {1, 52}, {2, 38}, {3, 16}}};

/// Returns the bytes for each parameter on each rank by textbook formulas, without activations:
/// 12 at stage 0.
double textbook_state_bytes(int zero, int64_t ranks);

}  // namespace ftrun
