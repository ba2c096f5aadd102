#pragma once

#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "base/error.h"

// Each file here is a target: what reads a file that somebody else may have made, given any bytes. LibFuzzer makes them up
// (scripts/fuzz.sh), replay.cc gives those of tests/fuzz/corpus and mutants of them (CTest).
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace ftrun::fuzz {

inline std::string_view text_of(const uint8_t* data, size_t size) { return {reinterpret_cast<const char*>(data), size}; }

/// A result or a message is all that may come of it: another exception, and one that names a defect of ftrun, is a finding.
template <typename Parse>
int judge(Parse parse) {
  try {
    parse();
  } catch (const Error& error) {
    if (error.code() != ExitCode::kBug) return 0;
    std::fprintf(stderr, "%s\n", error.what());
    std::abort();
  }
  return 0;
}

/// Files of this process for parsers that read from a path: below $TMPDIR, else in memory where the machine has /dev/shm.
class ScratchFolder {
 public:
  ScratchFolder() {
    const char* given = std::getenv("TMPDIR");
    std::string name = given != nullptr ? given : std::filesystem::exists("/dev/shm") ? "/dev/shm" : "/tmp";
    name += "/ftrun_fuzz_XXXXXX";
    path_ = ::mkdtemp(name.data());
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  std::string path(const std::string& name) const { return path_ + "/" + name; }
  std::string write(const std::string& name, std::string_view content) const {
    std::ofstream(path(name), std::ios::binary | std::ios::trunc) << content;
    return path(name);
  }

 private:
  std::string path_;
};

}  // namespace ftrun::fuzz
