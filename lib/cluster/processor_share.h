#pragma once

#include <string>
#include <vector>

#include "base/processors.h"

namespace ftrun {

/// Writes the limit as a text for the other ranks, and reads it back. A text that makes no sense
/// gives a limit of one processor.
std::string processor_text(const ProcessorLimit& limit);
ProcessorLimit parse_processors(const std::string& text);

/// RankProcessors is what ranks report of their processors: the machine they are on, and the limit
/// there.
struct RankProcessors {
  std::string machine;
  ProcessorLimit limit;
};

/// Returns the number of threads that a rank computes on: an equal part of the processors that it
/// may run on, shared with ranks of its machine that may run on any of them, and of the quota of
/// its control group, shared with the ranks in that group. At least 1.
int threads_of_rank(const std::vector<RankProcessors>& ranks, int rank);

/// Returns why a rank has its number of threads, where that is not due to its machine's processors:
/// "the control group /job grants the time of 1.5 processors". "" where no quota counts.
std::string quota_text(const ProcessorLimit& limit);

}  // namespace ftrun
