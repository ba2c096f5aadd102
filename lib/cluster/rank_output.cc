#include "cluster/rank_output.h"

#include <utility>

#include "base/error.h"

namespace ftrun {
namespace {
constexpr size_t kLongestLine = 64 * 1024;  // a longer line is cut, so that memory is bounded
constexpr std::string_view kClearLine = "\r\x1b[K";
}  // namespace

RankOutput::RankOutput(RankOutputOptions options)
    : options_(std::move(options)), partial_lines_(static_cast<size_t>(options_.ranks)) {}

RankOutput::PartialLine& RankOutput::partial_line(int rank, OutputStream stream) {
  return partial_lines_[static_cast<size_t>(rank - options_.first_rank)]
                       [static_cast<size_t>(stream)];
}

void RankOutput::feed(int rank, OutputStream stream, std::string_view bytes) {
  while (!bytes.empty()) {
    const size_t end = bytes.find_first_of("\r\n");
    if (end > 0) add_text(rank, stream, bytes.substr(0, end));
    if (end == bytes.npos) return;
    if (bytes[end] == '\n') {
      add_newline(rank, stream);
    } else {
      add_return(rank, stream);
    }
    bytes.remove_prefix(end + 1);
  }
}

void RankOutput::add_text(int rank, OutputStream stream, std::string_view text) {
  PartialLine& line = partial_line(rank, stream);
  if (std::exchange(line.ends_in_return, false)) line.pending.clear();
  line.pending += text;
  if (line.is_live) options_.write(stream, text);
  if (!line.is_live && line.pending.size() > kLongestLine) add_newline(rank, stream);
}

void RankOutput::add_return(int rank, OutputStream stream) {
  PartialLine& line = partial_line(rank, stream);
  line.ends_in_return = true;
  if (rank != 0 || !options_.terminal[static_cast<size_t>(stream)]) return;
  if (!line.is_live) options_.write(stream, line.pending);
  options_.write(stream, "\r");
  line.is_live = true;
  live_line_ = &line;
  live_stream_ = stream;
}

void RankOutput::add_newline(int rank, OutputStream stream) {
  PartialLine& line = partial_line(rank, stream);
  line.ends_in_return = false;
  const std::string text = std::exchange(line.pending, "");
  if (std::exchange(line.is_live, false)) {
    live_line_ = nullptr;
    options_.write(stream, "\n");
    return;
  }
  write_line(rank, stream, text);
}

void RankOutput::write_line(int rank, OutputStream stream, const std::string& text) {
  write_own(stream, cat("[rank ", rank, "] ", text));
}

void RankOutput::write_own(OutputStream stream, const std::string& text) {
  const std::string line = text + "\n";
  const bool over_live = live_line_ != nullptr && options_.terminal[static_cast<size_t>(stream)];
  if (over_live) options_.write(live_stream_, kClearLine);
  options_.write(stream, line);
  if (over_live) options_.write(live_stream_, live_line_->pending);
}

void RankOutput::finish(int rank) {
  for (const OutputStream stream : {OutputStream::kOut, OutputStream::kErr}) {
    const PartialLine& line = partial_line(rank, stream);
    if (!line.pending.empty() || line.is_live) add_newline(rank, stream);
  }
}

}  // namespace ftrun
