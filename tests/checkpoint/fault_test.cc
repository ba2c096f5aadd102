#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <new>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/inspect.h"
#include "checkpoint/save.h"
#include "fault_files.h"
#include "sweep.h"
#include "test_support.h"

#include <catch2/catch.hpp>

namespace ftrun::testing {
namespace {

constexpr int kRanks = 2;

struct CheckpointFolder {
  MemoryFolder run;
  std::string root = run / "checkpoints";
};

std::vector<std::string> save_step(FileSystem& files, const std::string& root, int64_t step,
                                   int version, int64_t keep_last = 0) {
  return run_ranks(kRanks, [&](const CheckpointGroup& group) {
    ToyState state(kRanks, group.rank, version);
    save_checkpoint(files, {.root = root, .keep_last = keep_last}, toy_meta(step, kRanks),
                    state.slices(), group);
  });
}

// Returns the version that a new run would resume with, or 0.
int resumed_version(const std::string& root) {
  std::string folder;
  try {
    folder = choose_checkpoint(root, std::nullopt, CheckpointGroup{});
  } catch (const Error&) {
    return 0;
  }
  ToyState state(1, 0, 0);
  state.clear();
  Checkpoint checkpoint(folder);
  checkpoint.read(state.slices());
  for (int version = 1; version < 10; ++version)
    if (state.equals(version)) return version;
  return -1;
}

// Replacing selects how a folder replaces another one: in one exchange of names, or by moving the
// old one away first.
enum class Replacing { kExchange, kStepAside };

void select_replacing(FaultFileSystem& files, Replacing way) {
  if (way == Replacing::kStepAside) files.refuse_exchange();
}

/// Returns the number of file-system calls of the save of `step` after step 1 was saved.
int64_t calls_of_a_save(int64_t step, int64_t keep_last, Replacing way) {
  CheckpointFolder folder;
  FaultFileSystem files(folder.run.path());
  select_replacing(files, way);
  save_step(files, folder.root, 1, 1);
  const int64_t before = files.calls();
  save_step(files, folder.root, step, 2, keep_last);
  return files.calls() - before;
}

bool has_leftovers(const std::string& root) {
  for (const std::string& name : posix_files().list(root))
    if (name.find(".tmp") != std::string::npos || name.find(".replaced") != std::string::npos)
      return true;
  return false;
}

/// The stride of the calls that fail. Under sanitizers it is six, because a save makes the same
/// calls for each of its files; the release build tries every call.
constexpr auto kCallStride = static_cast<int64_t>(sweep_stride(1));

/// Makes each file-system call of a save fail in turn. Each time a resume must find the checkpoint
/// that the message of the save implies, and the run must be able to save again. Returns a line
/// with the counts.
std::string fail_each_call(int error_number, int64_t step, int64_t keep_last,
                           Replacing way = Replacing::kExchange) {
  const int64_t count = calls_of_a_save(step, keep_last, way);
  REQUIRE(count > 20);
  int64_t tried = 0, refused = 0, committed = 0;
  for (int64_t k = (count - 1) % kCallStride; k < count; k += kCallStride, ++tried) {
    CheckpointFolder folder;
    FaultFileSystem files(folder.run.path());
    select_replacing(files, way);
    save_step(files, folder.root, 1, 1);
    files.fail_call(k, error_number);
    const auto errors = save_step(files, folder.root, step, 2, keep_last);
    INFO("call " << k << " of " << count << ": " << errors[0]);
    REQUIRE(errors[0] == errors[1]);
    refused += errors[0].empty() ? 0 : 1;
    const std::string name = step_folder_name(step);
    const bool in_place =
        errors[0].find(cat("checkpoint ", name,
                           " was written and verified, but a later step of the save failed: ")) ==
        0;
    committed += in_place ? 1 : 0;
    if (!errors[0].empty() && !in_place)
      REQUIRE(errors[0].find(cat("checkpoint ", name, " was not written: rank ")) == 0);
    clean_checkpoints(files, folder.root);
    REQUIRE(!has_leftovers(folder.root));
    // A resume finds the new checkpoint exactly if the message says that it is in place.
    REQUIRE(resumed_version(folder.root) == (errors[0].empty() || in_place ? 2 : 1));
    // The run can save again.
    REQUIRE(save_step(files, folder.root, step, 3)[0] == "");
    REQUIRE(resumed_version(folder.root) == 3);
  }
  REQUIRE(refused > tried / 2);
  // The calls that may fail after the commit: the sync of the folder, and writing `latest`.
  REQUIRE(committed >= (kCallStride == 1 ? 3 : 1));
  return cat("failing calls: ", tried, " of the ", count, " of a save, ", errno_text(error_number),
             "; ", refused, " saves said so\n");
}

void fail_and_print(int error_number, int64_t step, int64_t keep_last,
                    Replacing way = Replacing::kExchange) {
  std::string outcome;
  capture_log([&] { outcome = fail_each_call(error_number, step, keep_last, way); });
  std::cout << outcome;
}

/// Returns the number of bit flips that FTRUN_SOAK_FLIPS sets (scripts/soak.sh).
int flips_wanted() {
  const char* const text = std::getenv("FTRUN_SOAK_FLIPS");
  return text == nullptr ? 700 : std::atoi(text);
}

struct Outcomes {
  int64_t states = 0;
  std::set<int> versions;
};

Outcomes cut_power_at_each_call(int64_t step, int64_t keep_last, bool clean_first,
                                Replacing way = Replacing::kExchange) {
  const int64_t count = calls_of_a_save(step, keep_last, way);
  Outcomes outcomes;
  for (int64_t k = 0; k <= count; ++k) {
    CheckpointFolder folder;
    FaultFileSystem files(folder.run.path());
    select_replacing(files, way);
    save_step(files, folder.root, 1, 1);
    files.cut_power_at(k);
    save_step(files, folder.root, step, 2, keep_last);
    for (int variant = 0; variant < 4 + 8; ++variant) {
      const auto survival = static_cast<Survival>(std::min(variant, 5));
      if (variant > 0) files.rewind_to_cut();
      files.restart(survival, static_cast<uint64_t>(k * 100 + variant));
      if (clean_first) clean_checkpoints(files, folder.root);
      const int version = resumed_version(folder.root);
      INFO("power cut at call " << k << " of " << count << ", variant " << variant);
      REQUIRE((version == 1 || version == 2));
      if (k == count) REQUIRE(version == 2);
      if (posix_files().exists(folder.root + "/latest")) {
        const std::string latest = read_text(folder.root + "/latest");
        // Until the pointer is synced, its bytes may be incomplete or zero; readers take it only as
        // a hint.
        const bool is_name = step_of_folder(latest).has_value();
        REQUIRE((!is_name || posix_files().exists(folder.root + "/" + latest)));
      }
      outcomes.versions.insert(version);
      ++outcomes.states;
    }
  }
  return outcomes;
}

}  // namespace

TEST_CASE("a full disk at any call of a save leaves the previous checkpoint good") {
  fail_and_print(ENOSPC, 2, 0);
}

TEST_CASE("an input or output error at any call of a save leaves the previous checkpoint good") {
  fail_and_print(EIO, 2, 1);
}

TEST_CASE(
    "a failure at any call of a save that replaces a step leaves the old checkpoint or the new "
    "one") {
  fail_and_print(EIO, 1, 0);
  fail_and_print(EIO, 1, 0, Replacing::kStepAside);
}

// The removal fails as on a network file system where another process still reads one of the files.
TEST_CASE("a replaced checkpoint that cannot be removed causes a warning, and is never restored") {
  for (const Replacing way : {Replacing::kExchange, Replacing::kStepAside}) {
    CheckpointFolder folder;
    FaultFileSystem files(folder.run.path());
    select_replacing(files, way);
    save_step(files, folder.root, 1, 1);
    files.fail_next("remove_all", "/step-00000001.tmp-", EBUSY);
    const std::string text =
        capture_log([&] { REQUIRE(save_step(files, folder.root, 1, 2)[0] == ""); });
    REQUIRE(text.find("step-00000001: was replaced; what it was before could not be removed: ") !=
            std::string::npos);
    REQUIRE(resumed_version(folder.root) == 2);
    REQUIRE(has_leftovers(folder.root));
    // By the next start, the checkpoint that replaced it may have been removed.
    REQUIRE(save_step(files, folder.root, 2, 3, 1)[0] == "");
    files.fail_next("remove_all", "/step-00000001.tmp-", EBUSY);
    const std::string again = capture_log([&] { clean_checkpoints(files, folder.root); });
    REQUIRE(again.find("step-00000001: what an earlier process left could not be removed: ") !=
            std::string::npos);
    clean_checkpoints(files, folder.root);
    REQUIRE(posix_files().list(folder.root) == std::vector<std::string>{"latest", "step-00000002"});
    REQUIRE(resumed_version(folder.root) == 3);
  }
}

namespace {

/// A file system whose rename throws std::bad_alloc for one name.
class ForgetfulFileSystem final : public FaultFileSystem {
 public:
  using FaultFileSystem::FaultFileSystem;
  std::string no_memory_for;
  void rename(const std::string& from, const std::string& to) override {
    if (!no_memory_for.empty() && to.ends_with(no_memory_for)) throw std::bad_alloc();
    FaultFileSystem::rename(from, to);
  }
};

}  // namespace

TEST_CASE(
    "a lack of memory after the new checkpoint is in place loses neither the new checkpoint nor "
    "the old one") {
  CheckpointFolder folder;
  ForgetfulFileSystem files(folder.run.path());
  save_step(files, folder.root, 1, 1);
  files.no_memory_for = "/latest";
  const auto errors = save_step(files, folder.root, 1, 2);
  REQUIRE(errors[0].find("checkpoint step-00000001 was written and verified, but a later step of "
                         "the save failed: out of memory") == 0);
  REQUIRE(errors[1] == errors[0]);
  REQUIRE(resumed_version(folder.root) == 2);
  // The replaced checkpoint, which is known to be on the disk, is still there.
  const std::vector<std::string> names = posix_files().list(folder.root);
  REQUIRE(names.size() == 3);
  REQUIRE(names[2].starts_with("step-00000001.tmp-"));
  REQUIRE(Checkpoint(folder.root + "/" + names[2]).meta().step == 1);
}

TEST_CASE("after a power cut at any call of a save the newest checkpoint that verifies loads",
          "[long]") {
  capture_log([] {
    const Outcomes outcomes = cut_power_at_each_call(2, 0, false);
    REQUIRE(outcomes.versions == std::set<int>{1, 2});
    REQUIRE(outcomes.states > 300);
  });
}

TEST_CASE("after a power cut while old checkpoints are removed the new one loads", "[long]") {
  capture_log([] { REQUIRE(cut_power_at_each_call(2, 1, true).versions == std::set<int>{1, 2}); });
}

TEST_CASE("after a power cut while a step is replaced the old checkpoint or the new one loads",
          "[long]") {
  capture_log([] { REQUIRE(cut_power_at_each_call(1, 0, true).versions == std::set<int>{1, 2}); });
  capture_log([] {
    REQUIRE(cut_power_at_each_call(1, 0, true, Replacing::kStepAside).versions ==
            std::set<int>{1, 2});
  });
  // With a single step, a reader that reads before the clean-up also finds a complete checkpoint.
  capture_log([] { REQUIRE(cut_power_at_each_call(1, 0, false).versions == std::set<int>{1, 2}); });
}

TEST_CASE("a power cut in the first save of a run leaves no checkpoint that only looks like one") {
  capture_log([] {
    for (int64_t k = 0; k < 40; k += kCallStride) {
      CheckpointFolder folder;
      FaultFileSystem files(folder.run.path());
      files.cut_power_at(k);
      save_step(files, folder.root, 1, 1);
      for (int variant = 0; variant < 8; ++variant) {
        if (variant > 0) files.rewind_to_cut();
        files.restart(static_cast<Survival>(std::min(variant, 5)), static_cast<uint64_t>(variant));
        clean_checkpoints(files, folder.root);
        const int version = resumed_version(folder.root);
        REQUIRE((version == 0 || version == 1));
      }
    }
  });
}

TEST_CASE("bytes that change on the way to the disk are noticed before the checkpoint counts") {
  for (const std::string file : {"rank-00001.safetensors", "checkpoint.json"}) {
    CheckpointFolder folder;
    FaultFileSystem files(folder.run.path());
    save_step(files, folder.root, 1, 1);
    files.corrupt_writes(file);
    const auto errors = save_step(files, folder.root, 2, 2);
    const std::string rank = file == "checkpoint.json" ? "rank 0: " : "rank 1: ";
    const std::string start =
        cat("checkpoint step-00000002 was not written: ", rank, folder.root, "/step-00000002.tmp-");
    REQUIRE(errors[1].find(start) == 0);
    REQUIRE(errors[1].find(cat("/", file, ": reads back with checksum ")) != std::string::npos);
    REQUIRE(posix_files().list(folder.root) == std::vector<std::string>{"latest", "step-00000001"});
    REQUIRE(resumed_version(folder.root) == 1);
  }
}

TEST_CASE("the power cut of these tests destroys a checkpoint whose save does not sync") {
  capture_log([] {
    CheckpointFolder folder;
    FaultFileSystem files(folder.run.path());
    save_step(files, folder.root, 1, 1);
    files.ignore_syncs();
    REQUIRE(save_step(files, folder.root, 2, 2)[0] == "");
    REQUIRE(resumed_version(folder.root) == 2);
    files.restart(Survival::kEntriesAndZeros);
    REQUIRE(resumed_version(folder.root) == 1);
    REQUIRE(!verify_checkpoint(folder.root).empty());
  });
}

TEST_CASE("the error of a failed save says what failed, on which rank, and what to do") {
  CheckpointFolder folder;
  FaultFileSystem files(folder.run.path());
  save_step(files, folder.root, 1, 1);
  files.fail_next("reserve", "/rank-00001.safetensors", ENOSPC);
  const auto errors = save_step(files, folder.root, 2, 2);
  REQUIRE(errors[0] == errors[1]);
  REQUIRE(errors[0].find(cat("checkpoint step-00000002 was not written: rank 1: ", folder.root)) ==
          0);
  REQUIRE(errors[0].find("/rank-00001.safetensors: reserve failed: No space left on device") !=
          std::string::npos);
}

TEST_CASE("every flipped bit of a checkpoint is found and its file named", "[long]") {
  CheckpointFolder folder;
  save_step(posix_files(), folder.root, 1, 1);
  save_step(posix_files(), folder.root, 2, 2);
  REQUIRE(verify_checkpoint(folder.root).empty());
  std::vector<std::string> paths{folder.root + "/latest"};
  for (const char* step : {"step-00000001", "step-00000002"})
    for (const std::string& name : posix_files().list(folder.root + "/" + step))
      paths.push_back(folder.root + "/" + step + "/" + name);
  REQUIRE(paths.size() == 7);
  std::mt19937_64 random(5);
  int in_data = 0;
  const int flips = flips_wanted();
  for (int flip = 0; flip < flips; ++flip) {
    const std::string& path = paths[static_cast<size_t>(flip) % paths.size()];
    const std::string good = read_text(path);
    std::string bad = good;
    const size_t at = random() % bad.size();
    bad[at] = static_cast<char>(bad[at] ^ (1 << random() % 8));
    write_text(path, bad);
    const auto problems = verify_checkpoint(folder.root);
    INFO(path << ", byte " << at);
    REQUIRE(!problems.empty());
    const bool named =
        std::any_of(problems.begin(), problems.end(),
                    [&](const std::string& problem) { return problem.find(path + ":") == 0; });
    REQUIRE(named);
    if (path.find("rank-") != std::string::npos) {
      uint64_t header = 0;
      for (size_t i = 8; i-- > 0;) header = header << 8 | static_cast<unsigned char>(good[i]);
      if (at >= 8 + header) {
        ++in_data;
        REQUIRE(problems[0].find(path + ": tensor \"") == 0);
        REQUIRE(problems[0].find(": the checksum is ") != std::string::npos);
      }
    }
    write_text(path, good);
  }
  REQUIRE(in_data > 50);
  std::cout << "bit flips: " << flips << ", seed 5, all found; " << in_data
            << " of them in values of tensors\n";
  REQUIRE(verify_checkpoint(folder.root).empty());
}

TEST_CASE("a flipped bit is found by the load of the rank that needs it") {
  CheckpointFolder folder;
  save_step(posix_files(), folder.root, 1, 1);
  const std::string path = folder.root + "/step-00000001/rank-00001.safetensors";
  std::string bytes = read_text(path);
  bytes[bytes.size() - 1] = static_cast<char>(bytes[bytes.size() - 1] ^ 1);
  write_text(path, bytes);
  Checkpoint checkpoint(folder.root + "/step-00000001");
  ToyState other(kRanks, 0, 0);
  checkpoint.read(other.slices());
  REQUIRE(other.equals(1));
  ToyState mine(kRanks, 1, 0);
  REQUIRE(require_bad_input([&] {
            checkpoint.read(mine.slices());
          }).find(path + ": tensor \"scale\" (param): the checksum is ") == 0);
}

}  // namespace ftrun::testing
