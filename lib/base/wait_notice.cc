#include "base/wait_notice.h"

#include <utility>

#include "base/log.h"
#include "base/text.h"

namespace ftrun {

void WaitNoticeOptions::log_wait(const std::string& line) {
  log_notice(line);
}

WaitNotice::WaitNotice(WaitNoticeOptions options, Clock::time_point since)
    : options_(std::move(options)),
      waits_since_(since),
      next_notice_(since + options_.first_delay) {}

bool WaitNotice::is_due(Clock::time_point now) {
  if (now < next_notice_) return false;
  next_notice_ = now + options_.interval;
  return true;
}

void WaitNotice::poll(const std::function<std::string(const std::string& waited)>& describe_wait,
                      Clock::time_point now) {
  poll_if([&](const std::string& waited) { return std::optional(describe_wait(waited)); }, now);
}

void WaitNotice::poll_if(
    const std::function<std::optional<std::string>(const std::string& waited)>& describe_wait,
    Clock::time_point now) {
  if (!is_due(now)) return;
  if (const auto line =
          describe_wait(human_seconds(std::chrono::duration<double>(now - waits_since_).count())))
    options_.report(*line);
}

WaitReporter::WaitReporter(WaitNoticeOptions options,
                           std::function<std::string(const std::string& waited)> describe_wait)
    : thread_([this, options = std::move(options),
               describe_wait = std::move(describe_wait)](const std::stop_token& stop) {
        WaitNotice notice(options);
        std::unique_lock lock(mutex_);
        for (auto pause = options.first_delay; !stop.stop_requested(); pause = options.interval) {
          stop_wake_.wait_for(lock, stop, pause, [] { return false; });
          if (!stop.stop_requested()) notice.poll(describe_wait);
        }
      }) {}

}  // namespace ftrun
