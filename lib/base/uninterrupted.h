#pragma once

#include <cerrno>

namespace ftrun {

/// The result of a system call that is made again as long as a signal interrupts it, as the one
/// that asks a run to end may: calls to pipes, sockets and file systems of a network or of FUSE.
/// Below 0 where it failed, with errno.
template <typename Call>
auto uninterrupted(Call call) {
  decltype(call()) result{};
  do result = call();
  while (result < 0 && errno == EINTR);
  return result;
}

}  // namespace ftrun
