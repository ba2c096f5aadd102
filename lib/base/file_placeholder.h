#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace ftrun {

/// FilePlaceholder describes what is stored in place of a file that was never fetched: a Git LFS or
/// git-annex pointer, or a web page.
struct FilePlaceholder {
  /// The kind of placeholder: "a Git LFS pointer"; empty if the file is no placeholder.
  std::string kind;
  /// The command that fetches the file, or where else to get it.
  std::string remedy;
};

/// The largest size in bytes of a placeholder.
inline constexpr size_t kMaxPlaceholder = 512 << 10;
/// The number of a file's first bytes that are checked for a placeholder; shorter files are read
/// whole.
inline constexpr size_t kPlaceholderHead = 2048;

/// Determines from the first bytes of the file at `path` whether it is a pointer of Git LFS or
/// git-annex, or a web page that shows the file. The files that ftrun reads never begin like these.
FilePlaceholder detect_placeholder(const std::string& path, std::span<const std::byte> head);

/// Throws an Error(kBadInput) that says which placeholder is at `path`.
[[noreturn]] void refuse_placeholder(const std::string& path, const FilePlaceholder& placeholder);

}  // namespace ftrun
