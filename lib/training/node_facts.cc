#include "training/node_facts.h"

#include <dlfcn.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "base/amount_text.h"
#include "base/checksum.h"
#include "base/error.h"
#include "base/file.h"
#include "base/hub_cache.h"
#include "base/installed_module.h"
#include "base/text.h"
#include "config/model_name.h"
#include "data/sequence_reader.h"
#include "data/sequence_set.h"

namespace ftrun {
namespace {

constexpr size_t kPieceBytes = 4096;
constexpr int64_t kPieces = 20;
constexpr int64_t kSampledSequences = 32;
constexpr const char* kMissing = "missing";

/// Hashes `count` pieces of a file, evenly spread from its first byte to its last. A file that is
/// no larger than these pieces is hashed whole.
std::string hash_file_samples(const std::string& path, int64_t count) {
  std::error_code error;
  const auto size = static_cast<int64_t>(std::filesystem::file_size(path, error));
  std::ifstream file(path, std::ios::binary);
  if (error || !file) return kMissing;
  Xxh3Stream hash;
  std::vector<char> buffer(kPieceBytes);
  const auto add = [&](int64_t offset) {
    file.clear();
    file.seekg(offset);
    file.read(buffer.data(), static_cast<std::streamsize>(buffer.size()));
    hash.update(buffer.data(), static_cast<size_t>(file.gcount()));
  };
  const auto bytes = static_cast<int64_t>(kPieceBytes);
  if (size <= count * bytes)
    for (int64_t offset = 0; offset < size; offset += bytes) add(offset);
  else
    for (int64_t i = 0; i < count; ++i) add((size - bytes) * i / (count - 1));
  return cat(size, " bytes, xxh3 ", hex64(hash.digest()));
}

std::string hash_whole_file(const std::string& path) {
  return hash_file_samples(path,
                           std::numeric_limits<int64_t>::max() / static_cast<int64_t>(kPieceBytes));
}

/// Returns the path of the file that contains this code: the engine's shared library, or a program
/// that links it statically.
std::string find_own_library() {
  Dl_info info{};
  return ::dladdr(reinterpret_cast<const void*>(&find_own_library), &info) != 0 &&
                 info.dli_fname != nullptr
             ? info.dli_fname
             : "";
}

/// Adds a fact for config.json and for each weights file of a model or adapter folder.
void add_folder_facts(const std::string& key, const std::string& folder,
                      std::vector<NodeFact>& facts) {
  if (folder.empty()) return;
  std::set<std::string> files;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name.ends_with(".safetensors") || name == "config.json" || name == "adapter_config.json")
      files.insert(name);
  }
  for (const std::string& name : files)
    facts.push_back({cat(key, " ", name), hash_file_samples(cat(folder, "/", name), kPieces)});
}

std::string hash_sequence_samples(const SequenceSet& sequences) {
  Xxh3Stream hash;
  SequenceReader reader(sequences, std::numeric_limits<int32_t>::max());
  MicroBatch batch;
  const int64_t total = sequences.size(), count = std::min(total, kSampledSequences);
  for (int64_t i = 0; i < count; ++i) {
    reader.reset(batch, 1);
    reader.fill(batch, 0, count == 1 ? 0 : i * (total - 1) / (count - 1));
    hash.update(batch.tokens.data(), batch.tokens.size() * sizeof(batch.tokens[0]));
    hash.update(batch.labels.data(), batch.labels.size() * sizeof(batch.labels[0]));
  }
  return cat(count_text(total, "sequence"), ", xxh3 of ", count, " ", hex64(hash.digest()));
}

std::vector<std::pair<std::string, std::string>> parse_facts(const std::string& text) {
  std::vector<std::pair<std::string, std::string>> facts;
  for (const std::string& line : split(text, '\n')) {
    const size_t tab = line.find('\t');
    if (tab != std::string::npos) facts.emplace_back(line.substr(0, tab), line.substr(tab + 1));
  }
  return facts;
}

/// Lists the fingerprints of the binary, its engine, and its modules.
std::vector<NodeFact> list_program_files() {
  std::vector<NodeFact> facts{{"the ftrun binary", hash_whole_file("/proc/self/exe")}};
  if (const std::string library = find_own_library(); !library.empty())
    facts.push_back({"the engine library", hash_whole_file(library)});
  const auto* symbol = reinterpret_cast<const void*>(&find_own_library);
  for (const char* module : {"libftrun_cuda.so", "libftrun_nccl.so"})
    facts.push_back({module, hash_whole_file(installed_module_path(symbol, module))});
  return facts;
}

}  // namespace

std::vector<NodeFact> program_facts(const BuildInfo& build) {
  static const std::vector<NodeFact> files = list_program_files();
  std::vector<NodeFact> facts{{"ftrun", cat(build.version, " ", build.git_commit)}};
  facts.insert(facts.end(), files.begin(), files.end());
  return facts;
}

std::vector<NodeFact> input_facts(const Config& config, const RunData& data) {
  std::vector<NodeFact> facts;
  add_folder_facts("model.path", folder_of(config.model), facts);
  add_folder_facts("adapter.path", find_adapter_folder(config.adapter.path).folder, facts);
  facts.push_back({"data.train", hash_sequence_samples(*data.train)});
  for (const ValidationSet& set : data.validation)
    facts.push_back({cat("the data of ", set.name), hash_sequence_samples(*set.sequences)});
  return facts;
}

std::vector<NodeFact> driver_facts(int cuda_version) {
  std::string module;
  std::ifstream file("/proc/driver/nvidia/version");
  std::getline(file, module);
  std::replace(module.begin(), module.end(), '\t', ' ');
  return {{"the NVIDIA driver", cat("CUDA ", cuda_version / 1000, ".", cuda_version % 1000 / 10,
                                    module.empty() ? "" : ", ", module)}};
}

std::string facts_text(std::span<const NodeFact> facts) {
  std::string text;
  for (const NodeFact& fact : facts) text += cat(fact.name, "\t", fact.value, "\n");
  return text;
}

std::string differing_facts_text(std::span<const std::string> texts,
                                 std::span<const std::string> nodes) {
  std::string lines;
  const auto first = parse_facts(texts[0]);
  std::set<std::pair<std::string, std::string>>
      reported;  // so a node with several ranks is reported once
  for (size_t rank = 1; rank < texts.size(); ++rank) {
    if (texts[rank] == texts[0] || !reported.emplace(nodes[rank], texts[rank]).second) continue;
    std::map<std::string, std::pair<std::string, std::string>> values;
    for (const auto& [what, value] : first) values[what] = {value, kMissing};
    for (const auto& [what, value] : parse_facts(texts[rank])) {
      const auto [place, added] = values.try_emplace(what, kMissing, value);
      if (!added) place->second.second = value;
    }
    for (const auto& [what, both] : values)
      if (both.first != both.second)
        lines += cat("\n  ", nodes[rank], " (rank ", rank, "): ", what, " is ", both.second,
                     "; on ", nodes[0], " (rank 0): ", both.first);
  }
  return lines;
}

}  // namespace ftrun
