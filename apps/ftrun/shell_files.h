#pragma once

#include <string>

namespace CLI {
class App;
}

namespace ftrun {

/// The manual page, in man's language, of a program's commands and options as they are declared.
std::string manual_page(const CLI::App& app, const std::string& version);

/// The completions of "bash", "zsh" or "fish" for a program's commands and options as they are
/// declared. Values of options are completed as files. Error(kUsage) for another shell.
std::string shell_completion(const CLI::App& app, const std::string& shell);

}  // namespace ftrun
