#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "engine/memory.h"
#include "program/step_plan.h"

namespace ftrun {

/// ReplicaCheck finds silent corruption: ranks that hold the same state compare hashes of it.
/// Copies have the same bits in every step, because all are updated with the same sums; if they
/// differ, the memory or the CPU of a rank is faulty. State on disk is not compared.
class ReplicaCheck {
 public:
  /// AllGatherTexts gives every rank the texts of all, by rank. Collective.
  using AllGatherTexts = std::function<std::vector<std::string>(const std::string& text)>;
  /// SumOverRanks adds numbers over all ranks, in place. Collective.
  using SumOverRanks = std::function<void(std::span<double> numbers)>;

  /// Finds the state of training of which several ranks hold copies. Collective. The plan and the
  /// memory are borrowed.
  ReplicaCheck(const StepPlan& plan, const RankMemory& memory, AllGatherTexts all_gather,
               SumOverRanks sum_over_ranks);

  /// Returns whether any two ranks hold copies of the same state.
  bool has_replicas() const { return !replicated_.empty(); }

  /// Compares the copies of all ranks. Collective. Where copies differ, throws the same
  /// Error(kEnvironment) on all ranks, with the tensor and the ranks that differ: those in the
  /// minority, or all where there is no minority. If a single rank differs, the error is a
  /// RankError of that rank.
  void compare_replicas(int64_t step) const;

 private:
  /// HashedState holds the bytes of a tensor's state in this rank's memory.
  struct HashedState {
    std::string name;
    BufferRange range;
  };
  /// HashedStateSet holds state parts of which the same ranks hold copies.
  struct HashedStateSet {
    /// A hash that identifies the parts of the model in the set.
    std::string key;
    std::vector<HashedState> parts;
    /// The index in replicated_ if another rank also holds the set; otherwise -1.
    int64_t replicated = -1;
  };
  /// ReplicatedSet is a set that several ranks hold.
  struct ReplicatedSet {
    /// The index of the set on this rank, and the number of ranks that hold it.
    size_t set = 0;
    double ranks = 0;
  };

  void list_parts(const StepPlan& plan);
  void find_replicated();
  uint64_t hash_part(const HashedState& part) const;
  std::vector<uint64_t> hash_parts(const HashedStateSet& set) const;
  std::string hashes_text(const HashedStateSet& set) const;
  [[noreturn]] void throw_divergence(size_t set, int64_t step) const;

  const Program& program_;
  const RankMemory& memory_;
  AllGatherTexts all_gather_;
  SumOverRanks sum_over_ranks_;
  std::vector<HashedStateSet> sets_;
  /// The replicated sets, in the same order on all ranks.
  std::vector<ReplicatedSet> replicated_;
};

}  // namespace ftrun
