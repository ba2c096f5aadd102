#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "engine/memory.h"
#include "partition/units.h"
#include "program/step_plan.h"

namespace ftrun {

/// ReplicaCheck finds silent corruption: ranks that hold the same state compare hashes of it.
/// Copies are the same bits in every step, as all of them are updated with the same sums; where
/// they differ, a memory or a processor has changed something. State on disk is not compared.
class ReplicaCheck {
 public:
  /// ExchangeTexts gives every rank the texts of all, by rank. Collective.
  using ExchangeTexts = std::function<std::vector<std::string>(const std::string& text)>;
  /// Sum adds numbers over all ranks, in place. Collective.
  using Sum = std::function<void(std::span<double> numbers)>;

  /// Finds what several ranks hold alike. Collective. `state_kinds` names the optimizer's states.
  /// The plan and the memory are borrowed.
  ReplicaCheck(const ProgramPlan& train, const Partition& partition, const RankMemory& memory,
               std::vector<std::string> state_kinds, ExchangeTexts exchange, Sum sum);

  /// Says whether any two ranks hold anything alike.
  bool compares() const { return !shared_.empty(); }

  /// Compares the state of all ranks. Collective. Error(kEnvironment), the same on all ranks,
  /// naming a tensor and who differs: the ranks in the minority, or all where there is none. A
  /// RankError of the rank where it is a single one.
  void check(int64_t step) const;

 private:
  /// StatePart holds the bytes of a tensor's state in this rank's memory.
  struct StatePart {
    std::string name;
    Range range;
  };
  /// StateSet holds parts that ranks share all together or not at all.
  struct StateSet {
    /// A hash that says which parts of the model these are.
    std::string key;
    std::vector<StatePart> parts;
    /// The index in shared_ where another rank has them too; -1 otherwise.
    int64_t shared = -1;
  };
  /// SharedSet is a key that several ranks have.
  struct SharedSet {
    /// The set, and how many ranks share it.
    size_t set = 0;
    double ranks = 0;
  };

  void list_parts(const ProgramPlan& train, const Partition& partition,
                  const std::vector<std::string>& kinds);
  void find_shared();
  uint64_t hash_of(const StatePart& part) const;
  std::vector<uint64_t> hashes(const StateSet& set) const;
  std::string signed_parts(const StateSet& set) const;
  [[noreturn]] void name_culprit(size_t set, int64_t step) const;

  const Program& program_;
  const RankMemory& memory_;
  ExchangeTexts exchange_;
  Sum sum_;
  std::vector<StateSet> sets_;
  /// The shared sets, the same on all ranks, in the same order.
  std::vector<SharedSet> shared_;
};

}  // namespace ftrun
