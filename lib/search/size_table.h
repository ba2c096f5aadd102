#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"
#include "machine/machine.h"
#include "model/model_config.h"

namespace ftrun {

/// SizeModel is a model in a size table.
struct SizeModel {
  std::string name;
  /// The number of parameters in the model's name: "7 B" is 7,000,000,000.
  int64_t parameters = 0;
  ModelConfig config;
};

/// SizeQuestion is one row of a size table: the memory that a GPU needs where `ranks` GPUs train a
/// model in bf16 with AdamW, on a row of `row` tokens each.
struct SizeQuestion {
  int zero = 0;
  int64_t ranks = 1;
  int64_t row = 4096;
  RecomputeLevel recompute = RecomputeLevel::kNone;
};

/// SizeLine is a part of a rank's memory in bytes, by the course's formulas and in the plan.
struct SizeLine {
  std::string part;
  double formula = 0;
  double planned = 0;
  /// The reason for the difference; "" if it is negligible.
  std::string why;
};

/// SizeRow is the answer to a question.
struct SizeRow {
  SizeQuestion question;
  /// The number of parameters that the model has.
  int64_t counted = 0;
  /// Weights, gradients, moments, master copy, activations, buckets, the rest, memory of libraries:
  /// together they are exactly what ftrun allocates at its fullest moment and what a GPU holds
  /// besides.
  std::vector<SizeLine> lines;
  /// The instruction that runs at the fullest moment.
  std::string fullest;
  /// The share of a step in which computation waits for communication, and the seconds of the step,
  /// if a machine is given; below 0: not known.
  double waits = -1;
  double seconds = -1;

  /// Return the bytes of all lines, by the course's formulas, or in the plan.
  double formula() const;
  double planned() const;
};

/// Answers a question by the course's formulas (2 bytes of weights, 2 of gradients and 8 of moments
/// a parameter, divided by the ranks from stage 3, 2 and 1 on; activations 2 b s h L 2 bytes) and
/// by the plan of a rank of GPUs. If `machine` is given, the time of a step on enough nodes is
/// predicted. Rows have fewer tokens than requested if the model has fewer positions.
SizeRow size_row(const SizeModel& model, const SizeQuestion& asked,
                 const Machine* machine = nullptr);

/// Answers all questions concurrently.
std::vector<SizeRow> size_rows(const SizeModel& model, const std::vector<SizeQuestion>& questions,
                               const Machine* machine = nullptr);

/// Makes the models of the course's exercises: 1, 7, 13, 70 and 405 billion parameters.
std::vector<SizeModel> exercise_models();

/// Makes a model of about this many parameters, which are its name ("7B").
SizeModel size_model(std::string_view parameters);

/// StatedSize is the memory in GB that a GPU needs according to the course for 7 billion parameters
/// on 8 GPUs, with activations of some 10 GB.
struct StatedSize {
  int zero = 0;
  double gigabytes = 0;
};
/// The activations in the stated sizes, in GB.
inline constexpr double kStatedActivations = 10;
/// The sizes that the course states, by ZeRO stage.
inline constexpr std::array<StatedSize, 4> kStatedSizes{{{0, 95}, {1, 52}, {2, 38}, {3, 16}}};

/// Returns the bytes for each parameter on each rank according to the course, without activations:
/// 12 at stage 0.
double formula_state_bytes(int zero, int64_t ranks);

}  // namespace ftrun
