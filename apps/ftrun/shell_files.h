#pragma once

#include <string>

namespace CLI {
class App;
}

namespace ftrun {

/// Returns the manual page, in man's language, of a program's commands and options as declared.
std::string manual_page(const CLI::App& app, const std::string& version);

/// Returns the completions of "bash", "zsh" or "fish" for a program's commands and options as
/// declared. Values of options are completed as files. Error(kUsage) for another shell.
std::string shell_completion(const CLI::App& app, const std::string& shell);

}  // namespace ftrun
