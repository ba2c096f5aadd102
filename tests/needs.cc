#include "needs.h"

#include <linux/magic.h>
#include <sys/vfs.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <map>
#include <utility>

#include "places.h"

namespace ftrun::testing {
namespace {

/// Returns the needs by name. The map is created on first use, because needs are registered before
/// main() in any order.
std::map<std::string, std::function<std::string()>>& needs() {
  static std::map<std::string, std::function<std::string()>> all;
  return all;
}

const Need kReference("reference", [] {
  const std::string folder = reference_file("");
  return std::filesystem::is_directory(folder) ? "" : folder + " does not exist";
});

const Need kDisk("disk", [] {
  const std::string folder = std::filesystem::temp_directory_path();
  struct statfs info {};
  if (::statfs(folder.c_str(), &info) != 0) return folder + " cannot be looked at";
  return info.f_type == TMPFS_MAGIC ? folder + " is in memory (tmpfs)" : "";
});

}  // namespace

Need::Need(std::string name, std::function<std::string()> missing) {
  needs().emplace(std::move(name), std::move(missing));
}

std::string needed() {
  const char* const need = std::getenv("FTRUN_TEST_NEEDS");
  return need == nullptr ? "" : need;
}

std::string missing() {
  if (needed().empty()) return "";
  const auto need = needs().find(needed());
  if (need != needs().end()) return need->second();
  std::cerr << "FTRUN_TEST_NEEDS=" << needed() << ": no test of this program names such a need\n";
  std::exit(1);
}

std::string reference_file(const std::string& name) {
  return source_dir() + "/../shared/reference/" + name;
}

}  // namespace ftrun::testing
