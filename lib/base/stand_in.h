#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace ftrun {

/// What lies under a file's name where the file itself was never fetched.
struct StandIn {
  /// "a Git LFS pointer"; empty where the file is itself.
  std::string kind;
  /// The command that fetches the file, or where else to get it.
  std::string remedy;
};

/// Tells by its first bytes whether the file at `path` is a pointer of Git LFS or git-annex, or the page that a web site shows of
/// the file. Files that are read here never begin so.
StandIn stand_in_of(const std::string& path, std::span<const std::byte> bytes);

/// Error(kBadInput) where the file at `path` is a stand-in.
void refuse_stand_in(const std::string& path, std::span<const std::byte> bytes);

}  // namespace ftrun
