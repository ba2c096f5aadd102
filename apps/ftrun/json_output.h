#pragma once

#include <exception>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/error.h"

namespace CLI {
class App;
}

namespace ftrun {

/// JsonOutput is the output of a command that was called with --json: one JSON object, which is the
/// only text on standard output. answer_schema() returns its schema. The text for people is then
/// not printed; messages on standard error are unchanged.
class JsonOutput {
 public:
  /// Silences standard output if --json is among the arguments.
  explicit JsonOutput(const std::vector<std::string>& arguments);
  ~JsonOutput();
  JsonOutput(const JsonOutput&) = delete;
  JsonOutput& operator=(const JsonOutput&) = delete;

  /// Declares --json.
  static void add_option(CLI::App& command);
  /// Returns whether --json was given, and the command has not been told to print text instead.
  bool is_requested() const { return silenced_ != nullptr; }

  /// Sets the name of the command that runs.
  void set_command(const std::string& command) { command_ = command; }
  /// Adds a part of the result.
  template <class Value>
  void add(const char* key, const Value& value) {
    if (is_requested()) result_[key] = value;
  }

  /// Print the output of a command that has ended, or the failure that ended it; both do nothing
  /// without --json.
  void print(int exit_code);
  void print_failure(const std::exception& failure);
  /// Makes the command print text instead of JSON, because the user asked for help.
  void print_text_instead();

 private:
  void print_object(const nlohmann::ordered_json& fields);

  std::string command_;
  nlohmann::ordered_json result_ = nlohmann::ordered_json::object();
  std::streambuf* silenced_ = nullptr;
};

/// Returns the word that identifies a kind of failure to programs; docs/errors.md has a section for
/// each.
const char* error_code_name(ExitCode code);

/// Returns the JSON Schema of the output of all commands (`ftrun schema --answers`).
std::string answer_schema();

}  // namespace ftrun
