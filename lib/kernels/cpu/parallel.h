#pragma once

#include <cstddef>
#include <cstdint>

namespace ftrun {

namespace parallel_detail {
using RangeFunction = void (*)(void* context, int64_t begin, int64_t end);
void run_ranges(int64_t count, int64_t grain, RangeFunction function, void* context);
void run_tasks(int64_t count, RangeFunction function, void* context);
void run_library_calls(int64_t count, RangeFunction function, void* context);

/// Calls the F at `context` for each task in [begin, end).
template <class F>
void each_task(void* context, int64_t begin, int64_t end) {
  for (int64_t task = begin; task < end; ++task) (*static_cast<F*>(context))(task);
}
}  // namespace parallel_detail

/// Calls f(begin, end) for parts of [0, count) of at least `grain` elements on LibTorch's intra-op
/// threads. The parts depend on the number of threads; f's results must not.
template <class F>
void parallel_ranges(int64_t count, int64_t grain, F f) {
  parallel_detail::run_ranges(
      count, grain,
      [](void* context, int64_t begin, int64_t end) { (*static_cast<F*>(context))(begin, end); },
      &f);
}

/// Calls f(task) for each task in [0, count). Threads take tasks one by one in order, which suits
/// tasks of unequal length.
template <class F>
void parallel_tasks(int64_t count, F f) {
  parallel_detail::run_tasks(count, parallel_detail::each_task<F>, &f);
}

/// Runs calls of multithreaded libraries in parallel, each on one thread: the library does not
/// start its own threads, because each call finds itself inside a parallel region of the one OpenMP
/// runtime.
template <class F>
void parallel_library_calls(int64_t count, F f) {
  parallel_detail::run_library_calls(count, parallel_detail::each_task<F>, &f);
}

/// Returns at least `bytes` of this thread's 64-byte aligned scratch. The memory is kept, and is
/// valid until the next call on the same thread.
void* thread_scratch(size_t bytes);

}  // namespace ftrun
