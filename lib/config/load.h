#pragma once

#include <string>
#include <vector>

#include "config/written_config.h"

namespace ftrun {

/// LoadResult is the result of reading a config, which is usable only without errors among the
/// problems.
struct LoadResult {
  WrittenConfig written;
  /// Sorted by file, line and column; errors and notices.
  std::vector<Problem> problems;
  bool ok() const { return !has_errors(problems); }
};

/// Reads config files (JSON or YAML; a later file wins key by key) and then overrides of the form
/// "train.steps=100" (the value as YAML). Never throws for a user's mistake; a file that cannot be
/// read is a problem too.
LoadResult load_config(const std::vector<std::string>& files,
                       const std::vector<std::string>& overrides = {});

/// ConfigText is a config file that was read before, and its name in messages.
struct ConfigText {
  std::string name;
  std::string text;
};

/// Loads texts in memory as load_config() loads the files of their names, which are not opened.
LoadResult load_config_texts(const std::vector<ConfigText>& texts,
                             const std::vector<std::string>& overrides = {});

/// Loads a text in memory, named `name` in messages; ".json" and ".yaml" decide the format of a
/// name that has them.
LoadResult load_config_text(const std::string& name, const std::string& text,
                            const std::vector<std::string>& overrides = {});

/// Reads back the config that effective_json() wrote. Keys that a rule decides at each start
/// (device, checkpoint.keep_best.mode) have their defaults where the record says "auto", as have
/// keys that this version does not know.
Config recorded_config(const std::string& json);

}  // namespace ftrun
