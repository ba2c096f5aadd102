#include "base/start_threads.h"

#include <exception>

#include "base/as_error.h"
#include "base/error.h"

namespace ftrun {

std::vector<std::thread> start_threads(size_t count, const std::function<void(size_t)>& work,
                                       const std::function<void()>& stop) {
  std::vector<std::thread> threads;
  threads.reserve(count);
  try {
    for (size_t t = 0; t < count; ++t) threads.emplace_back(work, t);
  } catch (const std::exception& refused) {
    stop();
    for (std::thread& thread : threads) thread.join();
    throw as_error(refused);
  }
  return threads;
}

}  // namespace ftrun
