#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>

#include "../temporary_folder.h"
#include "base/error.h"

// Fuzz target: each .cc file of this folder but replay.cc passes arbitrary bytes to code that reads
// a file which somebody else may have made. LibFuzzer generates the bytes (scripts/fuzz.sh), or
// replay.cc takes the files of tests/fuzz/corpus and random changes of them (CTest).
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace ftrun::fuzz {

inline std::string_view input_text(const uint8_t* data, size_t size) {
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

/// Returns the folder in which a target makes the folder of its inputs: $TMPDIR, else memory if
/// possible.
inline std::filesystem::path parent_of_inputs() {
  return std::getenv("TMPDIR") == nullptr ? testing::folder_in_memory()
                                          : std::filesystem::temp_directory_path();
}

}  // namespace ftrun::fuzz
