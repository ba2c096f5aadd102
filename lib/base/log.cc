#include "base/log.h"

#include <unistd.h>

#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "base/append_file.h"
#include "base/utf8.h"
#include "base/write_whole.h"

// spdlog includes fmt 9, and LibTorch's headers include another version of fmt, so this file is the
// only one that includes spdlog.
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>

namespace ftrun {
namespace {

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kNotice:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

std::string_view level_prefix(LogLevel level) {
  switch (level) {
    case LogLevel::kNotice:
      return "notice: ";
    case LogLevel::kWarning:
      return "warning: ";
    case LogLevel::kError:
      return "error: ";
    default:
      return "";
  }
}

/// FileSink replaces spdlog's own file sink, which follows links, makes the file readable for
/// everyone and throws exceptions that callers do not expect.
class FileSink : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit FileSink(const std::string& path) : file_(path) {}

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    file_.append(std::string_view(line.data(), line.size()));
  }
  void flush_() override {}  // append() does not buffer

  AppendFile file_;
};

/// ErrorSink replaces spdlog's own sink, which loses text when standard error is non-blocking and
/// full.
class ErrorSink : public spdlog::sinks::base_sink<std::mutex> {
 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    write_whole(STDERR_FILENO, std::string_view(line.data(), line.size()));
  }
  void flush_() override {}
};

std::shared_ptr<spdlog::logger>& logger() {
  static std::shared_ptr<spdlog::logger> instance = [] {
    auto sink = std::make_shared<ErrorSink>();
    sink->set_pattern("%v");
    return std::make_shared<spdlog::logger>("ftrun", sink);
  }();
  return instance;
}

/// Returns the logger that writes only to the log's file; null if there is none.
std::shared_ptr<spdlog::logger>& file_logger() {
  static std::shared_ptr<spdlog::logger> instance;
  return instance;
}

void log_to(spdlog::logger& to, LogLevel level, std::string_view message) {
  const std::string_view start = level_prefix(level);
  const std::string shown = terminal_text(message);
  to.log(to_spdlog(level), "{}{}", spdlog::string_view_t(start.data(), start.size()), shown);
}

}  // namespace

void start_log(const LogOptions& options) {
  std::vector<spdlog::sink_ptr> sinks;
  if (options.to_stderr) {
    auto sink = std::make_shared<ErrorSink>();
    sink->set_pattern(options.prefix.empty() ? "%v" : "[" + options.prefix + "] %v");
    sink->set_level(to_spdlog(options.level));
    sinks.push_back(sink);
  }
  if (!options.file.empty()) {
    auto sink = std::make_shared<FileSink>(options.file);
    sink->set_pattern("%Y-%m-%dT%H:%M:%S.%e %L %v");
    sinks.push_back(sink);
  }
  file_logger() =
      options.file.empty() ? nullptr : std::make_shared<spdlog::logger>("ftrun", sinks.back());
  auto fresh = std::make_shared<spdlog::logger>("ftrun", sinks.begin(), sinks.end());
  fresh->set_level(spdlog::level::debug);
  fresh->flush_on(spdlog::level::debug);
  logger() = fresh;
}

void log_line(LogLevel level, std::string_view message) {
  log_to(*logger(), level, message);
}

void log_warning_to_file(std::string_view message) {
  if (file_logger()) log_to(*file_logger(), LogLevel::kWarning, message);
}

void flush_log() {
  logger()->flush();
}

}  // namespace ftrun
