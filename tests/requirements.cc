#include "requirements.h"

#include <linux/magic.h>
#include <sys/vfs.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <map>
#include <utility>

#include "source_paths.h"

namespace ftrun::testing {
namespace {

/// Returns the requirements by name. The map is created on first use, because requirements are
/// registered before main() in any order.
std::map<std::string, std::function<std::string()>>& requirements() {
  static std::map<std::string, std::function<std::string()>> all;
  return all;
}

const Requirement kReference("reference", [] {
  const std::string folder = reference_file("");
  return std::filesystem::is_directory(folder) ? "" : folder + " does not exist";
});

const Requirement kDisk("disk", [] {
  const std::string folder = std::filesystem::temp_directory_path();
  struct statfs info {};
  if (::statfs(folder.c_str(), &info) != 0) return folder + " cannot be looked at";
  return info.f_type == TMPFS_MAGIC ? folder + " is in memory (tmpfs)" : "";
});

}  // namespace

Requirement::Requirement(std::string name, std::function<std::string()> unmet) {
  requirements().emplace(std::move(name), std::move(unmet));
}

std::string requirement_of_entry() {
  const char* const name = std::getenv("FTRUN_TEST_NEEDS");
  return name == nullptr ? "" : name;
}

std::string unmet_requirement() {
  const std::string name = requirement_of_entry();
  if (name.empty()) return "";
  const auto found = requirements().find(name);
  if (found != requirements().end()) return found->second();
  std::cerr << "FTRUN_TEST_NEEDS=" << name << ": no test of this program has such a requirement\n";
  std::exit(1);
}

std::string reference_file(const std::string& name) {
  return source_dir() + "/../shared/reference/" + name;
}

}  // namespace ftrun::testing
