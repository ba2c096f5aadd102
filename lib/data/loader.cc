#include "data/loader.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/text.h"
#include "data/step_reader.h"

namespace ftrun {
namespace {

MixedOrder make_training_order(const SequenceSet& sequences, const LoaderOptions& options) {
  return sequences.make_order(
      options.shuffle, options.seed,
      sequences.epoch_sequences(options.layout.global_batch(), options.drop_last));
}

}  // namespace

/// Work prepares the steps. The loader and its thread share it.
struct Loader::Work {
  Work(const SequenceSet& sequences, const LoaderOptions& loader_options)
      : options(loader_options),
        reader(sequences, loader_options.layout, loader_options.rank,
               make_training_order(sequences, loader_options), loader_options.vocab_rows),
        buffers(static_cast<size_t>(std::max(loader_options.prefetched_steps, 1)) + 1) {}

  void run();
  bool wait_for_space(int64_t filled);
  bool is_past_end(int64_t step) const { return options.end_step >= 0 && step >= options.end_step; }

  const LoaderOptions options;
  StepReader reader;               // used only by the thread
  std::vector<StepBatch> buffers;  // a ring: step first_step + i lies in buffer i % size
  std::mutex mutex;
  std::condition_variable space, ready;
  int64_t filled_steps = 0;    // steps that the thread has finished
  int64_t released_steps = 0;  // steps whose buffers may be filled again
  bool stop = false;
  std::exception_ptr error;
};

Loader::Loader(const SequenceSet& sequences, const LoaderOptions& options)
    : options_(options),
      work_(std::make_shared<Work>(sequences, options)),
      thread_([work = work_] { work->run(); }, options.patience) {}

Loader::~Loader() {
  shutdown();
}

void Loader::shutdown() {
  {
    const std::lock_guard lock(work_->mutex);
    work_->stop = true;
  }
  work_->space.notify_all();
  work_->ready.notify_all();
  thread_.join_or_detach();
}

bool Loader::Work::wait_for_space(int64_t filled) {
  std::unique_lock lock(mutex);
  const auto size = static_cast<int64_t>(buffers.size());
  space.wait(lock, [&] { return stop || filled - released_steps < size; });
  return !stop;
}

void Loader::Work::run() {
  try {
    for (int64_t filled = 0; !is_past_end(options.first_step + filled); ++filled) {
      if (!wait_for_space(filled)) return;
      reader.read(options.first_step + filled,
                  buffers[static_cast<size_t>(filled) % buffers.size()]);
      const std::lock_guard lock(mutex);
      filled_steps = filled + 1;
      ready.notify_all();
    }
  } catch (...) {
    const std::lock_guard lock(mutex);
    error = std::current_exception();
    ready.notify_all();
  }
}

Loader::FetchedBatch Loader::next() {
  const auto begin = std::chrono::steady_clock::now();
  std::unique_lock lock(work_->mutex);
  require(!work_->stop, "next() is called before shutdown()");
  require(!work_->is_past_end(next_step()), "next() is called at most once for each step");
  work_->released_steps = returned_steps_;
  work_->space.notify_all();
  WaitNotice notice(options_.notices, begin);
  const auto end = begin + std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                               std::chrono::duration<double>(options_.timeout_seconds));
  const auto has_result = [&] {
    return work_->filled_steps > returned_steps_ || work_->error != nullptr || work_->stop;
  };
  while (!work_->ready.wait_until(
      lock, std::min(end, std::chrono::steady_clock::now() + options_.notices.first_delay),
      has_result)) {
    if (std::chrono::steady_clock::now() >= end) throw_timeout();
    notice.poll([&](const std::string& waited) {
      return cat("step ", next_step(), " has waited ", waited,
                 " for its data: their file system does not answer, or is slow");
    });
  }
  if (work_->filled_steps <= returned_steps_) {
    require(work_->error != nullptr, "shutdown() while next() waits");
    std::rethrow_exception(work_->error);
  }
  const StepBatch& batch =
      work_->buffers[static_cast<size_t>(returned_steps_) % work_->buffers.size()];
  ++returned_steps_;
  return {batch, seconds_since(begin)};
}

int64_t Loader::ready_steps() {
  const std::lock_guard lock(work_->mutex);
  return work_->filled_steps - returned_steps_;
}

void Loader::throw_timeout() const {
  throw Error(ExitCode::kEnvironment,
              cat("the data of step ", next_step(), " did not arrive within ",
                  human_seconds(options_.timeout_seconds)),
              "check that the data's file system answers, or copy the data to a local disk");
}

}  // namespace ftrun
