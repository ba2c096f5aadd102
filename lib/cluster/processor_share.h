#pragma once

#include <string>
#include <vector>

#include "base/processors.h"

namespace ftrun {

/// Writes the limit as a text for the other ranks, and reads it back. An invalid text is read as a
/// limit of one processor.
std::string processor_text(const ProcessorLimit& limit);
ProcessorLimit parse_processors(const std::string& text);

/// RankProcessors is a rank's report of its cores: the machine that it is on, and its limit
/// there.
struct RankProcessors {
  std::string machine;
  ProcessorLimit limit;
};

/// Returns the number of threads on which a rank computes: an equal share of the cores that it
/// may run on, divided among the ranks of its machine that may run on any of them, and of the quota
/// of its control group, divided among the ranks in that group. The number is at least 1.
int threads_of_rank(const std::vector<RankProcessors>& ranks, int rank);

/// Returns the reason for a rank's number of threads if it is a quota and not the number of
/// cores: "the control group /job grants the time of 1.5 cores". "" where no quota limits
/// the rank.
std::string quota_text(const ProcessorLimit& limit);

}  // namespace ftrun
