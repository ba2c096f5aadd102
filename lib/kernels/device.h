#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/dtype.h"
#include "kernels/kernels.h"

namespace ftrun {

struct LayerGraph;
struct Op;

/// DeviceStreamHandle is a stream, a queue of work on the device; DeviceEventHandle is an event, a
/// point in a stream; DeviceGraphHandle is a captured graph (cudaStream_t, cudaEvent_t,
/// cudaGraphExec_t). Null is not a stream: every call needs one that create_stream() made.
struct DeviceStreamHandle;
struct DeviceEventHandle;
struct DeviceGraphHandle;
using DeviceStream = DeviceStreamHandle*;
using DeviceEvent = DeviceEventHandle*;
using DeviceGraph = DeviceGraphHandle*;

/// DeviceInfo describes a GPU, or a MIG instance of one.
struct DeviceInfo {
  /// The name of the device: "NVIDIA H100 80GB HBM3".
  std::string name;
  int index = 0;
  int compute_major = 0;
  int compute_minor = 0;
  int multiprocessors = 0;
  /// The GPU's address on the PCI bus ("0000:1B:00.0"), which all MIG instances of a GPU share.
  std::string bus_id;
  /// The UUID "GPU-5f3c...". A MIG instance has its own UUID, so two processes have the same text
  /// exactly when they use the same device, on any machine.
  std::string uuid;
  /// The maximum shared memory of a block of a kernel, in bytes.
  int64_t block_shared_bytes = 0;
  /// The size of the device's memory, used or not.
  int64_t memory_bytes = 0;
  /// Versions of the driver and of the runtime, as 1000 major + 10 minor.
  int driver_version = 0;
  int runtime_version = 0;
};

/// DeviceMemory holds the free and the total memory of a device.
struct DeviceMemory {
  int64_t free_bytes = 0;
  int64_t total_bytes = 0;
};

/// AttentionLibraryUse says what computes attention, the operation that a GPU library may compute
/// in place of our kernels.
struct AttentionLibraryUse {
  /// The implementation that was chosen: "own", or "cudnn 9.19.0" if the table names cuDNN for this
  /// GPU. The choice decides the bits of results.
  std::string chosen = "own";
  /// The implementation once graphs are prepared: "own" if cuDNN computes none of them.
  std::string in_use = "own";
  /// The reason why our kernels compute shapes that CudnnUse::kWhereMeasured gives to cuDNN; "" if
  /// there are none.
  std::string notice = {};
  /// Bytes of device memory that the library allocated for prepared graphs, in addition to the
  /// plan's.
  int64_t workspace_bytes = 0;
};

/// DeviceKernels holds the kernels, memory and queues of one GPU. Functions that take a stream only
/// enqueue work in it: except synchronize(), none waits for the device or allocates, and all may be
/// captured into a graph. Addresses are device memory unless a comment names host memory. Results
/// have the same bits from run to run on one kind of GPU, because no sum depends on timing.
/// Failures throw Error(kEnvironment); a fault of a kernel is reported by the next synchronize().
class DeviceKernels {
 public:
  virtual ~DeviceKernels() = default;

  virtual const DeviceInfo& info() const = 0;
  virtual DeviceMemory memory() const = 0;
  /// Makes this device the current one of the calling thread. Every thread that uses this object
  /// must call it once.
  virtual void bind_thread() = 0;

  // --- memory; alignment is 256 bytes at least -------------------------------------------------
  /// Allocates memory. Throws Error(kEnvironment), with the bytes requested and free, if there is
  /// not enough.
  virtual void* allocate(int64_t bytes) = 0;
  virtual void free(void* memory) noexcept = 0;
  /// Allocates host memory that copies can use without the host waiting.
  virtual void* allocate_pinned(int64_t bytes) = 0;
  virtual void free_pinned(void* memory) noexcept = 0;
  /// Copies between device and (pinned) host, in any direction. Pageable host memory is allowed,
  /// but the host waits then.
  virtual void copy(void* to, const void* from, int64_t bytes, DeviceStream stream) = 0;
  virtual void fill_zero(void* to, int64_t bytes, DeviceStream stream) = 0;

  // --- queues ------------------------------------------------------------------------------------
  virtual DeviceStream create_stream(bool high_priority) = 0;
  virtual void destroy(DeviceStream stream) noexcept = 0;
  virtual void synchronize(DeviceStream stream) = 0;
  /// Creates an event. `timed` events can be used with milliseconds(). Only events with
  /// `host_waits` can be passed to synchronize(): the waiting thread sleeps, so the device
  /// interrupts the host at each record.
  virtual DeviceEvent create_event(bool timed, bool host_waits = false) = 0;
  virtual void destroy(DeviceEvent event) noexcept = 0;
  virtual void record(DeviceEvent event, DeviceStream stream) = 0;
  /// Makes later work in `stream` wait for the work before the event's last record.
  virtual void wait(DeviceStream stream, DeviceEvent event) = 0;
  virtual void synchronize(DeviceEvent event) = 0;
  virtual bool is_done(DeviceEvent event) = 0;
  virtual double milliseconds(DeviceEvent begin, DeviceEvent end) = 0;

  // --- names for profilers -----------------------------------------------------------------------
  /// Shows work that the calling thread gives to streams until pop_range() as `name` (NVTX). Nearly
  /// free where no profiler looks.
  virtual void push_range(const char* name) = 0;
  virtual void pop_range() = 0;

  // --- captured graphs ---------------------------------------------------------------------------
  /// Captures calls on `stream` (and on streams that wait for its events), instead of running them,
  /// until end_capture().
  virtual void begin_capture(DeviceStream stream) = 0;
  virtual DeviceGraph end_capture(DeviceStream stream) = 0;
  virtual void launch(DeviceGraph graph, DeviceStream stream) = 0;
  virtual void destroy(DeviceGraph graph) noexcept = 0;

  // --- operations --------------------------------------------------------------------------------
  /// Prepares a graph. Call it once for each graph, outside of steps and before anything else is
  /// allocated. It makes the plans of libraries and allocates the memory that they need. Throws
  /// Error(kUnsupported), with the calculation, if one of its operations cannot run on this GPU.
  virtual void prepare(const LayerGraph& graph) = 0;
  /// Returns what computes the operations that a library may compute in place of our kernels.
  virtual AttentionLibraryUse library_use() const = 0;
  /// Runs consecutive operations of a list of the graph, as run_op() (kernels.h) does. They may
  /// share a kernel, with the same bits as separate runs. Activations are F32, BF16 or F16; so are
  /// gradients of parameters, which may have another dtype than the activations. `context.scalars`
  /// is device memory. Does not check tokens and labels, because the host would have to wait for
  /// the result: one outside the table gives NaN. Matrix multiplications share one workspace, so
  /// operations must be enqueued to one stream at a time. Throws Error(kUnsupported) for other
  /// dtypes and for head sizes above 256.
  virtual void run_ops(const LayerGraph& graph, std::span<const Op> ops,
                       std::span<void* const> storage, const KernelContext& context,
                       DeviceStream stream) = 0;

  /// Returns the bytes of scratch that sum_of_squares needs for `count` elements.
  virtual int64_t sum_of_squares_scratch_bytes(int64_t count) const = 0;
  /// Sets *sum = (accumulate ? *sum : 0) + sum of squares of g[0..count), g F32, BF16 or F16.
  /// Groups of blocks have the bits that the CPU gives them (gradient_norm_blocks.h); they are
  /// added in a fixed tree.
  virtual void sum_of_squares(const void* g, DType dtype, int64_t count, bool accumulate,
                              double* sum, void* scratch, DeviceStream stream) = 0;

  /// Runs optimizer_update() (kernels.h) on the device, with the random bits of the CPU's
  /// stochastic rounding. Ranges and scalars are device memory.
  virtual void optimizer_update(const FlatUpdate& update, const OptimizerConfig& config,
                                const StepScalars* scalars, DeviceStream stream) = 0;

  /// Runs compute_scales() (kernels.h) on the device.
  virtual void compute_scales(const FlatUpdate& update, const OptimizerConfig& config,
                              const StepScalars* scalars, DeviceStream stream) = 0;

  /// Converts to[i] = from[i], between F32, BF16 and F16.
  virtual void convert(const void* from, DType from_dtype, void* to, DType to_dtype, int64_t count,
                       DeviceStream stream) = 0;
  /// Adds to[i] += from[i], each F32, BF16 or F16; the sum is in fp32 and rounded once.
  virtual void add_into(void* to, DType to_dtype, const void* from, DType from_dtype, int64_t count,
                        DeviceStream stream) = 0;
  /// Sums out[i] = blocks[i] + blocks[stride + i] + ... of `ranks` blocks in their order; F64, F32,
  /// or BF16 and F16, which are added in fp32 and rounded once. `out` is not one of the blocks.
  virtual void sum_blocks(const void* blocks, int ranks, int64_t stride, DType dtype, int64_t count,
                          void* out, DeviceStream stream) = 0;
};

/// CudnnUse specifies where cuDNN computes attention, among the shapes that it can compute (the
/// table in kernels/cuda/cudnn_attention.h); our kernels compute all others.
enum class CudnnUse {
  kNever,
  /// cuDNN computes attention where it was measured to be faster (kernels/measured_attention.h), if
  /// the library is present and has a plan.
  kWhereMeasured,
  /// cuDNN computes attention; it is an error if the library is missing, or has no plan for a shape
  /// of its table.
  kAlways
};

/// AttentionOptions choose the attention kernels of a GPU.
struct AttentionOptions {
  CudnnUse cudnn = CudnnUse::kNever;
  /// Says whether rows may hold several documents; tokens do not attend across documents.
  bool documents = false;
};

/// Opens GPU `index` of this process. Loads libftrun_cuda.so, which is next to the engine; CUDA is
/// not used before. Throws Error(kUnsupported) when this build has no CUDA or the GPU is too old,
/// and Error(kEnvironment) when there is no driver, no such GPU, or a library cannot be loaded
/// (cuDNN counts only if the config chooses it).
std::unique_ptr<DeviceKernels> open_cuda_kernels(int index, const AttentionOptions& attention = {});

/// Returns the number of GPUs that this process sees; 0 without a driver. Also loads the library;
/// throws the same errors.
int count_cuda_devices();

}  // namespace ftrun
