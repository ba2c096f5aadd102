#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cluster/launch_environment.h"
#include "config/config.h"
#include "config/load.h"
#include "config/resolve.h"
#include "model/model_config.h"

namespace CLI {
class App;
}

namespace ftrun {

/// ConfigSource specifies the files and options from which a command reads its config.
struct ConfigSource {
  std::vector<std::string> files;
  /// Texts that are read instead of the files, if there are any.
  std::vector<ConfigText> texts;
  std::vector<std::string> overrides;
  std::optional<int64_t> nproc;
  /// Says whether the command also reads the headers of the model's weights and of the data files.
  bool reads_weights = false;
  bool reads_data = false;
  /// Says whether the run in output_dir is resumed, and keeps the commits of Hub inputs with which
  /// it began.
  bool resumes = false;
  /// Says whether the config is only planned: the model's config.json is sufficient, and data may
  /// be missing.
  bool plans_only = false;
  /// The model, if it is not read from the folder of the config.
  std::optional<ModelConfig> model;
};

/// Adds --config, --set and --nproc to a command.
void add_config_options(CLI::App& command, ConfigSource& source);

/// Reads the files, or the texts, of a source with its overrides.
LoadResult load_config(const ConfigSource& source);

/// Reads the files of a source into its texts, so that everything loaded from it later is
/// consistent. A source with a file that cannot be read is returned unchanged, and load_source()
/// reports the problem.
ConfigSource read_source_files(ConfigSource source);

/// LoadedConfig is a resolved config, and the model that it names.
struct LoadedConfig {
  Config config;
  int64_t ranks = 1;
  /// The rule that decided the number of ranks.
  std::string rank_rule;
  std::optional<ModelConfig> model;
  /// The context in which the config was resolved.
  ResolveContext context;
  /// Notices, and values that were resolved, one line each.
  std::vector<ResolvedLine> lines;
};

/// Returns whether this process prints notices: the first process of a job prints them, and ranks
/// that our supervisor started do not.
bool prints_notices(const LaunchEnvironment& launch);

/// Reads and resolves a source. Throws Error(kUsage) with all problems at once, or
/// Error(kUnsupported) with all features that this build lacks.
LoadedConfig load_source(const ConfigSource& source, const LaunchEnvironment& launch);

/// Reads a source, and looks up its Hub names, without resolving it. Throws the errors of
/// load_source().
WrittenConfig read_unresolved(const ConfigSource& source);

}  // namespace ftrun
