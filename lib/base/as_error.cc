#include "base/as_error.h"

#include <filesystem>
#include <new>
#include <system_error>

#include "base/limit_remedies.h"
#include "base/text.h"

namespace ftrun {
namespace {

Error refused_file(const std::filesystem::filesystem_error& error) {
  const std::string path = error.path1().empty() ? "" : error.path1().string() + ": ";
  return {ExitCode::kEnvironment, path + error.code().message(),
          "check that the path exists, that this user may use it, and that its disk works"};
}

}  // namespace

Error as_error(const std::exception& exception) {
  if (const auto* own = dynamic_cast<const Error*>(&exception)) return *own;
  if (const auto* file = dynamic_cast<const std::filesystem::filesystem_error*>(&exception))
    return refused_file(*file);
  const auto* system = dynamic_cast<const std::system_error*>(&exception);
  if (system != nullptr && system->code() == std::errc::resource_unavailable_try_again)
    return {ExitCode::kEnvironment,
            cat("the system cannot start another thread: ", first_line(exception.what())),
            more_threads_remedy()};
  if (system != nullptr)
    return {ExitCode::kEnvironment, cat("the system refused: ", first_line(exception.what())),
            "look at the limits of processes, open files and memory (ulimit -a)"};
  if (dynamic_cast<const std::bad_alloc*>(&exception) != nullptr)
    return {ExitCode::kEnvironment, "out of memory",
            "end other programs, raise the memory limit, or use a machine with more memory"};
  return {ExitCode::kBug, cat("internal error: ", first_line(exception.what()))};
}

bool is_out_of_memory(const std::exception_ptr& thrown) {
  if (!thrown) return false;
  try {
    std::rethrow_exception(thrown);
  } catch (const std::bad_alloc&) {
    return true;
  } catch (...) {
    return false;
  }
}

}  // namespace ftrun
