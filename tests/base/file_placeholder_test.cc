#include "base/file_placeholder.h"

#include <filesystem>
#include <fstream>
#include <string>

#include "base/file.h"
#include "temporary_folder.h"
#include "thrown_error.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

namespace fs = std::filesystem;
using testing::error_line_of;
using testing::TemporaryFolder;

const std::string kPointer =
    "version https://git-lfs.github.com/spec/v1\noid sha256:0f0f\nsize 269060552\n";

std::string write_in(const TemporaryFolder& folder, const std::string& name,
                     const std::string& content) {
  const std::string path = folder / name;
  fs::create_directories(fs::path(path).parent_path());
  std::ofstream(path, std::ios::binary) << content;
  return path;
}

TEST_CASE("a pointer of Git LFS is refused by every reader with the line that fetches the file") {
  const TemporaryFolder folder;
  const std::string path = write_in(folder, "my model/tokenizer.json", kPointer);
  const std::string fetch =
      "fetch it: git -C '" + folder / "my model" + "' lfs pull (or download the file itself)";
  const std::string refused =
      "4: " + path + ": is a Git LFS pointer, not the file itself | " + fetch;
  CHECK(error_line_of([&] { read_file(path); }) == refused);
  CHECK(error_line_of([&] { MappedFile{path}; }) == refused);
  CHECK(reading_problem(path) == "it is a Git LFS pointer; " + fetch);
}

TEST_CASE("a file name without a folder is fetched in the working directory") {
  const auto remedy = [](const std::string& text) {
    return detect_placeholder("data.jsonl", std::as_bytes(std::span(text))).remedy;
  };
  CHECK(remedy(kPointer) == "fetch it: git lfs pull (or download the file itself)");
  CHECK(remedy("/annex/objects/SHA256E-s5--00.jsonl\n") == "fetch it: git annex get data.jsonl");
}

TEST_CASE(
    "pointers of older versions and with other line ends are pointers; longer texts and other "
    "beginnings are not") {
  const auto kind = [](const std::string& name, const std::string& text) {
    return detect_placeholder(name, std::as_bytes(std::span(text))).kind;
  };
  CHECK(kind("m", "version https://hawser.github.com/spec/v1\noid sha256:0\nsize 5\n") ==
        "a Git LFS pointer");
  CHECK(kind("m", "version https://git-lfs.github.com/spec/v1\r\noid sha256:0\r\nsize 5\r\n") ==
        "a Git LFS pointer");
  CHECK(kind("m", "/annex/objects/SHA256E-s5--00.bin\n") == "a git-annex pointer");
  CHECK(kind("m.json", "<!DOCTYPE html>\n<html class=\"\">") == "a web page (HTML)");
  CHECK(kind("m.json", "<html><body>404") == "a web page (HTML)");
  CHECK(kind("readme.html", "<!doctype html>") == "");
  CHECK(kind("m", kPointer + std::string(1024, ' ')) == "");
  CHECK(kind("m", " " + kPointer) == "");
  CHECK(kind("m", "version 1") == "");
  CHECK(kind("m", "") == "");
}

TEST_CASE("a web page that was saved under a file's name is refused") {
  const TemporaryFolder folder;
  const std::string path = write_in(folder, "config.json", "<!doctype html><html></html>");
  CHECK(error_line_of([&] { read_file(path); }) ==
        "4: " + path +
            ": is a web page (HTML), not the file itself | download the file itself: if its "
            "address contains /blob/, replace that by /resolve/ or /raw/");
}

}  // namespace
}  // namespace ftrun
