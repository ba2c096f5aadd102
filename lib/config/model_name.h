#pragma once

#include <string>

#include "base/error.h"
#include "base/hub_cache.h"
#include "config/config.h"

namespace ftrun {

/// Returns the name by which a run finds its model's folder. It is a Hub name with the commit that
/// was found first, so that all processes and a resumed run read the same model; else it is the
/// path.
inline std::string pinned_name(const ModelSection& model) {
  return model.commit.empty() ? model.path
                              : cat(parse_hub_name(model.path)->repository, "@", model.commit);
}

/// Finds the folder from which a run reads its model. Throws Error(kBadInput) as
/// find_model_folder() does.
inline std::string folder_of(const ModelSection& model) {
  return find_model_folder(pinned_name(model)).folder;
}

/// Returns the name of the model for files that other programs read: its path, with the commit if
/// the path now leads to another commit.
inline std::string portable_name(const ModelSection& model) {
  if (model.commit.empty()) return model.path;
  try {
    if (find_model_folder(model.path).commit == model.commit) return model.path;
  } catch (const Error&) {
    // The path no longer leads to a folder.
  }
  return pinned_name(model);
}

}  // namespace ftrun
