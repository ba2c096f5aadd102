#include "shell_files.h"

#include <CLI/CLI.hpp>

#include <string>
#include <vector>

#include "base/error.h"
#include "base/text.h"

namespace ftrun {
namespace {

/// Returns the options of a command that its help text shows.
std::vector<const CLI::Option*> shown_options(const CLI::App& command) {
  std::vector<const CLI::Option*> shown;
  for (const CLI::Option* option : command.get_options())
    if (!option->get_group().empty() && !option->get_positional()) shown.push_back(option);
  return shown;
}

std::vector<const CLI::App*> shown_commands(const CLI::App& app) {
  std::vector<const CLI::App*> shown;
  for (const CLI::App* command : app.get_subcommands(nullptr))
    if (!command->get_group().empty()) shown.push_back(command);
  return shown;
}

/// Returns the names of an option: "-c", "--config".
std::vector<std::string> flags_of(const CLI::Option& option) {
  std::vector<std::string> flags;
  for (const std::string& name : option.get_snames()) flags.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) flags.push_back("--" + name);
  return flags;
}

bool takes_value(const CLI::Option& option) {
  return option.get_items_expected_max() > 0;
}

std::string replace_all(std::string text, const std::string& from, const std::string& to) {
  for (size_t offset = text.find(from); offset != std::string::npos;
       offset = text.find(from, offset + to.size()))
    text.replace(offset, from.size(), to);
  return text;
}

// ---- the manual page ----

/// Escapes a text for man (roff): backslashes and hyphens, and a period or quote at the beginning,
/// which would start a request.
std::string escape_roff(const std::string& text) {
  std::string safe = replace_all(replace_all(text, "\\", "\\e"), "-", "\\-");
  return safe.starts_with(".") || safe.starts_with("'") ? "\\&" + safe : safe;
}

std::string roff_option(const CLI::Option& option) {
  const std::string value =
      takes_value(option) ? cat(" \\fI", escape_roff(option.get_type_name()), "\\fR") : "";
  return cat(".TP\n\\fB", escape_roff(join(flags_of(option), ", ")), "\\fR", value, "\n",
             escape_roff(option.get_description()), "\n");
}

std::string roff_options(const CLI::App& command) {
  std::string text;
  for (const CLI::Option* option : command.get_options())
    if (option->get_positional() && !option->get_group().empty())
      text += cat(".TP\n\\fI", escape_roff(option->get_name(true)), "\\fR\n",
                  escape_roff(option->get_description()), "\n");
  for (const CLI::Option* option : shown_options(command)) text += roff_option(*option);
  return text;
}

// ---- completions ----

std::vector<std::string> all_flags(const CLI::App& command) {
  std::vector<std::string> flags;
  for (const CLI::Option* option : shown_options(command))
    for (const std::string& flag : flags_of(*option)) flags.push_back(flag);
  return flags;
}

/// Returns the completions for bash: options after "-", commands as the first word, and files
/// everywhere else.
std::string bash_completion(const CLI::App& app) {
  std::vector<std::string> names;
  std::string cases;
  for (const CLI::App* command : shown_commands(app)) {
    names.push_back(command->get_name());
    cases +=
        cat("    ", command->get_name(), ") flags='", join(all_flags(*command), " "), "' ;;\n");
  }
  return cat(
      "# bash completion of ftrun\n_ftrun() {\n  local word=${COMP_WORDS[COMP_CWORD]} command='' "
      "flags each\n"
      "  for each in \"${COMP_WORDS[@]:1:COMP_CWORD-1}\"; do\n    case $each in ",
      join(names, " | "), ") command=$each; break ;; esac\n  done\n  case $command in\n", cases,
      "    *) flags='", join(all_flags(app), " "),
      "' ;;\n  esac\n  if [[ $word == -* ]]; then\n    COMPREPLY=($(compgen -W \"$flags\" -- "
      "\"$word\"))\n"
      "  elif ((COMP_CWORD == 1)); then\n    COMPREPLY=($(compgen -W '",
      join(names, " "),
      "' -- \"$word\"))\n  fi\n}\n"
      "complete -o default -F _ftrun ftrun\n");
}

/// Puts a text between single quotes.
std::string quoted(const std::string& text) {
  return "'" + replace_all(text, "'", "'\\''") + "'";
}

std::string zsh_option(const CLI::Option& option) {
  // "[", "]" and ":" have a special meaning in descriptions of zsh.
  const std::string description = replace_all(
      replace_all(replace_all(first_line(option.get_description()), "[", "("), "]", ")"), ":",
      "\\:");
  std::vector<std::string> specs;
  for (const std::string& flag : flags_of(option))
    specs.push_back(
        quoted(cat("*", flag, "[", description, "]", takes_value(option) ? ":value:_files" : "")));
  return join(specs, " ");
}

std::string zsh_options(const CLI::App& command) {
  std::vector<std::string> specs;
  for (const CLI::Option* option : shown_options(command)) specs.push_back(zsh_option(*option));
  return join(specs, " ");
}

std::string zsh_completion(const CLI::App& app) {
  std::string names, cases;
  for (const CLI::App* command : shown_commands(app)) {
    names += cat(" ", quoted(cat(command->get_name(), ":",
                                 replace_all(command->get_description(), ":", "\\:"))));
    cases += cat("    ", command->get_name(), ") _arguments ", zsh_options(*command),
                 " '*:file:_files' ;;\n");
  }
  return cat("#compdef ftrun\nlocal -a commands\ncommands=(", names,
             ")\nif ((CURRENT == 2)) && [[ $words[2] != -* ]]; then\n"
             "  _describe command commands && return\nfi\ncase $words[2] in\n",
             cases, "    *) _arguments ", zsh_options(app), " '*:file:_files' ;;\nesac\n");
}

std::string fish_options(const CLI::App& command, const std::string& condition) {
  std::string text;
  for (const CLI::Option* option : shown_options(command)) {
    text += cat("complete -c ftrun -n ", quoted(condition));
    for (const std::string& name : option->get_snames()) text += " -s " + name;
    for (const std::string& name : option->get_lnames()) text += " -l " + name;
    text += cat(takes_value(*option) ? " -r" : "", " -d ",
                quoted(first_line(option->get_description())), "\n");
  }
  return text;
}

std::string fish_completion(const CLI::App& app) {
  std::string text = "# fish completion of ftrun\n";
  for (const CLI::App* command : shown_commands(app))
    text += cat("complete -c ftrun -n __fish_use_subcommand -a ", command->get_name(), " -d ",
                quoted(command->get_description()), "\n");
  text += fish_options(app, "__fish_use_subcommand");
  for (const CLI::App* command : shown_commands(app))
    text += fish_options(*command, cat("__fish_seen_subcommand_from ", command->get_name()));
  return text;
}

}  // namespace

std::string manual_page(const CLI::App& app, const std::string& version) {
  std::string page =
      cat(".TH FTRUN 1 \"\" \"ftrun ", version, "\"\n.SH NAME\nftrun \\- ",
          escape_roff(app.get_description()),
          "\n.SH SYNOPSIS\n.B ftrun\n\\-\\-config \\fIFILE\\fR "
          "[\\fIoptions\\fR]\n.br\n.B ftrun\n\\fIcommand\\fR [\\fIoptions\\fR]\n"
          ".SH DESCRIPTION\n",
          escape_roff(app.get_footer()), "\n.SH OPTIONS OF TRAINING\n", roff_options(app));
  for (const CLI::App* command : shown_commands(app))
    page += cat(".SH COMMAND ", escape_roff(command->get_name()), "\n",
                escape_roff(command->get_description()), ".\n", roff_options(*command));
  return page;
}

std::string shell_completion(const CLI::App& app, const std::string& shell) {
  if (shell == "bash") return bash_completion(app);
  if (shell == "zsh") return zsh_completion(app);
  if (shell == "fish") return fish_completion(app);
  throw Error(ExitCode::kUsage, cat("there are no completions for the shell ", shell),
              "name bash, zsh or fish");
}

}  // namespace ftrun
