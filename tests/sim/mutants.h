#pragma once

#include <initializer_list>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "outcome.h"

#include <catch2/catch.hpp>

namespace ftrun::fixtures {

struct MutatedCase {
  std::string name;
  Choice choice;
};

inline std::vector<const Program*> programs_of(const std::vector<Step>& steps) {
  std::vector<const Program*> programs;
  for (const Step& step : steps) programs.push_back(&step.program);
  return programs;
}

/// The program without an instruction: what waited for it waits for what it waited for.
inline Program without(const Program& program, size_t at) {
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

/// The program in which an instruction runs a second time right after the first.
inline Program doubled(const Program& program, size_t at) {
  Program out = program;
  const auto copy = static_cast<InstrId>(at + 1);
  out.instrs.insert(out.instrs.begin() + copy, program.instrs[at]);
  for (size_t i = at + 2; i < out.instrs.size(); ++i)
    for (InstrId& wait : out.instrs[i].waits) wait += wait >= copy - 1 ? 1 : 0;
  return out;
}

/// A fault says which rank, which instruction or buffer, and why.
inline bool tells_enough(const std::string& fault) {
  return fault.find("rank ") != std::string::npos &&
         (fault.find("instruction ") != std::string::npos || fault.find("buffer") != std::string::npos) &&
         fault.size() > 50;
}

/// Programs of all ranks, of which one or all are mutants, against what the good ones compute.
class Mutants {
 public:
  Mutants(const MutatedCase& c, uint64_t seed) : choice_(c.choice), random_(seed), good_(choice_.steps()) {
    for (const auto finite : {kOne, kThree}) wanted_.push_back(run(good_, finite));
    for (const Outcome& outcome : wanted_) REQUIRE(outcome.fault == "");
  }

  const std::vector<Step>& good() const { return good_; }

  std::vector<std::string> faults(const std::vector<Step>& mutants) const {
    return check_programs(programs_of(mutants));
  }
  /// What they compute depends on their lists alone where the checker finds no fault of order: one
  /// run tells.
  bool compute_otherwise(const std::vector<Step>& mutants) {
    return differs(run(mutants, kOne), wanted_[0]) || differs(run(mutants, kThree), wanted_[1]);
  }

 private:
  static constexpr std::initializer_list<bool> kOne = {true};
  static constexpr std::initializer_list<bool> kThree = {true, false, true};
  Outcome run(const std::vector<Step>& steps, std::initializer_list<bool> finite) {
    return run_steps(choice_, steps, random_, finite);
  }

  const Choice& choice_;
  std::mt19937_64 random_;
  std::vector<Step> good_;
  std::vector<Outcome> wanted_;
};

}  // namespace ftrun::fixtures
