// This target reads checkpoint.json, also with a correct checksum: the checksum alone finds damage,
// but not a file that somebody made on purpose.

#include "base/checksum.h"
#include "checkpoint/checkpoint_manifest.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(ftrun::fuzz::input_text(data, size));
  ftrun::fuzz::parse_or_abort([&] { ftrun::parse_rank_record(text, "record"); });
  ftrun::fuzz::parse_or_abort([&] { ftrun::parse_manifest(text, "checkpoint.json"); });
  constexpr std::string_view kOpening = "{\n\"xxh3\": \"";
  constexpr size_t kDigits = 16;
  if (!text.starts_with(kOpening) || size < kOpening.size() + kDigits) return 0;
  const std::string rest = text.substr(kOpening.size() + kDigits);
  return ftrun::fuzz::parse_or_abort([&] {
    const std::string signed_text =
        ftrun::cat(kOpening, ftrun::hex64(ftrun::xxh3(rest.data(), rest.size())), rest);
    ftrun::manifest_text(ftrun::parse_manifest(signed_text, "checkpoint.json"));
  });
}
