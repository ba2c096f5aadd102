#include "training/background_save.h"

#include <chrono>
#include <exception>
#include <utility>

#include "base/as_error.h"
#include "base/clock.h"

namespace ftrun {

BackgroundSave::BackgroundSave(int64_t step, std::function<SaveResult()> write) : step_(step) {
  thread_ = std::jthread([this, write = std::move(write)] {
    const auto start = std::chrono::steady_clock::now();
    try {
      outcome_.result = write();
    } catch (const std::exception& exception) {
      outcome_.failure = as_error(exception).message();
    }
    outcome_.seconds = seconds_since(start);
    const std::lock_guard lock(mutex_);
    ended_ = true;
    end_.notify_all();
  });
}

bool BackgroundSave::ends_within(std::chrono::milliseconds limit) {
  std::unique_lock lock(mutex_);
  return end_.wait_for(lock, limit, [this] { return ended_.load(); });
}

const BackgroundSave::Outcome& BackgroundSave::finish() {
  if (thread_.joinable()) thread_.join();
  return outcome_;
}

}  // namespace ftrun
