#include "base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "base/checksum.h"
#include "base/error.h"
#include "base/owned_fd.h"
#include "child_process.h"
#include "temporary_folder.h"
#include "thrown_error.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

namespace fs = std::filesystem;
using testing::error_of;
using testing::TemporaryFolder;

void put_file(const std::string& path, const std::string& content) {
  std::ofstream(path) << content;
}

TEST_CASE("an atomic write leaves the new content and nothing else") {
  const TemporaryFolder folder;
  const std::string path = folder / "latest";
  write_file_atomic(posix_files(), path, "step-1");
  CHECK(read_file(path) == "step-1");
  write_file_atomic(posix_files(), path, std::string("a\0b", 3));
  CHECK(read_file(path) == std::string("a\0b", 3));
  CHECK(posix_files().list(folder.path()) == std::vector<std::string>{"latest"});
}

TEST_CASE("an atomic write works for a file name without a folder") {
  const TemporaryFolder folder;
  const fs::path before = fs::current_path();
  fs::current_path(folder.path());
  write_file_atomic(posix_files(), "plain", "x");
  fs::current_path(before);
  CHECK(read_file(folder / "plain") == "x");
}

int mode_of(const std::string& path) {
  struct stat info {};
  return ::lstat(path.c_str(), &info) == 0 ? static_cast<int>(info.st_mode & 07777) : -1;
}

TEST_CASE(
    "created files and folders are for their owner only, whatever the umask, unless others need "
    "them") {
  const TemporaryFolder folder;
  const mode_t before = ::umask(0022);
  posix_files().make_folder(folder / "own/deep");
  posix_files().create(folder / "own/file")->close();
  write_file_atomic(posix_files(), folder / "own/atomic", "x");
  umask_files().make_folder(folder / "shared/deep");
  umask_files().create(folder / "shared/file")->close();
  write_file_atomic(umask_files(), folder / "shared/atomic", "x");
  ::umask(before);
  for (const char* name : {"own", "own/deep"}) CHECK(mode_of(folder / name) == 0700);
  for (const char* name : {"own/file", "own/atomic"}) CHECK(mode_of(folder / name) == 0600);
  for (const char* name : {"shared", "shared/deep"}) CHECK(mode_of(folder / name) == 0755);
  for (const char* name : {"shared/file", "shared/atomic"}) CHECK(mode_of(folder / name) == 0644);
}

TEST_CASE("a file is not created through a symbolic link of the same name") {
  const TemporaryFolder folder;
  put_file(folder / "precious", "text");
  fs::create_symlink(folder / "precious", folder / "link");
  for (FileSystem* files : {&posix_files(), &umask_files()})
    CHECK(error_of([&] { files->create(folder / "link"); }).message() ==
          folder / "link" + ": create failed: Too many levels of symbolic links");
  CHECK(read_file(folder / "precious") == "text");
  write_file_atomic(posix_files(), folder / "link", "new");
  CHECK(read_file(folder / "precious") == "text");
  CHECK(read_file(folder / "link") == "new");
}

TEST_CASE("a unique name does not repeat, and is distinguished from other names") {
  const std::string name = make_unique_name("run.json");
  CHECK(name != make_unique_name("run.json"));
  CHECK(strip_unique_suffix(name) == "run.json");
  CHECK(strip_unique_suffix(make_unique_name("step-1", ".replaced-"), ".replaced-") == "step-1");
  for (const char* other :
       {"run.json", "run.json.tmp", "run.json.tmp-", ".tmp-0123456a", "run.json.tmp-012345a",
        "run.json.tmp-01234567a", "run.json.tmp-0123456G", "run.json.tmp-0123ABCD",
        "run.json.tmp-0123456a.txt", "run.json.tmp-20251125"})
    CHECK(strip_unique_suffix(other) == std::nullopt);
}

TEST_CASE("files left by a killed write are removed, but none that only look like them") {
  const TemporaryFolder folder;
  const std::vector<std::string> kept{"a.tmp", "a.tmp-1234567ax", "b.tmp-1234567a", "linked"};
  for (const std::string& name : kept) put_file(folder / name, "");
  put_file(folder / "a.tmp-1234567a", "");
  fs::create_directory(folder / "a.tmp-aaaaaaaa");
  fs::create_symlink(folder / "linked", folder / "a.tmp-bbbbbbbb");
  remove_atomic_leftovers(posix_files(), folder.path(), {"a", "c"});
  CHECK(posix_files().list(folder.path()) ==
        std::vector<std::string>{"a.tmp", "a.tmp-1234567ax", "a.tmp-aaaaaaaa", "a.tmp-bbbbbbbb",
                                 "b.tmp-1234567a", "linked"});
}

TEST_CASE("a file above the limit is refused before it is read") {
  const TemporaryFolder folder;
  const std::string path = folder / "huge";
  put_file(path, "x");
  fs::resize_file(path, uintmax_t{1} << 40);
  const Error error = error_of([&] { read_file(path); });
  CHECK(error.code() == ExitCode::kBadInput);
  CHECK(error.message() == path + ": is 1.00 TiB, larger than the limit of 256.00 MiB");
  CHECK(error.remedy() == "check that the path names the right file");
  put_file(folder / "four", "four");
  CHECK(read_file(folder / "four", 4) == "four");
  CHECK(error_of([&] { read_file(folder / "four", 3); }).message() ==
        folder / "four" + ": is 4 B, larger than the limit of 3 B");
}

TEST_CASE("pages of a file on a file system in memory are not dropped") {
  const TemporaryFolder memory("/dev/shm");
  put_file(memory / "f", std::string(1 << 20, 'x'));
  CHECK_FALSE(drop_from_page_cache(memory / "f"));
  CHECK_FALSE(drop_from_page_cache(memory / "absent"));
}

TEST_CASE("a file's pages are released if a disk has the bytes", "[.needs-disk]") {
  const TemporaryFolder disk;
  put_file(disk / "f", std::string(1 << 20, 'x'));
  CHECK(drop_from_page_cache(disk / "f"));
  const MappedFile mapped(disk / "f");
  std::vector<unsigned char> resident(1 << 8);
  REQUIRE(::mincore(const_cast<std::byte*>(mapped.bytes().data()), 1 << 20, resident.data()) == 0);
  CHECK(std::all_of(resident.begin(), resident.end(), [](auto flags) { return (flags & 1) == 0; }));
  CHECK(read_file(disk / "f") == std::string(1 << 20, 'x'));
}

TEST_CASE("a reader concurrent with a writer sees the old or the new content, never a part") {
  const TemporaryFolder folder;
  const std::string path = folder / "pointer";
  const std::string versions[] = {std::string(9000, 'a'), std::string(5000, 'b')};
  write_file_atomic(posix_files(), path, versions[0]);
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (int i = 1; i < 200; ++i) write_file_atomic(posix_files(), path, versions[i % 2]);
    stop = true;
  });
  bool whole = true;
  while (!stop) {
    const std::string seen = read_file(path);
    whole = whole && (seen == versions[0] || seen == versions[1]);
  }
  writer.join();
  CHECK(whole);
}

/// Passes all calls on, and records those that make a write durable; one of them can fail.
class RecordingFiles : public FileSystem {
 public:
  std::vector<std::string> calls;
  std::vector<std::string> synced;
  /// The name of the call that throws, for example "sync"; "": none.
  std::string failing;

  /// Returns a unique name without its random part.
  static std::string shown_name(const std::string& path) {
    const std::string name = fs::path(path).filename().string();
    const auto origin = strip_unique_suffix(name);
    return origin ? *origin + ".tmp-ID" : name;
  }

  void note(const std::string& call) {
    calls.push_back(call);
    if (call == failing) throw Error(ExitCode::kEnvironment, call + " failed");
  }

  struct File : WritableFile {
    File(std::unique_ptr<WritableFile> file, RecordingFiles& owner)
        : file_(std::move(file)), owner_(owner) {}
    void write(const void* data, size_t size) override {
      owner_.note("write");
      file_->write(data, size);
    }
    void write_at(int64_t offset, const void* data, size_t size) override {
      file_->write_at(offset, data, size);
    }
    void reserve(int64_t size) override { file_->reserve(size); }
    void sync() override {
      owner_.note("sync");
      file_->sync();
    }
    void close() override {
      owner_.note("close");
      file_->close();
    }
    std::unique_ptr<WritableFile> file_;
    RecordingFiles& owner_;
  };

  std::unique_ptr<WritableFile> create(const std::string& path) override {
    note("create " + shown_name(path));
    return std::make_unique<File>(posix_files().create(path), *this);
  }
  void rename(const std::string& from, const std::string& to) override {
    note("rename");
    posix_files().rename(from, to);
  }
  bool swap_names(const std::string& a, const std::string& b) override {
    note("exchange");
    return posix_files().swap_names(a, b);
  }
  void sync_folder(const std::string& path) override {
    note("sync_folder");
    synced.push_back(fs::path(path).filename().string());
    posix_files().sync_folder(path);
  }
  void make_folder(const std::string& path) override {
    note("make_folder " + fs::path(path).filename().string());
    posix_files().make_folder(path);
  }
  void remove_all(const std::string& path) override {
    note("remove " + shown_name(path));
    posix_files().remove_all(path);
  }
  std::vector<std::string> list(const std::string& folder) override {
    return posix_files().list(folder);
  }
  bool exists(const std::string& path) override { return posix_files().exists(path); }
  int64_t free_bytes(const std::string& path) override { return posix_files().free_bytes(path); }
};

TEST_CASE("an atomic write syncs the file before the rename and the folder after it") {
  const TemporaryFolder folder;
  RecordingFiles files;
  write_file_atomic(files, folder / "state", "x");
  CHECK(files.calls == std::vector<std::string>{"create state.tmp-ID", "write", "sync", "close",
                                                "rename", "sync_folder"});
}

TEST_CASE("an atomic write that fails keeps the old content and leaves no temporary file") {
  for (const std::string failing : {"create state.tmp-ID", "write", "sync", "close", "rename"}) {
    const TemporaryFolder folder;
    put_file(folder / "state", "old");
    RecordingFiles files;
    files.failing = failing;
    const Error error = error_of([&] { write_file_atomic(files, folder / "state", "new"); });
    CHECK(error.message() == failing + " failed");
    CHECK(read_file(folder / "state") == "old");
    CHECK(posix_files().list(folder.path()) == std::vector<std::string>{"state"});
  }
}

TEST_CASE("an atomic write that cannot clean up reports its original failure") {
  const TemporaryFolder folder;
  struct Broken : RecordingFiles {
    void remove_all(const std::string&) override {
      throw Error(ExitCode::kEnvironment, "the disk is gone");
    }
  } files;
  files.failing = "sync";
  const Error error = error_of([&] { write_file_atomic(files, folder / "state", "new"); });
  CHECK(error.message() == "sync failed");
}

TEST_CASE("a new folder is synced into its parent, and so is each parent that had to be created") {
  const TemporaryFolder folder;
  RecordingFiles files;
  make_durable_folder(files, folder / "a/b/c");
  CHECK(files.calls ==
        std::vector<std::string>{"make_folder " + fs::path(folder.path()).filename().string(),
                                 "make_folder a", "sync_folder", "make_folder b", "sync_folder",
                                 "make_folder c", "sync_folder"});
  CHECK(files.synced == std::vector<std::string>{fs::path(folder.path()).filename(), "a", "b"});
  files.calls.clear();
  make_durable_folder(files, folder / "a/b/c");
  CHECK(files.calls == std::vector<std::string>{"make_folder c"});
  put_file(folder / "file", "");
  CHECK(error_of([&] { make_durable_folder(files, folder / "file"); }).message() ==
        folder / "file" + ": create folder failed: File exists");
}

TEST_CASE("writes follow each other, and writes at an offset do not move the end") {
  const TemporaryFolder folder;
  const auto file = posix_files().create(folder / "f");
  file->write("abc", 3);
  file->write_at(6, "xyz", 3);
  file->write("de", 2);
  file->close();
  CHECK(read_file(folder / "f") == std::string("abcde\0xyz", 9));
}

TEST_CASE("creating a file empties an old one of that name") {
  const TemporaryFolder folder;
  put_file(folder / "f", "much longer than before");
  posix_files().create(folder / "f")->close();
  CHECK(read_file(folder / "f").empty());
}

TEST_CASE("reserved bytes exist before data is written") {
  const TemporaryFolder folder;
  const auto file = posix_files().create(folder / "f");
  file->reserve(10000);
  CHECK(fs::file_size(folder / "f") == 10000);
  file->reserve(0);
  file->close();
}

TEST_CASE("a folder that is missing is an environment error") {
  const TemporaryFolder folder;
  const std::string path = folder / "absent/f";
  const Error error = error_of([&] { posix_files().create(path); });
  CHECK(error.code() == ExitCode::kEnvironment);
  CHECK(error.message() == path + ": create failed: No such file or directory");
  CHECK(error.remedy() == "check that the folder exists and that this user may write to it");
}

TEST_CASE("folders are made with their parents, listed by name and removed with their content") {
  const TemporaryFolder folder;
  posix_files().make_folder(folder / "a/b/c");
  put_file(folder / "a/z", "");
  put_file(folder / "a/m", "");
  CHECK(posix_files().list(folder / "a") == std::vector<std::string>{"b", "m", "z"});
  posix_files().make_folder(folder / "a/b");
  posix_files().remove_all(folder / "a");
  CHECK_FALSE(posix_files().exists(folder / "a"));
  posix_files().remove_all(folder / "a");
  CHECK(posix_files().free_bytes(folder / "not/yet/there") > 0);
}

TEST_CASE(
    "a file system that does not report its size has no limit, and sums with it do not overflow") {
  CHECK(posix_files().free_bytes("/proc") == kFreeUnknown);  // /proc reports zeros
  CHECK(posix_files().free_bytes("/proc/not/there") == kFreeUnknown);
  CHECK(posix_files().free_bytes("not/there") < kFreeUnknown);
  CHECK(kFreeUnknown + kFreeUnknown + kFreeUnknown > kFreeUnknown);
}

TEST_CASE("a folder cannot be made over a file, nor a missing one listed, synced or renamed") {
  const TemporaryFolder folder;
  const std::string file = folder / "f";
  put_file(file, "");
  const std::string below = folder / "f/g";
  CHECK(error_of([&] { posix_files().make_folder(below); }).message() ==
        below + ": create folder failed: Not a directory");
  const std::string absent = folder / "absent";
  CHECK(error_of([&] { posix_files().list(absent); }).message() ==
        absent + ": list failed: No such file or directory");
  CHECK(error_of([&] { posix_files().sync_folder(absent); }).message() ==
        absent + ": open folder failed: No such file or directory");
  CHECK(error_of([&] { posix_files().rename(absent, file); }).message() ==
        file + ": rename failed: No such file or directory");
}

TEST_CASE("a mapped file shows the bytes of the file and keeps them when moved") {
  const TemporaryFolder folder;
  put_file(folder / "data", "0123456789");
  MappedFile first(folder / "data");
  CHECK(first.bytes().size() == 10);
  MappedFile second(std::move(first));
  CHECK(static_cast<char>(second.bytes()[3]) == '3');
  second.release(0, 10);
  CHECK(static_cast<char>(second.bytes()[9]) == '9');
  put_file(folder / "empty", "");
  MappedFile third(folder / "empty");
  CHECK(third.bytes().empty());
  third = std::move(second);
  CHECK(third.path() == folder / "data");
  CHECK(third.bytes().size() == 10);
}

std::string read_refusal(const std::string& path) {
  const Error error = error_of([&] { MappedFile file(path); });
  CHECK(error.code() == ExitCode::kBadInput);
  CHECK(error.remedy() == "check the path and the permissions");
  return error.message();
}

TEST_CASE("a file that is not regular is not mapped, and a pipe does not block") {
  const TemporaryFolder folder;
  const std::string absent = folder / "absent";
  CHECK(read_refusal(absent) == absent + ": cannot be read: No such file or directory");
  CHECK(read_refusal(folder.path()) == folder.path() + ": cannot be read: not a regular file");
  const std::string pipe = folder / "pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  CHECK(read_refusal(pipe) == pipe + ": cannot be read: not a regular file");
  CHECK(read_refusal("/dev/zero") == "/dev/zero: cannot be read: not a regular file");
}

TEST_CASE("a file that does not fit into the address space is not reported as a bad file") {
  const OwnedFd huge(::memfd_create("huge", MFD_CLOEXEC));
  REQUIRE(::ftruncate(huge.get(), int64_t{1} << 48) == 0);  // larger than the address space
  const std::string path = cat("/proc/self/fd/", huge.get());
  CHECK_THAT(testing::error_line_of([&] { MappedFile file(path); }),
             Catch::Equals(cat("5: ", path,
                               ": cannot be read: Cannot allocate memory | raise the memory limit "
                               "(ulimit -v), or use a machine with more memory")));
  CHECK(testing::text_from_child([&] {
          const rlimit none{0, 0};
          ::setrlimit(RLIMIT_NOFILE, &none);
          return testing::error_line_of([&] { MappedFile file("/dev/null"); });
        }) ==
        "5: /dev/null: cannot be read: Too many open files | raise the limit of open files (ulimit "
        "-n)");
}

TEST_CASE("a descriptor is closed by its last owner") {
  int raw[2];
  REQUIRE(::pipe(raw) == 0);
  OwnedFd reader(raw[0]);
  {
    OwnedFd writer(raw[1]);
    OwnedFd other(std::move(writer));
    CHECK_FALSE(writer);
    CHECK(other.get() == raw[1]);
  }
  char byte = 0;
  CHECK(::read(reader.get(), &byte, 1) == 0);  // end of file: no writer is left
  const int given = reader.release();
  CHECK_FALSE(reader);
  CHECK(::fcntl(given, F_GETFD) >= 0);
  ::close(given);
}

}  // namespace
}  // namespace ftrun
