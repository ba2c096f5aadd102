// TARGET CORPUS MUTANTS runs a fuzz target on every file of a corpus, and on MUTANTS changed copies
// of each, which are the same in every run. If clang builds the targets (scripts/fuzz.sh),
// LibFuzzer's main() replaces this one.

#include <algorithm>
#include <iterator>
#include <random>
#include <vector>

#include "fuzz.h"

namespace {

using Bytes = std::vector<uint8_t>;

Bytes read_bytes(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Makes one to four changes: replaces a byte by another or by one that has a meaning for parsers,
/// removes or doubles a part, or cuts the end off.
void mutate(Bytes& bytes, std::mt19937& random) {
  constexpr std::string_view kMeaningful = "{}[]\",:0-9.eE\\\n#&*|>\xff";
  const size_t changes = 1 + random() % 4;
  for (size_t change = 0; change < changes && !bytes.empty(); ++change) {
    const size_t at = random() % bytes.size(),
                 length = std::min<size_t>(bytes.size() - at, 1 + random() % 32);
    const auto from = bytes.begin() + static_cast<std::ptrdiff_t>(at),
               to = from + static_cast<std::ptrdiff_t>(length);
    switch (random() % 5) {
      case 0:
        bytes[at] = static_cast<uint8_t>(random());
        break;
      case 1:
        bytes[at] = static_cast<uint8_t>(kMeaningful[random() % kMeaningful.size()]);
        break;
      case 2:
        bytes.erase(from, to);
        break;
      case 3: {
        const Bytes part(from, to);
        bytes.insert(from, part.begin(), part.end());
        break;
      }
      default:
        if (random() % 4 == 0) bytes.resize(at);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: %s CORPUS MUTANTS\n", argv[0]);
    return 2;
  }
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(argv[1]))
    files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  const int mutants = std::stoi(argv[2]);
  std::mt19937 random(20261123);
  for (const auto& file : files) {
    const Bytes original = read_bytes(file);
    LLVMFuzzerTestOneInput(original.data(), original.size());
    for (int i = 0; i < mutants; ++i) {
      Bytes bytes = original;
      mutate(bytes, random);
      bytes.shrink_to_fit();  // so a read past the end is outside the allocation
      LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
    }
  }
  std::printf("%zu files, %d mutants of each\n", files.size(), mutants);
  return files.empty() || mutants == 0 ? 1 : 0;
}
