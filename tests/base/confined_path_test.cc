#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/file.h"
#include "temporary_folder.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

namespace fs = std::filesystem;
using testing::TemporaryFolder;
using namespace std::string_view_literals;

void create_file(const std::string& path) {
  std::ofstream(path) << "x";
}

/// Returns why a name is refused, or "accepted".
std::string refusal(const std::string& folder, std::string_view name) {
  try {
    confined_path(folder, name);
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::kBadInput);
    CHECK(error.remedy() == "put the files of a model or checkpoint inside its folder");
    const std::string start = cat(folder, ": file name \"", name, "\" is refused: ");
    REQUIRE(error.message().substr(0, start.size()) == start);
    return error.message().substr(start.size());
  }
  return "accepted";
}

TEST_CASE("a plain name is joined to its folder, whether or not the file exists") {
  const TemporaryFolder folder;
  create_file(folder / "model.safetensors");
  CHECK(confined_path(folder.path(), "model.safetensors") == folder / "model.safetensors");
  CHECK(confined_path(folder.path(), "absent") == folder / "absent");
  CHECK(confined_path(folder.path(), "..double") == folder / "..double");
  CHECK(confined_path(folder.path(), "...") == folder / "...");
  CHECK(confined_path(folder.path(), std::string(255, 'a')) == folder / std::string(255, 'a'));
}

TEST_CASE("names that are not plain are refused with the reason") {
  const TemporaryFolder folder;
  const std::string plain = "it must be a plain file name";
  for (const char* name : {".", "..", "/etc/passwd", "../x", "a/b", "a/../../x", "./x", "x/", "/"})
    CHECK(refusal(folder.path(), name) == plain);
  CHECK(refusal(folder.path(), "") == "it is empty");
  CHECK(refusal(folder.path(), "model\0.safetensors"sv) == "it holds a NUL byte");
  CHECK(refusal(folder.path(), std::string(256, 'a')) == "it is longer than 255 bytes");
}

TEST_CASE("links that leave the folder are refused, links inside it are followed") {
  const TemporaryFolder outside;
  const TemporaryFolder folder;
  create_file(outside / "secret");
  create_file(folder / "real");
  fs::create_symlink(folder / "real", folder / "inside");
  fs::create_symlink(outside / "secret", folder / "out");
  fs::create_symlink(folder / "out", folder / "chain");
  fs::create_symlink("loop", folder / "loop");
  CHECK(refusal(folder.path(), "inside") == "accepted");
  for (const char* name : {"out", "chain", "loop"})
    CHECK(refusal(folder.path(), name) == "it is a link that leaves the folder");
}

TEST_CASE("the folder itself may be a link") {
  const TemporaryFolder folder;
  fs::create_directory(folder / "real");
  create_file(folder / "real/config.json");
  fs::create_symlink(folder / "real", folder / "alias");
  CHECK(refusal(folder / "alias", "config.json") == "accepted");
}

TEST_CASE("a named file may be a link that leads anywhere, and must be a regular file") {
  const TemporaryFolder outside;
  const TemporaryFolder folder;
  create_file(outside / "real");
  fs::create_symlink(outside / "real", folder / "link");
  fs::create_symlink(outside.path(), folder / "to-folder");
  CHECK(plain_file_path(folder.path(), "link") == folder / "link");
  CHECK(plain_file_path(folder.path(), "absent") == folder / "absent");
  for (const char* name : {"to-folder", "../x", ""})
    CHECK_THROWS_AS(plain_file_path(folder.path(), name), Error);
}

TEST_CASE("the reason why a file cannot be read is reported") {
  const TemporaryFolder folder;
  create_file(folder / "real");
  fs::create_symlink("real", folder / "link");
  fs::create_symlink("../blobs/gone", folder / "dead");
  fs::create_symlink("loop", folder / "loop");
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  CHECK(reading_problem(folder / "real") == "");
  CHECK(reading_problem(folder / "link") == "");
  CHECK(reading_problem(folder / "absent") == "No such file or directory");
  CHECK(reading_problem(folder / "dead") == "it is a link to ../blobs/gone, which does not exist");
  CHECK(reading_problem(folder / "loop") == "it is a link to loop, which does not exist");
  CHECK(reading_problem(folder / "pipe") == "it is not a regular file");
}

/// UserNobody makes this process another user while it exists, because the superuser may read and
/// write everything.
class UserNobody {
 public:
  UserNobody() { became_ = ::geteuid() == 0 && ::seteuid(65534) == 0; }
  ~UserNobody() {
    if (became_ && ::seteuid(0) != 0) std::abort();
  }
  UserNobody(const UserNobody&) = delete;
  UserNobody& operator=(const UserNobody&) = delete;

 private:
  bool became_ = false;
};

TEST_CASE("a path that this user may not read or write is reported without an attempt") {
  const TemporaryFolder folder;
  create_file(folder / "closed");
  fs::permissions(folder.path(), fs::perms(0755));
  fs::permissions(folder / "closed", fs::perms::none);
  fs::create_directory(folder / "sealed");
  fs::permissions(folder / "sealed", fs::perms(0555));
  CHECK(writing_problem(folder / "closed/below") == folder / "closed" + ": is not a folder");
  if (::geteuid() == 0) CHECK(writing_problem(folder / "not/yet") == "");
  fs::create_symlink("gone", folder / "dead");
  CHECK(writing_problem(folder / "dead/below") ==
        folder / "dead" + ": is a link to gone, which does not exist");
  const std::string refused = folder / "sealed" + ": cannot be written: Permission denied";
  const UserNobody nobody;
  CHECK(reading_problem(folder / "closed") == "Permission denied");
  CHECK(writing_problem(folder / "sealed") == refused);
  CHECK(writing_problem(folder / "sealed/not/yet/there") == refused);
}

TEST_CASE("folders, pipes and devices are refused") {
  const TemporaryFolder folder;
  fs::create_directory(folder / "sub");
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  CHECK(refusal(folder.path(), "sub") == "it is not a regular file");
  CHECK(refusal(folder.path(), "pipe") == "it is not a regular file");
  CHECK(refusal("/dev", "zero") == "it is not a regular file");
}

}  // namespace
}  // namespace ftrun
