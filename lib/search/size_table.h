#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"
#include "machine/machine.h"
#include "model/config.h"

namespace ftrun {

/// SizeModel is a model of a size table.
struct SizeModel {
  std::string name;
  /// Parameters by its name: "7 B" is 7,000,000,000.
  int64_t parameters = 0;
  ModelConfig config;
};

/// SizeQuestion is one row of a size table: how much memory a GPU needs where so many train a model
/// in bf16 with AdamW, a row of so many tokens each.
struct SizeQuestion {
  int zero = 0;
  int64_t ranks = 1;
  int64_t row = 4096;
  RecomputeLevel recompute = RecomputeLevel::kNone;
};

/// SizeLine is a part of a rank's memory, in bytes, by the course's arithmetic and in the plan.
struct SizeLine {
  std::string part;
  double formula = 0;
  double planned = 0;
  /// The reason for the difference; "" where there is none to speak of.
  std::string why;
};

/// SizeRow is the answer to a question.
struct SizeRow {
  SizeQuestion question;
  /// Parameters that the model has.
  int64_t counted = 0;
  /// Weights, gradients, moments, master copy, activations, buckets, the rest, what libraries hold:
  /// together exactly what ftrun allocates at its fullest moment and what a GPU holds beside it.
  std::vector<SizeLine> lines;
  /// The instruction that runs at that moment.
  std::string fullest;
  /// The share of a step that computation waits for exchange, and its seconds, where there is a
  /// machine to ask; below 0: not known.
  double waits = -1;
  double seconds = -1;

  /// Bytes of all lines together, by the course's arithmetic and in the plan.
  double formula() const;
  double planned() const;
};

/// Answers a question by the course's formulas (2 bytes of weights, 2 of gradients and 8 of moments
/// a parameter, divided by the ranks from stage 3, 2 and 1 on; activations 2 b s h L 2 bytes) and
/// by the plan of a rank of GPUs. `machine`, where it is given, says what a step takes, on nodes
/// enough.
/// Rows have fewer tokens than asked where the model has fewer positions.
SizeRow size_row(const SizeModel& model, const SizeQuestion& asked,
                 const Machine* machine = nullptr);

/// Answers all of them, side by side.
std::vector<SizeRow> size_rows(const SizeModel& model, const std::vector<SizeQuestion>& questions,
                               const Machine* machine = nullptr);

/// The models of the course's exercises: 1, 7, 13, 70 and 405 billion parameters.
std::vector<SizeModel> exercise_models();

/// A model of about so many parameters, named by them ("7B").
SizeModel size_model(std::string_view parameters);

/// StatedSize is what the course says that a GPU needs for 7 billion parameters on 8 GPUs, in GB,
/// with activations of some 10 GB.
struct StatedSize {
  int zero = 0;
  double gigabytes = 0;
};
/// The activations that the stated sizes have, in GB.
inline constexpr double kStatedActivations = 10;
/// The sizes that the course states, by ZeRO stage.
inline constexpr std::array<StatedSize, 4> kStatedSizes{{{0, 95}, {1, 52}, {2, 38}, {3, 16}}};

/// The course's bytes a parameter on each rank without activations: 12 at stage 0.
double formula_state_bytes(int zero, int64_t ranks);

}  // namespace ftrun
