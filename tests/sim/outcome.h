#pragma once

#include <algorithm>
#include <initializer_list>
#include <random>
#include <string>
#include <vector>

#include "program/step_cases.h"
#include "sim/interpreter.h"

namespace ftrun::testing {

using Values = std::vector<std::vector<uint64_t>>;

/// Outcome holds the weights and the optimizer state after some steps, or a fault.
struct Outcome {
  std::vector<Values> states;
  std::vector<uint64_t> loss;
  std::string fault;
};

/// Returns the state of the interpreter after a run.
inline Outcome outcome_of(const StepCase& step_case, const Interpreter& interpreter) {
  Outcome out;
  const auto kinds = static_cast<int32_t>(step_case.options.state.optimizer_states.size());
  for (int32_t kind = UnitStatePiece::kParam; kind < kinds; ++kind)
    out.states.push_back(interpreter.collect_state(kind, out.fault));
  out.loss = interpreter.collect_loss(step_case.mesh.ranks() - 1);
  return out;
}

/// Runs steps and returns their outcome. `finite` holds, for each step, whether it is finite.
inline Outcome run_steps(const StepCase& step_case, std::vector<StepProgram> steps,
                         std::mt19937_64& random,
                         std::initializer_list<bool> finite = {true, false, true}) {
  Interpreter interpreter(step_case.built.model, step_case.built.partition, std::move(steps),
                          step_case.mesh.grid());
  interpreter.load();
  for (const bool one : finite)
    if (const std::string fault = interpreter.run(random, one); !fault.empty())
      return {.fault = fault};
  return outcome_of(step_case, interpreter);
}

/// Describes the first value that differs; "" if none does.
inline std::string difference(const Outcome& actual, const Outcome& expected) {
  for (size_t kind = 0; kind < expected.states.size(); ++kind)
    for (size_t unit = 0; unit < expected.states[kind].size(); ++unit) {
      const auto& a = actual.states[kind][unit];
      const auto& b = expected.states[kind][unit];
      const auto at = std::mismatch(a.begin(), a.end(), b.begin()).first - a.begin();
      if (a != b)
        return cat("element ", at, " of unit ", unit, " of all tensor ranks' units, state ",
                   static_cast<int>(kind) - 1);
    }
  return "";
}

inline bool differs(const Outcome& actual, const Outcome& expected) {
  return !actual.fault.empty() || !difference(actual, expected).empty() ||
         actual.loss != expected.loss;
}

/// Returns whether the run fails, or ends with other values than `expected`, in one of a few random
/// interleavings.
inline bool is_noticed(const StepCase& step_case, const std::vector<StepProgram>& steps,
                       const Outcome& expected, std::mt19937_64& random) {
  for (int times = 0; times < 20; ++times)
    if (differs(run_steps(step_case, steps, random), expected)) return true;
  return false;
}

}  // namespace ftrun::testing
