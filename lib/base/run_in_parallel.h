#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace ftrun {

/// Calls `work` once with each of 0 .. count-1, on as many threads as this process may use cores,
/// but at most `max_threads`, and returns when all calls are done. The calls must not depend on
/// each other. If several of them throw, the error of the lowest number is thrown here.
void run_in_parallel(size_t count, const std::function<void(size_t)>& work,
                     size_t max_threads = SIZE_MAX);

}  // namespace ftrun
