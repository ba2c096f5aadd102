#include "kernels/cpu/parallel.h"

#include <ATen/Parallel.h>

#include <atomic>
#include <cstdlib>
#include <exception>
#include <memory>
#include <new>

#include "kernels/kernels.h"

namespace ftrun {

namespace {

struct AlignedDelete {
  void operator()(void* p) const { std::free(p); }
};

struct Scratch {
  std::unique_ptr<void, AlignedDelete> memory;
  size_t bytes = 0;
};

thread_local bool runs_on_one_thread = false;

/// Runs tasks that no thread has claimed yet until all `count` are claimed. Several threads share
/// the counter `next`.
void claim_tasks(std::atomic<int64_t>& next, int64_t count, parallel_detail::RangeFunction function,
                 void* context) {
  for (int64_t task; (task = next.fetch_add(1, std::memory_order_relaxed)) < count;)
    function(context, task, task + 1);
}

}  // namespace

void parallel_detail::run_ranges(int64_t count, int64_t grain, RangeFunction function,
                                 void* context) {
  if (runs_on_one_thread) {
    if (count > 0) function(context, 0, count);
    return;
  }
  at::parallel_for(0, count, grain,
                   [&](int64_t begin, int64_t end) { function(context, begin, end); });
}

void parallel_detail::run_tasks(int64_t count, RangeFunction function, void* context) {
  if (runs_on_one_thread) {
    if (count > 0) function(context, 0, count);
    return;
  }
  std::atomic<int64_t> next{0};
  const int64_t workers = std::min<int64_t>(at::get_num_threads(), count);
  at::parallel_for(0, workers, 1,
                   [&](int64_t, int64_t) { claim_tasks(next, count, function, context); });
}

/// Calls libraries inside an OpenMP parallel region, even for a single task: outside of a region
/// the library would start its own team of threads. The region always has all threads, because
/// libgomp ends the threads that a smaller team leaves out.
void parallel_detail::run_library_calls(int64_t count, RangeFunction function, void* context) {
  const int threads = at::get_num_threads();  // also sets it for this thread
  if (runs_on_one_thread || threads == 1) {
    if (count > 0) function(context, 0, count);
    return;
  }
  std::atomic<int64_t> next{0};
  std::exception_ptr failure;
#pragma omp parallel num_threads(threads)
  {
    try {
      claim_tasks(next, count, function, context);
    } catch (...) {
#pragma omp critical
      failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
}

void* thread_scratch(size_t bytes) {
  thread_local Scratch scratch;
  if (scratch.bytes < bytes) {
    const size_t rounded = (bytes + 63) / 64 * 64;
    void* const memory = std::aligned_alloc(64, rounded);
    if (memory == nullptr) throw std::bad_alloc();
    scratch.memory.reset(memory);
    scratch.bytes = rounded;
  }
  return scratch.memory.get();
}

void run_kernels_on_this_thread() {
  runs_on_one_thread = true;
}

void set_kernel_threads(int threads) {
  at::set_num_threads(threads);
}

int kernel_threads() {
  return at::get_num_threads();
}

}  // namespace ftrun
