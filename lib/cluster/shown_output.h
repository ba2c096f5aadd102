#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string_view>

#include "base/owned_fd.h"
#include "cluster/rank_output.h"

namespace ftrun {

struct ShownOutputOptions {
  /// Our own standard output and error.
  std::array<int, 2> descriptors = {1, 2};
  /// The time for which a stream may be blocked before lines are dropped, and that time once
  /// `is_ending`: a longer wait keeps ranks from writing, and others would take them for hung.
  std::chrono::milliseconds patience = std::chrono::seconds(3),
                            patience_at_the_end = std::chrono::milliseconds(500);
  /// Called about every tenth of a second while a stream is blocked; true when the ranks are to
  /// end.
  std::function<bool()> is_ending = [] { return false; };
};

/// ShownOutput prints the output of several ranks to streams that may block: a pipe whose reader
/// sleeps, a terminal that was stopped (^S) or whose connection stalls. Lines that cannot be
/// written for long are dropped, which a line reports once there is room again; the ranks' logs
/// have them.
class ShownOutput {
 public:
  explicit ShownOutput(ShownOutputOptions options);

  /// Writes a text. A failure to write at all (no reader is left, a full disk) is set in the state
  /// of std::cout, as for text printed through it; std::cerr stays good, as the last message is
  /// still to come.
  void write(OutputStream stream, std::string_view text);
  /// Counts the lines that were dropped and not yet reported.
  int64_t left_out() const { return streams_[0].left_out + streams_[1].left_out; }

 private:
  struct Stream {
    int fd = -1;
    OwnedFd terminal;  // the same terminal, where no write waits
    bool stands = false;
    int64_t left_out = 0;  // lines
  };

  bool write_all(Stream& stream, std::string_view& text, bool is_out);
  bool await_room(const Stream& stream);

  ShownOutputOptions options_;
  std::array<Stream, 2> streams_;
};

}  // namespace ftrun
