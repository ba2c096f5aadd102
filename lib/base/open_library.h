#pragma once

#include <functional>
#include <string>
#include <vector>

namespace ftrun {

/// Sets the function that returns the folders that open_library() searches after the loader's own.
/// It is called once, when a library is first missing.
void set_library_folders(std::function<std::vector<std::string>()> folders);

/// LibraryHandle is an opened library, or the error that says why it could not be opened.
struct LibraryHandle {
  void* handle = nullptr;
  std::string error;
};

/// Opens a library as dlopen(`file`, `flags`) does. If the loader does not find the library, or one
/// that it depends on, the missing library is loaded from the folders of set_library_folders(): an
/// installed ftrun finds LibTorch and CUDA where pip put them.
LibraryHandle open_library(const std::string& file, int flags);

}  // namespace ftrun
