#pragma once

#include <csignal>

#include "base/owned_fd.h"

namespace ftrun {

/// SignalQueue blocks SIGCHLD and the signals that a supervisor forwards while it exists; they are
/// read from a descriptor instead of calling their handlers.
class SignalQueue {
 public:
  SignalQueue();
  ~SignalQueue();
  SignalQueue(const SignalQueue&) = delete;
  SignalQueue& operator=(const SignalQueue&) = delete;

  int fd() const { return fd_.get(); }
  const sigset_t& original_mask() const { return original_mask_; }
  /// Returns the next signal, 0 if there is none.
  int next_signal();

 private:
  sigset_t original_mask_{};
  struct sigaction original_child_action_ {};
  OwnedFd fd_;
};

}  // namespace ftrun
