#include "comm/nccl_communicator.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <ATen/ops/from_blob.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "base/error.h"
#include "base/text.h"
#include "comm/c10d_words.h"
#include "comm/store_access.h"

namespace ftrun {
namespace {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;

void free_device(void* data, int64_t) {
  c10::cuda::CUDACachingAllocator::raw_delete(data);
}

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(Setup setup, Rendezvous& rendezvous, int device)
      : Communicator(std::move(setup)),
        rendezvous_(rendezvous),
        device_(at::kCUDA, static_cast<c10::DeviceIndex>(device)) {
    auto options = c10d::ProcessGroupNCCL::Options::create();
    options->timeout = this->setup().timeout;
    group_ = c10::make_intrusive<c10d::ProcessGroupNCCL>(
        prefixed_store(rendezvous, "nccl/" + name()), rank(), size(), options);
    // Connects now, so that a network that does not work is met here and not in the first step.
    const c10::cuda::CUDAGuard guard(device_);
    group_->eagerConnectSingleDevice(device_);
  }

  std::string_view backend() const override { return "nccl"; }

  void use_stream(void* stream) override {
    c10::cuda::setCurrentCUDAStream(
        c10::cuda::getStreamFromExternal(static_cast<cudaStream_t>(stream), device_.index()));
  }

  void shutdown() override {
    barrier({"shutdown"});
    c10::cuda::device_synchronize();
    group_->shutdown();
  }

  void abort(const std::string&) noexcept override {
    try {
      group_->abort();
    } catch (const std::exception&) {
      // The process is about to end; its end is what the peers will see.
    }
  }

 protected:
  bool copies_alone() const override { return false; }

  /// Enqueues behind the current stream's work; the host does not wait.
  void begin(Collective& collective) override {
    const c10::cuda::CUDAGuard guard(device_);
    try {
      in_flight_.push_back({next_handle_, enqueue(collective)});
    } catch (const std::exception& error) {
      begin_error_ = first_line(error.what());
      in_flight_.push_back({next_handle_, {}});
    }
    collective.handle = next_handle_++;
  }

  /// Makes the current stream wait. What goes wrong on the device later is met by NCCL's watchdog,
  /// which ends the process through the crash handler.
  void complete(Collective& collective) override {
    const auto found =
        std::find_if(in_flight_.begin(), in_flight_.end(),
                     [&](const InFlight& work) { return work.handle == collective.handle; });
    const WorkPtr work = found->work;
    in_flight_.erase(found);
    if (!work) throw Failure{"could not start", begin_error_};
    const c10::cuda::CUDAGuard guard(device_);
    try {
      work->wait();
      if (collective.record.kind == CollectiveKind::kBarrier) c10::cuda::device_synchronize();
    } catch (const std::exception& error) {
      throw Failure{"lost a connection in", first_line(error.what())};
    }
  }

  std::vector<PeerView> view_peers() override { return rendezvous_.view(members(), name()); }

  CommBuffer allocate_memory(int64_t bytes) override {
    const c10::cuda::CUDAGuard guard(device_);
    void* data = nullptr;
    try {
      data = c10::cuda::CUDACachingAllocator::raw_alloc(static_cast<size_t>(bytes));
    } catch (const std::exception& error) {
      throw Error(ExitCode::kEnvironment, cat("no device memory for a communication buffer of ",
                                              human_bytes(bytes), ": ", first_line(error.what())));
    }
    if (::cudaMemset(data, 0, static_cast<size_t>(bytes)) != ::cudaSuccess)
      throw Error(ExitCode::kEnvironment, "cannot clear a communication buffer on the device");
    return {data, bytes, free_device};
  }

 private:
  struct InFlight {
    int64_t handle;
    WorkPtr work;
  };

  at::Tensor view_of(const void* data, int64_t count, at::ScalarType type) const {
    return at::from_blob(const_cast<void*>(data), {count},
                         at::TensorOptions().dtype(type).device(device_));
  }

  WorkPtr enqueue(const Collective& work) {
    const CollectiveRecord& record = work.record;
    switch (record.kind) {
      case CollectiveKind::kAllReduce:
        return all_reduce_now(work);
      case CollectiveKind::kReduceScatter:
        return reduce_scatter_now(work);
      case CollectiveKind::kAllGather:
        return all_gather_now(work);
      case CollectiveKind::kBroadcast:
        return broadcast_now(work);
      case CollectiveKind::kBarrier:
        return barrier_now();
      case CollectiveKind::kSend:
      case CollectiveKind::kReceive:
        return message_now(work);
    }
    bug("unknown collective");
  }

  WorkPtr all_reduce_now(const Collective& work) {
    std::vector<at::Tensor> tensors = {
        view_of(work.out, work.record.count, scalar_type(work.record.dtype))};
    c10d::AllreduceOptions options;
    options.reduceOp = reduce_op(work.record.op);
    options.timeout = setup().timeout;
    return group_->allreduce(tensors, options);
  }

  WorkPtr reduce_scatter_now(const Collective& work) {
    const at::ScalarType type = scalar_type(work.record.dtype);
    at::Tensor input = view_of(work.in, work.record.count * size(), type);
    at::Tensor output = view_of(work.out, work.record.count, type);
    c10d::ReduceScatterOptions options;
    options.reduceOp = reduce_op(work.record.op);
    options.timeout = setup().timeout;
    return group_->_reduce_scatter_base(output, input, options);
  }

  WorkPtr all_gather_now(const Collective& work) {
    at::Tensor input = view_of(work.in, payload(work.record), at::kByte);
    at::Tensor output = view_of(work.out, payload(work.record) * size(), at::kByte);
    c10d::AllgatherOptions options;
    options.timeout = setup().timeout;
    return group_->_allgather_base(output, input, options);
  }

  WorkPtr broadcast_now(const Collective& work) {
    std::vector<at::Tensor> tensors = {view_of(work.out, payload(work.record), at::kByte)};
    c10d::BroadcastOptions options;
    options.rootRank = work.record.peer;
    options.timeout = setup().timeout;
    return group_->broadcast(tensors, options);
  }

  WorkPtr barrier_now() {
    c10d::BarrierOptions options;
    options.device_ids = {device_.index()};
    options.timeout = setup().timeout;
    return group_->barrier(options);
  }

  WorkPtr message_now(const Collective& work) {
    const bool sends = work.record.kind == CollectiveKind::kSend;
    std::vector<at::Tensor> tensors = {
        view_of(sends ? work.in : work.out, payload(work.record), at::kByte)};
    return sends ? group_->send(tensors, work.record.peer, 0)
                 : group_->recv(tensors, work.record.peer, 0);
  }

  Rendezvous& rendezvous_;
  const at::Device device_;
  c10::intrusive_ptr<c10d::ProcessGroupNCCL> group_;
  std::vector<InFlight> in_flight_;
  std::string begin_error_;
  int64_t next_handle_ = 1;
};

}  // namespace

std::unique_ptr<Communicator> make_nccl_communicator(Communicator::Setup setup,
                                                     Rendezvous& rendezvous, int device) {
  const std::string name = setup.name;
  try {
    return std::make_unique<NcclCommunicator>(std::move(setup), rendezvous, device);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw Error(ExitCode::kPeerLost,
                cat("rank ", rendezvous.rank(), " could not connect group ", name,
                    " over NCCL: ", first_line(error.what())),
                "NCCL_DEBUG=INFO tells more; NCCL refuses two ranks on one GPU");
  }
}

}  // namespace ftrun
