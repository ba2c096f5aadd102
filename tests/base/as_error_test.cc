#include "base/as_error.h"

#include <filesystem>
#include <new>
#include <stdexcept>
#include <string>
#include <system_error>

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

TEST_CASE("a refused system call is an environment error, with the path if it is known") {
  const auto converted_text = [](const std::exception& exception) {
    const Error error = as_error(exception);
    return cat(static_cast<int>(error.code()), " ", error.what());
  };
  const auto denied = std::make_error_code(std::errc::permission_denied);
  CHECK(converted_text(
            std::filesystem::filesystem_error("cannot get file status", "/data/model", denied)) ==
        "5 /data/model: Permission denied\n  remedy: check that the path exists, that this user "
        "may use it, and that its disk works");
  CHECK(converted_text(std::filesystem::filesystem_error("cannot get current path", denied)) ==
        "5 Permission denied\n  remedy: check that the path exists, that this user may use it, and "
        "that its disk works");
  CHECK(
      converted_text(std::system_error(std::make_error_code(std::errc::operation_not_permitted))) ==
      "5 the system refused: Operation not permitted\n  remedy: look at the limits of "
      "processes, open files and memory (ulimit -a)");
  CHECK(converted_text(std::bad_alloc()) ==
        "5 out of memory\n  remedy: end other programs, raise the memory limit, or use a machine "
        "with more memory");
}

TEST_CASE(
    "an Error stays unchanged, and an unexpected exception is a defect reported in one line") {
  const Error lost(ExitCode::kPeerLost, "rank 1 is gone", "look at its log");
  CHECK(as_error(lost).code() == ExitCode::kPeerLost);
  CHECK(std::string(as_error(lost).what()) == lost.what());
  const Error odd = as_error(std::runtime_error("sizes differ\nframe #0: at::sum"));
  CHECK(odd.code() == ExitCode::kBug);
  CHECK(std::string(odd.what()) == "internal error: sizes differ");
}

}  // namespace
}  // namespace ftrun
