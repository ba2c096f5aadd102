#include "base/error.h"

#include <cstring>
#include <system_error>
#include <utility>

namespace ftrun {
namespace {
std::string full_text(const std::string& message, const std::string& remedy) {
  return remedy.empty() ? message : message + "\n  remedy: " + remedy;
}
}  // namespace

Error::Error(ExitCode code, std::string message, std::string remedy)
    : std::runtime_error(full_text(message, remedy)),
      code_(code),
      message_(std::move(message)),
      remedy_(std::move(remedy)) {}

void bug(const std::string& detail, CodeLocation where) {
  throw Error(ExitCode::kBug, cat("internal error at ", where.file, ":", where.line, ": ", detail),
              "please report this message with the config that caused it");
}

std::string errno_text(int error_number) {
  return std::generic_category().message(error_number);
}

}  // namespace ftrun
