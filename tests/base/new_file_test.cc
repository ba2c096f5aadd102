#include "base/new_file.h"

#include <sys/stat.h>

#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "temporary_folder.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

namespace fs = std::filesystem;
using testing::TemporaryFolder;

size_t files_in(const std::string& folder) {
  return posix_files().list(folder).size();
}

TEST_CASE("a new file is complete, for its user only, and leaves no other file") {
  const TemporaryFolder folder;
  const std::string path = folder / "found.yaml";
  write_new_file(path, "one: 1\n");
  CHECK(read_file(path) == "one: 1\n");
  struct stat status {};
  REQUIRE(::stat(path.c_str(), &status) == 0);
  CHECK((status.st_mode & 0777U) == 0600U);
  CHECK(status.st_nlink == 1);
  CHECK(files_in(folder.path()) == 1);
}

TEST_CASE("a new file never replaces a file, a link or a folder") {
  const TemporaryFolder folder;
  const std::string file = folder / "mine", link = folder / "link", nowhere = folder / "nowhere",
                    inner = folder / "inner";
  write_new_file(file, "mine");
  fs::create_symlink(file, link);
  fs::create_symlink(folder / "gone", nowhere);
  fs::create_directory(inner);
  for (const std::string& path : {file, link, nowhere, inner}) {
    INFO(path);
    CHECK_THROWS_WITH(write_new_file(path, "theirs"),
                      Catch::Contains(path + ": already exists, and is not overwritten"));
  }
  CHECK(read_file(file) == "mine");
  CHECK(fs::is_symlink(fs::symlink_status(nowhere)));
  CHECK_FALSE(fs::exists(folder / "gone"));
  CHECK(files_in(folder.path()) == 4);
}

TEST_CASE("a new file in a missing folder is refused, and nothing is created") {
  const TemporaryFolder folder;
  CHECK_THROWS_AS(write_new_file(folder / "none/found.yaml", "x"), Error);
  CHECK(files_in(folder.path()) == 0);
}

}  // namespace
}  // namespace ftrun
