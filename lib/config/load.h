#pragma once

#include <string>
#include <vector>

#include "config/written_config.h"

namespace ftrun {

/// LoadResult is the result of reading a config. The config is usable only if no problem is an
/// error.
struct LoadResult {
  WrittenConfig written;
  /// Errors and notices, sorted by file, line and column.
  std::vector<Problem> problems;
  bool ok() const { return !has_errors(problems); }
};

/// Reads config files (JSON or YAML; a later file wins key by key) and then overrides of the form
/// "train.steps=100" (the value as YAML). It never throws for a user's mistake; a file that cannot
/// be read is also reported as a problem.
LoadResult load_config(const std::vector<std::string>& files,
                       const std::vector<std::string>& overrides = {});

/// ConfigText is the text of a config file that was read before, and its name in messages.
struct ConfigText {
  std::string name;
  std::string text;
};

/// Loads texts in memory as load_config() loads files; it does not open files of their names.
LoadResult load_config_texts(const std::vector<ConfigText>& texts,
                             const std::vector<std::string>& overrides = {});

/// Loads a text in memory, which messages call `name`. If the name ends in ".json" or ".yaml", this
/// decides the format.
LoadResult load_config_text(const std::string& name, const std::string& text,
                            const std::vector<std::string>& overrides = {});

/// Reads back the config that effective_json() wrote. Keys that are decided again at each start
/// (device, checkpoint.keep_best.mode) get their defaults if the record says "auto". Missing keys
/// also get their defaults; keys that this version does not know are ignored.
Config recorded_config(const std::string& json);

}  // namespace ftrun
