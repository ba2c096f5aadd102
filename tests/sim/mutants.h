#pragma once

#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "outcome.h"

#include <catch2/catch.hpp>

namespace ftrun::testing {

struct MutatedCase {
  std::string name;
  StepCase step_case;
};

inline std::vector<const Program*> programs_of(const std::vector<StepProgram>& steps) {
  std::vector<const Program*> programs;
  for (const StepProgram& step : steps) programs.push_back(&step.program);
  return programs;
}

/// Returns the program without one instruction. The instructions that waited for it now wait for
/// what it waited for.
inline Program without_instruction(const Program& program, size_t at) {
  Program out = program;
  std::vector<InstrId> instead = program.instrs[at].waits;
  for (size_t i = at; i-- > 0;)
    if (program.instrs[i].lane == program.instrs[at].lane) {
      instead.push_back(static_cast<InstrId>(i));
      break;
    }
  out.instrs.erase(out.instrs.begin() + static_cast<std::ptrdiff_t>(at));
  const auto left_out = static_cast<InstrId>(at);
  for (size_t i = at; i < out.instrs.size(); ++i) {
    std::vector<InstrId> waits;
    for (const InstrId wait : out.instrs[i].waits)
      if (wait == left_out)
        waits.insert(waits.end(), instead.begin(), instead.end());
      else
        waits.push_back(wait > left_out ? wait - 1 : wait);
    out.instrs[i].waits = std::move(waits);
  }
  return out;
}

/// Returns the program with one instruction doubled: the copy runs right after the original.
inline Program with_instruction_twice(const Program& program, size_t at) {
  Program out = program;
  const auto copy = static_cast<InstrId>(at + 1);
  out.instrs.insert(out.instrs.begin() + copy, program.instrs[at]);
  for (size_t i = at + 2; i < out.instrs.size(); ++i)
    for (InstrId& wait : out.instrs[i].waits) wait += wait >= copy - 1 ? 1 : 0;
  return out;
}

/// Returns whether a fault's message names the rank, the instruction or buffer, and a reason.
inline bool names_place_and_reason(const std::string& fault) {
  return fault.find("rank ") != std::string::npos &&
         (fault.find("instruction ") != std::string::npos ||
          fault.find("buffer") != std::string::npos) &&
         fault.size() > 50;
}

/// Mutants compares the results of mutated programs (of one rank or of all) with those of the good
/// programs of all ranks.
class Mutants {
 public:
  Mutants(const MutatedCase& c, uint64_t seed)
      : step_case_(c.step_case), random_(seed), good_(step_case_.steps()) {
    walk(good_, [&](const Outcome& outcome) {
      REQUIRE(outcome.fault == "");
      expected_.push_back(outcome);
      return false;
    });
  }

  const std::vector<StepProgram>& good() const { return good_; }

  std::vector<std::string> faults(const std::vector<StepProgram>& mutants) const {
    return check_programs(programs_of(mutants));
  }
  /// Returns whether mutants compute other results than the good programs. If the checker finds no
  /// fault in their order, the results do not depend on timing, so a single run decides.
  bool compute_other_results(const std::vector<StepProgram>& mutants) {
    auto expected = expected_.begin();
    return walk(mutants, [&](const Outcome& outcome) { return differs(outcome, *expected++); });
  }

 private:
  /// Runs three steps, the second of which is not finite. Passes the outcomes of the first and the
  /// last step, or a fault, to `on_outcome`. Stops and returns true as soon as `on_outcome` returns
  /// true.
  bool walk(const std::vector<StepProgram>& steps,
            const std::function<bool(const Outcome&)>& on_outcome) {
    Interpreter interpreter(step_case_.built.model, step_case_.built.partition, steps,
                            step_case_.mesh.grid());
    interpreter.load();
    for (const int step : {0, 1, 2}) {
      if (const std::string fault = interpreter.run(random_, step != 1); !fault.empty())
        return on_outcome({.fault = fault});
      if (step != 1 && on_outcome(outcome_of(step_case_, interpreter))) return true;
    }
    return false;
  }

  const StepCase& step_case_;
  std::mt19937_64 random_;
  std::vector<StepProgram> good_;
  std::vector<Outcome> expected_;
};

}  // namespace ftrun::testing
