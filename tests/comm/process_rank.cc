// This program is a rank that process_test.cc runs in a separate process. Its scenarios:
//   loop      endless all-reduces
//   once      one all-reduce of 1000 elements; prints its first element
//   sizes     like once, but rank 1 passes fewer elements, and sizes are not compared before
//   meet      only meets the others
//   abort     the last rank skips a collective; another thread of the rank before it aborts
//   texts     endless exchanges of texts, which it counts
//   group     ranks 1 and 2 wait for the text of rank 3, which never comes
//   patient   all wait for the text of the last rank, which comes later than the timeout
// A failure is printed as one line, and its code is the exit code.
#include "process_rank.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "cluster/progress_board.h"
#include "comm/open.h"

namespace ftrun {
namespace {

void print_line(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

void all_gather_texts(Rendezvous& rendezvous) {
  for (int i = 1;; ++i) {
    rendezvous.all_gather_text("texts", cat(i));
    print_line(cat("round ", i, "."));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

void wait_for_last(Rendezvous& rendezvous, std::chrono::milliseconds timeout) {
  print_line("waiting");
  if (rendezvous.rank() == rendezvous.world_size() - 1)
    std::this_thread::sleep_for(timeout + timeout / 2);
  rendezvous.all_gather_text("patient", "done", WaitPolicy::kWhileAlive);
  print_line("all came");
  rendezvous.shutdown();
}

void wait_in_group(Rendezvous& rendezvous) {
  print_line("waiting");
  if (rendezvous.rank() == 0 || rendezvous.rank() == 3)
    std::this_thread::sleep_for(std::chrono::hours(1));
  rendezvous.all_gather_text("group", "text", {1, 2, 3});
}

void abort_while_others_wait(Communicator& group) {
  if (group.rank() == group.size() - 1) std::this_thread::sleep_for(std::chrono::hours(1));
  if (group.rank() == group.size() - 2)
    std::thread([&group] {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      group.abort("disk full");
    }).detach();
  std::vector<float> data(1000);
  group.all_reduce(data.data(), 1000, DType::kF32, ReduceOp::kSum, {"gradient bucket 7"}).wait();
}

void run_scenario(const ProcessRank& process) {
  const auto& [rank, world_size, port, backend, timeout, scenario] = process;
  // On a busy machine the others take a while to arrive.
  const auto meeting = std::max<std::chrono::milliseconds>(timeout, std::chrono::minutes(1));
  const auto rendezvous = Rendezvous::connect({.rank = rank,
                                               .world_size = world_size,
                                               .port = port,
                                               .timeout = scenario == "patient" ? timeout : meeting,
                                               .heartbeat = std::chrono::milliseconds(100),
                                               .token = "the token of the tests' ranks"});
  print_line("met");
  if (scenario == "meet") return rendezvous->shutdown();
  if (scenario == "texts") return all_gather_texts(*rendezvous);
  if (scenario == "group") return wait_in_group(*rendezvous);
  if (scenario == "patient") return wait_for_last(*rendezvous, timeout);
  std::vector<int> everyone;
  for (int i = 0; i < world_size; ++i) everyone.push_back(i);
  CommOptions options{.timeout = meeting};
  if (backend == "gloo") options.backend = CommBackend::kGloo;
  if (backend == "shm") options.backend = CommBackend::kSharedMemory;
  const bool sizes = scenario == "sizes";
  if (sizes) options.checked_collectives = 0;
  const auto group = open_communicator(*rendezvous, "world", everyone, options);
  group->set_timeout(timeout);
  std::vector<float> data(sizes && rank == 1 ? 500 : 1000);
  const auto count = static_cast<int64_t>(data.size());
  print_line("looping");
  if (scenario == "abort") return abort_while_others_wait(*group);
  do {
    data.assign(data.size(), static_cast<float>(rank + 1));
    group->all_reduce(data.data(), count, DType::kF32, ReduceOp::kSum, {"gradient bucket 7"})
        .wait();
  } while (scenario == "loop");
  std::printf("%s %g\n", std::string(group->backend()).c_str(), static_cast<double>(data[0]));
  group->shutdown();
  rendezvous->shutdown();
}

}  // namespace

int run_process_rank(const ProcessRank& rank) {
  install_crash_handler();
  try {
    run_scenario(rank);
    return 0;
  } catch (const Error& error) {
    std::printf("failed: %s\n", error.message().c_str());
    std::fflush(stdout);
    return static_cast<int>(error.code());
  }
}

}  // namespace ftrun
