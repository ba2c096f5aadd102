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
  /// The config with the commit of its model (WrittenConfig::model_commit), in which each name of a
  /// data set is replaced by a file with its commit: "owner/name@commit/train".
  WrittenConfig config;
  /// Notices about commits that a resumed run keeps although their names now refer to newer
  /// commits.
  std::vector<Problem> notices;
  /// The error if the commit of the model with which a resumed run began is gone.
  std::optional<Error> model_error;
  /// An error for each missing data set, with its key ("data.train").
  std::vector<std::pair<std::string, Error>> data_errors;
};

/// Looks up the Hub names of a config, once per process. With `resumes` a run keeps the commits
/// that its run.json records, unless the config gives a full commit. A missing model is refused
/// later, when it is read.
NamedInputs find_named_inputs(WrittenConfig config, bool resumes);

}  // namespace ftrun
