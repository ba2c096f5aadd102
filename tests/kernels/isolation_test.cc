#include <cstdio>
#include <sstream>
#include <string>

#include <catch2/catch.hpp>

#include "source_paths.h"

namespace ftrun::testing {
namespace {

std::string output_of(const std::string& command) {
  FILE* const pipe = popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  std::string text;
  char buffer[4096];
  while (const size_t count = fread(buffer, 1, sizeof buffer, pipe)) text.append(buffer, count);
  REQUIRE(pclose(pipe) == 0);
  return text;
}

// An inline function of a header that is compiled both with AVX and without is one symbol: the
// linker keeps either version, and a CPU without AVX could crash in unrelated code.
TEST_CASE(
    "objects compiled for one instruction set define nothing that other objects could link to") {
  const std::string symbols =
      output_of("nm -A -C '" + testing::binary_dir() + "/lib/libftrun_kernels.a' 2>/dev/null");
  std::istringstream lines(symbols);
  int tables = 0;
  for (std::string line; std::getline(lines, line);) {
    std::string isa;
    for (const std::string one : {"avx2", "avx512", "avx512_bf16", "amx"})
      if (line.find(":" + one + ".cc.o:") != std::string::npos) isa = one;
    if (isa.empty()) continue;
    const size_t type = line.find_first_of("ABbCDdGgiRrSsTtUuVvWw", line.rfind(".cc.o:") + 6 + 16);
    REQUIRE(type != std::string::npos);
    const std::string name = line.substr(type + 2);
    const bool own = name.starts_with("ftrun::" + isa + "::");
    INFO(line);
    if (line[type] == 'U' ||
        (line[type] >= 'a' && line[type] != 'u' && line[type] != 'v' && line[type] != 'w'))
      continue;
    REQUIRE(own);
    ++tables;
  }
  REQUIRE(tables == 12);
}

}  // namespace
}  // namespace ftrun::testing
