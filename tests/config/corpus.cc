#include "corpus.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/error.h"
#include "base/text.h"
#include "requirements.h"

namespace ftrun {

std::string corpus_folder() {
  return testing::reference_file("ds_corpus");
}

std::vector<std::string> corpus_files(const std::vector<std::string>& extensions) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(corpus_folder())) {
    const std::string extension = entry.path().extension();
    const std::string name = entry.path().filename();
    if (name != "oracle.json" &&
        std::find(extensions.begin(), extensions.end(), extension) != extensions.end())
      names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string compare_golden(const std::string& path, const std::string& text) {
  if (std::getenv("FTRUN_UPDATE_GOLDENS") != nullptr) std::ofstream(path) << text;
  std::ifstream in(path);
  const std::string golden{std::istreambuf_iterator<char>(in), {}};
  if (golden == text) return "";
  const auto have = split(text, '\n'), want = split(golden, '\n');
  for (size_t i = 0; i < std::max(have.size(), want.size()); ++i) {
    const std::string a = i < have.size() ? have[i] : "(nothing)";
    const std::string b = i < want.size() ? want[i] : "(nothing)";
    if (a != b)
      return cat(path, ":", i + 1, "\n  expected: ", b, "\n  found:    ", a,
                 "\n  (FTRUN_UPDATE_GOLDENS=1 writes it anew)");
  }
  return "";
}

}  // namespace ftrun
