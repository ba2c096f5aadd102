#include <cuda_runtime_api.h>
#include <nvtx3/nvToolsExt.h>

#include <optional>

#include "base/error.h"
#include "base/text.h"
#include "graph/op_spec.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/module_entry.h"
#include "kernels/cuda/run_op.h"
#include "kernels/device.h"
#include "kernels/measured_attention.h"
#include "kernels/update_states.h"

namespace ftrun::cuda {

namespace {

cudaStream_t native(DeviceStream stream) {
  return reinterpret_cast<cudaStream_t>(stream);
}
cudaEvent_t native(DeviceEvent event) {
  return reinterpret_cast<cudaEvent_t>(event);
}
cudaGraphExec_t native(DeviceGraph graph) {
  return reinterpret_cast<cudaGraphExec_t>(graph);
}

/// The first compute capability (major) with bf16 tensor cores. The kernels are compiled for it and
/// later ones.
constexpr int kMinMajor = 8;

/// Returns the UUID of a device. For a MIG slice it is the slice's own, if the driver reports it
/// (since 11.4), else the GPU's.
cudaUUID_t uuid_of(const cudaDeviceProp& properties, int index) {
  constexpr unsigned kKnowsSlices = 11040;
  using Ask = int (*)(cudaUUID_t*, int);
  void* entry = nullptr;
  cudaUUID_t found{};
  const bool asked = cudaGetDriverEntryPointByVersion("cuDeviceGetUuid", &entry, kKnowsSlices,
                                                      cudaEnableDefault, nullptr) == cudaSuccess &&
                     entry != nullptr && reinterpret_cast<Ask>(entry)(&found, index) == 0;
  cudaGetLastError();  // an older driver without this function is not an error
  return asked ? found : properties.uuid;
}

/// Formats an id as nvidia-smi shows it: "GPU-01234567-89ab-...".
std::string uuid_text(const cudaUUID_t& uuid) {
  std::string text = "GPU";
  for (size_t i = 0; i < sizeof uuid.bytes; ++i) {
    constexpr char kDigits[] = "0123456789abcdef";
    const auto byte = static_cast<unsigned char>(uuid.bytes[i]);
    if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

DeviceInfo device_info(int index) {
  int count = 0;
  const cudaError_t found = cudaGetDeviceCount(&count);
  if (found != cudaSuccess || count == 0) {
    const char* const why = found == cudaSuccess ? "it has no GPU" : cudaGetErrorString(found);
    throw Error(ExitCode::kEnvironment,
                cat("the config requests GPU ", index, ", but CUDA cannot use this machine: ", why),
                "check that nvidia-smi shows the GPU, or set device: cpu");
  }
  if (index < 0 || index >= count)
    throw Error(ExitCode::kEnvironment,
                cat("the config requests GPU ", index, ", but this process sees ", count),
                "start one rank per GPU, and check CUDA_VISIBLE_DEVICES");
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, index), "reading the GPU's properties");
  DeviceInfo info{.name = properties.name,
                  .index = index,
                  .compute_major = properties.major,
                  .compute_minor = properties.minor,
                  .multiprocessors = properties.multiProcessorCount};
  info.block_shared_bytes = static_cast<int64_t>(properties.sharedMemPerBlockOptin);
  info.memory_bytes = static_cast<int64_t>(properties.totalGlobalMem);
  info.uuid = uuid_text(uuid_of(properties, index));
  char bus_id[32] = "";
  check(cudaDeviceGetPCIBusId(bus_id, sizeof bus_id, index), "querying the GPU's PCI bus id");
  info.bus_id = bus_id;
  check(cudaDriverGetVersion(&info.driver_version), "querying the driver's version");
  check(cudaRuntimeGetVersion(&info.runtime_version), "querying the runtime's version");
  if (info.compute_major < kMinMajor)
    throw Error(ExitCode::kUnsupported,
                cat("GPU ", index, " is ", info.name, " of compute capability ", info.compute_major,
                    ".", info.compute_minor, "; the kernels need 8.0 (Ampere) or later"),
                "set device: cpu");
  return info;
}

void require_float(DType dtype, const char* what) {
  if (dtype != DType::kF32 && dtype != DType::kBF16 && dtype != DType::kF16)
    bug(cat(what, " of ", dtype_name(dtype)));
}

/// Refuses F16 for states: its small range of exponents makes it unfit for sums of small steps.
void require_state(DType dtype, const char* what) {
  if (dtype != DType::kF32 && dtype != DType::kBF16) bug(cat(what, " of ", dtype_name(dtype)));
}

/// CudaKernels implements DeviceKernels with CUDA, cuBLAS and, where it is used, cuDNN.
class CudaKernels final : public DeviceKernels {
 public:
  CudaKernels(int index, const AttentionOptions& attention)
      : info_(device_info(index)), attention_(attention) {
    // Lets threads that wait for the device sleep instead of spin, because the CPU has updates and
    // disk requests to do meanwhile.
    check(cudaInitDevice(index, cudaDeviceScheduleBlockingSync, cudaInitDeviceFlagsAreValid),
          "opening the GPU");
    bind_thread();
    matmul_.emplace(info_.compute_major >= 9);
    open_cudnn();
  }

  const DeviceInfo& info() const override { return info_; }

  DeviceMemory memory() const override {
    size_t free_bytes = 0, total_bytes = 0;
    check(cudaMemGetInfo(&free_bytes, &total_bytes), "querying the device's memory");
    return {static_cast<int64_t>(free_bytes), static_cast<int64_t>(total_bytes)};
  }

  void bind_thread() override { check(cudaSetDevice(info_.index), "choosing the GPU"); }

  void* allocate(int64_t bytes) override {
    void* memory = nullptr;
    const cudaError_t status = cudaMalloc(&memory, static_cast<size_t>(bytes));
    if (status == cudaErrorMemoryAllocation) {
      cudaGetLastError();  // later calls must not report it
      const DeviceMemory left = this->memory();
      throw Error(
          ExitCode::kEnvironment,
          cat("GPU ", info_.index, " (", info_.name, ") cannot allocate ", human_bytes(bytes), ": ",
              human_bytes(left.free_bytes), " of ", human_bytes(left.total_bytes), " are free"),
          "use a smaller micro-batch or sequence, or check with nvidia-smi what else runs there");
    }
    check(status, "allocating device memory");
    return memory;
  }
  void free(void* memory) noexcept override { cudaFree(memory); }

  void* allocate_pinned(int64_t bytes) override {
    void* memory = nullptr;
    if (cudaHostAlloc(&memory, static_cast<size_t>(bytes), cudaHostAllocDefault) != cudaSuccess) {
      cudaGetLastError();
      throw Error(ExitCode::kEnvironment, cat("cannot pin ", human_bytes(bytes), " of main memory"),
                  "check the limit of locked memory (ulimit -l) and the memory that is free");
    }
    return memory;
  }
  void free_pinned(void* memory) noexcept override { cudaFreeHost(memory); }

  void copy(void* to, const void* from, int64_t bytes, DeviceStream stream) override {
    check(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, native(stream)),
          "copying");
  }
  void fill_zero(void* to, int64_t bytes, DeviceStream stream) override {
    check(cudaMemsetAsync(to, 0, static_cast<size_t>(bytes), native(stream)), "clearing memory");
  }

  DeviceStream create_stream(bool high_priority) override {
    int least = 0, greatest = 0;
    check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "querying stream priorities");
    cudaStream_t stream = nullptr;
    check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking,
                                       high_priority ? greatest : least),
          "creating a stream");
    return reinterpret_cast<DeviceStream>(stream);
  }
  void destroy(DeviceStream stream) noexcept override { cudaStreamDestroy(native(stream)); }
  void synchronize(DeviceStream stream) override {
    check(cudaStreamSynchronize(native(stream)), "waiting for the device");
  }

  DeviceEvent create_event(bool timed, bool host_waits) override {
    cudaEvent_t event = nullptr;
    const unsigned flags = (timed ? cudaEventDefault : cudaEventDisableTiming) |
                           (host_waits ? cudaEventBlockingSync : cudaEventDefault);
    check(cudaEventCreateWithFlags(&event, flags), "creating an event");
    return reinterpret_cast<DeviceEvent>(event);
  }
  void destroy(DeviceEvent event) noexcept override { cudaEventDestroy(native(event)); }
  void record(DeviceEvent event, DeviceStream stream) override {
    check(cudaEventRecord(native(event), native(stream)), "recording an event");
  }
  void wait(DeviceStream stream, DeviceEvent event) override {
    check(cudaStreamWaitEvent(native(stream), native(event), 0), "making a stream wait");
  }
  void synchronize(DeviceEvent event) override {
    check(cudaEventSynchronize(native(event)), "waiting for the device");
  }
  bool is_done(DeviceEvent event) override {
    const cudaError_t status = cudaEventQuery(native(event));
    if (status == cudaErrorNotReady) {
      cudaGetLastError();  // later calls must not report it
      return false;
    }
    check(status, "querying an event");
    return true;
  }
  double milliseconds(DeviceEvent begin, DeviceEvent end) override {
    float time = 0.0F;
    check(cudaEventElapsedTime(&time, native(begin), native(end)), "reading a time");
    return static_cast<double>(time);
  }

  void push_range(const char* name) override { nvtxRangePushA(name); }
  void pop_range() override { nvtxRangePop(); }

  void begin_capture(DeviceStream stream) override {
    check(cudaStreamBeginCapture(native(stream), cudaStreamCaptureModeThreadLocal),
          "beginning a capture");
  }
  DeviceGraph end_capture(DeviceStream stream) override {
    cudaGraph_t graph = nullptr;
    check(cudaStreamEndCapture(native(stream), &graph), "ending a capture");
    cudaGraphExec_t ready = nullptr;
    const cudaError_t status = cudaGraphInstantiate(&ready, graph, 0);
    cudaGraphDestroy(graph);
    check(status, "preparing a captured graph");
    return reinterpret_cast<DeviceGraph>(ready);
  }
  void launch(DeviceGraph graph, DeviceStream stream) override {
    check(cudaGraphLaunch(native(graph), native(stream)), "starting a captured graph");
  }
  void destroy(DeviceGraph graph) noexcept override { cudaGraphExecDestroy(native(graph)); }

  void prepare(const LayerGraph& graph) override { cuda::prepare(graph, libraries()); }
  AttentionLibraryUse library_use() const override {
    if (!cudnn_) return {.notice = without_cudnn_};
    return {.chosen = cudnn_->version(),
            .in_use = cudnn_->has_plans() ? cudnn_->version() : "own",
            .notice = cudnn_->unsupported_reason(),
            .workspace_bytes = cudnn_->workspace_bytes()};
  }
  void run_ops(const LayerGraph& graph, std::span<const Op> ops, std::span<void* const> storage,
               const KernelContext& context, DeviceStream stream) override {
    const auto operation = [&](size_t i) {
      return Operation(graph, ops[i], storage, context, native(stream));
    };
    for (size_t i = 0; i < ops.size(); ++i) {
      if (is_gpu_pair(ops, i) && run_pair(operation(i), operation(i + 1)))
        ++i;
      else
        run_operation(operation(i), libraries());
    }
  }

  int64_t sum_of_squares_scratch_bytes(int64_t count) const override {
    return (count + kGradientNormGroup - 1) / kGradientNormGroup *
           static_cast<int64_t>(sizeof(double));
  }
  void sum_of_squares(const void* g, DType dtype, int64_t count, bool accumulate, double* sum,
                      void* scratch, DeviceStream stream) override {
    require_float(dtype, "gradients");
    cuda::sum_of_squares(dtype, g, count, accumulate, sum, static_cast<double*>(scratch),
                         native(stream));
  }

  void optimizer_update(const FlatUpdate& update, const OptimizerConfig& config,
                        const StepScalars* scalars, DeviceStream stream) override {
    check_update(update, scalars);
    cuda::optimizer_update(with_states_of(update, config), config, scalars, native(stream));
  }
  void compute_scales(const FlatUpdate& update, const OptimizerConfig& config,
                      const StepScalars* scalars, DeviceStream stream) override {
    check_update(update, scalars);
    require(update.state_dtype == DType::kU8 && update.new_scales[0] != nullptr,
            "only states that are codes have scales to compute");
    cuda::compute_scales(with_states_of(update, config), config, scalars, native(stream));
  }

  void convert(const void* from, DType from_dtype, void* to, DType to_dtype, int64_t count,
               DeviceStream stream) override {
    require_float(from_dtype, "converting");
    require_float(to_dtype, "converting");
    cuda::convert(from_dtype, from, to_dtype, to, count, native(stream));
  }
  void add_into(void* to, DType to_dtype, const void* from, DType from_dtype, int64_t count,
                DeviceStream stream) override {
    require_float(from_dtype, "adding");
    require_float(to_dtype, "adding");
    cuda::add_into(from_dtype, from, to_dtype, to, count, native(stream));
  }
  void sum_blocks(const void* blocks, int ranks, int64_t stride, DType dtype, int64_t count,
                  void* out, DeviceStream stream) override {
    if (dtype != DType::kF64) require_float(dtype, "adding");
    cuda::sum_blocks(dtype, blocks, ranks, stride, out, count, native(stream));
  }

 private:
  void open_cudnn() {
    if (attention_.cudnn == CudnnUse::kAlways) cudnn_.emplace(load_cudnn(), true);
    if (attention_.cudnn != CudnnUse::kWhereMeasured || !is_cudnn_measured(info_)) return;
    try {
      cudnn_.emplace(load_cudnn(), false);
    } catch (const Error& error) {
      without_cudnn_ = error.message();
    }
  }

  static void check_update(const FlatUpdate& update, const StepScalars* scalars) {
    require_float(update.gradient_dtype, "gradients");
    require_state(update.parameter_dtype, "parameters");
    if (update.state_dtype != DType::kU8) require_state(update.state_dtype, "moments");
    require(scalars != nullptr, "step scalars are given");
    require(update.first_element >= 0, "the first element of an update is at least 0");
    if (update.copy != nullptr) require_float(update.copy_dtype, "copies of parameters");
  }

  KernelLibraries libraries() {
    return {info_, *matmul_, cudnn_ ? &*cudnn_ : nullptr, attention_.documents};
  }

  const DeviceInfo info_;
  const AttentionOptions attention_;
  /// The handle of cuBLAS, opened after bind_thread().
  std::optional<Matmul> matmul_;
  std::optional<CudnnAttention> cudnn_;
  /// The reason why there is no cuDNN although the rule would use it.
  std::string without_cudnn_;
};

}  // namespace

}  // namespace ftrun::cuda

extern "C" __attribute__((visibility("default"))) ftrun::DeviceKernels* ftrun_open_cuda_kernels(
    int index, const ftrun::AttentionOptions& attention) {
  return new ftrun::cuda::CudaKernels(index, attention);
}

extern "C" __attribute__((visibility("default"))) int ftrun_count_cuda_devices() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}
