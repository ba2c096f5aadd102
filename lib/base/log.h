#pragma once

#include <string>
#include <string_view>

namespace ftrun {

enum class LogLevel { kDebug, kInfo, kNotice, kWarning, kError };

/// LogOptions set where this process logs. Lines are written to stderr as "[prefix] message" and,
/// when `file` is given, to that file with time and level.
struct LogOptions {
  /// The least level that is written to stderr; the file receives every level.
  LogLevel level = LogLevel::kInfo;
  /// The text before each line: "rank 3" in a rank, "" for the command itself.
  std::string prefix;
  /// Path of a log file that is appended to, made for this user only; "" for none.
  /// Error(kEnvironment).
  std::string file;
  /// The lines go to stderr; false keeps it quiet (a rank whose output the supervisor
  /// does not forward).
  bool to_stderr = true;
};

/// Starts the log; called once, before threads start. Error(kEnvironment) when the file cannot be
/// opened.
void log_start(const LogOptions& options);
void log_line(LogLevel level, std::string_view message);
/// Writes a warning to the log's file alone, because the terminal already showed it in another way.
void log_warning_to_file(std::string_view message);
void log_flush();

inline void log_debug(std::string_view message) {
  log_line(LogLevel::kDebug, message);
}
inline void log_info(std::string_view message) {
  log_line(LogLevel::kInfo, message);
}
/// Logs something the user should know once: a default that was chosen, a key without effect.
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
