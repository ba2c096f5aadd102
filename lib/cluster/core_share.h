#pragma once

#include <string>
#include <vector>

#include "base/cores.h"

namespace ftrun {

/// Formats a limit as a text for the other ranks; parse_core_limit() reads it back. An invalid text
/// is read as a limit of one core.
std::string core_limit_text(const CoreLimit& limit);
CoreLimit parse_core_limit(const std::string& text);

/// RankCores is what a rank reports about its cores: its machine, and its limit on that
/// machine.
struct RankCores {
  std::string machine;
  CoreLimit limit;
};

/// Returns the number of threads on which a rank computes, at least 1. It is the smaller of two
/// equal shares: of the cores that the rank may run on, among the ranks of its machine that may run
/// on any of them; and of the quota of its control group, among the ranks in that group.
int threads_of_rank(const std::vector<RankCores>& ranks, int rank);

/// Returns the reason for a rank's number of threads if that is a quota and not the number of
/// cores: "the control group /job grants the time of 1.5 cores". Returns "" if no quota limits the
/// rank.
std::string quota_text(const CoreLimit& limit);

}  // namespace ftrun
