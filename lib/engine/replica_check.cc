#include "engine/replica_check.h"

#include <algorithm>
#include <map>
#include <sstream>
#include <tuple>
#include <utility>

#include "base/checksum.h"
#include "base/error.h"
#include "base/rank_error.h"
#include "base/run_in_parallel.h"
#include "base/text.h"
#include "checkpoint/safetensors.h"
#include "partition/flat_layout.h"

namespace ftrun {
namespace {

/// The number of bytes of GPU memory that are copied to the host at a time.
constexpr int64_t kPiece = int64_t{4} << 20;

/// The remedy for state that a faulty machine has changed.
constexpr const char* kRemedy =
    "check the memory, CPUs and GPUs of these machines (dmesg, nvidia-smi -q); --resume auto "
    "continues from the last checkpoint";

/// Returns the text "rank 1", "ranks 0 and 2", "ranks 0, 1 and 2".
std::string ranks_text(const std::vector<int>& ranks) {
  std::vector<std::string> names;
  for (const int rank : ranks) names.push_back(std::to_string(rank));
  if (names.size() == 1) return cat("rank ", names.front());
  const std::string last = names.back();
  names.pop_back();
  return cat("ranks ", join(names, ", "), " and ", last);
}

/// Groups ranks that have the same text. Leaves out ranks with an empty text, which have nothing to
/// compare.
std::map<std::string, std::vector<int>> group_ranks_by_text(const std::vector<std::string>& texts) {
  std::map<std::string, std::vector<int>> ranks;
  for (size_t rank = 0; rank < texts.size(); ++rank)
    if (!texts[rank].empty()) ranks[texts[rank]].push_back(static_cast<int>(rank));
  return ranks;
}

/// Returns word number `index` of each rank's text.
std::vector<std::string> words_at(const std::vector<std::string>& texts, size_t index) {
  std::vector<std::string> words;
  for (const std::string& text : texts) {
    std::istringstream in(text);
    std::string word;
    for (size_t i = 0; i <= index; ++i)
      if (!(in >> word)) word = "";
    words.push_back(word == "-" ? "" : word);
  }
  return words;
}

/// ReplicaHolder is a rank and the lines that it sent for the parts of a set: "HASH NAME".
struct ReplicaHolder {
  int rank = 0;
  std::vector<std::string> parts;
};

/// Groups the ranks that hold the same set, by its key. A rank that does not share its set sent
/// "-".
std::map<std::string, std::vector<ReplicaHolder>> holders_of(
    const std::vector<std::string>& texts) {
  std::map<std::string, std::vector<ReplicaHolder>> holders;
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    std::vector<std::string> lines = split(texts[rank], '\n');
    const std::string key = lines.front();
    lines.erase(lines.begin());
    if (key != "-") holders[key].push_back({static_cast<int>(rank), std::move(lines)});
  }
  return holders;
}

/// Makes the error for ranks that sent different lines for a part. `versions` lists the ranks by
/// line. If the error names a single rank, it counts as a failure of that rank on every rank that
/// reports it.
RankError make_difference_error(const std::map<std::string, std::vector<int>>& versions,
                                int64_t step) {
  const auto majority = std::max_element(
      versions.begin(), versions.end(),
      [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
  std::vector<int> minority, holders;
  for (const auto& version : versions) {
    holders.insert(holders.end(), version.second.begin(), version.second.end());
    if (&version != &*majority)
      minority.insert(minority.end(), version.second.begin(), version.second.end());
  }
  std::sort(minority.begin(), minority.end());
  std::sort(holders.begin(), holders.end());
  const std::string tensor = majority->first.substr(majority->first.find(' ') + 1);
  const bool known = 2 * majority->second.size() > holders.size();
  const Error error(
      ExitCode::kEnvironment,
      known ? cat(ranks_text(minority), minority.size() == 1 ? " holds" : " hold",
                  " other bits than ", ranks_text(majority->second), " of ", tensor, " after step ",
                  step, ", which must be equal on all: a memory or CPU error there changed them")
            : cat(ranks_text(holders), " do not hold the same bits of ", tensor, " after step ",
                  step, ", which must be equal: a memory or CPU error on one of them changed them"),
      cat(kRemedy,
          ", before which this was compared too (if the ranks run on different CPU models, "
          "rounding may differ: set train.check_replicas: 0)"));
  const bool names_one_rank = known && minority.size() == 1;
  return {error, names_one_rank ? minority.front() : RankError::kThisRank, names_one_rank};
}

}  // namespace

ReplicaCheck::ReplicaCheck(const StepPlan& plan, const RankMemory& memory,
                           AllGatherTexts all_gather, SumOverRanks sum_over_ranks)
    : program_(plan.train.program),
      memory_(memory),
      all_gather_(std::move(all_gather)),
      sum_over_ranks_(std::move(sum_over_ranks)) {
  list_parts(plan);
  find_replicated();
}

/// Sorts the parts into sets, so that two ranks hold copies either of a whole set or of nothing in
/// it. Parts are in different sets if data-parallel ranks cut one and not the other, or if
/// tensor-parallel ranks divide one and have copies of the other. All ranks have the same number of
/// sets.
void ReplicaCheck::list_parts(const StepPlan& plan) {
  const ModelDescription& model = plan.train.model;
  const std::vector<OptimizerStateSpec>& states = plan.options.state.optimizer_states;
  std::map<std::tuple<int32_t, bool, int>, HashedStateSet> sets;
  for (int32_t state = UnitStatePiece::kWorking; state < static_cast<int32_t>(states.size());
       ++state)
    for (const bool cut : {false, true})
      for (const int copied : {0, 1, 2}) sets[{state, cut, copied}];
  for (const UnitStatePiece& piece : plan.train.pieces) {
    if (memory_.is_on_disk(program_, piece.range)) continue;
    const Unit& unit = plan.partition.unit(piece.unit);
    const Buffer& buffer = program_.at(piece.range.buffer);
    const bool cut = piece.begin != 0 || piece.end != unit.padded_numel;
    const std::string kind = piece.state >= 0 ? states[static_cast<size_t>(piece.state)].name
                             : piece.state == UnitStatePiece::kParam
                                 ? "parameters"
                                 : "working copy of the parameters";
    if (piece.straddling_tensor >= 0) {
      HashedStateSet& all = sets[{piece.state, false, 2}];
      const std::string& name = model.tensor(piece.straddling_tensor).name;
      all.key += cat(name, " scales\n");
      all.parts.push_back({cat(name, " (", kind, ")"), piece.range});
      continue;
    }
    for (const TensorSlice& slice : slices_in(unit, piece.begin, piece.end)) {
      const TensorInfo& tensor = model.tensor(slice.tensor);
      const int copied = tensor.local == whole_box(tensor.shape) ? 2 : tensor.copies > 1 ? 1 : 0;
      HashedStateSet& set = sets[{piece.state, cut, copied}];
      set.key += cat(tensor.name, ' ', shape_text(tensor.local.offset), ' ',
                     shape_text(tensor.local.extent), ' ', slice.offset, ' ', slice.extent, '\n');
      set.parts.push_back(
          {cat(tensor.name, " (", kind, ")"),
           {piece.range.buffer,
            piece.range.offset + buffer.format.bytes(slice.position_in_unit - piece.begin),
            buffer.format.bytes(slice.extent)}});
    }
  }
  for (auto& [which, set] : sets) {
    set.key = set.parts.empty() ? "-" : hex64(xxh3(set.key.data(), set.key.size()));
    sets_.push_back(std::move(set));
  }
}

void ReplicaCheck::find_replicated() {
  std::string keys;
  for (const HashedStateSet& set : sets_) keys += cat(set.key, ' ');
  const std::vector<std::string> all = all_gather_(keys);
  for (size_t s = 0; s < sets_.size(); ++s)
    for (const auto& [key, ranks] : group_ranks_by_text(words_at(all, s))) {
      if (ranks.size() < 2) continue;
      if (key == sets_[s].key) sets_[s].replicated = static_cast<int64_t>(replicated_.size());
      replicated_.push_back({s, static_cast<double>(ranks.size())});
    }
}

uint64_t ReplicaCheck::hash_part(const HashedState& part) const {
  if (memory_.is_in_main_memory(program_, part.range))
    return xxh3(memory_.at(program_, part.range), static_cast<size_t>(part.range.bytes));
  Xxh3Stream stream;
  std::vector<std::byte> piece(static_cast<size_t>(std::min(kPiece, part.range.bytes)));
  for (int64_t done = 0; done < part.range.bytes; done += kPiece) {
    const int64_t bytes = std::min(kPiece, part.range.bytes - done);
    memory_.read(program_, {part.range.buffer, part.range.offset + done, bytes}, piece.data());
    stream.update(piece.data(), static_cast<size_t>(bytes));
  }
  return stream.digest();
}

/// Returns the hash of each part of a set.
std::vector<uint64_t> ReplicaCheck::hash_parts(const HashedStateSet& set) const {
  std::vector<uint64_t> found(set.parts.size());
  const auto hash_one = [&](size_t i) { found[i] = hash_part(set.parts[i]); };
  if (memory_.gpu() == nullptr) {
    run_in_parallel(set.parts.size(), hash_one);
  } else {
    for (size_t i = 0; i < found.size(); ++i) hash_one(i);
  }
  return found;
}

/// Compares hashes by their sums over ranks, which one all-reduce computes: the numbers x of n
/// ranks are equal if and only if n * sum of x^2 = (sum of x)^2 (Cauchy-Schwarz inequality). Each
/// hash is cut into four numbers of 16 bits, whose sums over up to 2^20 ranks are exact in fp64;
/// the products are compared as integers.
void ReplicaCheck::compare_replicas(int64_t step) const {
  if (!has_replicas()) return;
  constexpr size_t kQuarters = 4;
  std::vector<double> sums(replicated_.size() * kQuarters * 2, 0.0);
  for (const HashedStateSet& set : sets_) {
    if (set.replicated < 0) continue;
    const std::vector<uint64_t> parts = hash_parts(set);
    const uint64_t hash = xxh3(parts.data(), parts.size() * sizeof(uint64_t));
    for (size_t q = 0; q < kQuarters; ++q) {
      const auto x = static_cast<double>(hash >> (16 * q) & 0xFFFF);
      double* const at = sums.data() + (static_cast<size_t>(set.replicated) * kQuarters + q) * 2;
      at[0] = x;
      at[1] = x * x;
    }
  }
  sum_over_ranks_(sums);
  using Wide = unsigned __int128;
  for (size_t s = 0; s < replicated_.size(); ++s)
    for (size_t q = 0; q < kQuarters; ++q) {
      const double* const at = sums.data() + (s * kQuarters + q) * 2;
      const auto x = static_cast<Wide>(at[0]);
      if (static_cast<Wide>(replicated_[s].ranks) * static_cast<Wide>(at[1]) != x * x)
        throw_divergence(replicated_[s].set, step);
    }
}

std::string ReplicaCheck::hashes_text(const HashedStateSet& set) const {
  if (set.replicated < 0) return "-";
  std::string text = set.key;
  const std::vector<uint64_t> found = hash_parts(set);
  for (size_t i = 0; i < found.size(); ++i)
    text += cat('\n', hex64(found[i]), ' ', set.parts[i].name);
  return text;
}

/// Finds the ranks whose state differs, and throws an error that names them. Collective.
void ReplicaCheck::throw_divergence(size_t set, int64_t step) const {
  for (const auto& [key, holders] : holders_of(all_gather_(hashes_text(sets_[set]))))
    for (size_t part = 0; part < holders.front().parts.size(); ++part) {
      std::map<std::string, std::vector<int>> versions;
      for (const ReplicaHolder& holder : holders)
        versions[holder.parts.at(part)].push_back(holder.rank);
      if (versions.size() > 1) throw make_difference_error(versions, step);
    }
  throw Error(ExitCode::kEnvironment,
              cat("replicas had different hashes after step ", step,
                  ", and equal hashes when these were computed again: the memory or CPU of one of "
                  "the ranks makes occasional errors"),
              kRemedy);
}

}  // namespace ftrun
