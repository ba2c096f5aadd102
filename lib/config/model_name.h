#pragma once

#include <string>

#include "base/error.h"
#include "base/hub_cache.h"
#include "config/config.h"

namespace ftrun {

/// Returns the name by which a run finds its model's folder: a name of the Hub with the very commit
/// that was looked up first, so that all processes and a resumed run read the same one; else the
/// path.
inline std::string pinned_name(const ModelSection& model) {
  return model.commit.empty() ? model.path
                              : cat(parse_hub_name(model.path)->repository, "@", model.commit);
}

/// Finds the folder that a run reads its model from. Error(kBadInput) as find_model_folder().
inline std::string folder_of(const ModelSection& model) {
  return find_model_folder(pinned_name(model)).folder;
}

/// Returns the name that files for other programs give the model: its path, and also the commit if
/// the path now leads to another one.
inline std::string lasting_name(const ModelSection& model) {
  if (model.commit.empty()) return model.path;
  try {
    if (find_model_folder(model.path).commit == model.commit) return model.path;
  } catch (const Error&) {
    // The name leads nowhere any more.
  }
  return pinned_name(model);
}

}  // namespace ftrun
