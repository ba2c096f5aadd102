#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <regex>
#include <string>

#include "base/error.h"
#include "base/file.h"
#include "child_process.h"
#include "temporary_folder.h"
#include "thrown_error.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using testing::error_line_of;
using testing::TemporaryFolder;

/// Calls error_line_of() in a new process where no file may become larger than `bytes`.
std::string failure_with_file_limit(rlim_t bytes, const std::function<void()>& body) {
  return testing::text_from_child([&] {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{bytes, bytes};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    return error_line_of(body);
  });
}

constexpr const char* kFree = R"([0-9.]+ [KMGTP]?i?B free\))";

TEST_CASE("a full disk is named with the bytes wanted and free, and what to do") {
  const std::string text =
      error_line_of([] { posix_files().create("/dev/full")->write("12345678", 8); });
  INFO(text);
  CHECK(std::regex_match(
      text, std::regex(cat(
                R"(5: /dev/full: write failed: No space left on device \(8 B wanted, )", kFree,
                R"( \| free space on that file system, or write to another one \(output_dir\))"))));
}

TEST_CASE("a file that may not grow further ends the write with an error that has the bytes left") {
  const TemporaryFolder folder;
  const std::string path = folder / "shard";
  const std::string text = failure_with_file_limit(4096, [&] {
    const std::string content(10000, 'x');
    posix_files().create(path)->write(content.data(), content.size());
  });
  INFO(text);
  CHECK(std::regex_match(
      text,
      std::regex(cat("5: ", path, R"(: write failed: File too large \(5\.77 KiB wanted, )", kFree,
                     R"( \| raise the limit of file sizes \(ulimit -f\), which is 4\.00 KiB)"))));
}

TEST_CASE("reserving more than is free fails before any data is written") {
  const TemporaryFolder folder;
  const std::string path = folder / "shard";
  const std::string text =
      failure_with_file_limit(4096, [&] { posix_files().create(path)->reserve(1 << 20); });
  INFO(text);
  CHECK(std::regex_match(
      text, std::regex(cat("5: ", path, R"(: reserve failed: File too large \(1\.00 MiB wanted, )",
                           kFree, ".*"))));
}

TEST_CASE("an atomic write that finds no space leaves the old content") {
  const TemporaryFolder folder;
  const std::string path = folder / "latest";
  write_file_atomic(posix_files(), path, "step-1");
  const std::string text = failure_with_file_limit(
      4096, [&] { write_file_atomic(posix_files(), path, std::string(5000, 'x')); });
  CHECK(text.substr(0, 3 + path.size()) == "5: " + path);
  CHECK(read_file(path) == "step-1");
}

}  // namespace
}  // namespace ftrun
