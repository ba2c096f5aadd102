#include "exec/model_state.h"

#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <map>
#include <set>

#include "checkpoint/save.h"
#include "rig.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using fixtures::Alone;
using fixtures::RankRig;

/// A folder that goes with the test.
struct Scratch {
  std::string path =
      (std::filesystem::temp_directory_path() / ("ftrun-exec-" + std::to_string(::getpid())))
          .string();
  Scratch() { std::filesystem::create_directories(path); }
  ~Scratch() { std::filesystem::remove_all(path); }
};

std::map<std::string, std::vector<float>> contents(const ModelState& state) {
  std::map<std::string, std::vector<float>> all;
  for (const StateSlice& slice : state.slices(0, 1)) {
    std::vector<float>& tensor = all[slice.tensor + "." + slice.kind];
    tensor.resize(std::max(tensor.size(), static_cast<size_t>(slice.end)));
    std::memcpy(tensor.data() + slice.begin, slice.data,
                static_cast<size_t>(slice.end - slice.begin) * sizeof(float));
  }
  return all;
}

TEST_CASE(
    "the ranks' slices cover each element of each state exactly once, for any number of ranks") {
  Alone alone;
  for (const bool tied : {false, true}) {
    RankRig rig(fixtures::small_run(), fixtures::small_model(tied), *alone.group);
    for (const int ranks : {1, 2, 3, 5}) {
      std::map<std::string, std::vector<int>> covered;
      for (const StateInfo& state : rig.state.states()) {
        int64_t elements = 1;
        for (const int64_t dim : state.shape) elements *= dim;
        covered[state.tensor + "." + state.kind].assign(static_cast<size_t>(elements), 0);
      }
      for (int rank = 0; rank < ranks; ++rank)
        for (const StateSlice& slice : rig.state.slices(rank, ranks))
          for (int64_t i = slice.begin; i < slice.end; ++i)
            ++covered.at(slice.tensor + "." + slice.kind)[static_cast<size_t>(i)];
      for (const auto& [name, times] : covered) {
        INFO(name << " on " << ranks << " ranks");
        REQUIRE(std::set<int>(times.begin(), times.end()) == std::set<int>{1});
      }
    }
  }
}

TEST_CASE("what three ranks save another layout reads back bit by bit") {
  const Scratch scratch;
  std::map<std::string, std::vector<float>> saved;
  const auto failures = fixtures::on_ranks(3, [&](Rendezvous& rendezvous, Communicator& group) {
    RankRig rig(fixtures::small_run(), fixtures::small_model(), group);
    fixtures::fill_random(rig.state.slices(0, 1), 5);
    if (group.rank() == 0) saved = contents(rig.state);
    const CheckpointGroup together{group.rank(), 3, [&](const std::string& text) {
                                     return rendezvous.exchange_text("save", text);
                                   }};
    save_checkpoint(posix_files(), {scratch.path}, {}, rig.state.slices(group.rank(), 3), together);
  });
  for (const std::string& failure : failures) REQUIRE(failure.empty());

  Alone alone;
  Config config = fixtures::small_run();
  config.partition.unit = PartitionUnit::kBlock;
  RankRig other(config, fixtures::small_model(), *alone.group);
  REQUIRE(contents(other.state) != saved);
  Checkpoint checkpoint(scratch.path + "/step-00000000");
  other.state.load(checkpoint);
  REQUIRE(contents(other.state) == saved);
}

TEST_CASE("a checkpoint of another optimizer is refused") {
  const Scratch scratch;
  Alone alone;
  Config sgd = fixtures::small_run();
  sgd.optimizer.type = OptimizerType::kSgd;
  sgd.optimizer.momentum = 0.9;
  RankRig saver(sgd, fixtures::small_model(), *alone.group);
  save_checkpoint(posix_files(), {scratch.path}, {}, saver.state.slices(0, 1), {});
  RankRig adam(fixtures::small_run(), fixtures::small_model(), *alone.group);
  Checkpoint checkpoint(scratch.path + "/step-00000000");
  REQUIRE_THROWS_AS(adam.state.load(checkpoint), Error);
}

TEST_CASE("pieces of a parameter read as they lie in its slices") {
  Alone alone;
  RankRig rig(fixtures::small_run(), fixtures::small_model(), *alone.group);
  const auto all = contents(rig.state);
  for (const TensorInfo& tensor : rig.plan.train.model.tensors) {
    const std::vector<float>& whole = all.at(tensor.name + ".param");
    const auto size = static_cast<int64_t>(whole.size());
    for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, size},
                                     {1, size},
                                     {size / 3, size / 2},
                                     {size - 1, size}}) {
      std::vector<float> piece(static_cast<size_t>(end - begin), -1.0F);
      rig.state.read(tensor.name, begin, end, piece);
      REQUIRE(std::equal(piece.begin(), piece.end(), whole.begin() + begin));
    }
  }
}

}  // namespace
}  // namespace ftrun
