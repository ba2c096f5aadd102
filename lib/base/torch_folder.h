#pragma once

#include <string>
#include <vector>

#include "base/env_lookup.h"

namespace ftrun {

/// TorchFolder is a torch package: its folder, and the version in its version.py ("" if the file
/// gives none).
struct TorchFolder {
  std::string folder;
  std::string version;
};

/// TorchSearch holds the version of LibTorch that this program needs, and the places to look for
/// it.
struct TorchSearch {
  /// The version that this program was built with: "2.11.0+cu130".
  std::string required_version;
  /// The installation's folder, which holds bin/ftrun.
  std::string prefix;
  /// The torch package of the build; "" for none.
  std::string build_torch;
  /// The lookup of environment variables: the process's, or a test's.
  EnvLookup env_lookup;
};

/// Lists the torch packages that may hold LibTorch, the first choice first, without missing ones:
/// FTRUN_TORCH (only this one, if it is set), PREFIX/torch, those in
/// lib/python3*/{site,dist}-packages of PREFIX, of VIRTUAL_ENV, of CONDA_PREFIX and of /usr/local,
/// those whose lib folder is in LD_LIBRARY_PATH, and that of the build.
std::vector<TorchFolder> list_torch_candidates(const TorchSearch& search);

/// Returns the first candidate that has the wanted version. Throws an Error(kEnvironment) that
/// lists what was found instead.
std::string find_torch(const TorchSearch& search);

/// Lists the folders, besides the loader's own, from which LibTorch, CUDA's modules and the
/// libraries that multiply matrices are loaded: those of a torch package, and those of the packages
/// that are installed next to it.
std::vector<std::string> library_folders_of(const std::string& torch);

}  // namespace ftrun
