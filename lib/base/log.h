#pragma once

#include <string>
#include <string_view>

#include "base/enum_names.h"

namespace ftrun {

enum class LogLevel { kDebug, kInfo, kNotice, kWarning, kError };
template <>
struct EnumNames<LogLevel> {
  static constexpr auto kNames =
      enum_names<LogLevel>({"debug", "info", "notice", "warning", "error"});
};

/// LogOptions specify where this process logs. Lines are written to stderr as "[prefix] message"
/// and, if `file` is given, to that file with time and level.
struct LogOptions {
  /// The minimum level that is written to stderr; the file receives every level.
  LogLevel level = LogLevel::kInfo;
  /// The text before each line: "rank 3" in a rank, "" for the command itself.
  std::string prefix;
  /// The path of a log file to append to, readable by this user only; "" for none. A failure is
  /// Error(kEnvironment).
  std::string file;
  /// Says whether lines go to stderr; false for a rank whose output the supervisor does not
  /// forward.
  bool to_stderr = true;
};

/// Starts the log; call it once, before threads start. Throws Error(kEnvironment) if the file
/// cannot be opened.
void start_log(const LogOptions& options);
void log_line(LogLevel level, std::string_view message);
/// Writes a warning to the log's file only, because the terminal has shown it in another way.
void log_warning_to_file(std::string_view message);
void flush_log();

inline void log_debug(std::string_view message) {
  log_line(LogLevel::kDebug, message);
}
/// Logs something that the user should know once: a default that was chosen, a key without effect.
inline void log_notice(std::string_view message) {
  log_line(LogLevel::kNotice, message);
}
inline void log_warning(std::string_view message) {
  log_line(LogLevel::kWarning, message);
}
inline void log_error(std::string_view message) {
  log_line(LogLevel::kError, message);
}

}  // namespace ftrun
