// comm_bench [RANKS] [ROUNDS] [BYTES] compares collectives of this project with those of c10d's
// Gloo. Ranks are processes of one machine with one thread each. Every round runs all candidates
// one after the other. For each candidate the table shows its median and its minimum time, and how
// many times faster than c10d each of the two is.
//
// The last column compares the median with plain loops: it is their time divided by the median, so
// 1.00 is the best possible. Each rank's loop would move (ranks - 1) / ranks of the bytes, or all
// of them for a gather of a block that is not yet in place. The rates of the loops are measured in
// the same run: all ranks together copy a buffer of that size (gather), or add two buffers into a
// third (sum).
//
// A time is from the first rank's start to the last one's end: with fewer cores than ranks, some
// ranks end before others begin.
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "comm/listen_socket.h"
#include "comm/open.h"
#include "comm/store_access.h"

namespace {

using namespace ftrun;
using Clock = std::chrono::steady_clock;

struct Case {
  std::string name;
  std::function<void()> run;
  /// The gathered block is not yet in its final memory.
  bool brings_own = false;
};

struct Buffers {
  float* full;
  float* part;
  const float* source;  // of all_gather: this rank's block, usually in `full`
};

/// Baseline makes c10d's own calls, as PyTorch's users do.
class Baseline {
 public:
  explicit Baseline(Rendezvous& rendezvous) {
    auto options = c10d::ProcessGroupGloo::Options::create(std::chrono::seconds(60));
    options->devices = {c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1")};
    group_ = c10::make_intrusive<c10d::ProcessGroupGloo>(store_with_prefix(rendezvous, "bench"),
                                                         rendezvous.rank(), rendezvous.world_size(),
                                                         options);
  }
  void all_reduce(float* data, int64_t count) {
    std::vector<at::Tensor> tensors = {at::from_blob(data, {count})};
    group_->allreduce(tensors)->wait();
  }
  void reduce_scatter(float* in, float* out, int64_t count, int world_size) {
    at::Tensor input = at::from_blob(in, {count * world_size}),
               output = at::from_blob(out, {count});
    group_->_reduce_scatter_base(output, input)->wait();
  }
  void all_gather(float* in, float* out, int64_t count, int world_size) {
    at::Tensor output = at::from_blob(out, {count * world_size}),
               input = at::from_blob(in, {count});
    group_->_allgather_base(output, input)->wait();
  }

 private:
  c10::intrusive_ptr<c10d::ProcessGroupGloo> group_;
};

std::vector<Case> ftrun_cases(const std::string& name, Communicator& group, Buffers buffers,
                              int64_t part) {
  const int64_t full = part * group.size();
  return {{name + " all_reduce",
           [=, &group] {
             group.all_reduce(buffers.full, full, DType::kF32, ReduceOp::kSum, {"bench"}).wait();
           }},
          {name + " reduce_scatter",
           [=, &group] {
             group
                 .reduce_scatter(buffers.full, buffers.part, part, DType::kF32, ReduceOp::kSum,
                                 {"bench"})
                 .wait();
           }},
          {name + " all_gather",
           [=, &group] {
             group.all_gather(buffers.source, buffers.full, part, DType::kF32, {"bench"}).wait();
           },
           buffers.source == buffers.part}};
}

/// Returns the seconds from the first rank's start to the last one's end.
double measure_seconds(Communicator& group, const Case& one, int repeats, float* full,
                       int64_t count) {
  std::fill(full, full + count, 1.0F);  // sums must not overflow to infinity
  const auto now = [] {
    return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
  };
  group.barrier({"start"});
  double span[2] = {-now()};
  for (int i = 0; i < repeats; ++i) one.run();
  span[1] = now();
  group.all_reduce(span, 2, DType::kF64, ReduceOp::kMax, {"end"}).wait();
  return (span[1] + span[0]) / repeats;
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<long>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

/// Returns the seconds in which the machine could do an operation: `moved` of all bytes by each
/// rank, added by a reduce_scatter, copied by an all_gather, one after the other by an all_reduce.
std::vector<double> min_operation_seconds(const std::string& operation, double moved,
                                          const std::vector<double>& copy,
                                          const std::vector<double>& add) {
  std::vector<double> seconds;
  for (size_t i = 0; i < copy.size(); ++i)
    seconds.push_back(moved * ((operation == "all_gather" ? 0 : add[i]) +
                               (operation == "reduce_scatter" ? 0 : copy[i])));
  return seconds;
}

void print_table(int ranks, int64_t bytes, const std::vector<Case>& cases,
                 std::map<std::string, std::vector<double>>& times) {
  for (const Case& one : cases) {
    const std::string operation = one.name.substr(one.name.find(' ') + 1);
    const std::vector<double>& base = times["c10d " + operation];
    const std::vector<double>& own = times[one.name];
    if (operation == "copy" || operation == "add") continue;
    const double moved = one.brings_own ? 1.0 : (ranks - 1.0) / ranks;
    const std::vector<double> bound =
        min_operation_seconds(operation, moved, times["limit copy"], times["limit add"]);
    const double least = *std::min_element(own.begin(), own.end());
    std::printf(
        "%9.3f MB  %-28s median %9.1f us %6.2fx   least %9.1f us %6.2fx   of plain loops %5.2f "
        "(median)\n",
        static_cast<double>(bytes) * 1e-6, one.name.c_str(), median(own) * 1e6,
        median(base) / median(own), least * 1e6,
        *std::min_element(base.begin(), base.end()) / least, median(bound) / median(own));
  }
}

void bench_size(Rendezvous& rendezvous, Baseline& baseline, Communicator& shm, Communicator& gloo,
                int64_t bytes, int rounds) {
  const int world_size = rendezvous.world_size();
  const int64_t part = bytes / 4 / world_size, full = part * world_size;
  CommBuffer shared_full = shm.allocate(full * 4), shared_part = shm.allocate(part * 4);
  const Buffers shared{shared_full.as<float>(), shared_part.as<float>(),
                       shared_full.as<float>() + rendezvous.rank() * part};
  std::vector<float> plain_full(static_cast<size_t>(full)), plain_part(static_cast<size_t>(part));
  const Buffers plain{plain_full.data(), plain_part.data(), plain_part.data()};
  std::vector<Case> cases = {
      {"c10d all_reduce", [&] { baseline.all_reduce(plain.full, full); }},
      {"c10d reduce_scatter",
       [&] { baseline.reduce_scatter(plain.full, plain.part, part, world_size); }},
      {"c10d all_gather", [&] { baseline.all_gather(plain.part, plain.full, part, world_size); },
       true}};
  for (auto more :
       {ftrun_cases("gloo", gloo, plain, part), ftrun_cases("shm/copied", shm, plain, part),
        ftrun_cases("shm/in-place", shm, shared, part)})
    cases.insert(cases.end(), more.begin(), more.end());
  // Measures the plain loops: all ranks copy or add at the same time, each in memory of its own.
  std::vector<float> other(static_cast<size_t>(full), 1.0F), third(static_cast<size_t>(full), 1.0F);
  cases.push_back({"limit copy", [&] { std::copy_n(other.data(), full, plain.full); }});
  cases.push_back({"limit add", [&] {
                     const float *const a = plain.full, *const b = other.data();
                     float* const sum = third.data();
                     for (int64_t i = 0; i < full; ++i) sum[i] = a[i] + b[i];
                   }});
  const int repeats = static_cast<int>(std::clamp<int64_t>((4 << 20) / bytes, 1, 50));
  std::map<std::string, std::vector<double>> times;
  for (int round = 0; round <= rounds; ++round) {
    for (const Case& one : cases) {
      const bool in_place = one.name.find("in-place") != std::string::npos;
      const double took =
          measure_seconds(shm, one, repeats, in_place ? shared.full : plain.full, full);
      if (round > 0) times[one.name].push_back(took);  // the first is for warming up
    }
  }
  if (rendezvous.rank() == 0) print_table(world_size, full * 4, cases, times);
}

void run_rank(int rank, int world_size, int port, int listen_fd, int rounds,
              const std::vector<int64_t>& sizes, const std::string& token) {
  const auto rendezvous = Rendezvous::connect({.rank = rank,
                                               .world_size = world_size,
                                               .port = port,
                                               .listen_fd = rank == 0 ? listen_fd : -1,
                                               .token = token});
  std::vector<int> members;
  for (int i = 0; i < world_size; ++i) members.push_back(i);
  Baseline baseline(*rendezvous);
  const auto shm =
      open_communicator(*rendezvous, "shm", members, {.backend = CommBackend::kSharedMemory});
  const auto gloo = open_communicator(*rendezvous, "gloo", members,
                                      {.backend = CommBackend::kGloo, .checked_collectives = 0});
  for (const int64_t bytes : sizes) bench_size(*rendezvous, baseline, *shm, *gloo, bytes, rounds);
  shm->shutdown();
  rendezvous->shutdown();
}

}  // namespace

int main(int argc, char** argv) {
  const int world_size = argc > 1 ? std::atoi(argv[1]) : 2;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 9;
  std::vector<int64_t> sizes = {4'096, 65'536, 1'000'000, 25'000'000, 100'000'000};
  if (argc > 3) sizes = {std::atoll(argv[3])};
  ListenSocket socket = listen_on("127.0.0.1", 0);
  ::setenv("OMP_NUM_THREADS", "1", 1);
  std::random_device random;
  const std::string token = std::to_string(random()) + std::to_string(random());
  for (int rank = 1; rank < world_size; ++rank) {
    if (::fork() == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      socket.fd.reset();
      run_rank(rank, world_size, socket.port, -1, rounds, sizes, token);
      return 0;
    }
  }
  run_rank(0, world_size, socket.port, socket.fd.release(), rounds, sizes, token);
  while (::wait(nullptr) > 0) {
  }
  return 0;
}
