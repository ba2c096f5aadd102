#pragma once

#include <cerrno>

namespace ftrun {

/// Calls a system call again as long as a signal interrupts it, such as the signal that asks a run
/// to end. Calls on pipes, sockets, and network or FUSE file systems need this. Returns the call's
/// result; below 0, with errno set, if it failed.
template <typename Call>
auto uninterrupted(Call call) {
  decltype(call()) result{};
  do result = call();
  while (result < 0 && errno == EINTR);
  return result;
}

}  // namespace ftrun
