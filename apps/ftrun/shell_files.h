#pragma once

#include <string>

namespace CLI {
class App;
}

namespace ftrun {

/// Returns the manual page (in roff) of a program, made from its declared commands and options.
std::string manual_page(const CLI::App& app, const std::string& version);

/// Returns the completions for the shell "bash", "zsh" or "fish", made from a program's declared
/// commands and options. Values of options are completed as files. Throws Error(kUsage) for another
/// shell.
std::string shell_completion(const CLI::App& app, const std::string& shell);

}  // namespace ftrun
