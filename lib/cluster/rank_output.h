#pragma once

#include <array>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace ftrun {

enum class OutputStream : int { kOut, kErr };

struct RankOutputOptions {
  /// Global number of the first local rank, and how many there are.
  int first_rank = 0;
  int ranks = 1;
  /// Says which streams are terminals: rank 0's live line passes through it untouched.
  std::array<bool, 2> terminal = {false, false};
  /// Writes text to our own stdout or stderr.
  std::function<void(OutputStream, std::string_view)> write;
};

/// RankOutput merges the output of ranks: whole lines, each after "[rank N] ". Text that a carriage
/// return overwrites is dropped, except rank 0's live progress line on a terminal, which passes
/// through as it comes and is redrawn under the lines of others.
class RankOutput {
 public:
  explicit RankOutput(RankOutputOptions options);

  void feed(int rank, OutputStream stream, std::string_view bytes);
  /// Writes a line of our own between those of the ranks.
  void write_own(OutputStream stream, const std::string& text);
  /// Ends a rank's output: writes what lacks a line end.
  void finish(int rank);

 private:
  struct Channel {
    std::string pending;           // text of the line so far
    bool carriage_return = false;  // the last byte was '\r'
    bool live = false;             // the line is rank 0's live line and already on the terminal
  };

  Channel& channel(int rank, OutputStream stream);
  void add_text(int rank, OutputStream stream, std::string_view text);
  void add_return(int rank, OutputStream stream);
  void take_newline(int rank, OutputStream stream);
  void write_line(int rank, OutputStream stream, const std::string& text);

  RankOutputOptions options_;
  std::vector<std::array<Channel, 2>> channels_;
  Channel* live_ = nullptr;  // whose live line is on the terminal now
  OutputStream live_stream_ = OutputStream::kErr;
};

}  // namespace ftrun
