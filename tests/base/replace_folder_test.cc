#include "base/replace_folder.h"

#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "temporary_folder.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

namespace fs = std::filesystem;
using testing::TemporaryFolder;
using Names = std::vector<std::string>;

/// Makes a folder with one file.
void make_folder(const std::string& folder, const std::string& content) {
  fs::create_directories(folder);
  std::ofstream(folder + "/content") << content;
}

std::string content_of(const std::string& folder) {
  return read_file(folder + "/content");
}

bool accept_all(const LeftoverFolder&, const std::string&) {
  return true;
}

TEST_CASE("a folder gets a new name, or that of another folder, which is removed") {
  const TemporaryFolder root;
  const std::string made = make_temporary_path(root / "a");
  make_folder(made, "first");
  replace_folder(posix_files(), made, root / "a", "content", folder_id_of(root / "a"));
  CHECK(content_of(root / "a") == "first");
  const std::string again = make_temporary_path(root / "a");
  make_folder(again, "second");
  replace_folder(posix_files(), again, root / "a", "content", folder_id_of(root / "a"));
  CHECK(content_of(root / "a") == "second");
  CHECK(posix_files().list(root.path()) == Names{"a"});
}

/// Passes all calls on, except syncs of folders, which fail.
class UnsyncedFiles : public FileSystem {
 public:
  std::unique_ptr<WritableFile> create(const std::string& path) override {
    return posix_files().create(path);
  }
  void make_folder(const std::string& path) override { posix_files().make_folder(path); }
  void rename(const std::string& from, const std::string& to) override {
    posix_files().rename(from, to);
  }
  bool swap_names(const std::string& a, const std::string& b) override {
    return posix_files().swap_names(a, b);
  }
  void remove_all(const std::string& path) override { posix_files().remove_all(path); }
  void sync_folder(const std::string& path) override {
    throw Error(ExitCode::kEnvironment, path + ": fsync folder failed");
  }
  std::vector<std::string> list(const std::string& folder) override {
    return posix_files().list(folder);
  }
  bool exists(const std::string& path) override { return posix_files().exists(path); }
  int64_t free_bytes(const std::string& path) override { return posix_files().free_bytes(path); }
};

TEST_CASE("a folder whose parent cannot be synced is in place, and what it replaced is kept") {
  const TemporaryFolder root;
  UnsyncedFiles files;
  const std::string first = make_temporary_path(root / "a");
  make_folder(first, "first");
  CHECK_NOTHROW(replace_folder(files, first, root / "a", "content", std::nullopt));
  CHECK(content_of(root / "a") == "first");
  const std::string second = make_temporary_path(root / "a");
  make_folder(second, "second");
  CHECK_NOTHROW(replace_folder(files, second, root / "a", "content", folder_id_of(root / "a")));
  CHECK(content_of(root / "a") == "second");
  CHECK(content_of(second) == "first");
}

TEST_CASE("an exchange swaps the contents of two names") {
  const TemporaryFolder root;
  make_folder(root / "a", "of a");
  make_folder(root / "b", "of b");
  REQUIRE(posix_files().swap_names(root / "a", root / "b"));
  CHECK(content_of(root / "a") == "of b");
  CHECK(content_of(root / "b") == "of a");
}

TEST_CASE("a folder counts as a leftover only if its whole name has the form of one") {
  const auto describe_leftover = [](std::string_view name) -> std::string {
    const auto leftover = parse_leftover_name(name);
    return !leftover ? "none" : leftover->original + (leftover->complete ? ", complete" : "");
  };
  CHECK(describe_leftover("model.tmp-0123abcd") == "model");
  CHECK(describe_leftover("model.replaced-0123abcd") == "model, complete");
  CHECK(describe_leftover("a.tmp-0000000a.replaced-0123abcd") == "a.tmp-0000000a, complete");
  for (const char* name :
       {"model", "model.tmp-", "model.tmp-0123abc", "model.tmp-0123abcde", "model.tmp-0123ABCD",
        "model.tmp-0123abcd.txt", ".tmp-0123abcd", "model.old-0123abcd", "model.replaced-notes ab"})
    CHECK(describe_leftover(name) == "none");
}

TEST_CASE("recovery puts a complete folder back if its name is free, and removes our leftovers") {
  const TemporaryFolder root;
  make_folder(root / "a.replaced-000000a1", "old a");
  make_folder(root / "b", "new b");
  make_folder(root / "b.replaced-000000a2", "old b");
  make_folder(root / "c.tmp-000000a3", "half of c");
  make_folder(root / "d.tmp-notes", "the user's");
  recover_folders(posix_files(), root.path(),
                  [](const LeftoverFolder& leftover, const std::string&) {
                    return leftover.original == "none";
                  });
  CHECK(posix_files().list(root.path()).size() == 5);
  recover_folders(posix_files(), root.path(), accept_all);
  CHECK(posix_files().list(root.path()) == Names{"a", "b", "d.tmp-notes"});
  CHECK(content_of(root / "a") == "old a");
  CHECK(content_of(root / "b") == "new b");
  recover_folders(posix_files(), root / "absent", accept_all);
}

TEST_CASE(
    "the space that recovery would free counts what it removes, not what it puts back or leaves") {
  const TemporaryFolder root;
  const auto bytes = [&](const IsOurs& is_ours) {
    return leftover_bytes(posix_files(), root.path(), is_ours);
  };
  const std::string text(1 << 20, 'x');
  CHECK(leftover_bytes(posix_files(), root / "absent", accept_all) == 0);
  make_folder(root / "a.replaced-000000a1", text);  // is put back
  make_folder(root / "d.tmp-notes", text);          // its name is not a leftover's
  CHECK(bytes(accept_all) == 0);
  make_folder(root / "c.tmp-000000a3/below", text);
  const int64_t one = bytes(accept_all);
  CHECK(one >= 1 << 20);
  CHECK(one < 2 << 20);
  make_folder(root / "a", "new a");
  CHECK(bytes(accept_all) == 2 * one);
  CHECK(bytes([](const LeftoverFolder& leftover, const std::string&) {
          return leftover.original == "c";
        }) == one);
  fs::create_hard_link(root / "c.tmp-000000a3/below/content",
                       root / "kept");  // stays under this name
  CHECK(bytes(accept_all) == one);
  CHECK(posix_files().list(root.path()).size() == 5);
}

TEST_CASE("a locked folder stays locked until its owner releases it") {
  const TemporaryFolder root;
  make_folder(root / "a", "");
  CHECK_FALSE(is_locked(root / "a"));
  {
    const OwnedFd held = lock_folder(root / "a");
    CHECK(is_locked(root / "a"));
    fs::rename(root / "a", root / "b");
    CHECK(is_locked(root / "b"));
  }
  CHECK_FALSE(is_locked(root / "b"));
  CHECK_FALSE(is_locked(root / "absent"));
  CHECK_FALSE(lock_folder(root / "absent"));
}

}  // namespace
}  // namespace ftrun
