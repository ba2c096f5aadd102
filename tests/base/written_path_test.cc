#include "base/written_path.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "base/append_file.h"
#include "base/file.h"
#include "requirements.h"
#include "temporary_folder.h"
#include "thrown_error.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

namespace fs = std::filesystem;
using testing::error_line_of;
using testing::TemporaryFolder;

const testing::Requirement kRoot("root", [] {
  return ::geteuid() == 0 ? "" : "another user's link is made by root alone";
});

struct stat owned_by(uid_t user, mode_t mode) {
  struct stat info {};
  info.st_uid = user;
  info.st_mode = mode;
  return info;
}

TEST_CASE(
    "a link is trusted if it is the user's or root's, or if only the folder's owner may write") {
  const auto counts = [](uid_t link, uid_t folder, mode_t mode) {
    return may_follow_link(owned_by(link, S_IFLNK | 0777), owned_by(folder, S_IFDIR | mode), 1000);
  };
  CHECK(counts(1000, 1001, 0777));
  CHECK(counts(0, 0, 01777));
  CHECK(counts(1001, 0, 0755));
  CHECK(counts(1001, 1001, 0755));
  CHECK_FALSE(counts(1001, 0, 01777));
  CHECK_FALSE(counts(1001, 1000, 0775));
  CHECK_FALSE(counts(1001, 1001, 0777));
}

TEST_CASE(
    "a written path follows links of the same user in its folders, but never a link at its end") {
  const TemporaryFolder folder;
  fs::create_directories(folder / "real/deep");
  fs::create_directory_symlink("real", folder / "link");
  fs::create_directory_symlink(folder / "link/deep", folder / "second");
  FileSystem& files = posix_files();
  files.make_folder(folder / "second/a/b");
  write_file_atomic(files, folder / "second/a/b/../file", "x");
  CHECK(read_file(folder / "real/deep/a/file") == "x");
  files.rename(folder / "second/a/file", folder / "link/moved");
  CHECK(read_file(folder / "real/moved") == "x");
  files.remove_all(folder / "second/a/");
  CHECK(files.list(folder / "real/deep").empty());
  files.remove_all(folder / "second");  // removes only the link
  CHECK(fs::exists(folder / "real/deep"));
  files.remove_all(folder / "none/at/all");
  fs::create_symlink("moved", folder / "real/alias");
  CHECK(error_line_of([&] { files.create(folder / "link/alias"); }) ==
        "5: " + folder / "link/alias" +
            ": create failed: Too many levels of symbolic links | check that the folder exists and "
            "that this user may write to it");
  fs::create_directory_symlink("round", folder / "round");
  CHECK_FALSE(open_folder_safely(folder / "round/x"));
  CHECK(errno == ELOOP);
  CHECK_FALSE(open_folder_safely(folder / "real/moved/x"));
  CHECK(errno == ENOTDIR);
}

TEST_CASE("a relative path is walked from the working directory, and the root is a valid path") {
  const TemporaryFolder folder;
  const fs::path before = fs::current_path();
  fs::current_path(folder.path());
  posix_files().make_folder("a/b");
  posix_files().create("plain")->close();
  posix_files().sync_folder("");
  fs::current_path(before);
  CHECK(posix_files().list(folder.path()) == std::vector<std::string>{"a", "plain"});
  CHECK(open_parent("/").name == ".");
  CHECK(open_parent("//x//").name == "x");
}

TEST_CASE("a removed file is created again, but not if its folder is gone") {
  const TemporaryFolder folder;
  fs::create_directory(folder / "run");
  const std::string path = folder / "run/lines";
  AppendFile file(path);
  file.append("1\n");
  CHECK_FALSE(file.reopen_if_lost());
  fs::remove(path);
  CHECK(file.reopen_if_lost());
  file.append("2\n");
  CHECK(read_file(path) == "2\n");
  fs::rename(path, path + ".old");
  std::ofstream(path) << "3\n";  // an editor's new file
  CHECK(file.reopen_if_lost());
  file.append("4\n");
  CHECK(read_file(path) == "3\n4\n");
  CHECK(read_file(path + ".old") == "2\n");
  fs::rename(folder / "run", folder / "moved");
  CHECK_FALSE(file.reopen_if_lost());
  file.append("5\n");
  CHECK_FALSE(fs::exists(path));
  fs::create_directory(folder / "run");  // another run's
  CHECK_FALSE(file.reopen_if_lost());
  file.append("6\n");
  CHECK(fs::is_empty(folder / "run"));
  CHECK(read_file(folder / "moved/lines") == "3\n4\n5\n6\n");
}

TEST_CASE("nothing is written through another user's link in a folder that others may write to",
          "[.needs-root]") {
  const TemporaryFolder folder;
  constexpr uid_t kOther = 12345;
  fs::create_directories(folder / "secret/run");
  fs::create_directory(folder / "shared");
  fs::create_directory_symlink("../secret", folder / "shared/out");
  REQUIRE(::lchown((folder / "shared/out").c_str(), kOther, kOther) == 0);
  REQUIRE(::chmod((folder / "shared").c_str(), 01777) == 0);
  const std::string link = folder / "shared/out";
  const auto refused = [&](const std::string& on_the_way) {
    return "5: " + on_the_way +
           ": cannot be written to: \"out\" in its path is a link of another user (uid 12345) in a "
           "folder that others may write to | give the path of the folder that the link names, if "
           "that is where it should go; else choose a folder that only you may write to";
  };
  FileSystem& files = posix_files();
  CHECK(error_line_of([&] { files.create(link + "/file"); }) == refused(link));
  CHECK(error_line_of([&] { files.make_folder(link + "/run/new"); }) == refused(link + "/run"));
  CHECK(error_line_of([&] { files.remove_all(link + "/run"); }) == refused(link));
  CHECK(error_line_of([&] { files.rename(folder / "secret/run", link + "/run2"); }) ==
        refused(link));
  CHECK(error_line_of([&] { AppendFile{link + "/log"}; }) == refused(link));
  CHECK(writing_problem(link + "/run/new") ==
        refused(link + "/run").substr(3, refused(link + "/run").find(" | ") - 3));
  CHECK(files.list(folder / "secret") == std::vector<std::string>{"run"});
  REQUIRE(::chmod((folder / "shared").c_str(), 0755) == 0);
  files.create(link + "/file")->close();
  CHECK(fs::exists(folder / "secret/file"));
}

}  // namespace
}  // namespace ftrun
