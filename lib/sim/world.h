#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "program/program.h"

namespace ftrun {

/// RankProgram is a rank's number and the program that it runs.
struct RankProgram {
  int rank = 0;
  const Program* program = nullptr;
};

/// World holds the ranks of a run, the program of each rank, and the groups in which ranks
/// communicate. It stores each program and each group once, however many ranks share it.
struct World {
  /// Marks a group that a rank's program names although the rank is not a member.
  static constexpr int32_t kNotMember = -1;

  struct Rank {
    int number = 0;
    /// Index in `programs`.
    int32_t program = 0;
    /// Indices in World::groups, or kNotMember, by the program's GroupId.
    std::vector<int32_t> groups;
  };
  struct Group {
    std::string name;
    /// Indices in World::ranks, ascending.
    std::vector<int32_t> members;
  };

  std::vector<const Program*> programs;
  /// The ranks, by number.
  std::vector<Rank> ranks;
  std::vector<Group> groups;

  const Program& program_of(size_t rank) const {
    return *programs[static_cast<size_t>(ranks[rank].program)];
  }
  int32_t group_of(size_t rank, GroupId group) const {
    const std::vector<int32_t>& known = ranks[rank].groups;
    const auto at = static_cast<size_t>(group);
    return at < known.size() ? known[at] : kNotMember;
  }
};

/// Makes the world of the given ranks, with the groups of their programs. A group contains only its
/// members among the given ranks; other members are assumed to arrive at once.
World world_of(std::span<const RankProgram> ranks);

}  // namespace ftrun
