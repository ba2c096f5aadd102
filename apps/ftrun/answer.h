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

/// Answer is the result of a command that was called with --json: one JSON object, which is the
/// only text on standard output. answer_schema() returns its schema. The text for people is then
/// not printed; messages on standard error are unchanged.
class Answer {
 public:
  /// Silences standard output if --json is among the arguments.
  explicit Answer(const std::vector<std::string>& arguments);
  ~Answer();
  Answer(const Answer&) = delete;
  Answer& operator=(const Answer&) = delete;

  /// Declares --json.
  static void add_option(CLI::App& command);
  bool is_wanted() const { return silenced_ != nullptr; }

  /// Sets the name of the command that runs.
  void name_command(const std::string& command) { command_ = command; }
  /// Adds a part of the result.
  template <class Value>
  void add(const char* key, const Value& value) {
    if (is_wanted()) result_[key] = value;
  }

  /// Prints the answer of a command that has ended; does nothing without --json.
  void print(int exit_code);
  void print_failure(const std::exception& failure);
  /// Makes the command print text instead of JSON, because the user asked for help.
  void print_text_instead();

 private:
  void write(nlohmann::ordered_json answer);

  std::string command_;
  nlohmann::ordered_json result_ = nlohmann::ordered_json::object();
  std::streambuf* silenced_ = nullptr;
};

/// Returns the word that identifies a kind of failure to programs; docs/errors.md has a section for
/// each.
const char* error_code_name(ExitCode code);

/// Returns the JSON Schema of all answers (`ftrun schema --answers`).
std::string answer_schema();

}  // namespace ftrun
