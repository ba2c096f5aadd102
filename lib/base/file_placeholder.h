#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace ftrun {

/// FilePlaceholder describes a placeholder in place of a file that was never fetched: a Git LFS or
/// git-annex pointer, or a web page.
struct FilePlaceholder {
  /// The kind of placeholder: "a Git LFS pointer"; empty where the file is the real one.
  std::string kind;
  /// The command that fetches the file, or where else to get it.
  std::string remedy;
};

/// The largest size in bytes of a placeholder.
inline constexpr size_t kMaxPlaceholder = 512 << 10;
/// The number of a file's first bytes that are checked for a placeholder; shorter files are read
/// whole.
inline constexpr size_t kPlaceholderHead = 2048;

/// Finds out by its head whether the file at `path` is a pointer of Git LFS or git-annex, or the
/// page that a web site shows of the file. The files that ftrun reads never begin like these.
FilePlaceholder placeholder_of(const std::string& path, std::span<const std::byte> head);

/// Throws Error(kBadInput) that says which placeholder lies at `path`.
[[noreturn]] void refuse_placeholder(const std::string& path, const FilePlaceholder& found);

}  // namespace ftrun
