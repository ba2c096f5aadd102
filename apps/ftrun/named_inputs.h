#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "config/config.h"
#include "config/problem.h"

namespace ftrun {

/// NamedInputs is the result of looking up a config's Hub names.
struct NamedInputs {
  /// `notices` name the commits that a resumed run keeps though their names have moved on.
  std::vector<Problem> notices;
  /// `model` says that the commit of the model that a resumed run began with is gone.
  std::optional<Error> model;
  /// `data` has an error for each data set that is not there, with its key ("data.train").
  std::vector<std::pair<std::string, Error>> data;
};

/// Looks up what a config names on the Hugging Face Hub, once for the process: notes the model's
/// commit (ModelSection::commit), and replaces each name of a data set by the file of a commit,
/// "owner/name@commit/train". A run that `resumes` keeps the commits that its run.json records,
/// unless the config gives a whole commit itself. The reader of the model refuses a model that is
/// missing.
NamedInputs find_named_inputs(Config& config, bool resumes);

}  // namespace ftrun
