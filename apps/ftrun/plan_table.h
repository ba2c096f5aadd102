#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan_model.h"

namespace ftrun {

class Answer;

/// TableOptions are the options of `ftrun plan --table`.
struct TableOptions {
  /// The model of the table, instead of the textbook models.
  ModelOptions model;
  /// A machine file; "" for none: GPUs of 40 and 80 GB.
  std::string machine;
  /// The numbers of GPUs; none: 4, 8 and 64.
  std::vector<int64_t> gpus;
};

/// Prints the memory of a GPU by model, ZeRO stage and number of GPUs, and adds it to the answer:
/// by textbook formulas (docs/plan.md) and in the plan, side by side, with the difference
/// by line.
int size_table(const TableOptions& options, Answer& answer);

}  // namespace ftrun
