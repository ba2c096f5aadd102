#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan_model.h"

namespace ftrun {

class JsonOutput;

/// MemoryTableOptions holds the options of `ftrun plan --table`.
struct MemoryTableOptions {
  /// The model of the table, instead of the textbook models.
  ModelOptions model;
  /// A machine file; "" for GPUs of 40 and 80 GB.
  std::string machine;
  /// The numbers of GPUs; 4, 8 and 64 if the list is empty.
  std::vector<int64_t> gpus;
};

/// Prints the memory of a GPU by model, ZeRO stage and number of GPUs, and adds it to `output`.
/// Shows the result of textbook formulas (docs/plan.md) next to the plan, and explains the
/// difference part by part.
int print_memory_table(const MemoryTableOptions& options, JsonOutput& output);

}  // namespace ftrun
