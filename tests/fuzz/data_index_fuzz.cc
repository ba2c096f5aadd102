// This target reads Megatron's index together with fixed tokens, the same 286 bytes as in
// tests/data/fixtures.

#include "data/megatron.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const ftrun::testing::TemporaryFolder folder(ftrun::fuzz::parent_of_inputs());
  static const std::string tokens = folder.write("x.bin", std::string(286, '\1'));
  folder.write("x.idx", ftrun::fuzz::input_text(data, size));
  return ftrun::fuzz::parse_or_abort([&] {
    const auto file = ftrun::open_megatron(folder / "x");
    for (int64_t d = 0; d <= file->documents(); ++d)
      ftrun::require(file->document_start(d) >= 0 && file->document_start(d) <= file->tokens(),
                     "documents lie in their file");
  });
}
