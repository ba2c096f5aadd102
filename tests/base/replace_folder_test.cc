#include "base/replace_folder.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/file.h"
#include "temporary_folder.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

namespace fs = std::filesystem;
using fixtures::TemporaryFolder;
using Names = std::vector<std::string>;

/// Makes a folder with one file.
void make(const std::string& folder, const std::string& content) {
  fs::create_directories(folder);
  std::ofstream(folder + "/content") << content;
}

std::string content(const std::string& folder) {
  return read_file(folder + "/content");
}

bool anything(const Leftover&, const std::string&) {
  return true;
}

TEST_CASE("a folder gets a new name, or that of another folder, which is removed") {
  const TemporaryFolder root;
  const std::string made = temporary_beside(root.file("a"));
  make(made, "first");
  replace_folder(posix_files(), made, root.file("a"), "content", identity_of(root.file("a")));
  CHECK(content(root.file("a")) == "first");
  const std::string again = temporary_beside(root.file("a"));
  make(again, "second");
  replace_folder(posix_files(), again, root.file("a"), "content", identity_of(root.file("a")));
  CHECK(content(root.file("a")) == "second");
  CHECK(posix_files().list(root.path()) == Names{"a"});
}

TEST_CASE("an exchange swaps the contents of two names") {
  const TemporaryFolder root;
  make(root.file("a"), "of a");
  make(root.file("b"), "of b");
  REQUIRE(posix_files().exchange(root.file("a"), root.file("b")));
  CHECK(content(root.file("a")) == "of b");
  CHECK(content(root.file("b")) == "of a");
}

TEST_CASE("only complete names of leftovers are leftovers") {
  const auto told = [](std::string_view name) -> std::string {
    const auto leftover = leftover_of(name);
    return !leftover ? "none" : leftover->original + (leftover->complete ? ", complete" : "");
  };
  CHECK(told("model.tmp-0123abcd") == "model");
  CHECK(told("model.replaced-0123abcd") == "model, complete");
  CHECK(told("a.tmp-0000000a.replaced-0123abcd") == "a.tmp-0000000a, complete");
  for (const char* name :
       {"model", "model.tmp-", "model.tmp-0123abc", "model.tmp-0123abcde", "model.tmp-0123ABCD",
        "model.tmp-0123abcd.txt", ".tmp-0123abcd", "model.old-0123abcd", "model.replaced-notes ab"})
    CHECK(told(name) == "none");
}

TEST_CASE("recovery puts a complete folder back if its name is free, and removes our leftovers") {
  const TemporaryFolder root;
  make(root.file("a.replaced-000000a1"), "old a");
  make(root.file("b"), "new b");
  make(root.file("b.replaced-000000a2"), "old b");
  make(root.file("c.tmp-000000a3"), "half of c");
  make(root.file("d.tmp-notes"), "the user's");
  recover_folders(posix_files(), root.path(), [](const Leftover& leftover, const std::string&) {
    return leftover.original == "none";
  });
  CHECK(posix_files().list(root.path()).size() == 5);
  recover_folders(posix_files(), root.path(), anything);
  CHECK(posix_files().list(root.path()) == Names{"a", "b", "d.tmp-notes"});
  CHECK(content(root.file("a")) == "old a");
  CHECK(content(root.file("b")) == "new b");
  recover_folders(posix_files(), root.file("absent"), anything);
}

TEST_CASE(
    "the space that recovery would free counts what it removes, not what it puts back or leaves") {
  const TemporaryFolder root;
  const auto bytes = [&](const IsOurs& is_ours) {
    return leftover_bytes(posix_files(), root.path(), is_ours);
  };
  const std::string text(1 << 20, 'x');
  CHECK(leftover_bytes(posix_files(), root.file("absent"), anything) == 0);
  make(root.file("a.replaced-000000a1"), text);  // is put back
  make(root.file("d.tmp-notes"), text);          // its name is not a leftover's
  CHECK(bytes(anything) == 0);
  make(root.file("c.tmp-000000a3/below"), text);
  const int64_t one = bytes(anything);
  CHECK(one >= 1 << 20);
  CHECK(one < 2 << 20);
  make(root.file("a"), "new a");
  CHECK(bytes(anything) == 2 * one);
  CHECK(bytes([](const Leftover& leftover, const std::string&) {
          return leftover.original == "c";
        }) == one);
  fs::create_hard_link(root.file("c.tmp-000000a3/below/content"),
                       root.file("kept"));  // stays under this name
  CHECK(bytes(anything) == one);
  CHECK(posix_files().list(root.path()).size() == 5);
}

TEST_CASE("a folder is held until its holder releases it") {
  const TemporaryFolder root;
  make(root.file("a"), "");
  CHECK_FALSE(is_locked(root.file("a")));
  {
    const OwnedFd held = lock_folder(root.file("a"));
    CHECK(is_locked(root.file("a")));
    fs::rename(root.file("a"), root.file("b"));
    CHECK(is_locked(root.file("b")));
  }
  CHECK_FALSE(is_locked(root.file("b")));
  CHECK_FALSE(is_locked(root.file("absent")));
  CHECK_FALSE(lock_folder(root.file("absent")));
}

}  // namespace
}  // namespace ftrun
