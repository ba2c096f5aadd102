#pragma once

#include <string>
#include <vector>

#include "axes/pipeline/schedule.h"
#include "base/error.h"
#include "base/text.h"

namespace ftrun::testing {

/// Formats phase, chunk and micro-batch of each action: "F0.0 B0.0 F0.1 B0.1".
inline std::string schedule_text(const std::vector<ScheduleAction>& actions) {
  std::vector<std::string> words;
  for (const ScheduleAction& action : actions)
    words.push_back(cat(phase_letter(action.phase), action.chunk, ".", action.micro_batch));
  return join(words, " ");
}

}  // namespace ftrun::testing
