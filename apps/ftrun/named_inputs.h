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
  /// The config with the commit of its model (WrittenConfig::model_commit), and with the file of a
  /// commit, "owner/name@commit/train", in place of each name of a data set.
  WrittenConfig config;
  /// The notices that name the commits which a resumed run keeps although their names now stand for
  /// newer ones.
  std::vector<Problem> notices;
  /// The error that the commit of the model with which a resumed run began is gone.
  std::optional<Error> model_error;
  /// An error for each missing data set, with its key ("data.train").
  std::vector<std::pair<std::string, Error>> data_errors;
};

/// Looks up the Hub names of a config, once for the process. A run that `resumes` keeps the commits
/// that its run.json records, unless the config gives a full commit. A missing model is refused
/// later, by the model's reader.
NamedInputs find_named_inputs(WrittenConfig config, bool resumes);

}  // namespace ftrun
