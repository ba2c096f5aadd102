#pragma once

#include <string>
#include <vector>

#include "base/env_lookup.h"

namespace ftrun {

/// A torch package that was looked at: its folder, and the version that its version.py says (""
/// where it says none).
struct TorchFolder {
  std::string folder;
  std::string version;
};

/// TorchSearch says what LibTorch was built for, and where it may be.
struct TorchSearch {
  /// The version that this program was built with: "2.11.0+cu130".
  std::string wanted;
  /// The folder above bin/ftrun.
  std::string prefix;
  /// The torch package of the build; "" for none.
  std::string built_with;
  /// The variables of the process, or a test's.
  EnvLookup variable;
};

/// The torch packages that may be LibTorch's, the first choice first, those that are not there
/// left out: FTRUN_TORCH (alone, where it is set), PREFIX/torch, those in
/// lib/python3*/{site,dist}-packages of PREFIX, of VIRTUAL_ENV, of CONDA_PREFIX and of
/// /usr/local, those whose lib is in LD_LIBRARY_PATH, and that of the build.
std::vector<TorchFolder> torch_candidates(const TorchSearch& search);

/// The first one of the wanted version. Error(kEnvironment) that lists what was found instead.
std::string find_torch(const TorchSearch& search);

/// Folders whose libraries LibTorch, CUDA's modules and the libraries of products are loaded from,
/// beside the loader's own: of a torch package, and of the packages installed beside it.
std::vector<std::string> library_folders_of(const std::string& torch);

}  // namespace ftrun
