#include "checkpoint/checkpoint.h"

#include <sys/stat.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "checkpoint/inspect.h"
#include "checkpoint/save.h"
#include "test_support.h"

#include <catch2/catch.hpp>

namespace ftrun::testing {
namespace {
namespace fs = std::filesystem;

void save(const std::string& root, int world_size, int64_t step, int version,
          int64_t keep_last = 0) {
  const auto errors = run_ranks(world_size, [&](const CheckpointGroup& group) {
    ToyState state(world_size, group.rank, version);
    save_checkpoint(posix_files(), {.root = root, .keep_last = keep_last},
                    toy_meta(step, world_size), state.slices(), group);
  });
  for (const std::string& error : errors) REQUIRE(error == "");
}

bool loads_as(const std::string& folder, int world_size, int version) {
  for (int rank = 0; rank < world_size; ++rank) {
    ToyState state(world_size, rank, 0);
    state.clear();
    Checkpoint checkpoint(folder);
    checkpoint.read(state.slices());
    if (!state.equals(version)) return false;
  }
  return true;
}

std::vector<StateInfo> expected_states() {
  std::vector<StateInfo> states;
  for (const auto& [name, shape] : ToyState::tensors())
    for (const char* kind : {"exp_avg", "exp_avg_sq", "param"})
      states.push_back({name, kind, DType::kF32, shape});
  return states;
}

std::vector<std::string> names_in(const std::string& folder) {
  return posix_files().list(folder);
}

StateSlice slice_of(const std::string& tensor, std::vector<int64_t> shape, int64_t begin,
                    int64_t end, void* data) {
  const std::vector<Box> boxes = cut_box(whole_box(shape), begin, end);
  REQUIRE(boxes.size() == 1);
  return {tensor, "param", DType::kF32, std::move(shape), boxes[0], data, nullptr};
}

}  // namespace

TEST_CASE("a checkpoint of 2 ranks loads on 1, 2, 3 and 5 ranks, bit for bit") {
  const MemoryFolder run;
  const std::string root = run / "checkpoints";
  save(root, 2, 100, 7);
  REQUIRE(names_in(root) == std::vector<std::string>{"latest", "step-00000100"});
  REQUIRE(names_in(root + "/step-00000100") == std::vector<std::string>{"checkpoint.json",
                                                                        "rank-00000.safetensors",
                                                                        "rank-00001.safetensors"});
  REQUIRE(read_text(root + "/latest") == "step-00000100");
  for (const int world_size : {1, 2, 3, 5})
    REQUIRE(loads_as(root + "/step-00000100", world_size, 7));
  REQUIRE(verify_checkpoint(root).empty());
}

TEST_CASE("a checkpoint of 3 ranks and one of 1 rank load on 2 ranks") {
  const MemoryFolder run;
  save(run.path(), 3, 1, 1);
  save(run.path(), 1, 2, 2);
  REQUIRE(loads_as(run / "step-00000001", 2, 1));
  REQUIRE(loads_as(run / "step-00000002", 2, 2));
}

TEST_CASE("the state that a run needs besides tensors is restored unchanged") {
  const MemoryFolder run;
  CheckpointMeta meta = toy_meta(3, 1);
  meta.skipped_steps = 2;
  meta.scheduler["lr"] = 0.1 + 0.2;
  meta.loss_scaler = LossScalerState{65536, 12, 5, -1};
  ToyState state(1, 0, 1);
  save_checkpoint(posix_files(), {.root = run.path()}, meta, state.slices(), CheckpointGroup{});
  const Checkpoint checkpoint(run / "step-00000003");
  const CheckpointMeta& read = checkpoint.meta();
  REQUIRE(read.step == 3);
  REQUIRE(read.skipped_steps == 2);
  REQUIRE(read.samples == meta.samples);
  REQUIRE(read.tokens == meta.tokens);
  REQUIRE(read.seed == meta.seed);
  REQUIRE(read.scheduler == meta.scheduler);
  REQUIRE(read.loss_scaler->scale == 65536);
  REQUIRE(read.loss_scaler->iteration == 12);
  REQUIRE(read.loss_scaler->last_overflow == 5);
  REQUIRE(read.loss_scaler->hysteresis == -1);
  REQUIRE(read.topology == meta.topology);
  REQUIRE(read.extra == meta.extra);
  REQUIRE(read.config_hash == "c2c2");
  REQUIRE(read.ftrun_version == "0.1.0");
}

TEST_CASE("replicated state may be saved by every rank") {
  const MemoryFolder run;
  const auto errors = run_ranks(2, [&](const CheckpointGroup& group) {
    ToyState state(1, 0, 4);
    save_checkpoint(posix_files(), {.root = run.path()}, toy_meta(1, 2), state.slices(), group);
  });
  REQUIRE(errors == std::vector<std::string>{"", ""});
  REQUIRE(loads_as(run / "step-00000001", 3, 4));
}

TEST_CASE("each rank may read only its own file when the layout is the same") {
  const MemoryFolder run;
  save(run.path(), 2, 1, 1);
  fs::remove(run / "step-00000001/rank-00001.safetensors");
  ToyState mine(2, 0, 0);
  mine.clear();
  Checkpoint checkpoint(run / "step-00000001");
  checkpoint.read(mine.slices());
  REQUIRE(mine.equals(1));
  ToyState other(2, 1, 0);
  REQUIRE(require_bad_input([&] { checkpoint.read(other.slices()); }) ==
          (run / "step-00000001/rank-00001.safetensors") + ": is missing");
}

TEST_CASE("states that the run and the checkpoint do not share are refused by name") {
  const MemoryFolder run;
  save(run.path(), 2, 1, 1);
  const std::string folder = run / "step-00000001";
  const std::string manifest = folder + "/checkpoint.json";
  const std::string file = folder + "/rank-00000.safetensors";
  Checkpoint checkpoint(folder);
  std::vector<float> room(64);
  void* data = room.data();
  REQUIRE(require_bad_input([&] {
            checkpoint.read(slice_of("model.none.weight", {3}, 0, 3, data));
          }) == manifest + ": tensor \"model.none.weight\" (param) is not in the checkpoint");
  REQUIRE(require_bad_input([&] {
            checkpoint.read(slice_of("model.norm.weight", {4}, 0, 4, data));
          }) == file + ": tensor \"model.norm.weight\" (param) has shape [3], the run needs [4]");
  StateSlice half = slice_of("model.norm.weight", {3}, 0, 3, data);
  half.dtype = DType::kF16;
  REQUIRE(require_bad_input([&] { checkpoint.read(half); }) ==
          file + ": tensor \"model.norm.weight\" (param) is F32, the run needs F16");

  REQUIRE(checkpoint.check_states(expected_states()).empty());
  auto states = expected_states();
  states[0].shape = {4, 13};
  REQUIRE(require_bad_input([&] { checkpoint.check_states(states); }) ==
          manifest +
              ": tensor \"model.embed_tokens.weight\" (exp_avg) has shape [13, 4], the run needs "
              "[4, 13]");
  states = expected_states();
  states.push_back({"new", "param", DType::kF32, {}});
  REQUIRE(require_bad_input([&] { checkpoint.check_states(states); }) ==
          manifest + ": tensor \"new\" (param) is not in the checkpoint");
  states = expected_states();
  states.pop_back();
  REQUIRE(require_bad_input([&] { checkpoint.check_states(states); }) ==
          manifest +
              ": tensor \"scale\" (param) is in the checkpoint, but the run has no such state");
  states = expected_states();
  states[1].dtype = DType::kF16;
  REQUIRE(require_bad_input([&] { checkpoint.check_states(states); }) ==
          manifest +
              ": tensor \"model.embed_tokens.weight\" (exp_avg_sq) is F32, the run needs F16");
}

TEST_CASE(
    "a state is read in the precision that is asked for: rounded to the nearest, ties to even, or "
    "exact") {
  const MemoryFolder run;
  // The values are between neighbors of bf16: ties to either side, one bit off a tie, and up to
  // infinity. Values that rounding does not change are at the end. All are repeated, so that the
  // conversion takes several pieces.
  const auto repeated = [](const auto& values) {
    auto all = values;
    for (int i = 1; i < 8'000; ++i) all.insert(all.end(), values.begin(), values.end());
    return all;
  };
  auto wide =
      repeated(std::vector<uint32_t>{0x3f808000, 0x3f818000, 0x3f808001, 0x3f817fff, 0xbf808000,
                                     0x7f7fffff, 0x00018000, 0x80000000, 0x7f800000});
  auto narrow = repeated(std::vector<uint16_t>{0x3f80, 0x3f82, 0x3f81, 0x3f81, 0xbf80, 0x7f80,
                                               0x0002, 0x8000, 0x7f80});
  const auto elements = static_cast<int64_t>(wide.size());
  const auto slice = [&](const char* kind, DType dtype, int64_t begin, int64_t end, void* data) {
    return StateSlice{"w", kind, dtype, {elements}, {{begin}, {end - begin}}, data, nullptr};
  };
  save_checkpoint(posix_files(), {.root = run.path()}, toy_meta(1, 1),
                  {slice("param", DType::kF32, 0, elements, wide.data()),
                   slice("exp_avg", DType::kBF16, 0, elements, narrow.data())},
                  {});
  Checkpoint checkpoint(run / "step-00000001");
  const std::vector<StateDtypeChange> conversions = checkpoint.check_states(
      {{"w", "param", DType::kBF16, {elements}}, {"w", "exp_avg", DType::kF32, {elements}}});
  REQUIRE(conversions.size() == 2);
  REQUIRE(conversions[0].kinds == std::vector<std::string>{"param"});
  REQUIRE(conversions[1].kinds == std::vector<std::string>{"exp_avg"});
  std::vector<uint32_t> widened(narrow.size()), expected;
  for (const uint16_t bits : narrow) expected.push_back(static_cast<uint32_t>(bits) << 16);
  checkpoint.read(slice("exp_avg", DType::kF32, 0, elements, widened.data()));
  REQUIRE((widened == expected));  // too long to be shown
  // The rounded values are read in two parts; the file is already verified when the second one is
  // read.
  std::vector<uint16_t> rounded(narrow.size());
  checkpoint.read(slice("param", DType::kBF16, 0, 4, rounded.data()));
  checkpoint.read(slice("param", DType::kBF16, 4, elements, rounded.data() + 4));
  REQUIRE((rounded == narrow));
}

TEST_CASE(
    "a manifest that is far too large is refused before it is read, and its folder is skipped") {
  const MemoryFolder run;
  save(run.path(), 2, 1, 1);
  const std::string folder = run / "step-00000001";
  fs::resize_file(folder + "/checkpoint.json", 257 << 20);  // sparse
  const std::string refused =
      folder + "/checkpoint.json: is 257.00 MiB, larger than the limit of 256.00 MiB";
  REQUIRE(require_bad_input([&] { Checkpoint checkpoint(folder); }) == refused);
  const std::vector<CheckpointEntry> entries = list_checkpoints(run.path());
  REQUIRE(entries.size() == 1);
  REQUIRE(entries[0].problem == refused);
}

TEST_CASE("elements that no file holds are refused") {
  const MemoryFolder run;
  std::vector<float> values(6);
  save_checkpoint(
      posix_files(), {.root = run.path()}, toy_meta(1, 1),
      {slice_of("a", {6}, 0, 2, values.data()), slice_of("a", {6}, 4, 6, values.data())},
      CheckpointGroup{});
  Checkpoint checkpoint(run / "step-00000001");
  checkpoint.read(slice_of("a", {6}, 4, 6, values.data()));
  REQUIRE(require_bad_input([&] { checkpoint.read(slice_of("a", {6}, 1, 6, values.data())); }) ==
          (run / "step-00000001/checkpoint.json") +
              ": tensor \"a\" (param): element 2 is in no file");
  REQUIRE(verify_checkpoint(run / "step-00000001") ==
          std::vector<std::string>{(run / "step-00000001/checkpoint.json") +
                                   ": tensor \"a\" (param): element 2 is in no file"});
  REQUIRE(require_bad_input([&] { choose_checkpoint(run.path(), 1, CheckpointGroup{}); }) ==
          "the checkpoint cannot be used: " + (run / "step-00000001/checkpoint.json") +
              ": tensor \"a\" (param): element 2 is in no file");
}

TEST_CASE("files of a checkpoint that were swapped, truncated, renamed or added are named") {
  const MemoryFolder run;
  save(run.path(), 2, 1, 1);
  const std::string folder = run / "step-00000001";
  const std::string file = folder + "/rank-00001.safetensors";
  const std::string good = read_text(file);
  write_text(file, good.substr(0, good.size() - 4));
  REQUIRE(verify_checkpoint(folder) ==
          std::vector<std::string>{
              cat(file, ": has ", good.size() - 4, " bytes, the manifest says ", good.size())});
  write_text(file, "x" + good.substr(1));
  REQUIRE(verify_checkpoint(folder).size() == 1);
  write_text(file, good);
  write_text(folder + "/other", "");
  REQUIRE(verify_checkpoint(folder) ==
          std::vector<std::string>{folder + "/other: is not in the manifest"});
  fs::rename(folder, run / "step-00000002");
  REQUIRE(verify_checkpoint(run / "step-00000002") ==
          std::vector<std::string>{
              (run / "step-00000002") +
              "/checkpoint.json: records step 1, but the folder's name says step 2"});
}

TEST_CASE("files of another checkpoint of the same layout are refused") {
  const MemoryFolder run;
  save(run.path(), 2, 1, 1);
  save(run.path(), 2, 2, 2);
  fs::copy_file(run / "step-00000001/rank-00001.safetensors",
                run / "step-00000002/rank-00001.safetensors", fs::copy_options::overwrite_existing);
  ToyState state(2, 1, 0);
  Checkpoint checkpoint(run / "step-00000002");
  const std::string message = require_bad_input([&] { checkpoint.read(state.slices()); });
  const std::string start =
      (run / "step-00000002/rank-00001.safetensors") +
      ": tensor \"model.embed_tokens.weight\" (param), elements [6:7,2:4]: the checksum is ";
  REQUIRE(message.substr(0, start.size()) == start);
}

TEST_CASE("the newest checkpoint that verifies is chosen, and each one that is skipped is logged") {
  const MemoryFolder run;
  for (int step = 1; step <= 3; ++step) save(run.path(), 2, step, step);
  const auto choose = [&](std::optional<int64_t> step) {
    std::vector<std::string> chosen(2);
    const auto errors = run_ranks(2, [&](const CheckpointGroup& group) {
      chosen[static_cast<size_t>(group.rank)] = choose_checkpoint(run.path(), step, group);
    });
    REQUIRE(errors[0] == errors[1]);
    REQUIRE(chosen[0] == chosen[1]);
    return errors[0].empty() ? chosen[0] : errors[0];
  };
  REQUIRE(choose(std::nullopt) == run / "step-00000003");
  REQUIRE(choose(1) == run / "step-00000001");

  const std::string broken = run / "step-00000003/rank-00001.safetensors";
  fs::remove(broken);
  const std::string log =
      capture_log([&] { REQUIRE(choose(std::nullopt) == run / "step-00000002"); });
  REQUIRE(log.find("error: checkpoint step-00000003 is skipped: " + broken + ": is missing\n") !=
          std::string::npos);
  REQUIRE(log.find("warning: " + run.path() +
                   "/latest: names step-00000003; the newest good "
                   "checkpoint is step-00000002\n") != std::string::npos);
  REQUIRE(choose(3) == "the checkpoint cannot be used: " + broken + ": is missing");
  REQUIRE(choose(9) == run.path() + ": holds no checkpoint of step 9");
  try {
    choose_checkpoint(run.path(), 9, CheckpointGroup{});
    FAIL("a step that does not exist was chosen");
  } catch (const Error& error) {
    REQUIRE(error.code() == ExitCode::kBadInput);
    REQUIRE(error.remedy() ==
            "give one of the saved steps: 1, 2, 3; or --resume auto for the newest good one");
  }

  write_text(run / "step-00000002/checkpoint.json", "{}");
  fs::remove(run / "step-00000001/rank-00000.safetensors");
  capture_log([&] {
    REQUIRE(choose(std::nullopt) == "no checkpoint can be used: " + broken + ": is missing\n  " +
                                        (run / "step-00000001/rank-00000.safetensors") +
                                        ": is missing\n  " +
                                        (run / "step-00000002/checkpoint.json") +
                                        ": does not begin as a checkpoint manifest");
  });
  REQUIRE(require_bad_input([&] {
            choose_checkpoint(run / "nothing", std::nullopt, CheckpointGroup{});
          }) == (run / "nothing") + ": holds no checkpoint");
}

TEST_CASE("after going back to an earlier step the newest commit counts, not the highest step") {
  const MemoryFolder run;
  save(run.path(), 1, 100, 1);
  save(run.path(), 1, 200, 2);
  save(run.path(), 1, 150, 3);
  REQUIRE(read_text(run / "latest") == "step-00000150");
  REQUIRE(choose_checkpoint(run.path(), std::nullopt, CheckpointGroup{}) == run / "step-00000150");
  const auto entries = list_checkpoints(run.path());
  REQUIRE(entries.size() == 3);
  REQUIRE(entries[0].step == 150);
  REQUIRE(entries[1].step == 200);
  REQUIRE(entries[2].step == 100);
}

TEST_CASE("a step that is saved again replaces the old folder") {
  const MemoryFolder run;
  save(run.path(), 2, 100, 1);
  save(run.path(), 3, 100, 2);
  REQUIRE(names_in(run.path()) == std::vector<std::string>{"latest", "step-00000100"});
  REQUIRE(loads_as(run / "step-00000100", 1, 2));
}

TEST_CASE("a folder with a step's name that is not a checkpoint is kept under another name") {
  const MemoryFolder run, elsewhere;
  write_text(elsewhere / "thesis.tex", "mine");
  const auto linked = [&] {
    fs::create_directory_symlink(elsewhere.path(), run / "step-00000002");
  };
  const auto folder = [&] {
    fs::create_directory(run / "step-00000002");
    write_text(run / "step-00000002/thesis.tex", "mine");
  };
  const auto dangling = [&] { fs::create_directory_symlink("nowhere", run / "step-00000002"); };
  for (const std::function<void()>& put :
       {std::function<void()>(linked), std::function<void()>(folder),
        std::function<void()>(dangling)}) {
    put();
    const std::string log = capture_log([&] { save(run.path(), 1, 2, 1); });
    CHECK_THAT(log, Catch::Contains(cat(run / "step-00000002",
                                        " was not a checkpoint of this run and was renamed to ")));
    CHECK(loads_as(run / "step-00000002", 1, 1));
    clean_checkpoints(posix_files(), run.path());
    fs::remove_all(run / "step-00000002");
  }
  CHECK(read_text(elsewhere / "thesis.tex") == "mine");
  int kept = 0, links = 0;
  for (const std::string& name : names_in(run.path())) {
    kept += name.starts_with("step-00000002.other-");
    links += fs::is_symlink(run / name);
    if (!fs::is_symlink(run / name) && name.starts_with("step"))
      CHECK(read_text(run / (name + "/thesis.tex")) == "mine");
  }
  CHECK((kept == 3 && links == 2));
}

TEST_CASE("keep_last removes older commits and never the newest good one") {
  const MemoryFolder run;
  for (int step = 1; step <= 4; ++step) save(run.path(), 1, step, step, 2);
  REQUIRE(names_in(run.path()) ==
          std::vector<std::string>{"latest", "step-00000003", "step-00000004"});
  write_text(run / "step-00000004/checkpoint.json", "damaged");
  save(run.path(), 1, 2, 9, 1);
  REQUIRE(names_in(run.path()) ==
          std::vector<std::string>{"latest", "step-00000002", "step-00000004"});
  REQUIRE(loads_as(run / "step-00000002", 2, 9));
}

TEST_CASE(
    "the best checkpoint is kept besides those of keep_last, and its record survives what cannot "
    "be read") {
  const MemoryFolder run;
  const auto save_as = [&](int64_t step, std::optional<BestCheckpoint> best) {
    ToyState state(1, 0, static_cast<int>(step));
    save_checkpoint(posix_files(), {.root = run.path(), .keep_last = 2, .best = best},
                    toy_meta(step, 1), state.slices(), {});
  };
  save_as(1, BestCheckpoint{1, "a.loss", 0.1});
  for (int64_t step = 2; step <= 4; ++step) save_as(step, std::nullopt);
  REQUIRE(names_in(run.path()) == std::vector<std::string>{"best", "latest", "step-00000001",
                                                           "step-00000003", "step-00000004"});
  REQUIRE(read_best_record(posix_files(), run.path())->value == 0.1);
  save_as(5, BestCheckpoint{5, "a.loss", 0.05});
  save_as(6, std::nullopt);
  REQUIRE(names_in(run.path()) == std::vector<std::string>{"best", "latest", "step-00000004",
                                                           "step-00000005", "step-00000006"});
  for (const char* text : {"", "step-00000005", R"({"checkpoint":"../x","metric":"a","value":1})",
                           R"({"checkpoint":"step-00000005"})"}) {
    write_text(run / "best", text);
    REQUIRE_THROWS_WITH(read_best_record(posix_files(), run.path()),
                        Catch::Contains("best: does not name a checkpoint, its metric and value"));
  }
  save_as(7, std::nullopt);  // nothing is removed in this save
  REQUIRE(loads_as(run / "step-00000005", 1, 5));
  REQUIRE(loads_as(run / "step-00000004", 1, 4));
}

TEST_CASE("leftovers of interrupted saves are cleaned, and a replaced folder is put back") {
  const MemoryFolder run;
  save(run.path(), 1, 1, 1);
  save(run.path(), 1, 2, 2);
  fs::create_directories(run / "step-00000003.tmp-0011aabb");
  write_text(run / "step-00000003.tmp-0011aabb/rank-00000.safetensors", "half");
  write_text(run / "latest.tmp-0011aabb", "step-0");
  write_text(run / "notes.txt", "mine");
  fs::rename(run / "step-00000002", run / "step-00000002.replaced-00ff00ff");
  fs::create_directories(run / "step-00000001.replaced-00ff00ff");
  clean_checkpoints(posix_files(), run.path());
  REQUIRE(names_in(run.path()) ==
          std::vector<std::string>{"latest", "notes.txt", "step-00000001", "step-00000002"});
  REQUIRE(loads_as(run / "step-00000002", 1, 2));
  REQUIRE(loads_as(run / "step-00000001", 1, 1));
  clean_checkpoints(posix_files(), run / "absent");
}

TEST_CASE("a file that only looks like a leftover stays, and a link is not followed") {
  const MemoryFolder run, elsewhere;
  save(run.path(), 1, 1, 1);
  write_text(elsewhere / "precious", "years of work");
  // These names are similar to temporary ones, or are files where temporary names are folders.
  for (const char* name :
       {"step-00000003.tmp-backup", "step-3.tmp-0011aabb", "my.replaced-0011aabb",
        "step-00000001.replaced-by-me", "step-00000003.tmp-0011aabb.old"})
    fs::create_directories(run / name);
  for (const char* name :
       {"step-00000004.tmp-0011aabb", "step-00000004.replaced-0011aabb", "latest.tmp"})
    write_text(run / name, "mine");
  fs::create_directory_symlink(elsewhere.path(), run / "step-00000005.tmp-0011aabb");
  fs::create_directory_symlink(elsewhere.path(), run / "step-00000006.replaced-0011aabb");
  const auto before = names_in(run.path());
  clean_checkpoints(posix_files(), run.path());
  REQUIRE(names_in(run.path()) == before);
  REQUIRE(read_text(elsewhere / "precious") == "years of work");
}

TEST_CASE("a failure on one rank stops the save on all ranks, with the same message") {
  const MemoryFolder run;
  save(run.path(), 2, 1, 1);
  const auto errors = run_ranks(2, [&](const CheckpointGroup& group) {
    ToyState state(2, group.rank, 2);
    auto slices = state.slices();
    if (group.rank == 1) slices.push_back(slices[0]);
    save_checkpoint(posix_files(), {.root = run.path()}, toy_meta(2, 2), slices, group);
  });
  REQUIRE(errors[0] == errors[1]);
  REQUIRE(errors[0].find("checkpoint step-00000002 was not written: rank 1: internal error") == 0);
  REQUIRE(errors[0].find("slice \"model.embed_tokens.weight.param[6:7,2:4]\" is given twice") !=
          std::string::npos);
  REQUIRE(names_in(run.path()) == std::vector<std::string>{"latest", "step-00000001"});
  REQUIRE(verify_checkpoint(run.path()).empty());
}

TEST_CASE("describe_checkpoint() lists what a checkpoint holds") {
  const MemoryFolder run;
  save(run.path(), 2, 100, 1);
  const std::string text = describe_checkpoint(run / "step-00000100").text();
  const auto row = [](std::string name, const std::string& value) {
    name.resize(32, ' ');
    return cat("\n", name, value, "\n");
  };
  REQUIRE(text.find(row("step", "100")) != std::string::npos);
  REQUIRE(text.find(row("written by", "ftrun 0.1.0, format 2")) != std::string::npos);
  REQUIRE(text.find(row("topology", "data 2, world_size 2")) != std::string::npos);
  REQUIRE(text.find(row("exp_avg F32", "4 tensors, 91 elements, 364 B")) != std::string::npos);
  REQUIRE(text.find(row("scheduler last_batch_iteration", "99")) != std::string::npos);
  const std::string all = describe_checkpoint(run.path()).text();
  REQUIRE(all.find("step-00000100  2 ranks, ") == 0);
  REQUIRE(require_bad_input([&] { describe_checkpoint(run / "absent"); }) ==
          (run / "absent") + ": is not a folder");
  fs::create_directories(run / "other/checkpoints");
  REQUIRE(require_bad_input([&] { describe_checkpoint(run / "other"); }) ==
          (run / "other") + ": holds no checkpoint");
  REQUIRE(require_bad_input([&] { verify_checkpoint(run / "other"); }) ==
          (run / "other") + ": holds no checkpoint");
  REQUIRE(describe_checkpoint(run / "other/checkpoints").text() ==
          (run / "other/checkpoints") + ": holds no checkpoint\n");
}

/// Saves into `root`. Returns whether the save reports that files were read back from memory, and
/// what its manifest says about reading back.
std::pair<bool, std::string> read_back(const std::string& root, bool verify) {
  ToyState state(1, 0, 1);
  const SaveOptions options{.root = root, .verify_written = verify};
  const bool from_disk =
      save_checkpoint(posix_files(), options, toy_meta(1, 1), state.slices(), CheckpointGroup{})
          .read_from_disk;
  return {from_disk, Checkpoint(root + "/step-00000001").manifest().files[0].read_back};
}

TEST_CASE(
    "a manifest records that a save's files were read back from memory, or were not read back") {
  const TemporaryFolder memory("/dev/shm"), unread("/dev/shm");
  REQUIRE(read_back(memory.path(), true) == std::pair(false, std::string("memory")));
  REQUIRE(read_back(unread.path(), false) == std::pair(false, std::string()));
}

TEST_CASE("a save reads its files back from the disk", "[.needs-disk]") {
  const TemporaryFolder disk(fs::temp_directory_path());
  REQUIRE(read_back(disk.path(), true) == std::pair(true, std::string("disk")));
}

TEST_CASE("only its owner can read a checkpoint") {
  const MemoryFolder run;
  const mode_t before = ::umask(0);
  save(run / "checkpoints", 1, 1, 1);
  ::umask(before);
  struct stat info {};
  for (const fs::path& path :
       {fs::path(run / "checkpoints"), fs::path(run / "checkpoints/step-00000001")}) {
    REQUIRE(::stat(path.c_str(), &info) == 0);
    REQUIRE((info.st_mode & 0777) == 0700);
  }
  for (const char* name :
       {"latest", "step-00000001/checkpoint.json", "step-00000001/rank-00000.safetensors"}) {
    REQUIRE(::stat((run / "checkpoints/" + name).c_str(), &info) == 0);
    REQUIRE((info.st_mode & 0777) == 0600);
  }
}

}  // namespace ftrun::testing
