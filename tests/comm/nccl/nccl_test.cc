#include "comm/nccl_communicator.h"

#include <nccl.h>

#include <chrono>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#include "../ranks.h"
#include "comm/reduce.h"

#include <catch2/catch.hpp>

// These tests run the NCCL communicator's own code on a stand-in for NCCL and CUDA's runtime: what
// it calls, and what it reports if peers do not arrive.

using namespace ftrun;
using namespace std::chrono_literals;

namespace {

/// A group of GPUs with a stream; it adds in rank order if asked to.
struct GpuGroup {
  GpuGroup(Rendezvous& rendezvous, std::chrono::milliseconds timeout, bool in_order = false,
           bool messages = false) {
    Communicator::Setup setup{.name = "world",
                              .members = all_ranks(rendezvous.world_size()),
                              .rank = rendezvous.rank(),
                              .timeout = timeout,
                              .board = &rendezvous.board(),
                              .carries_messages = messages};
    if (in_order)
      setup.sum_blocks = [](const BlockSum& sum) {
        put_into(static_cast<cudaStream_t>(sum.stream), [sum] {
          std::vector<const void*> blocks;
          for (int rank = 0; rank < sum.ranks; ++rank)
            blocks.push_back(static_cast<const std::byte*>(sum.blocks) +
                             rank * sum.stride * dtype_bytes(sum.dtype));
          reduce_in_order(sum.dtype, ReduceOp::kSum, blocks.data(), sum.ranks, sum.out, sum.count);
        });
      };
    ::cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    group = make_nccl_communicator(std::move(setup), rendezvous, 0);
    group->use_stream(stream);
  }
  ~GpuGroup() {
    group.reset();
    if (stream != nullptr) ::cudaStreamDestroy(stream);
  }
  /// Waits for the device, then reports a failure that happened in the meantime.
  void synchronize() {
    ::cudaStreamSynchronize(stream);
    group->check_peers();
  }
  cudaStream_t stream = nullptr;
  std::unique_ptr<Communicator> group;
};

std::vector<float> numbers_of_rank(int rank, int64_t count) {
  std::vector<float> all(static_cast<size_t>(count));
  for (size_t i = 0; i < all.size(); ++i)
    all[i] = static_cast<float>(rank + 1) * static_cast<float>(i % 101);
  return all;
}

std::vector<float> expected_sum(int ranks, int64_t count) {
  std::vector<float> all = numbers_of_rank(0, count);
  for (int rank = 1; rank < ranks; ++rank) {
    const std::vector<float> more = numbers_of_rank(rank, count);
    for (size_t i = 0; i < all.size(); ++i) all[i] += more[i];
  }
  return all;
}

/// Returns the size of a block: in a counted all-to-all, rank r sends r + i + 1 numbers to rank i,
/// and none to itself.
int64_t block_size(int from, int to) {
  return from == to ? 0 : from + to + 1;
}

void check_exchanges(GpuGroup& gpu, int rank, int ranks) {
  for (const int64_t count : {int64_t{1}, int64_t{20'001}}) {
    const std::vector<float> in = numbers_of_rank(rank, count * ranks);
    std::vector<float> blocks(in.size()), shifted(in.size()), rows(64), expected;
    std::vector<int64_t> sends, receives;
    for (int peer = 0; peer < ranks; ++peer) {
      const std::vector<float> theirs = numbers_of_rank(peer, count * ranks);
      expected.insert(expected.end(), theirs.begin() + rank * count,
                      theirs.begin() + (rank + 1) * count);
      sends.push_back(block_size(rank, peer));
      receives.push_back(block_size(peer, rank));
    }
    std::vector<float> given(64), come(64);
    int64_t at = 0;
    for (int peer = 0; peer < ranks; ++peer)
      for (int64_t i = 0; i < sends[static_cast<size_t>(peer)]; ++i)
        given[static_cast<size_t>(at++)] = static_cast<float>(100 * rank + 10 * peer + i);
    at = 0;
    for (int peer = 0; peer < ranks; ++peer)
      for (int64_t i = 0; i < receives[static_cast<size_t>(peer)]; ++i)
        come[static_cast<size_t>(at++)] = static_cast<float>(100 * peer + 10 * rank + i);
    gpu.group->all_to_all(in.data(), blocks.data(), count, DType::kF32, {"tokens"}).wait();
    gpu.group->shift(in.data(), shifted.data(), count * ranks, DType::kF32, 1, {"keys"}).wait();
    gpu.group
        ->counted_all_to_all(given.data(), sends, rows.data(), receives, 64, DType::kF32, {"rows"})
        .wait();
    gpu.synchronize();
    require(blocks == expected, "each rank's block of every rank's comes");
    require(shifted == numbers_of_rank((rank + ranks - 1) % ranks, count * ranks),
            "the numbers of the rank before come");
    require(rows == come, "as many rows come as are counted, and nothing behind them");
  }
}

void check_collectives(Rendezvous& rendezvous, bool in_order) {
  GpuGroup gpu(rendezvous, 20s, in_order);
  const int rank = rendezvous.rank(), ranks = rendezvous.world_size();
  for (const int64_t count : {int64_t{6}, int64_t{40'002}}) {
    std::vector<float> all = numbers_of_rank(rank, count);
    const std::vector<float> expected = expected_sum(ranks, count);
    gpu.group->all_reduce(all.data(), count, DType::kF32, ReduceOp::kSum, {"sums"}).wait();
    const int64_t part = count / ranks;
    const std::vector<float> whole = numbers_of_rank(rank, count);
    std::vector<float> own(static_cast<size_t>(part)), gathered(static_cast<size_t>(count));
    gpu.group
        ->reduce_scatter(whole.data(), own.data(), part, DType::kF32, ReduceOp::kSum, {"parts"})
        .wait();
    gpu.group->all_gather(own.data(), gathered.data(), part, DType::kF32, {"whole"}).wait();
    std::vector<float> largest = whole, sent = numbers_of_rank(rank, 5);
    gpu.group->all_reduce(largest.data(), count, DType::kF32, ReduceOp::kMax, {"largest"}).wait();
    gpu.group->broadcast(sent.data(), 5, DType::kF32, 1, {"weights"}).wait();
    gpu.synchronize();
    require(all == expected, "an all-reduce adds up");
    require(gathered == expected, "parts and their gathering add up");
    require(largest == numbers_of_rank(ranks - 1, count), "the largest is found");
    require(sent == numbers_of_rank(1, 5), "the root's numbers come");
  }
  check_exchanges(gpu, rank, ranks);
  std::vector<float> letter = numbers_of_rank(rank, 7);
  if (rank == 0) gpu.group->send(letter.data(), 7, DType::kF32, 2, {"activations"}).wait();
  if (rank == 2) gpu.group->receive(letter.data(), 7, DType::kF32, 0, {"activations"}).wait();
  gpu.synchronize();
  require(rank != 2 || letter == numbers_of_rank(0, 7), "a message comes");
  const CommBuffer memory = gpu.group->allocate(1000);
  require(memory.as<char>()[999] == 0, "memory is zero at first");
  gpu.group->shutdown();
}

}  // namespace

TEST_CASE("nccl: three ranks get what they asked for, with NCCL's sums and with ours") {
  for (const bool in_order : {false, true}) {
    const auto failures =
        run_ranks(3, [&](Rendezvous& rendezvous) { check_collectives(rendezvous, in_order); });
    for (const std::string& failure : failures) REQUIRE(failure == "");
  }
}

TEST_CASE("nccl: two ranks that first send to each other are connected before that") {
  const auto failures = run_ranks(2, [&](Rendezvous& rendezvous) {
    GpuGroup gpu(rendezvous, 20s, false, true);
    const int rank = rendezvous.rank(), peer = 1 - rank;
    std::vector<float> sent = numbers_of_rank(rank, 7), received(7);
    gpu.group->send(sent.data(), 7, DType::kF32, peer, {"activations"}).wait();
    gpu.group->receive(received.data(), 7, DType::kF32, peer, {"activations"}).wait();
    gpu.synchronize();
    require(received == numbers_of_rank(peer, 7), "the other's message comes");
    gpu.group->shutdown();
  });
  for (const std::string& failure : failures) REQUIRE(failure == "");
}

TEST_CASE("nccl: a group of one rank runs collectives and a barrier, and closes") {
  const auto failures = run_ranks(1, [&](Rendezvous& rendezvous) {
    GpuGroup gpu(rendezvous, 20s);
    std::vector<float> data = numbers_of_rank(0, 12), out(12);
    gpu.group->all_reduce(data.data(), 12, DType::kF32, ReduceOp::kSum, {}).wait();
    gpu.group->reduce_scatter(data.data(), out.data(), 12, DType::kF32, ReduceOp::kSum, {}).wait();
    gpu.group->all_gather(out.data(), data.data(), 12, DType::kF32, {}).wait();
    gpu.synchronize();
    require(data == numbers_of_rank(0, 12), "its own numbers come back");
    gpu.group->shutdown();
  });
  REQUIRE(failures[0] == "");
}

TEST_CASE(
    "nccl: a group that does not connect within the time limit says which rank did not come") {
  std::mutex mutex;
  std::vector<std::string> messages(3);
  stand_in().absent = 1;
  run_ranks(3, [&](Rendezvous& rendezvous) {
    std::string message;
    try {
      const GpuGroup gpu(rendezvous, 500ms);
    } catch (const Error& error) {
      message = error.what();
    }
    const std::lock_guard lock(mutex);
    messages[static_cast<size_t>(rendezvous.rank())] = message;
  });
  stand_in_reset();
  for (const int rank : {0, 2})
    REQUIRE_THAT(messages[static_cast<size_t>(rank)],
                 Catch::StartsWith(cat("rank ", rank, " waited ")) &&
                     Catch::Contains(" in barrier #0 (connecting over NCCL) of group world: "));
}

TEST_CASE(
    "nccl: a peer that stays away is named within the time limit, and the device is free again") {
  std::string message;
  const auto failures = run_ranks(2, [&](Rendezvous& rendezvous) {
    GpuGroup gpu(rendezvous, 20s);
    std::vector<float> data = numbers_of_rank(0, 8);
    gpu.group->all_reduce(data.data(), 8, DType::kF32, ReduceOp::kSum, {"gradient bucket 6"})
        .wait();
    gpu.synchronize();
    if (rendezvous.rank() == 1) {
      const auto shown = [&] { return rendezvous.view_members({1}, "world")[0].record; };
      while (shown().sequence < 1 || shown().state != CollectiveState::kFinished) continue;
      rendezvous.all_gather_text("away", "");
      rendezvous.all_gather_text("noticed", "");
      return;
    }
    rendezvous.all_gather_text("away", "");
    gpu.group->set_timeout(400ms);
    // The host continues; only the device waits.
    gpu.group->all_reduce(data.data(), 8, DType::kF32, ReduceOp::kSum, {"gradient bucket 7"})
        .wait();
    std::string found;
    try {
      gpu.synchronize();
    } catch (const Error& error) {
      found = error.what();
    }
    try {
      gpu.group->all_reduce(data.data(), 8, DType::kF32, ReduceOp::kSum, {"gradient bucket 8"})
          .wait();
      found += " and goes on";
    } catch (const Error&) {
    }
    message = found;
    rendezvous.all_gather_text("noticed", "");
  });
  for (const std::string& failure : failures) REQUIRE(failure == "");
  REQUIRE_THAT(
      message,
      Catch::StartsWith("rank 0 waited ") &&
          Catch::Contains(
              " in all_reduce #2 (gradient bucket 7, 8 x F32) of group world: rank 1 (process ") &&
          Catch::Contains(
              " has not entered it; its last was all_reduce #1 (gradient bucket 6, 8 x F32), "
              "finished ") &&
          Catch::EndsWith("raise comm.timeout"));
}

TEST_CASE("nccl: NCCL's error about a broken network is reported with the collective") {
  std::string message;
  const auto failures = run_ranks(1, [&](Rendezvous& rendezvous) {
    GpuGroup gpu(rendezvous, 20s);
    std::vector<float> data = numbers_of_rank(0, 8);
    stand_in().network_fails = true;
    try {
      gpu.group->all_reduce(data.data(), 8, DType::kF32, ReduceOp::kSum, {"norm"}).wait();
      gpu.synchronize();
    } catch (const Error& error) {
      message = error.what();
    }
  });
  stand_in_reset();
  REQUIRE(failures[0] == "");
  REQUIRE_THAT(
      message,
      Catch::StartsWith(
          "rank 0 lost a connection in all_reduce #1 (norm, 8 x F32) of group world: ") &&
          Catch::Contains(
              "[NCCL failed in group world: remote process exited or there was a network error: "
              "socketProgress: Connection closed]"));
}
