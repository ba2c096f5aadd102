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

/// Finds silent corruption: what several ranks hold alike, they compare by hashes. Copies are the
/// same bits in every step, as all of them are updated with the same sums; where they are not, a
/// memory or a processor has changed something. What lies on disk is not looked at.
class ReplicaCheck {
 public:
  /// Collective: gives every rank the texts of all, by rank.
  using Exchange = std::function<std::vector<std::string>(const std::string& text)>;
  /// Collective: sums numbers over all ranks, in place.
  using Sum = std::function<void(std::span<double> numbers)>;

  /// Collective: ranks find out what they hold alike. `state_kinds` names the optimizer's states.
  /// The plan and the memory are borrowed.
  ReplicaCheck(const ProgramPlan& train, const Partition& partition, const RankMemory& memory,
               std::vector<std::string> state_kinds, Exchange exchange, Sum sum);

  /// Says whether any two ranks hold anything alike.
  bool compares() const { return !shared_.empty(); }

  /// Collective. Error(kEnvironment), the same on all ranks, naming a tensor and who differs: the
  /// ranks that are fewer, or all where neither side is. A RankError of the rank where it is one.
  void check(int64_t step) const;

 private:
  /// Bytes of a tensor's state in this rank's memory.
  struct StatePart {
    std::string name;
    Range range;
  };
  /// Parts that are held alike as a whole or not at all.
  struct StateSet {
    /// Hash of which parts of the model these are.
    std::string key;
    std::vector<StatePart> parts;
    /// Another rank has them too: index in shared_; -1 otherwise.
    int64_t shared = -1;
  };
  /// A key that several ranks have.
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
  Exchange exchange_;
  Sum sum_;
  std::vector<StateSet> sets_;
  /// The shared sets, the same on all ranks, in the same order.
  std::vector<SharedSet> shared_;
};

}  // namespace ftrun
