#include "cluster/restart_policy.h"

#include <algorithm>

#include "base/error.h"

namespace ftrun {

bool may_pass_next_time(const FailureSummary& failure) {
  return failure.exit_code == static_cast<int>(ExitCode::kEnvironment) ||
         failure.exit_code == static_cast<int>(ExitCode::kPeerLost) || failure.exit_code > 128;
}

std::optional<std::chrono::milliseconds> RestartPolicy::after(const FailureSummary& failure,
                                                             const std::string& saved) {
  if (saved_ != saved) {
    in_vain_ = 0;
    first_ = failure;
  }
  saved_ = saved;
  if (!may_pass_next_time(failure) || in_vain_ >= options_.in_vain) return std::nullopt;
  ++in_vain_;
  return delay();
}

std::chrono::milliseconds RestartPolicy::delay() const {
  auto delay = options_.first_delay;
  for (int doubled = 1; doubled < in_vain_ && delay < options_.longest_delay; ++doubled) delay *= 2;
  return std::min(delay, options_.longest_delay);
}

}  // namespace ftrun
