// Runs NCCL with one rank on a real GPU: collectives between kernels of the same stream, with
// NCCL's sums and with ftrun's, the end of a group, a group that is aborted, and captured
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

struct OneRankGpu {
  explicit OneRankGpu(DeviceKernels& kernels)
      : gpu(kernels),
        stream(kernels.create_stream(true)),
        data(static_cast<float*>(kernels.allocate(kCount * 4))),
        out(static_cast<float*>(kernels.allocate(kCount * 4))),
        rendezvous(std::move(Rendezvous::make_in_process(1)[0])) {}

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

std::vector<float> counting_numbers() {
  std::vector<float> numbers(kCount);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(i % 1000);
  return numbers;
}

/// Checks a collective between two kernels that double their input: the result must be four times
/// the input.
void check_between_kernels(OneRankGpu& gpu_rank, bool in_order) {
  const auto group = gpu_rank.open(in_order ? "in order" : "plain", in_order);
  const std::vector<float> input = counting_numbers();
  std::vector<float> output(input.size());
  gpu_rank.gpu.copy(gpu_rank.data, input.data(), kCount * 4, gpu_rank.stream);
  gpu_rank.gpu.copy(gpu_rank.out, input.data(), kCount * 4, gpu_rank.stream);
  gpu_rank.gpu.add_into(gpu_rank.data, DType::kF32, gpu_rank.out, DType::kF32, kCount,
                        gpu_rank.stream);
  group->all_reduce(gpu_rank.data, kCount, DType::kF32, ReduceOp::kSum, {"between kernels"}).wait();
  group
      ->reduce_scatter(gpu_rank.data, gpu_rank.out, kCount, DType::kF32, ReduceOp::kSum,
                       {"between kernels"})
      .wait();
  group->all_gather(gpu_rank.out, gpu_rank.data, kCount, DType::kF32, {"between kernels"}).wait();
  gpu_rank.gpu.add_into(gpu_rank.data, DType::kF32, gpu_rank.out, DType::kF32, kCount,
                        gpu_rank.stream);
  gpu_rank.gpu.copy(output.data(), gpu_rank.data, kCount * 4, gpu_rank.stream);
  gpu_rank.gpu.synchronize(gpu_rank.stream);
  group->check_peers();
  for (size_t i = 0; i < input.size(); ++i)
    if (output[i] != 4 * input[i])
      bug(cat("element ", i, " is ", output[i], " and should be ", 4 * input[i]));
  group->shutdown();
  std::printf("%s: collectives between kernels, shutdown\n", in_order ? "our sums" : "NCCL's sums");
}

void check_abort(OneRankGpu& gpu_rank) {
  const auto group = gpu_rank.open("given up", false);
  group->all_reduce(gpu_rank.data, kCount, DType::kF32, ReduceOp::kSum, {"before"}).wait();
  gpu_rank.gpu.synchronize(gpu_rank.stream);
  group->abort("the test");
  bool refused = false;
  try {
    group->all_reduce(gpu_rank.data, kCount, DType::kF32, ReduceOp::kSum, {"after"}).wait();
  } catch (const Error& error) {
    refused = error.code() == ExitCode::kPeerLost;
  }
  require(refused, "a group that was given up takes no more");
  std::printf("abort\n");
}

/// Checks a collective that is captured and launched twice. Then the group is aborted while the
/// graph exists, or closed after the graph is destroyed.
void check_captured(OneRankGpu& gpu_rank, bool gives_up) {
  const auto group = gpu_rank.open(gives_up ? "captured, given up" : "captured, closed", false);
  const std::vector<float> input = counting_numbers();
  std::vector<float> output(input.size());
  gpu_rank.gpu.copy(gpu_rank.data, input.data(), kCount * 4, gpu_rank.stream);
  const auto reduce = [&] {
    group->all_reduce(gpu_rank.data, kCount, DType::kF32, ReduceOp::kSum, {"captured"}).wait();
  };
  reduce();
  group->begin_capture();
  gpu_rank.gpu.begin_capture(gpu_rank.stream);
  gpu_rank.gpu.add_into(gpu_rank.data, DType::kF32, gpu_rank.data, DType::kF32, kCount,
                        gpu_rank.stream);
  reduce();
  const DeviceGraph graph = gpu_rank.gpu.end_capture(gpu_rank.stream);
  std::vector<CollectiveRecord> records = group->end_capture();
  for (int times = 0; times < 2; ++times) {
    group->begin_replay(records);
    gpu_rank.gpu.launch(graph, gpu_rank.stream);
    group->end_replay();
  }
  gpu_rank.gpu.copy(output.data(), gpu_rank.data, kCount * 4, gpu_rank.stream);
  gpu_rank.gpu.synchronize(gpu_rank.stream);
  group->check_peers();
  for (size_t i = 0; i < input.size(); ++i)
    if (output[i] != 4 * input[i])
      bug(cat("element ", i, " is ", output[i], " and should be ", 4 * input[i]));
  if (gives_up) group->abort("the test");
  gpu_rank.gpu.destroy(graph);
  group->release_captures(1);
  if (!gives_up) group->shutdown();
  std::printf("captured twice, %s\n", gives_up ? "given up" : "closed");
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
  OneRankGpu gpu_rank(*gpu);
  check_between_kernels(gpu_rank, false);
  check_between_kernels(gpu_rank, true);
  check_captured(gpu_rank, false);
  check_captured(gpu_rank, true);
  check_abort(gpu_rank);
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
