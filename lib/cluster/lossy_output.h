#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string_view>

#include "base/owned_fd.h"
#include "cluster/rank_output.h"

namespace ftrun {

struct LossyOutputOptions {
  /// The descriptors of this process's standard output and error.
  std::array<int, 2> descriptors = {1, 2};
  /// The time that a stream may be blocked before lines are dropped, and the shorter time that
  /// counts once `is_ending` returns true. If the supervisor waited longer, ranks could not write,
  /// and other ranks would consider them hung.
  std::chrono::milliseconds write_timeout = std::chrono::seconds(3),
                            write_timeout_at_end = std::chrono::milliseconds(500);
  /// Called about ten times a second while a stream is blocked; returns true if the ranks are to
  /// end.
  std::function<bool()> is_ending = [] { return false; };
};

/// LossyOutput prints the output of several ranks to streams that may block: a pipe whose reader
/// sleeps, a terminal that was stopped (^S) or whose connection stalls. Lines that cannot be
/// written for long are dropped. A later line reports how many, and the ranks' logs contain them.
class LossyOutput {
 public:
  explicit LossyOutput(LossyOutputOptions options);

  /// Writes a text. If writing fails (no reader is left, the disk is full), it sets the error state
  /// of std::cout, as a failed print does. std::cerr stays good, because the last message is still
  /// to be printed.
  void write(OutputStream stream, std::string_view text);
  /// Returns the number of lines that were dropped and not reported yet.
  int64_t dropped_lines() const { return streams_[0].dropped_lines + streams_[1].dropped_lines; }

 private:
  struct Stream {
    int fd = -1;
    OwnedFd terminal;  // the same terminal, opened for writes that do not block
    bool is_blocked = false;
    int64_t dropped_lines = 0;
  };

  bool write_all(Stream& stream, std::string_view& text, bool is_out);
  bool wait_until_writable(const Stream& stream);

  LossyOutputOptions options_;
  std::array<Stream, 2> streams_;
};

}  // namespace ftrun
