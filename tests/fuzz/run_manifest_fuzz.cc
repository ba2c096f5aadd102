#include "fuzz.h"
#include "report/run_manifest.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const ftrun::testing::TemporaryFolder folder(ftrun::fuzz::parent_of_inputs());
  const std::string path = folder.write("run.json", ftrun::fuzz::input_text(data, size));
  return ftrun::fuzz::parse_or_abort([&] { ftrun::manifest_text(ftrun::read_manifest(path)); });
}
