#include "data/loader.h"

#include <algorithm>
#include <chrono>

#include "base/clock.h"
#include "base/error.h"
#include "base/text.h"

namespace ftrun {
namespace {

MixedOrder order_for(const SequenceSet& sequences, const LoaderOptions& options) {
  return sequences.order(
      options.shuffle, options.seed,
      sequences.epoch_sequences(options.layout.global_batch(), options.drop_last));
}

}  // namespace

Loader::Loader(const SequenceSet& sequences, const LoaderOptions& options)
    : options_(options),
      reader_(sequences, options.layout, options.rank, order_for(sequences, options),
              options.vocab_rows),
      buffers_(static_cast<size_t>(std::max(options.depth, 1)) + 1) {
  thread_ = std::thread([this] { run(); });
}

Loader::~Loader() {
  shutdown();
}

void Loader::shutdown() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  space_.notify_all();
  ready_.notify_all();
  if (thread_.joinable()) thread_.join();
}

bool Loader::wait_for_space(int64_t filled) {
  std::unique_lock lock(mutex_);
  const auto size = static_cast<int64_t>(buffers_.size());
  space_.wait(lock, [&] { return stop_ || filled - released_steps_ < size; });
  return !stop_;
}

void Loader::run() {
  try {
    for (int64_t filled = 0; !is_past_end(options_.first_step + filled); ++filled) {
      if (!wait_for_space(filled)) return;
      reader_.read(options_.first_step + filled,
                   buffers_[static_cast<size_t>(filled) % buffers_.size()]);
      const std::lock_guard lock(mutex_);
      filled_steps_ = filled + 1;
      ready_.notify_all();
    }
  } catch (...) {
    const std::lock_guard lock(mutex_);
    error_ = std::current_exception();
    ready_.notify_all();
  }
}

Loader::Fetched Loader::next() {
  const auto begin = std::chrono::steady_clock::now();
  std::unique_lock lock(mutex_);
  require(!stop_, "next() is called before shutdown()");
  require(!is_past_end(next_step()), "next() is called at most once for each step");
  released_steps_ = taken_steps_;
  space_.notify_all();
  WaitNotice notice(options_.notices, begin);
  const auto end = begin + std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                               std::chrono::duration<double>(options_.timeout_seconds));
  const auto has_result = [&] {
    return filled_steps_ > taken_steps_ || error_ != nullptr || stop_;
  };
  while (!ready_.wait_until(
      lock, std::min(end, std::chrono::steady_clock::now() + options_.notices.first), has_result)) {
    if (std::chrono::steady_clock::now() >= end) refuse_wait();
    notice.poll([&](const std::string& waited) {
      return cat("step ", next_step(), " has waited ", waited,
                 " for its data: their file system does not answer, or is slow");
    });
  }
  if (filled_steps_ <= taken_steps_) {
    require(error_ != nullptr, "shutdown() while next() waits");
    std::rethrow_exception(error_);
  }
  const StepBatch& batch = buffers_[static_cast<size_t>(taken_steps_) % buffers_.size()];
  ++taken_steps_;
  return {batch, seconds_since(begin)};
}

int64_t Loader::ready_steps() {
  const std::lock_guard lock(mutex_);
  return filled_steps_ - taken_steps_;
}

void Loader::refuse_wait() const {
  throw Error(ExitCode::kEnvironment,
              cat("the data of step ", next_step(), " did not arrive within ",
                  human_seconds(options_.timeout_seconds)),
              "check that the data's file system answers, or copy the data to a local disk");
}

}  // namespace ftrun
