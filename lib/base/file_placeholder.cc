#include "base/file_placeholder.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <string_view>

#include "base/error.h"
#include "base/text.h"

namespace ftrun {
namespace {
namespace fs = std::filesystem;

/// The size up to which Git LFS takes a file as a pointer; git-annex's pointers are as short.
constexpr size_t kMaxPointer = 1024;
/// The address of Git LFS's specification, and its address under the project's earlier name.
constexpr std::array<std::string_view, 2> kLfsStarts{"version https://git-lfs.github.com/spec/",
                                                     "version https://hawser.github.com/spec/"};
constexpr std::string_view kAnnexStart = "/annex/objects/";
constexpr std::array<std::string_view, 2> kPageStarts{"<!doctype html", "<html"};

/// Returns whether `text` begins with `start`, which must be in lower case; ignores the case of
/// `text`.
bool begins_with_any_case(std::string_view text, std::string_view start) {
  return text.size() >= start.size() &&
         std::equal(start.begin(), start.end(), text.begin(), [](char small, char c) {
           return small == std::tolower(static_cast<unsigned char>(c));
         });
}

/// Returns whether a file is a web page, judging by its name.
bool is_page_by_name(const std::string& path) {
  const std::string extension = fs::path(path).extension().string();
  return extension == ".html" || extension == ".htm" || extension == ".xhtml";
}

/// Returns the text "git -C FOLDER COMMAND", as a shell reads it.
std::string git_in_folder_of(const std::string& path, std::string_view command) {
  const std::string folder = fs::path(path).parent_path().string();
  return cat("git", folder.empty() ? "" : cat(" -C ", shell_word(folder)), " ", command);
}

}  // namespace

FilePlaceholder detect_placeholder(const std::string& path, std::span<const std::byte> head) {
  const std::string_view text(reinterpret_cast<const char*>(head.data()), head.size());
  const auto begins = [text](std::string_view start) { return text.starts_with(start); };
  if (text.size() <= kMaxPointer && std::any_of(kLfsStarts.begin(), kLfsStarts.end(), begins))
    return {"a Git LFS pointer", cat("fetch it: ", git_in_folder_of(path, "lfs pull"),
                                     " (or download the file itself)")};
  if (text.size() <= kMaxPointer && begins(kAnnexStart))
    return {"a git-annex pointer",
            cat("fetch it: ",
                git_in_folder_of(
                    path, cat("annex get ", shell_word(fs::path(path).filename().string()))))};
  const auto begins_page = [text](std::string_view start) {
    return begins_with_any_case(text, start);
  };
  if (std::any_of(kPageStarts.begin(), kPageStarts.end(), begins_page) && !is_page_by_name(path))
    return {"a web page (HTML)",
            "download the file itself: if its address contains /blob/, replace that by /resolve/ "
            "or /raw/"};
  return {};
}

void refuse_placeholder(const std::string& path, const FilePlaceholder& placeholder) {
  throw Error(ExitCode::kBadInput, cat(path, ": is ", placeholder.kind, ", not the file itself"),
              placeholder.remedy);
}

}  // namespace ftrun
