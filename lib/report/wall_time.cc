#include "report/wall_time.h"

#include <array>
#include <chrono>
#include <ctime>

namespace ftrun {

std::string utc_text(int64_t seconds) {
  const auto time = static_cast<std::time_t>(seconds);
  std::tm parts{};
  ::gmtime_r(&time, &parts);
  std::array<char, 32> buffer{};
  const size_t size = std::strftime(buffer.data(), buffer.size(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return {buffer.data(), size};
}

std::string utc_now() {
  return utc_text(static_cast<int64_t>(wall_seconds()));
}

double wall_seconds() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

}  // namespace ftrun
