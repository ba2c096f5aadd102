#pragma once

#include <cstddef>
#include <functional>
#include <thread>
#include <vector>

namespace ftrun {

/// Starts `count` threads, which call `work` with 0 .. count-1. If the system starts fewer, calls
/// `stop`, which must make the calls of `work` return, joins the threads that run, and throws
/// Error(kEnvironment) that names the limit: a thread that is destroyed while it runs would end the
/// process.
std::vector<std::thread> start_threads(size_t count, const std::function<void(size_t)>& work,
                                       const std::function<void()>& stop);

}  // namespace ftrun
