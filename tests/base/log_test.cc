#include "base/log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <regex>
#include <string>
#include <thread>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "temporary_folder.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using testing::TemporaryFolder;

/// Returns what `body` writes to stderr, and resets the log to its defaults.
std::string stderr_of(const std::function<void()>& body) {
  const TemporaryFolder folder;
  const std::string path = folder / "stderr";
  const int kept = ::dup(STDERR_FILENO);
  const int file = ::open(path.c_str(), O_CREAT | O_WRONLY, 0600);
  ::dup2(file, STDERR_FILENO);
  ::close(file);
  body();
  flush_log();
  ::dup2(kept, STDERR_FILENO);
  ::close(kept);
  start_log({});
  return read_file(path);
}

TEST_CASE("lines go to stderr as they are, with a word before those that need attention") {
  const std::string text = stderr_of([] {
    start_log({});
    log_line(LogLevel::kInfo, "step 1");
    log_notice("shuffle defaults to true");
    log_warning("no validation data");
    log_error("rank 1 is lost");
  });
  CHECK(text ==
        "step 1\nnotice: shuffle defaults to true\nwarning: no validation data\nerror: rank 1 is "
        "lost\n");
}

TEST_CASE("a line waits for the reader of an output that is full and non-blocking") {
  int ends[2];
  REQUIRE(::pipe2(ends, O_NONBLOCK) == 0);
  const std::string much(4096, 'x');
  int64_t filled = 0;
  for (ssize_t done = 0; (done = ::write(ends[1], much.data(), much.size())) > 0;) filled += done;
  const int kept = ::dup(STDERR_FILENO);
  ::dup2(ends[1], STDERR_FILENO);
  std::atomic<bool> is_written = false;
  std::thread writer([&] {
    log_error("rank 1 is lost");
    is_written = true;
  });
  for (int tries = 0; tries < 100 && !is_written; ++tries)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  CHECK_FALSE(is_written);  // nothing was read yet
  std::string text, piece(1 << 16, 0);
  for (bool was_written = false; !was_written;) {
    was_written = is_written;
    for (ssize_t got = 0; (got = ::read(ends[0], piece.data(), piece.size())) > 0;)
      text.append(piece, 0, static_cast<size_t>(got));
  }
  writer.join();
  ::dup2(kept, STDERR_FILENO);
  for (const int fd : {kept, ends[0], ends[1]}) ::close(fd);
  CHECK(text.substr(static_cast<size_t>(filled)) == "error: rank 1 is lost\n");
}

TEST_CASE("a rank's lines carry its prefix") {
  CHECK(stderr_of([] {
          start_log({.prefix = "rank 3"});
          log_line(LogLevel::kInfo, "ready");
        }) == "[rank 3] ready\n");
}

TEST_CASE("values in a line cannot steer the terminal") {
  CHECK(stderr_of([] {
          start_log({});
          log_warning("runs/caf\xe9\x1b[2J: gone");
        }) == "warning: runs/caf\\xE9\\x1B[2J: gone\n");
}

TEST_CASE("lines below the level are dropped") {
  CHECK(stderr_of([] {
          start_log({.level = LogLevel::kWarning});
          log_debug("a");
          log_line(LogLevel::kInfo, "b");
          log_notice("c");
          log_warning("d");
        }) == "warning: d\n");
  CHECK(stderr_of([] {
          start_log({.level = LogLevel::kDebug});
          log_debug("a");
        }) == "a\n");
}

TEST_CASE("a message is never read as a format") {
  CHECK(stderr_of([] {
          start_log({});
          log_line(LogLevel::kInfo, "100% of {} and %v {0:d}");
        }) == "100% of {} and %v {0:d}\n");
}

TEST_CASE("a quiet log with a file writes only there, with time and level, and appends") {
  const TemporaryFolder folder;
  const std::string path = folder / "rank0.log";
  const std::string text = stderr_of([&] {
    for (const char* message : {"first", "second"}) {
      start_log({.file = path, .to_stderr = false});
      log_warning(message);
      flush_log();
    }
  });
  CHECK(text.empty());
  const auto lines = split(read_file(path), '\n');
  REQUIRE(lines.size() == 3);
  const std::string time = R"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3})";
  CHECK(std::regex_match(lines[0], std::regex(time + " W warning: first")));
  CHECK(std::regex_match(lines[1], std::regex(time + " W warning: second")));
  CHECK(lines[2].empty());
}

TEST_CASE("a log is for its owner only and does not follow a link") {
  const TemporaryFolder folder;
  const std::string path = folder / "rank0.log";
  const mode_t before = ::umask(0);
  stderr_of([&] { start_log({.file = path, .to_stderr = false}); });
  ::umask(before);
  struct stat info {};
  REQUIRE(::stat(path.c_str(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0600);
  std::filesystem::create_symlink(path, folder / "link.log");
  try {
    start_log({.file = folder / "link.log"});
    FAIL("nothing was thrown");
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::kEnvironment);
    CHECK(error.message() ==
          folder / "link.log" + ": open failed: Too many levels of symbolic links");
  }
}

TEST_CASE("a log with a file writes to stderr and to the file") {
  const TemporaryFolder folder;
  const std::string path = folder / "run.log";
  CHECK(stderr_of([&] {
          start_log({.prefix = "rank 0", .file = path});
          log_line(LogLevel::kInfo, "hello");
        }) == "[rank 0] hello\n");
  CHECK(std::regex_match(read_file(path), std::regex(R"(\S+ I hello\n)")));
}

TEST_CASE("a warning that other code shows on the screen is also in the log's file") {
  const TemporaryFolder folder;
  const std::string path = folder / "run.log";
  CHECK(stderr_of([&] {
          start_log({.prefix = "rank 0", .file = path});
          log_warning_to_file("disk slow");
        }).empty());
  CHECK(std::regex_match(read_file(path), std::regex(R"(\S+ W warning: disk slow\n)")));
  // A log without a file has nowhere to write to.
  CHECK(stderr_of([] { log_warning_to_file("disk slow"); }).empty());
}

TEST_CASE("a log that cannot be opened is an environment error, with its path") {
  const TemporaryFolder folder;
  try {
    start_log({.file = folder.path()});
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::kEnvironment);
    CHECK(error.message() == folder.path() + ": open failed: Is a directory");
    CHECK(error.remedy() == "check that the folder exists and that this user may write to it");
    return;
  }
  FAIL("a folder is no log");
}

}  // namespace
}  // namespace ftrun
