#pragma once

#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

namespace ftrun {

/// ExitCode lists the exit codes of the ftrun binary (docs/errors.md). The supervisor decides by
/// them: do not renumber.
enum class ExitCode : int {
  kOk = 0,
  kBug = 1,          // a check in ftrun failed
  kUsage = 2,        // command line or config
  kUnsupported = 3,  // valid, but not supported (yet)
  kBadInput = 4,     // bad model, data or checkpoint
  kEnvironment = 5,  // disk, port, memory
  kPeerLost = 6,     // a rank died or a wait timed out
  kNumerical =
      7,  // non-finite loss or gradient, too many skipped steps, weights that a dtype cannot hold
  kRequeue = 75,  // the run was saved and asks to be started again
};

/// Appends a value as `ostream <<` writes it. Texts and whole numbers, of which a plan joins
/// millions, are appended without a stream, which takes several times as long.
template <typename Value>
void append_value(std::string& text, const Value& value) {
  if constexpr (std::is_convertible_v<const Value&, std::string_view>) {
    text.append(std::string_view(value));
  } else if constexpr (std::is_integral_v<Value> && sizeof(Value) > 1) {
    text.append(std::to_string(value));
  } else {
    std::ostringstream out;
    out << value;
    text.append(out.str());
  }
}

/// Appends its arguments as text.
template <typename... Args>
void append_text(std::string& text, const Args&... args) {
  (append_value(text, args), ...);
}

/// Joins its arguments as text: cat("rank ", 3, " of ", 4).
template <typename... Args>
std::string cat(const Args&... args) {
  std::string text;
  append_text(text, args...);
  return text;
}

/// Error is a failure that ends the command: what happened, what to do about it, and the exit code.
/// what() is the message, followed by "\n  remedy: ..." if there is a remedy.
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, std::string message, std::string remedy = "");
  ExitCode code() const { return code_; }
  const std::string& message() const { return message_; }
  const std::string& remedy() const { return remedy_; }

 private:
  ExitCode code_;
  std::string message_;
  std::string remedy_;
};

/// CodeLocation is the location of a call. It replaces std::source_location, which clang before 16
/// cannot use with libstdc++.
struct CodeLocation {
  const char* file = "";
  int line = 0;

  /// Returns the location of the call that uses this default argument.
  static constexpr CodeLocation current(const char* file = __builtin_FILE(),
                                        int line = __builtin_LINE()) {
    return {file, line};
  }
};

/// Throws Error(kBug) naming the source line: for conditions that only a defect of ftrun can break.
/// `detail` should hold both values that disagree.
[[noreturn]] void bug(const std::string& detail, CodeLocation where = CodeLocation::current());

/// Checks an invariant of the code, which `detail` states: calls bug() with "expected that DETAIL"
/// if it does not hold. Functions that report faults of the user's input or of the machine are
/// called check_NAME or refuse_NAME.
inline void require(bool condition, const char* detail,
                    CodeLocation where = CodeLocation::current()) {
  if (!condition) bug(cat("expected that ", detail), where);
}

/// Returns the text of an errno as strerror does, but is thread-safe: "No space left on device".
std::string errno_text(int error_number);

}  // namespace ftrun
