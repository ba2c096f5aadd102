// Runs NCCL with one rank on a real GPU: collectives between kernels of the same stream, with
// NCCL's sums and with ftrun's, the end of a group, a group that is aborted, and recorded
// collectives. Exits with 77 if there is no GPU.
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <vector>

#include "base/error.h"
#include "comm/nccl_environment.h"
#include "comm/open.h"
#include "kernels/device.h"
#include "without_gpu.h"

namespace ftrun {
namespace {

constexpr int64_t kCount = 1 << 20;

struct Rig {
  explicit Rig(DeviceKernels& kernels)
      : gpu(kernels),
        stream(kernels.create_stream(true)),
        data(static_cast<float*>(kernels.allocate(kCount * 4))),
        out(static_cast<float*>(kernels.allocate(kCount * 4))),
        rendezvous(std::move(Rendezvous::in_process(1)[0])) {}

  std::unique_ptr<Communicator> open(const char* name, bool in_order) {
    CommOptions options{.timeout = std::chrono::seconds(60), .device = 0};
    if (in_order)
      options.sum_blocks = [this](const BlockSum& sum) {
        gpu.sum_blocks(sum.blocks, sum.ranks, sum.stride, sum.dtype, sum.count, sum.out,
                       static_cast<DeviceStream>(sum.stream));
      };
    auto group = open_communicator(*rendezvous, name, {0}, options);
    group->use_stream(stream);
    return group;
  }

  DeviceKernels& gpu;
  DeviceStream stream;
  float* data;
  float* out;
  std::unique_ptr<Rendezvous> rendezvous;
};

std::vector<float> counted() {
  std::vector<float> numbers(kCount);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(i % 1000);
  return numbers;
}

/// Checks a collective between two kernels that double their input: the result must be four times
/// the input.
void check_between_kernels(Rig& rig, bool in_order) {
  const auto group = rig.open(in_order ? "in order" : "plain", in_order);
  const std::vector<float> given = counted();
  std::vector<float> found(given.size());
  rig.gpu.copy(rig.data, given.data(), kCount * 4, rig.stream);
  rig.gpu.copy(rig.out, given.data(), kCount * 4, rig.stream);
  rig.gpu.add_into(rig.data, DType::kF32, rig.out, DType::kF32, kCount, rig.stream);
  group->all_reduce(rig.data, kCount, DType::kF32, ReduceOp::kSum, {"between kernels"}).wait();
  group->reduce_scatter(rig.data, rig.out, kCount, DType::kF32, ReduceOp::kSum, {"between kernels"})
      .wait();
  group->all_gather(rig.out, rig.data, kCount, DType::kF32, {"between kernels"}).wait();
  rig.gpu.add_into(rig.data, DType::kF32, rig.out, DType::kF32, kCount, rig.stream);
  rig.gpu.copy(found.data(), rig.data, kCount * 4, rig.stream);
  rig.gpu.synchronize(rig.stream);
  group->check_peers();
  for (size_t i = 0; i < given.size(); ++i)
    if (found[i] != 4 * given[i])
      bug(cat("element ", i, " is ", found[i], " and should be ", 4 * given[i]));
  group->shutdown();
  std::printf("%s: collectives between kernels, shutdown\n", in_order ? "our sums" : "NCCL's sums");
}

void check_abort(Rig& rig) {
  const auto group = rig.open("given up", false);
  group->all_reduce(rig.data, kCount, DType::kF32, ReduceOp::kSum, {"before"}).wait();
  rig.gpu.synchronize(rig.stream);
  group->abort("the test");
  bool refused = false;
  try {
    group->all_reduce(rig.data, kCount, DType::kF32, ReduceOp::kSum, {"after"}).wait();
  } catch (const Error& error) {
    refused = error.code() == ExitCode::kPeerLost;
  }
  require(refused, "a group that was given up takes no more");
  std::printf("abort\n");
}

/// Checks a collective that is recorded and launched twice. Then the group is aborted while the
/// recording exists, or closed after the recording is destroyed.
void check_recorded(Rig& rig, bool gives_up) {
  const auto group = rig.open(gives_up ? "recorded, given up" : "recorded, closed", false);
  const std::vector<float> given = counted();
  std::vector<float> found(given.size());
  rig.gpu.copy(rig.data, given.data(), kCount * 4, rig.stream);
  const auto reduce = [&] {
    group->all_reduce(rig.data, kCount, DType::kF32, ReduceOp::kSum, {"recorded"}).wait();
  };
  reduce();
  group->begin_recording();
  rig.gpu.begin_capture(rig.stream);
  rig.gpu.add_into(rig.data, DType::kF32, rig.data, DType::kF32, kCount, rig.stream);
  reduce();
  const DeviceGraph graph = rig.gpu.end_capture(rig.stream);
  std::vector<CollectiveRecord> records = group->end_recording();
  for (int times = 0; times < 2; ++times) {
    group->begin_replay(records);
    rig.gpu.launch(graph, rig.stream);
    group->end_replay();
  }
  rig.gpu.copy(found.data(), rig.data, kCount * 4, rig.stream);
  rig.gpu.synchronize(rig.stream);
  group->check_peers();
  for (size_t i = 0; i < given.size(); ++i)
    if (found[i] != 4 * given[i])
      bug(cat("element ", i, " is ", found[i], " and should be ", 4 * given[i]));
  if (gives_up) group->abort("the test");
  rig.gpu.destroy(graph);
  group->release_recordings(1);
  if (!gives_up) group->shutdown();
  std::printf("recorded twice, %s\n", gives_up ? "given up" : "closed");
}

int run() {
  prepare_nccl_environment();
  std::unique_ptr<DeviceKernels> gpu;
  try {
    gpu = open_cuda_kernels(0);
  } catch (const Error& error) {
    return testing::exit_code_without_gpu(error);
  }
  std::printf("on %s\n", gpu->info().name.c_str());
  Rig rig(*gpu);
  check_between_kernels(rig, false);
  check_between_kernels(rig, true);
  check_recorded(rig, false);
  check_recorded(rig, true);
  check_abort(rig);
  return 0;
}

}  // namespace
}  // namespace ftrun

int main() {
  int code = 1;
  try {
    code = ftrun::run();
  } catch (const std::exception& error) {
    std::printf("failed: %s\n", error.what());
  }
  // A thread that ends a communicator may still be inside NCCL, whose data static destructors would
  // destroy. Ranks exit in this way too.
  std::fflush(stdout);
  std::_Exit(code);
}
