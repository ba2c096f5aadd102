// These tests run a program that the checker would refuse: one rank has two collectives in the
// other order.
#include <algorithm>
#include <chrono>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/kernels.h"
#include "rank_fixture.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

/// Returns, for each instruction, whether it is `first` or always runs after it.
std::vector<bool> runs_after(const Program& program, InstrId first) {
  std::vector<bool> found(program.instrs.size());
  found[static_cast<size_t>(first)] = true;
  std::vector<Lane> lanes{program.instr(first).lane};
  for (size_t i = static_cast<size_t>(first) + 1; i < found.size(); ++i) {
    const Instr& instr = program.instrs[i];
    const auto waited = [&](InstrId id) { return found[static_cast<size_t>(id)]; };
    const bool in_order = std::ranges::find(lanes, instr.lane) != lanes.end();
    found[i] = in_order || std::ranges::any_of(instr.waits, waited);
    if (found[i] && !in_order) lanes.push_back(instr.lane);
  }
  return found;
}

/// Returns whether the group of `other` contains all ranks of the group of `one`, and is another
/// group.
bool is_within(const Program& program, const Instr& one, const Instr& other) {
  const auto ranks = [&](const Instr& instr) {
    std::vector<int> all = program.group(instr.group()).members.ranks;
    std::ranges::sort(all);
    return all;
  };
  return one.group() != other.group() && std::ranges::includes(ranks(other), ranks(one));
}

/// Finds two collectives and swaps them: the second waits for the first, runs over more ranks, and
/// no collective of the first's group is between them. The waits stay in place: each instruction
/// gets those of the one whose place it takes.
void swap_collectives(Program& program) {
  for (size_t i = 0; i < program.instrs.size(); ++i) {
    if (!program.instrs[i].is_collective()) continue;
    const std::vector<bool> later = runs_after(program, static_cast<InstrId>(i));
    for (size_t j = i + 1; j < program.instrs.size(); ++j) {
      Instr& first = program.instrs[i];
      Instr& second = program.instrs[j];
      if (second.group() == first.group()) break;
      if (!second.is_collective() || !later[j] || !is_within(program, first, second)) continue;
      std::swap(first, second);
      std::swap(first.waits, second.waits);
      return;
    }
  }
  bug("the program has two such collectives");
}

TEST_CASE(
    "a program with two collectives swapped hangs, and its ranks end with an error that names the "
    "ring of waits") {
  set_kernel_threads(1);
  constexpr int kSwapped = 2;  // rank 3 is in the same two groups
  std::vector<std::string> messages(4);
  std::vector<int> blamed(4);
  testing::run_on_mesh(2, 2, [&](Rendezvous& rendezvous, const RankCommunicators& communicators) {
    const auto rank = static_cast<size_t>(rendezvous.rank());
    testing::RankFixtureSettings settings;
    if (rank == kSwapped) settings.mutates = swap_collectives;
    Config config = testing::config_of_stage(2);
    config.parallel.data_replicate = 2;
    testing::RankFixture fixture(config, testing::model_of_many_blocks(), communicators, nullptr,
                                 settings);
    communicators.host_world->barrier({"start"});
    for (Communicator* group : communicators.distinct_communicators())
      group->set_timeout(std::chrono::seconds(2));
    messages[rank] = testing::error_text_of([&] { fixture.train(1); });
    blamed[rank] = rendezvous.board().blamed_rank();
  });
  for (size_t rank = 0; rank < messages.size(); ++rank)
    UNSCOPED_INFO("blamed " << blamed[rank] << ": " << messages[rank]);
  for (const std::string& message : messages) REQUIRE_FALSE(message.empty());
  // The two ranks wait for each other. The first whose wait times out names this cycle; the other
  // names the rank that aborted.
  CHECK_THAT(messages[kSwapped], Catch::Contains("rank 3"));
  CHECK_THAT(messages[kSwapped + 1], Catch::Contains("rank 2"));
  const auto rings = std::ranges::count_if(messages, [](const std::string& message) {
    return message.find("they wait for each other") != message.npos;
  });
  CHECK(rings >= 1);
}

}  // namespace
}  // namespace ftrun
