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

/// The threads that a rank computes on: an equal part of the processors that it may run on, which
/// ranks of its machine that may run on any of the same share, and of the quota of its control
/// group, which the ranks in that group share. At least 1.
int threads_of_rank(const std::vector<RankProcessors>& ranks, int rank);

/// Why a rank has so many threads, where it is not the processors of its machine: "the control
/// group /job grants the time of 1.5 processors". "" where no quota counts.
std::string quota_text(const ProcessorLimit& limit);

}  // namespace ftrun
