#include "base/open_library.h"

#include <dlfcn.h>

#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

namespace ftrun {
namespace {

std::function<std::vector<std::string>()>& library_folder_finder() {
  static std::function<std::vector<std::string>()> known;
  return known;
}

const std::vector<std::string>& library_folders() {
  static const std::vector<std::string> found =
      library_folder_finder() ? library_folder_finder()() : std::vector<std::string>();
  return found;
}

/// Reads "libcublas.so.13" from "libcublas.so.13: cannot open shared object file: No such file or
/// directory"; "" from any other error.
std::string parse_missing_library(const std::string& error) {
  const size_t colon = error.find(": cannot open shared object file");
  return colon == std::string::npos ? "" : error.substr(0, colon);
}

std::string find_in_library_folders(const std::string& name) {
  if (name.empty() || name.find('/') != std::string::npos) return "";
  std::error_code error;
  for (const std::string& folder : library_folders())
    if (std::string path = folder + "/" + name; std::filesystem::exists(path, error)) return path;
  return "";
}

/// Opens a library after the libraries that it needs. `tried` holds the libraries that were tried
/// already, so that the search ends.
LibraryHandle open_with_dependencies(const std::string& file, int flags,
                                     std::set<std::string>& tried) {
  for (;;) {
    if (void* handle = ::dlopen(file.c_str(), flags)) return {handle, ""};
    const std::string error = ::dlerror();
    const std::string path = find_in_library_folders(parse_missing_library(error));
    if (path.empty() || path == file || !tried.insert(path).second) return {nullptr, error};
    // The library is opened by its full path. Libraries that depend on it find it by its name,
    // because it is loaded already.
    if (const LibraryHandle needed = open_with_dependencies(path, flags, tried);
        needed.handle == nullptr)
      return needed;
    if (parse_missing_library(error) == file) return {::dlopen(path.c_str(), flags), ""};
  }
}

}  // namespace

void set_library_folders(std::function<std::vector<std::string>()> folders) {
  library_folder_finder() = std::move(folders);
}

LibraryHandle open_library(const std::string& file, int flags) {
  std::set<std::string> tried;
  return open_with_dependencies(file, flags, tried);
}

}  // namespace ftrun
