#include "comm/torchrun_start.h"

#include <chrono>
#include <optional>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/hmac.h"
#include "base/text.h"
#include "comm/store_value.h"

namespace ftrun {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kBetweenLooks{20};
constexpr size_t kWordBytes = 16;
constexpr const char* kStartKey = "ftrun/start";

std::string prefix_of(const std::string& word) {
  return cat("ftrun/", word);
}
std::string rank_key(const std::string& word, int rank) {
  return cat(prefix_of(word), "/rank/", rank);
}
std::string members_key(const std::string& word) {
  return cat(prefix_of(word), "/members");
}

std::optional<std::string> find_text(c10d::Store& store, const std::string& key) {
  if (!store.check({key})) return std::nullopt;
  return text_of(store.get(key));
}

TorchrunStart make_start(const std::string& word, const std::vector<std::string>& lines) {
  return {prefix_of(word), {lines[0], std::stoi(lines[1])}};
}

[[noreturn]] void throw_start_timeout(const RendezvousOptions& options,
                                      const std::string& missing) {
  const double seconds = static_cast<double>(options.timeout.count()) * 1e-3;
  throw Error(ExitCode::kPeerLost,
              cat("rank ", options.rank, " waited ", human_seconds(seconds),
                  " for the other ranks to register in torchrun's store: ", missing),
              "look at that rank's own log first");
}

/// Announces this start's word until all ranks have registered under it. It is announced again when
/// it was overwritten: a rank 0 of an earlier start may still be announcing its own word.
TorchrunStart propose_start(c10d::Store& store, const RendezvousOptions& options,
                            const std::string& own_id, Clock::time_point deadline) {
  const std::string drawn_launch = hex_text(random_bytes(kWordBytes)),
                    word = hex_text(random_bytes(kWordBytes));
  const std::string launch = text_of(store.compareSet("ftrun/launch", {}, bytes_of(drawn_launch)));
  const int64_t earlier_starts = store.add("ftrun/starts", 1) - 1;
  const std::string announced = cat(options.world_size, " ", word);
  std::vector<std::string> keys;
  for (int rank = 1; rank < options.world_size; ++rank) keys.push_back(rank_key(word, rank));
  const auto all_have_registered = [&] { return keys.empty() || store.check(keys); };
  while (!all_have_registered()) {
    if (find_text(store, kStartKey) != announced) store.set(kStartKey, bytes_of(announced));
    if (Clock::now() >= deadline) {
      std::vector<std::string> absent;
      for (int rank = 1; rank < options.world_size; ++rank)
        if (!store.check({rank_key(word, rank)})) absent.push_back(std::to_string(rank));
      throw_start_timeout(options, cat(rank_list(absent), " did not arrive in time"));
    }
    std::this_thread::sleep_for(kBetweenLooks);
  }
  std::vector<std::string> lines{launch, std::to_string(earlier_starts), own_id};
  for (const std::string& key : keys) lines.push_back(text_of(store.get(key)));
  store.set(members_key(word), bytes_of(join(lines, "\n")));
  return make_start(word, lines);
}

TorchrunStart join_start(c10d::Store& store, const RendezvousOptions& options,
                         const std::string& own_id, Clock::time_point deadline) {
  const std::string prefix = cat(options.world_size, " ");
  std::string registered_word;
  while (Clock::now() < deadline) {
    const auto announced = find_text(store, kStartKey);
    if (announced && announced->starts_with(prefix)) {
      const std::string word = announced->substr(prefix.size());
      if (word != registered_word) store.set(rank_key(word, options.rank), bytes_of(own_id));
      registered_word = word;
      if (const auto members = find_text(store, members_key(word))) {
        const std::vector<std::string> lines = split(*members, '\n');
        const size_t line = 2 + static_cast<size_t>(options.rank);
        if (line < lines.size() && lines[line] == own_id) return make_start(word, lines);
      }
    }
    std::this_thread::sleep_for(kBetweenLooks);
  }
  throw_start_timeout(options, registered_word.empty() ? "rank 0 did not arrive in time"
                                                       : "not all arrived in time");
}

}  // namespace

TorchrunStart agree_on_start(c10d::Store& store, const RendezvousOptions& options) {
  const std::string own_id = hex_text(random_bytes(kWordBytes));
  const auto deadline = Clock::now() + options.timeout;
  return options.rank == 0 ? propose_start(store, options, own_id, deadline)
                           : join_start(store, options, own_id, deadline);
}

}  // namespace ftrun
