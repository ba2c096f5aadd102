#pragma once

#include <chrono>
#include <cstdint>
#include <memory>

#include "base/detachable_thread.h"
#include "base/wait_notice.h"
#include "data/batch_layout.h"
#include "data/micro_batch.h"
#include "data/sequence_set.h"

namespace ftrun {

struct LoaderOptions {
  BatchLayout layout;
  /// The data-parallel rank whose batches are prepared, in 0..layout.ranks-1.
  int64_t rank = 0;
  /// The number of rows of the model's embedding: every id is checked against it before its batch
  /// is returned.
  int64_t vocab_rows = 0;
  bool shuffle = true;
  /// Says whether sequences that do not fill a whole global batch are left out of each epoch
  /// (different ones in each epoch when shuffling). If false, a step continues into the next epoch.
  bool drop_last = false;
  uint64_t seed = 0;
  /// The step to begin with, which is the whole state of a resumed loader.
  int64_t first_step = 0;
  /// The number of the step after the last one that is needed; negative if there is no end.
  int64_t end_step = -1;
  /// The number of steps prepared ahead of the one in use.
  int prefetched_steps = 4;
  /// The longest wait for one step's data before Error(kEnvironment).
  double timeout_seconds = 600;
  /// The longest wait for the end of the thread.
  std::chrono::milliseconds patience = DetachableThread::kStopTimeout;
  /// Options of the notice of a wait for data.
  WaitNoticeOptions notices;
};

/// Loader prepares the batches of coming steps on its own thread while the current step is
/// computed. It allocates nothing after the first prefetched_steps + 1 steps.
class Loader {
 public:
  /// Starts the thread. `sequences` must outlive this loader, and a thread that it leaves behind.
  Loader(const SequenceSet& sequences, const LoaderOptions& options);
  /// Stops the thread as shutdown() does.
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  struct FetchedBatch {
    /// The batch, valid until the next call of next() or shutdown().
    const StepBatch& batch;
    double wait_seconds;
  };
  /// Returns the next step's data. Rethrows an error of the thread when its step is requested.
  FetchedBatch next();
  /// Returns the step whose data next() will return.
  int64_t next_step() const { return options_.first_step + returned_steps_; }
  /// Returns the number of steps that are ready and were not returned yet: next() does not wait for
  /// these.
  int64_t ready_steps();
  /// Stops the thread, which first finishes the step that it is filling. If the data of that step
  /// do not arrive, the thread is left behind after LoaderOptions::patience, and uses `sequences`
  /// until the process ends. May be called again; next() afterwards is a bug.
  void shutdown();

 private:
  struct Work;

  [[noreturn]] void throw_timeout() const;

  const LoaderOptions options_;
  /// The objects that the thread uses; a thread that is left behind keeps them.
  const std::shared_ptr<Work> work_;
  int64_t returned_steps_ = 0;  // steps handed out; the last of them may still be in use
  DetachableThread thread_;
};

}  // namespace ftrun
