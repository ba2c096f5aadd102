#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/replace_folder.h"
#include "child_process.h"
#include "temporary_folder.h"
#include "thrown_error.h"

#include <catch2/catch.hpp>

// Network and FUSE file systems lack calls that disk file systems have. In these tests the kernel
// refuses the calls to a process, whatever its file system supports.

/// The number of next fsync() calls that are interrupted, as by a signal on a network or FUSE file
/// system.
static int interruptions = 0;

/// Replaces the C library's function in the whole executable.
extern "C" int fsync(int fd) {
  if (interruptions == 0) return static_cast<int>(::syscall(SYS_fsync, fd));
  --interruptions;
  errno = EINTR;
  return -1;
}

namespace ftrun {
namespace {

using testing::TemporaryFolder;

/// A system call that is refused if its argument number `argument` has all bits of `mask`.
struct RefusedCall {
  uint32_t call;
  int error_number;
  uint32_t argument = 0;
  uint32_t mask = 0;
};

constexpr uint32_t low_word(uint32_t argument) {
  return offsetof(seccomp_data, args) + argument * sizeof(uint64_t);  // x86-64 stores it first
}

void refuse_call(const RefusedCall& refused) {
  std::array<sock_filter, 7> program{{
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, refused.call, 0, 4),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, low_word(refused.argument)),
      BPF_STMT(BPF_ALU | BPF_AND | BPF_K, refused.mask),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, refused.mask, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<uint32_t>(refused.error_number)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  }};
  const sock_fprog filter{program.size(), program.data()};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0)
    ::_exit(9);
}

/// Calls error_line_of() in a new process where the call `refused` is refused.
std::string error_with_refused_call(const RefusedCall& refused, const std::function<void()>& body) {
  return testing::text_from_child([&] {
    refuse_call(refused);
    return testing::error_line_of(body);
  });
}

TEST_CASE("a file system that cannot sync folders is accepted; a disk that fails to is an error") {
  const TemporaryFolder folder;
  const auto failure = [&](int error_number) {
    return error_with_refused_call({SYS_fsync, error_number},
                                   [&] { posix_files().sync_folder(folder.path()); });
  };
  for (const int error_number : {EINVAL, EBADF, ENOSYS, EOPNOTSUPP}) {
    INFO(errno_text(error_number));
    CHECK(failure(error_number) == "no error");
  }
  CHECK(failure(EIO) == cat("5: ", folder.path(), ": fsync folder failed: Input/output error",
                            " | check that the folder exists and that this user may write to it"));
}

TEST_CASE("a file system that cannot sync files is reported as such") {
  const TemporaryFolder folder;
  for (const int error_number : {EINVAL, ENOSYS, EOPNOTSUPP}) {
    const std::string text = error_with_refused_call({SYS_fsync, error_number}, [&] {
      const auto file = posix_files().create(folder / "f");
      file->write("1", 1);
      file->sync();
    });
    CHECK(text == cat("5: ", folder / "f", ": fsync failed: ", errno_text(error_number),
                      " | write to another file system (output_dir): this one cannot tell when "
                      "a file is on its disk"));
  }
}

TEST_CASE("a sync of a file or folder that a signal interrupts is repeated") {
  const TemporaryFolder folder;
  const auto file = posix_files().create(folder / "f");
  file->write("1", 1);
  for (const auto& sync : {std::function<void()>([&] { file->sync(); }), std::function<void()>([&] {
                             posix_files().sync_folder(folder.path());
                           })}) {
    interruptions = 2;
    CHECK_NOTHROW(sync());
    CHECK(std::exchange(interruptions, 0) == 0);
  }
}

TEST_CASE("a folder is replaced where names cannot be swapped") {
  for (const int error_number : {EINVAL, ENOSYS, EOPNOTSUPP}) {
    const TemporaryFolder root;
    for (const char* name : {"old", "new"}) {
      posix_files().make_folder(root / name);
      write_file_atomic(posix_files(), root / name + "/content", name);
    }
    CHECK(error_with_refused_call({SYS_renameat2, error_number}, [&] {
            replace_folder(posix_files(), root / "new", root / "old", "content",
                           folder_id_of(root / "old"));
          }) == "no error");
    CHECK(read_file(root / "old" + "/content") == "new");
    CHECK(posix_files().list(root.path()) == std::vector<std::string>{"old"});
  }
}

TEST_CASE("a folder in a lower layer of a container is reported as one that cannot be renamed") {
  const TemporaryFolder root;
  for (const char* name : {"old", "new"}) posix_files().make_folder(root / name);
  CHECK(error_with_refused_call({SYS_renameat2, EXDEV},
                                [&] {
                                  replace_folder(posix_files(), root / "new", root / "old",
                                                 "content", folder_id_of(root / "old"));
                                }) ==
        cat("5: ", root / "old", ": exchange failed: Invalid cross-device link",
            " | write to another folder, or remove that one first: its file "
            "system cannot rename files of a lower layer"));
}

TEST_CASE("files are read where shared mappings are refused") {
  const TemporaryFolder folder;
  write_file_atomic(posix_files(), folder / "f", "content");
  CHECK(error_with_refused_call({SYS_mmap, ENODEV, 3, MAP_SHARED}, [&] {
          if (read_file(folder / "f") != "content") throw Error(ExitCode::kBug, "another content");
        }) == "no error");
}

TEST_CASE("files are written where space cannot be reserved, nor the page cache bypassed") {
  const std::string content(1 << 20, 'x');
  const std::unique_ptr<void, decltype(&std::free)> aligned(
      std::aligned_alloc(kDirectAlignment, content.size()), &std::free);
  content.copy(static_cast<char*>(aligned.get()), content.size());
  for (const RefusedCall& refused :
       {RefusedCall{SYS_fallocate, EOPNOTSUPP}, RefusedCall{SYS_fallocate, ENOSYS},
        RefusedCall{SYS_fallocate, EINVAL}, RefusedCall{SYS_fcntl, EINVAL, 2, O_DIRECT}}) {
    const TemporaryFolder folder;
    CHECK(error_with_refused_call(refused, [&] {
            const auto file = posix_files().create(folder / "f");
            file->reserve(static_cast<int64_t>(content.size()));
            file->write(aligned.get(), content.size());
            file->sync();
            file->close();
          }) == "no error");
    CHECK((read_file(folder / "f") == content));  // too long to be shown
  }
}

}  // namespace
}  // namespace ftrun
