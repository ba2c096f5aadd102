#include "data/sidecar.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const ftrun::testing::TemporaryFolder folder(ftrun::fuzz::parent_of_inputs());
  folder.write("x.json", ftrun::fuzz::input_text(data, size));
  return ftrun::fuzz::parse_or_abort([&] {
    if (const auto sidecar = ftrun::read_sidecar(folder / "x.bin")) ftrun::sidecar_text(*sidecar);
    ftrun::read_flat_file_info(folder / "x.bin");
  });
}
