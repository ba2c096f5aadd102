#pragma once

#include <string>
#include <unordered_set>
#include <vector>

namespace ftrun {

/// Position says where a config is written: a file with 1-based line and column, or (line 0) a
/// command-line override.
struct Position {
  std::string file;
  int line = 0;
  int column = 0;
  bool operator==(const Position&) const = default;
};

/// Moves the position `at` past one byte of a text. Columns are characters, as editors count them.
inline void advance_position(char byte, Position& at) {
  if (byte == '\n') {
    ++at.line;
    at.column = 1;
  } else if ((byte & 0xC0) != 0x80) {
    ++at.column;
  }
}

/// Formats a position: "cfg.yaml:12:7", "--set train.steps=x", or "" if there is none.
std::string to_text(const Position& at);

enum class Severity {
  kNotice,  // accepted; the user should know
  kError,   // the config cannot be used
};

/// Problem is an error or a notice about a config.
struct Problem {
  Position at;
  /// The message in one line: "zero_optimization.stag: unknown key".
  std::string message;
  /// The remedy; may be empty.
  std::string remedy;
  Severity severity = Severity::kError;
  /// The key that a notice is about: "zero_optimization.stage"; "" for an error, and for a notice
  /// that is about no single key.
  std::string key = {};
};

/// UnsupportedRequest is a valid request that this build cannot fulfill (exit code 3).
struct UnsupportedRequest {
  /// The name of the feature: "ZeRO stage 2".
  std::string feature;
  /// The key that requests it: "zero_optimization.stage".
  std::string key;
  Position at;
};

/// Formats a request: "cfg.yaml:12:7: not supported yet: ZeRO stage 2 (zero_optimization.stage)"
std::string to_text(const UnsupportedRequest& request);

/// Formats a problem: "cfg.yaml:12:7: error: message" and, if there is one, "\n remedy: ...".
std::string to_text(const Problem& problem);

bool has_errors(const std::vector<Problem>& problems);

/// Problems collects problems; equal messages about one position are kept only once.
class Problems {
 public:
  void error(const Position& at, std::string message, std::string remedy = "");
  void notice(const Position& at, std::string message, std::string remedy = "",
              std::string key = "");
  const std::vector<Problem>& all() const { return all_; }
  /// Returns all problems, sorted by file (in the order in which files were read), line and column.
  std::vector<Problem> sorted() const;

 private:
  void add(Problem problem);
  std::vector<Problem> all_;
  std::unordered_set<std::string> reported_;
};

}  // namespace ftrun
