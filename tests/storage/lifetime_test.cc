#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/log.h"
#include "fault_storage.h"
#include "requirements.h"
#include "storage/swap_file.h"
#include "storage/swap_folder.h"
#include "temporary_folder.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

namespace fs = std::filesystem;
using testing::AlignedBytes;
using testing::FaultStorage;
using testing::TemporaryFolder;

std::vector<std::string> open_files_of(pid_t process, const std::string& text) {
  std::vector<std::string> found;
  for (const auto& entry : fs::directory_iterator("/proc/" + std::to_string(process) + "/fd")) {
    std::error_code error;
    const std::string target = fs::read_symlink(entry, error).string();
    if (target.find(text) != std::string::npos) found.push_back(target);
  }
  return found;
}

TEST_CASE("a killed process leaves no swap file behind") {
  const TemporaryFolder folder;
  int ready[2];
  REQUIRE(::pipe(ready) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    start_log({.to_stderr = false});
    SwapFile file({.folder = folder.path(), .name = "killed", .bytes = 1 << 20});
    AlignedBytes data(1 << 20);
    file.wait(file.write(data.data(), data.size(), 0));
    const bool signaled = ::write(ready[1], "x", 1) == 1;
    while (signaled) ::pause();
    ::_exit(1);
  }
  char byte = 0;
  REQUIRE(::read(ready[0], &byte, 1) == 1);
  REQUIRE(open_files_of(child, "ftrun-killed.swap") ==
          std::vector<std::string>{folder / "ftrun-killed.swap" + " (deleted)"});
  REQUIRE(fs::is_empty(folder.path()));
  ::kill(child, SIGKILL);
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WTERMSIG(status) == SIGKILL);
  REQUIRE(fs::is_empty(folder.path()));
  ::close(ready[0]);
  ::close(ready[1]);
}

/// Forbids this process to make an io_uring from now on, as most containers do.
bool forbid_ring() {
  sock_filter program[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
                           BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
                           BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
                           BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog filter{4, program};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

const testing::Requirement kSeccomp("seccomp", [] {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(forbid_ring() ? 0 : 1);
  int status = 0;
  ::waitpid(child, &status, 0);
  return status == 0 ? "" : "this machine allows no seccomp filter";
});

TEST_CASE("in a container that forbids io_uring, threads move the bytes", "[.needs-seccomp]") {
  const TemporaryFolder folder;
  const pid_t child = ::fork();
  if (child == 0) {
    start_log({.to_stderr = false});
    if (!forbid_ring()) ::_exit(2);
    SwapFile file({.folder = folder.path(), .name = "confined", .bytes = 1 << 20});
    AlignedBytes data(1'000'000), back(1'000'000);
    data.fill(1);
    file.wait(file.write(data.data(), data.size(), 0));
    file.wait(file.read(back.data(), back.size(), 0));
    ::_exit(!file.uses_ring() && back.equals(data) ? 0 : 1);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  REQUIRE(WEXITSTATUS(status) == 0);
}

TEST_CASE("a swap file's space is really reserved, and only this user can read it") {
  const TemporaryFolder folder;
  start_log({.level = LogLevel::kError});
  SwapFile file({.folder = folder.path(), .name = "reserved", .bytes = (1 << 20) + 1});
  start_log({});
  REQUIRE(file.bytes() == (1 << 20) + 4096);
  struct stat info {};
  for (const auto& entry : fs::directory_iterator("/proc/self/fd"))
    if (fs::read_symlink(entry).string().find("ftrun-reserved.swap") != std::string::npos)
      REQUIRE(::stat(entry.path().c_str(), &info) == 0);
  REQUIRE(info.st_size == file.bytes());
  REQUIRE(info.st_blocks * 512 >= file.bytes());
  REQUIRE((info.st_mode & 0777) == 0600);
}

TEST_CASE(
    "a swap file left by a killed process is replaced, and a link at its path is not followed") {
  const TemporaryFolder folder;
  std::ofstream(folder / "precious") << "text";
  fs::create_symlink(folder / "precious", folder / "ftrun-old.swap");
  start_log({.level = LogLevel::kError});
  {
    SwapFile file({.folder = folder.path(), .name = "old", .bytes = 8192});
    AlignedBytes data(8192);
    file.wait(file.write(data.data(), data.size(), 0));
  }
  start_log({});
  REQUIRE(fs::file_size(folder / "precious") == 4);
  REQUIRE_FALSE(fs::is_symlink(folder / "ftrun-old.swap"));
}

TEST_CASE("a swap file states its own memory use, which is small") {
  REQUIRE(AioOptions{}.staging_bytes() == 8 * 4096);
  REQUIRE(AioOptions{.queue_depth = 4, .intra_op_parallelism = 3}.staging_bytes() == 12 * 4096);
}

std::string problem_text(const std::string& path, int64_t bytes = 0) {
  const auto problem = swap_folder_problem(path, bytes);
  if (!problem) return "none";
  return cat(static_cast<int>(problem->code()), ": ", problem->message(), " | ", problem->remedy());
}

constexpr const char* kRemedy =
    " | point nvme_path at a folder on a local disk that this user may write to";

TEST_CASE("nvme_path is checked without making any folder") {
  const TemporaryFolder folder;
  REQUIRE(problem_text("") == std::string("2: nvme_path is empty") + kRemedy);
  REQUIRE(problem_text(folder.path(), 4096) == "none");
  REQUIRE(problem_text(folder / "to/be/made") == "none");
  REQUIRE(fs::is_empty(folder.path()));
  const std::string file = folder / "file";
  std::ofstream(file) << "x";
  REQUIRE(problem_text(file) ==
          "5: nvme_path " + file + ": " + file + " is not a folder" + kRemedy);
  REQUIRE(problem_text(file + "/below") ==
          "5: nvme_path " + file + "/below: " + file + " is not a folder" + kRemedy);
  fs::create_symlink(folder / "nowhere", folder / "link");
  REQUIRE(problem_text(folder / "link") ==
          "5: nvme_path " + folder / "link" + ": " + folder / "link" +
              " cannot be used: No such file or directory" + kRemedy);
}

TEST_CASE("a folder of another user is refused") {
  const TemporaryFolder folder;
  const std::string path = folder / "closed";
  fs::create_directory(path);
  fs::permissions(path, fs::perms::owner_read | fs::perms::owner_exec);
  fs::permissions(folder.path(), fs::perms::all);
  // Root may write anywhere, so the check runs as another user.
  const bool root = ::geteuid() == 0;
  if (root) REQUIRE(::seteuid(65534) == 0);
  const std::string text = problem_text(path + "/swap");
  if (root) REQUIRE(::seteuid(0) == 0);
  REQUIRE(text == "5: nvme_path " + path + "/swap: this user may not write to " + path +
                      ": Permission denied" + kRemedy);
  fs::permissions(path, fs::perms::owner_all);
}

TEST_CASE("a disk that is too small is reported with its mount point") {
  const TemporaryFolder folder;
  REQUIRE_THAT(problem_text(folder.path(), int64_t{1} << 60),
               Catch::Matches("5: nvme_path .*: 1024.00 PiB wanted on this machine, [0-9.]+ "
                              "[KMGTP]?i?B free on /.* \\| free space on that file system, point "
                              "nvme_path at another one, or offload less"));
  REQUIRE(mount_point_of("/proc/self") == "/proc");
  REQUIRE(mount_point_of("/") == "/");
}

}  // namespace
}  // namespace ftrun
