// comm_rank RANK WORLD PORT BACKEND TIMEOUT_MS SCENARIO: one rank as a process of its own.
//   loop      all-reduces without end
//   once      one all-reduce of 1000 elements, its first element is printed
//   sizes     as once, but rank 1 brings fewer elements and nothing is compared before
//   meet      only meets the others
// A failure is printed as one line and its code is the exit code.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/error.h"
#include "comm/open.h"

namespace {

using namespace ftrun;

void run(int rank, int world, int port, const std::string& backend, int timeout_ms,
         const std::string& scenario) {
  const std::chrono::milliseconds timeout(timeout_ms);
  const auto rendezvous = Rendezvous::connect({.rank = rank,
                                               .world = world,
                                               .port = port,
                                               .timeout = timeout,
                                               .heartbeat = std::chrono::milliseconds(100)});
  std::printf("met\n");
  std::fflush(stdout);
  if (scenario == "meet") return rendezvous->shutdown();
  std::vector<int> everyone;
  for (int i = 0; i < world; ++i) everyone.push_back(i);
  CommOptions options{.timeout = timeout};
  if (backend == "gloo") options.backend = CommBackend::kGloo;
  if (backend == "shm") options.backend = CommBackend::kSharedMemory;
  const bool sizes = scenario == "sizes";
  if (sizes) options.checked_collectives = 0;
  const auto group = open_communicator(*rendezvous, "world", everyone, options);
  std::vector<float> data(sizes && rank == 1 ? 500 : 1000);
  const auto count = static_cast<int64_t>(data.size());
  std::printf("looping\n");
  std::fflush(stdout);
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

int main(int argc, char** argv) {
  if (argc != 7) return 2;
  ftrun::install_crash_handler();
  try {
    run(std::atoi(argv[1]), std::atoi(argv[2]), std::atoi(argv[3]), argv[4], std::atoi(argv[5]),
        argv[6]);
    return 0;
  } catch (const ftrun::Error& error) {
    std::printf("failed: %s\n", error.message().c_str());
    std::fflush(stdout);
    std::_Exit(static_cast<int>(error.code()));
  }
}
