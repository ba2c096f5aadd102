#pragma once

#include <array>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace ftrun {

enum class OutputStream : int { kOut, kErr };

struct RankOutputOptions {
  /// The global number of the first local rank, and the number of local ranks.
  int first_rank = 0;
  int ranks = 1;
  /// Says which streams are terminals; on a terminal, rank 0's live line is passed on unchanged.
  std::array<bool, 2> terminal = {false, false};
  /// Writes text to this process's own stdout or stderr.
  std::function<void(OutputStream, std::string_view)> write;
};

/// RankOutput merges the output of ranks: whole lines, each after "[rank N] ". Text that a carriage
/// return overwrites is dropped, except rank 0's live progress line on a terminal, which is passed
/// on at once and redrawn under the lines of other ranks.
class RankOutput {
 public:
  explicit RankOutput(RankOutputOptions options);

  void feed(int rank, OutputStream stream, std::string_view bytes);
  /// Writes a line of the supervisor itself between those of the ranks.
  void write_own(OutputStream stream, const std::string& text);
  /// Ends a rank's output: writes the remaining text that has no line end.
  void finish(int rank);

 private:
  struct PartialLine {
    std::string pending;          // text of the line so far
    bool ends_in_return = false;  // the last byte was '\r'
    bool is_live = false;         // the line is rank 0's live line and already on the terminal
  };

  PartialLine& partial_line(int rank, OutputStream stream);
  void add_text(int rank, OutputStream stream, std::string_view text);
  void add_return(int rank, OutputStream stream);
  void add_newline(int rank, OutputStream stream);
  void write_line(int rank, OutputStream stream, const std::string& text);

  RankOutputOptions options_;
  std::vector<std::array<PartialLine, 2>> partial_lines_;
  PartialLine* live_line_ = nullptr;  // the line that is on the terminal now
  OutputStream live_stream_ = OutputStream::kErr;
};

}  // namespace ftrun
