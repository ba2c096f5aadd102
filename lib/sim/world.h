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

/// World holds the ranks of a run, the program of each, and the groups in which they meet. It holds
/// each program and each group once, whatever the number of ranks.
struct World {
  /// Marks groups that a rank's program names though the rank is not in them.
  static constexpr int32_t kNotMember = -1;

  struct Rank {
    int number = 0;
    /// Index in `programs`.
    int32_t program = 0;
    /// Indices in `groups`, or kNotMember, by GroupId of that program.
    std::vector<int32_t> groups;
  };
  struct Group {
    std::string name;
    /// Indices in `ranks`, ascending.
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

/// Makes the world of these ranks, with the groups of their programs. Groups keep only the members
/// given here; the others are assumed to arrive at once.
World world_of(std::span<const RankProgram> ranks);

}  // namespace ftrun
