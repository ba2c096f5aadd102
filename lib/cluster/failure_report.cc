#include "cluster/failure_report.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <vector>

#include "base/error.h"
#include "base/launch_variables.h"
#include "base/rank_error.h"
#include "base/text.h"

namespace ftrun {
namespace {

constexpr size_t kMaxLine = 4000;  // below PIPE_BUF: lines of concurrent writers never mix
constexpr std::string_view kTag = "ftrun-failure-3";

constexpr std::string_view kRemedy = "\n  remedy: ";  // as in Error::what()
constexpr size_t kMaxRemedy = 1500;

constexpr char kLineEnd = '\x1e';  // replaces a line end inside a message

/// Makes a text fit one field of a line. Tabs separate fields and line ends separate reports, so
/// line ends become kLineEnd, and tabs and carriage returns become spaces.
std::string encode_field(std::string_view text) {
  std::string flat(text);
  for (char& c : flat) {
    if (c == '\n') c = kLineEnd;
    if (c == '\t' || c == '\r') c = ' ';
  }
  return flat;
}

/// Returns the first `max_bytes` bytes of a text, whole characters only.
std::string_view utf8_prefix(std::string_view text, size_t max_bytes) {
  if (text.size() <= max_bytes) return text;
  while (max_bytes > 0 && (static_cast<unsigned char>(text[max_bytes]) & 0xC0) == 0x80) --max_bytes;
  return text.substr(0, max_bytes);
}

/// Cuts the middle out of a message that is too long: its beginning says what happened, and its
/// remedy at the end says what to do.
std::string shorten_message(const std::string& message, size_t max_bytes) {
  if (message.size() <= max_bytes) return message;
  constexpr std::string_view kCut = " [...]";
  const size_t at = std::min(message.rfind(kRemedy), message.size());
  const std::string_view remedy = utf8_prefix(std::string_view(message).substr(at), kMaxRemedy);
  const std::string_view begin = std::string_view(message).substr(0, at);
  return cat(utf8_prefix(begin, max_bytes - remedy.size() - kCut.size()), kCut, remedy);
}

std::string decode_field(std::string text) {
  std::replace(text.begin(), text.end(), kLineEnd, '\n');
  return text;
}

template <typename T>
bool parse_number(const std::string& text, T& value) {
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && stop == end;
}

}  // namespace

FailureReport make_failure_report(int rank, const std::exception& failure, const Error& error) {
  FailureReport report{.rank = rank,
                       .unix_ns = unix_time_ns(),
                       .exit_code = static_cast<int>(error.code()),
                       .message = error.what()};
  if (const auto* absent = dynamic_cast<const AbsentRankError*>(&failure);
      absent != nullptr && error.code() == ExitCode::kPeerLost && absent->absent() != rank)
    report.culprit = absent->absent().value_or(-1);
  const auto* of_rank = dynamic_cast<const RankError*>(&failure);
  if (of_rank == nullptr) return report;
  report.is_device_failure = of_rank->is_device_failure();
  // A rank that only lost a peer is not a cause.
  if (error.code() != ExitCode::kPeerLost && of_rank->rank() != rank)
    report.culprit = of_rank->rank();
  return report;
}

std::string failure_line(const FailureReport& report) {
  const std::string doing = encode_field(report.activity).substr(0, 400);
  const std::string start =
      cat(kTag, "\t", report.unix_ns, "\t", report.rank, "\t", report.exit_code, "\t",
          report.culprit, "\t", report.is_device_failure ? 1 : 0, "\t", doing, "\t");
  return cat(start, encode_field(shorten_message(report.message, kMaxLine - 1 - start.size())),
             "\n");
}

std::optional<FailureReport> parse_failure_line(std::string_view line) {
  if (!line.empty() && line.back() == '\n') line.remove_suffix(1);
  const std::vector<std::string> fields = split(line, '\t');
  FailureReport report;
  int is_device_failure = 0;
  if (fields.size() != 8 || fields[0] != kTag || !parse_number(fields[1], report.unix_ns) ||
      !parse_number(fields[2], report.rank) || !parse_number(fields[3], report.exit_code) ||
      !parse_number(fields[4], report.culprit) || !parse_number(fields[5], is_device_failure))
    return std::nullopt;
  report.is_device_failure = is_device_failure != 0;
  report.activity = decode_field(fields[6]);
  report.message = decode_field(fields[7]);
  return report;
}

void report_failure(const FailureReport& report) noexcept {
  try {
    const char* text = std::getenv(launch_variables::kStatusFd);
    int fd = -1;
    if (text == nullptr || !parse_number(std::string(text), fd)) return;
    const std::string line = failure_line(report);
    // A report that cannot be sent must not cause another failure.
    [[maybe_unused]] const ssize_t sent = ::write(fd, line.data(), line.size());
  } catch (...) {
  }
}

int64_t unix_time_ns() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

}  // namespace ftrun
