#include "base/open_library.h"

#include <dlfcn.h>

#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

namespace ftrun {
namespace {

std::function<std::vector<std::string>()>& finder() {
  static std::function<std::vector<std::string>()> known;
  return known;
}

const std::vector<std::string>& folders() {
  static const std::vector<std::string> found = finder() ? finder()() : std::vector<std::string>();
  return found;
}

/// Reads "libcublas.so.13" from "libcublas.so.13: cannot open shared object file: No such file or
/// directory"; "" from any other error.
std::string missing_library(const std::string& error) {
  const size_t colon = error.find(": cannot open shared object file");
  return colon == std::string::npos ? "" : error.substr(0, colon);
}

std::string path_in_folders(const std::string& name) {
  if (name.empty() || name.find('/') != std::string::npos) return "";
  std::error_code error;
  for (const std::string& folder : folders())
    if (std::string path = folder + "/" + name; std::filesystem::exists(path, error)) return path;
  return "";
}

/// Opens a library after the libraries that it needs. `tried` holds the libraries that were tried
/// already, so that the search ends.
LibraryHandle open_with(const std::string& file, int flags, std::set<std::string>& tried) {
  for (;;) {
    if (void* handle = ::dlopen(file.c_str(), flags)) return {handle, ""};
    const std::string error = ::dlerror();
    const std::string path = path_in_folders(missing_library(error));
    if (path.empty() || path == file || !tried.insert(path).second) return {nullptr, error};
    // The library is opened by its full path. Libraries that depend on it find it by its name,
    // because it is loaded already.
    if (const LibraryHandle needed = open_with(path, flags, tried); needed.handle == nullptr)
      return needed;
    if (missing_library(error) == file) return {::dlopen(path.c_str(), flags), ""};
  }
}

}  // namespace

void set_library_folders(std::function<std::vector<std::string>()> folders) {
  finder() = std::move(folders);
}

LibraryHandle open_library(const std::string& file, int flags) {
  std::set<std::string> tried;
  return open_with(file, flags, tried);
}

}  // namespace ftrun
