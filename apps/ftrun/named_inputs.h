#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "config/problem.h"
#include "config/written_config.h"

namespace ftrun {

/// NamedInputs is the result of looking up a config's Hub names.
struct NamedInputs {
  /// `config` has the commit of its model (WrittenConfig::model_commit), and the file of a commit,
  /// "owner/name@commit/train", in the place of each name of a data set.
  WrittenConfig config;
  /// `notices` name the commits that a resumed run keeps though their names have moved on.
  std::vector<Problem> notices;
  /// `model` says that the commit of the model that a resumed run began with is gone.
  std::optional<Error> model;
  /// `data` has an error for each data set that is not there, with its key ("data.train").
  std::vector<std::pair<std::string, Error>> data;
};

/// Looks up what a config names on the Hugging Face Hub, once for the process. A run that `resumes`
/// keeps the commits that its run.json records, unless the config gives a whole commit itself. The
/// reader of the model refuses a model that is missing.
NamedInputs find_named_inputs(WrittenConfig config, bool resumes);

}  // namespace ftrun
