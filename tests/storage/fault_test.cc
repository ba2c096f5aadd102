#include <sys/resource.h>

#include <cerrno>
#include <filesystem>
#include <string>
#include <vector>

#include "fault_storage.h"
#include "storage/swap_file.h"
#include "temporary_folder.h"
#include "thrown_error.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using testing::AlignedBytes;
using testing::capture_log_lines;
using testing::error_line_of;
using testing::FaultStorage;
using testing::TemporaryFolder;
using Lines = std::vector<std::string>;

constexpr const char* kFolderRemedy =
    " | point nvme_path at a folder on a local disk that this user may write to";
constexpr const char* kFullRemedy =
    " | free space on that file system, point nvme_path at another one, or offload less";
constexpr const char* kDiskRemedy =
    " | look for disk errors in the kernel's log (dmesg), or point nvme_path at another disk";

/// FaultFixture has a storage of threads and page cache, which every machine supports.
struct FaultFixture {
  FaultFixture() {
    storage.ring_errno = EPERM;
    storage.direct_status = -EINVAL;
    options = {.folder = folder.path(), .name = "r1-rank0", .bytes = 1 << 20};
    options.aio = {.block_size = 4096, .queue_depth = 2};
    path = folder.path() + "/ftrun-r1-rank0.swap";
  }
  std::string open_failure() {
    std::string text;
    capture_log_lines([&] { text = error_line_of([&] { SwapFile file(options, storage); }); });
    return text;
  }
  /// Returns the error that `body` throws when called with an open file, and the lines logged since
  /// the file was opened.
  std::string failure_with(const std::function<void(SwapFile&)>& body) {
    std::string text;
    capture_log_lines([&] {
      SwapFile file(options, storage);
      text = error_line_of([&] { body(file); });
    });
    return text;
  }
  TemporaryFolder folder;
  FaultStorage storage;
  SwapOptions options;
  std::string path;
};

TEST_CASE("the error of a folder that cannot be made names it") {
  FaultFixture f;
  f.storage.folder_status = -EACCES;
  REQUIRE(f.open_failure() == "5: nvme_path " + f.folder.path() +
                                  ": making the folder failed: Permission denied" + kFolderRemedy);
  f.storage.folder_status = 0;
  f.options.folder = f.folder / "file";
  ::close(machine_storage().open_new(f.options.folder));
  REQUIRE(f.open_failure() == "5: nvme_path " + f.options.folder +
                                  ": making the folder failed: Not a directory" + kFolderRemedy);
}

TEST_CASE("the error of a file that cannot be made names it") {
  FaultFixture f;
  f.storage.open_status = -EROFS;
  REQUIRE(f.open_failure() ==
          "5: " + f.path + ": making the swap file failed: Read-only file system" + kFolderRemedy);
  f.storage.open_status = -EEXIST;
  REQUIRE(f.open_failure() == "5: " + f.path +
                                  ": removing an old swap file failed: No such file or directory" +
                                  kFolderRemedy);
}

TEST_CASE("a full disk is reported before the first step, with bytes wanted and free") {
  FaultFixture f;
  f.storage.reported_free_bytes = 512 << 10;
  const std::string full = "5: " + f.path +
                           ": reserving space failed: No space left on device "
                           "(1.00 MiB wanted, 512.00 KiB free)" +
                           kFullRemedy;
  REQUIRE(f.open_failure() == full);
  f.storage.reported_free_bytes = 2 << 20;  // was enough, until another rank took it
  f.storage.reserve_status = -ENOSPC;
  REQUIRE(f.open_failure() == "5: " + f.path +
                                  ": reserving space failed: No space left on device (1.00 MiB "
                                  "wanted, 2.00 MiB free)" +
                                  kFullRemedy);
  f.storage.reserve_status = -EDQUOT;
  REQUIRE(f.open_failure() == "5: " + f.path +
                                  ": reserving space failed: Disk quota exceeded (1.00 MiB "
                                  "wanted, 2.00 MiB free)" +
                                  kFullRemedy);
  REQUIRE(std::filesystem::is_empty(f.folder.path()));
}

TEST_CASE("the real disk also refuses a file that is too large") {
  FaultFixture f;
  f.options.bytes = int64_t{1} << 60;
  REQUIRE_THAT(f.open_failure(),
               Catch::Matches("5: .*/ftrun-r1-rank0.swap: reserving space failed: No space left on "
                              "device \\(1024.00 PiB wanted, [0-9.]+ [KMGTP]?i?B free\\).*"));
}

TEST_CASE("a limit of file sizes causes an error but does not end the process") {
  FaultFixture f;
  rlimit kept{};
  ::getrlimit(RLIMIT_FSIZE, &kept);
  const rlimit small{512 << 10, kept.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
  f.storage.reported_free_bytes = 2 << 20;
  const std::string text = f.open_failure();
  ::setrlimit(RLIMIT_FSIZE, &kept);
  REQUIRE(text == "5: " + f.path +
                      ": reserving space failed: File too large (1.00 MiB wanted, 2.00 MiB free) | "
                      "raise the limit of file sizes (ulimit -f), or point nvme_path at a file "
                      "system that takes files of this size");
}

TEST_CASE("a disk that fails on opening is reported with the reason") {
  FaultFixture f;
  f.storage.direct_status = -EIO;
  REQUIRE(f.open_failure() ==
          "5: " + f.path + ": a first write failed: Input/output error" + kFolderRemedy);
}

TEST_CASE("invalid options are refused") {
  FaultFixture f;
  f.options.aio.block_size = 1000;
  REQUIRE(f.open_failure() ==
          "2: aio.block_size is 1000; it must be a multiple of 4096 from 4096 "
          "to 1073741824 | change the aio section of the config");
  f.options.aio = {.queue_depth = 0};
  REQUIRE(f.open_failure() ==
          "2: aio.queue_depth is 0; it must be from 1 to 4096 | change the aio "
          "section of the config");
  f.options.aio = {.intra_op_parallelism = -1};
  REQUIRE(f.open_failure() ==
          "2: aio.intra_op_parallelism is -1; it must be at least 1 | change "
          "the aio section of the config");
  f.options.aio = {.queue_depth = 4096, .intra_op_parallelism = 2};
  REQUIRE(f.open_failure() ==
          "2: aio.queue_depth 4096 x aio.intra_op_parallelism 2 = 8192 operations in flight; at "
          "most 4096 are allowed | change the aio section of the config");
  f.options.folder = "";
  f.options.aio = {};
  REQUIRE(f.open_failure() == std::string("2: nvme_path is empty") + kFolderRemedy);
}

TEST_CASE("each feature that the machine lacks is logged as one notice") {
  FaultFixture f;
  f.storage.claims_memory = true;
  AlignedBytes data(100'000);
  const Lines lines = capture_log_lines([&] {
    SwapFile file(f.options, f.storage);
    REQUIRE_FALSE(file.is_direct());
    REQUIRE_FALSE(file.uses_ring());
    for (int i = 0; i < 3; ++i) file.wait(file.write(data.data(), data.size(), 0));
  });
  REQUIRE(lines ==
          Lines{"I notice: nvme_path " + f.folder.path() +
                    " is in memory (tmpfs): data offloaded to it still uses memory; set "
                    "nvme_path to a folder on a disk",
                "I notice: nvme_path " + f.folder.path() +
                    ": its file system refuses direct I/O (Invalid argument): reads and writes go "
                    "through the page cache, which takes memory and time",
                "I notice: this machine refuses io_uring (Operation not permitted): 2 threads read "
                "and write the swap file instead"});
}

TEST_CASE("a kernel without io_uring is reported as such") {
  FaultFixture f;
  f.storage.ring_errno = ENOSYS;
  const Lines lines = capture_log_lines([&] { SwapFile file(f.options, f.storage); });
  REQUIRE(lines.back() ==
          "I notice: this machine refuses io_uring (Function not implemented): 2 threads read and "
          "write the swap file instead");
}

TEST_CASE("a folder that had to be made is reported with the file system that it is on") {
  FaultFixture f;
  f.options.folder = f.folder / "new/folder";
  f.storage.reported_free_bytes = 3 << 20;
  const Lines lines = capture_log_lines([&] { SwapFile file(f.options, f.storage); });
  REQUIRE_THAT(lines.front(), Catch::Matches("I notice: nvme_path .*/new/folder did not exist: it "
                                             "was made on the file system of /[^ ]* \\(3.00 MiB "
                                             "free\\)"));
}

TEST_CASE("a failed read reports file, bytes, offset and reason, and other requests continue") {
  FaultFixture f;
  AlignedBytes data(5 * 4096), good(4096), back(4096);
  good.fill(1);
  f.storage.fault = [](const IoBlock& block) {
    return !block.is_write && block.offset == 8192 ? -EIO : 0;
  };
  REQUIRE(f.failure_with([&](SwapFile& file) {
    file.wait(file.write(good.data(), good.size(), 65536));
    const auto bad = file.read(data.data(), data.size(), 0);
    const auto fine = file.read(back.data(), back.size(), 65536);
    file.wait(fine);
    file.wait(bad);
  }) == "5: " + f.path + ": read of 4.00 KiB at offset 8192 failed: Input/output error" +
              kDiskRemedy);
  REQUIRE(back.equals(good));
}

TEST_CASE("a swap file still works after a failed request") {
  const bool overlap = GENERATE(true, false);
  CAPTURE(overlap);
  FaultFixture f;
  f.options.aio.overlap_events = overlap;
  AlignedBytes data(9 * 4096);
  bool failing = true;
  f.storage.fault = [&](const IoBlock&) { return failing ? -EIO : 0; };
  REQUIRE(f.failure_with([&](SwapFile& file) {
    for (int i = 0; i < 5; ++i) REQUIRE_THROWS(file.wait(file.write(data.data(), data.size(), 0)));
    failing = false;
    const auto first = file.write(data.data(), data.size(), 0);
    const auto second = file.write(data.data(), data.size(), 16 * 4096);
    file.wait(first);
    file.wait(second);
  }) == "no error");
}

TEST_CASE("a disk that fills up during a write is reported with bytes") {
  FaultFixture f;
  AlignedBytes data(100);
  f.storage.fault = [&](const IoBlock&) {
    f.storage.reported_free_bytes = 0;
    return -ENOSPC;
  };
  REQUIRE(f.failure_with([&](SwapFile& file) { file.wait(file.write(data.data(), 100, 4096)); }) ==
          "5: " + f.path +
              ": write of 100 B at offset 4096 failed: No space left on device (100 B wanted, 0 B "
              "free)" +
              kFullRemedy);
}

TEST_CASE("a swap file that was truncated is reported") {
  FaultFixture f;
  AlignedBytes data(4096);
  f.storage.fault = [](const IoBlock& block) {
    return block.is_write ? 0 : FaultStorage::kNothing;
  };
  REQUIRE(f.failure_with([&](SwapFile& file) { file.wait(file.read(data.data(), 4096, 0)); }) ==
          "5: " + f.path + ": read of 4.00 KiB at offset 0 failed: the file ends before it" +
              kDiskRemedy);
}

TEST_CASE("a request fails if the disk makes no progress, even after pauses") {
  const int64_t moved = GENERATE(as<int64_t>{}, FaultStorage::kNothing, 1, 4095);
  FaultFixture f;
  AlignedBytes data(4096);
  f.storage.fault = [&](const IoBlock&) { return moved; };
  REQUIRE(f.failure_with([&](SwapFile& file) { file.wait(file.write(data.data(), 4096, 0)); }) ==
          "5: " + f.path + ": write of 4.00 KiB at offset 0 failed: no progress in 200 tries" +
              kDiskRemedy);
  REQUIRE(f.storage.sleeps == 191);
}

TEST_CASE("a request fails if the kernel always returns EAGAIN") {
  FaultFixture f;
  AlignedBytes data(4096);
  f.storage.fault = [](const IoBlock&) { return -EAGAIN; };
  REQUIRE(f.failure_with([&](SwapFile& file) { file.wait(file.write(data.data(), 4096, 0)); }) ==
          "5: " + f.path +
              ": write of 4.00 KiB at offset 0 failed: no progress in 200 tries (Resource "
              "temporarily unavailable)" +
              kDiskRemedy);
}

TEST_CASE("a slow disk is reported once, with path and rate, and is no error") {
  FaultFixture f;
  AlignedBytes data(64 * 4096);
  int blocks = 0;
  f.storage.fault = [&](const IoBlock&) {
    if (++blocks == 33) f.storage.stall_seconds = 60;  // after half of the bytes
    return 0;
  };
  const Lines lines = capture_log_lines([&] {
    SwapFile file(f.options, f.storage);
    file.wait(file.write(data.data(), data.size(), 0));
    REQUIRE(file.counters().wait_seconds == 60);
    f.storage.stall_seconds = 100;
    file.wait(file.read(data.data(), data.size(), 0));
  });
  REQUIRE(lines.size() == 3);
  REQUIRE_THAT(lines[2], Catch::Matches("I notice: " + f.path +
                                        ": the disk is slow: 30.0s in one wait, 1[0-9.]+ KiB moved "
                                        "in it \\(4[0-9.]+ KiB/s\\)"));
}

}  // namespace
}  // namespace ftrun
