#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "../base/temporary_folder.h"
#include "base/error.h"

// Fuzz target: each .cc file of this folder but replay.cc passes arbitrary bytes to code that reads
// a file which somebody else may have made. LibFuzzer generates the bytes (scripts/fuzz.sh), or
// replay.cc takes the files of tests/fuzz/corpus and random changes of them (CTest).
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace ftrun::fuzz {

inline std::string_view text_of(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

/// Runs `parse`, which may only succeed or throw an Error. Another exception, or an Error that says
/// that ftrun has a defect, is a finding.
template <typename Parse>
int parse_or_abort(Parse parse) {
  try {
    parse();
  } catch (const Error& error) {
    if (error.code() != ExitCode::kBug) return 0;
    std::fprintf(stderr, "%s\n", error.what());
    std::abort();
  }
  return 0;
}

/// ScratchFolder holds this process's files for parsers that read from a path. It lies below
/// $TMPDIR, else in /dev/shm (memory) if the machine has it.
class ScratchFolder : public testing::TemporaryFolder {
 public:
  ScratchFolder()
      : TemporaryFolder(std::getenv("TMPDIR") == nullptr && std::filesystem::exists("/dev/shm")
                            ? "/dev/shm"
                            : std::filesystem::temp_directory_path()) {}

  std::string write(const std::string& name, std::string_view content) const {
    std::ofstream(file(name), std::ios::binary | std::ios::trunc) << content;
    return file(name);
  }
};

}  // namespace ftrun::fuzz
