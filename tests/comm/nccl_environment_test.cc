#include "comm/nccl_environment.h"

#include <cstdlib>
#include <map>
#include <string>

#include <catch2/catch.hpp>

namespace {

constexpr const char* kNames[] = {"NCCL_ALGO", "NCCL_NVLS_ENABLE", "NCCL_RUNTIME_CONNECT",
                                  "NCCL_GRAPH_REGISTER"};

/// Returns the environment after prepare_nccl_environment(), which started with `given`.
std::map<std::string, std::string> prepared_environment(
    const std::map<std::string, std::string>& given) {
  for (const char* name : kNames) ::unsetenv(name);
  for (const auto& [name, value] : given) ::setenv(name.c_str(), value.c_str(), 1);
  ftrun::prepare_nccl_environment();
  std::map<std::string, std::string> found;
  for (const char* name : kNames) {
    if (const char* value = std::getenv(name)) found[name] = value;
    ::unsetenv(name);
  }
  return found;
}

}  // namespace

TEST_CASE(
    "NCCL may not add inside switches, and connects when a group opens, unless the user says "
    "otherwise") {
  using Names = std::map<std::string, std::string>;
  REQUIRE(prepared_environment({}) == Names{{"NCCL_NVLS_ENABLE", "0"},
                                            {"NCCL_RUNTIME_CONNECT", "0"},
                                            {"NCCL_GRAPH_REGISTER", "0"}});
  REQUIRE(prepared_environment({{"NCCL_ALGO", "NVLS"}}) == Names{{"NCCL_ALGO", "NVLS"},
                                                                 {"NCCL_RUNTIME_CONNECT", "0"},
                                                                 {"NCCL_GRAPH_REGISTER", "0"}});
  REQUIRE(prepared_environment({{"NCCL_NVLS_ENABLE", "1"},
                                {"NCCL_RUNTIME_CONNECT", "1"},
                                {"NCCL_GRAPH_REGISTER", "1"}}) ==
          Names{{"NCCL_NVLS_ENABLE", "1"},
                {"NCCL_RUNTIME_CONNECT", "1"},
                {"NCCL_GRAPH_REGISTER", "1"}});
}

TEST_CASE(
    "a folder for shared memory that is missing, read-only or too small is named with what helps") {
  REQUIRE(ftrun::shared_folder_warning(2, "/no/shm") ==
          "NCCL may need /no/shm for data between ranks, but it cannot be inspected: No such file "
          "or directory\n"
          "  remedy: mount it writable (docker run --ipc=host), or set NCCL_SHM_DISABLE=1");
  // This file system has no free space.
  REQUIRE(ftrun::shared_folder_warning(2, "/proc/sys")
              .starts_with("NCCL may need /proc/sys for data between ranks, but "));
  REQUIRE(ftrun::shared_folder_warning(0, ".").empty());
  const std::string small = ftrun::shared_folder_warning(1 << 30, ".");
  REQUIRE(small.ends_with(
      " free and 1073741824 ranks take about 32.00 PiB\n"
      "  remedy: give it more space (docker run --shm-size=1g, or --ipc=host), or set "
      "NCCL_SHM_DISABLE=1"));
}
