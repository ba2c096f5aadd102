#pragma once

#include <cerrno>

namespace ftrun {

/// Makes a system call again as long as a signal interrupts it, such as the one that asks a run to
/// end: calls to pipes, sockets, and network or FUSE file systems. Returns its result, below 0 with
/// errno where it failed.
template <typename Call>
auto uninterrupted(Call call) {
  decltype(call()) result{};
  do result = call();
  while (result < 0 && errno == EINTR);
  return result;
}

}  // namespace ftrun
