#include "engine/compare_kernels.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/mix_bits.h"
#include "base/quantized_values.h"
#include "base/rank_error.h"
#include "base/round_up.h"
#include "base/text.h"
#include "engine/memory.h"
#include "graph/op_spec.h"
#include "graph/op_workspace.h"
#include "kernels/kernels.h"
#include "optimizers/code_map.h"
#include "optimizers/optimizers.h"
#include "program/training_model.h"

namespace ftrun {
namespace {

using Bytes = std::vector<std::byte>;

constexpr int64_t kValueAlignment = 256;
/// Number of elements of the compared update; not a multiple of any vector length.
constexpr int64_t kUpdated = 1003;

/// Returns the largest relative difference that rounding explains.
double tolerance_of(DType dtype) {
  return dtype == DType::kF32 ? 2e-3 : 4e-2;
}

/// Makes a small model that runs the same kernels as `model`: heads, rows and columns keep the
/// properties by which kernels are chosen, on every tensor-parallel rank.
ModelConfig shrink_model(const ModelConfig& model, int64_t tensor_ranks) {
  constexpr int64_t kWidth = 256, kRemainder = 64;
  ModelConfig small = model;
  small.hidden = kWidth;
  small.feed_forward = kWidth * tensor_ranks;
  small.kv_heads = tensor_ranks;
  small.query_heads = tensor_ranks * (model.query_heads / model.kv_heads);
  // The head has separate kernels for vocabularies whose size is not a multiple of 64.
  small.vocab_rows = tensor_ranks * (kWidth + model.vocab_rows / tensor_ranks % kRemainder);
  if (small.padding_row) small.padding_row = 0;
  if (small.pad_id) small.pad_id = 0;
  return small;
}

/// Makes the config of a run with micro-batches of one row, a little longer than a tile of
/// attention.
Config shrink_run_config(Config config) {
  constexpr int64_t kTokens = 96;
  config.train_micro_batch_size_per_gpu = 1;
  config.data.sequence_length = round_up(kTokens, config.parallel.tensor);
  return config;
}

/// Makes random numbers in [-0.2, 0.2).
std::vector<float> random_floats(int64_t count, uint64_t seed) {
  std::vector<float> numbers(static_cast<size_t>(count));
  for (size_t i = 0; i < numbers.size(); ++i)
    numbers[i] =
        static_cast<float>(splitmix64(splitmix64(seed) ^ i) >> 40) * (0.4F / 16777216.0F) - 0.2F;
  return numbers;
}

Bytes convert_to_dtype(const std::vector<float>& numbers, DType dtype) {
  Bytes bytes(numbers.size() * static_cast<size_t>(dtype_bytes(dtype)));
  convert(numbers.data(), DType::kF32, bytes.data(), dtype, static_cast<int64_t>(numbers.size()));
  return bytes;
}

/// Makes random codes of an optimizer state.
Bytes random_codes(int64_t count, uint64_t seed) {
  Bytes codes;
  for (const float number : random_floats(count, seed))
    codes.push_back(static_cast<std::byte>(static_cast<int>(std::abs(number) * 1000.0F) % kCodes));
  return codes;
}

/// Decodes codes and their scales to numbers. The distance of two numbers says how near their codes
/// are, so one code map serves for all states.
Bytes decode_states(const Bytes& codes, const Bytes& scales) {
  std::vector<float> numbers;
  for (size_t i = 0; i < codes.size(); ++i) {
    float scale = 0;
    std::memcpy(&scale, scales.data() + i / kCodeBlock * sizeof scale, sizeof scale);
    numbers.push_back(kSignedCodeMap.values[static_cast<size_t>(codes[i])] * scale);
  }
  return convert_to_dtype(numbers, DType::kF32);
}

Bytes quantize_matrix(const std::vector<float>& numbers, const Value& value) {
  const auto count = static_cast<int64_t>(numbers.size());
  QuantizationScales scales(value.quantized, count, value.dims.back());
  scales.add(numbers);
  require(scales.finish(), "random weights are finite");
  Bytes records(static_cast<size_t>(value.bytes()));
  quantize_values(value.quantized, scales, 0, numbers, 0, records.data());
  return records;
}

using BytesView = std::span<const std::byte>;

std::vector<double> as_doubles(BytesView bytes, DType dtype) {
  const size_t count = bytes.size() / static_cast<size_t>(dtype_bytes(dtype));
  if (dtype == DType::kF64) {
    std::vector<double> numbers(count);
    std::memcpy(numbers.data(), bytes.data(), bytes.size());
    return numbers;
  }
  std::vector<float> numbers(count);
  convert(bytes.data(), dtype, numbers.data(), DType::kF32, static_cast<int64_t>(count));
  return {numbers.begin(), numbers.end()};
}

/// Returns ||found - expected|| / ||expected||; infinite if a number is not finite, or if all
/// expected numbers are 0 and some found one is not.
double relative_difference(BytesView found, BytesView expected, DType dtype) {
  const std::vector<double> a = as_doubles(found, dtype), b = as_doubles(expected, dtype);
  double off = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    off += (a[i] - b[i]) * (a[i] - b[i]);
    size += b[i] * b[i];
  }
  if (off == 0) return 0;
  const double relative = std::sqrt(off / size);
  return std::isfinite(relative) ? relative : HUGE_VAL;
}

/// UpdateInputs holds the arrays that a compared update reads and writes.
struct UpdateInputs {
  /// Part numbers the arrays. There are two states; only states that are codes have scales.
  enum Part : size_t {
    kParameters,
    kGradients,
    kFirstState,
    kSecondState,
    kCopy,
    kFirstScales,
    kSecondScales
  };

  /// The update, without the addresses of the arrays.
  FlatUpdate form;
  /// The contents of the arrays, by Part.
  std::vector<Bytes> parts;
  bool has_8bit_states = false;
  /// Says whether weights or states have 16 bits.
  bool is_narrow = false;
};

UpdateInputs make_update_inputs(const Config& config, bool has_8bit_states) {
  const ModelDtypes dtypes = model_dtypes(config);
  const bool narrow_master = master_dtype(config) == ConfigDtype::kBf16,
             narrow_states = config.bf16.enabled && config.bf16.bf16_optimizer_states;
  const FlatUpdate form{.parameter_dtype = narrow_master ? DType::kBF16 : DType::kF32,
                        .gradient_dtype = dtypes.gradients,
                        .state_dtype = has_8bit_states ? DType::kU8
                                       : narrow_states ? DType::kBF16
                                                       : DType::kF32,
                        .copy_dtype = dtypes.compute,
                        .count = kUpdated};
  // States may be sums of squares, so they are not negative.
  std::vector<float> first = random_floats(kUpdated, 3), second = random_floats(kUpdated, 4);
  for (std::vector<float>* state : {&first, &second})
    for (float& number : *state) number = std::abs(number);
  std::vector<Bytes> parts{
      convert_to_dtype(random_floats(kUpdated, 1), form.parameter_dtype),
      convert_to_dtype(random_floats(kUpdated, 2), form.gradient_dtype),
      has_8bit_states ? random_codes(kUpdated, 5) : convert_to_dtype(first, form.state_dtype),
      has_8bit_states ? random_codes(kUpdated, 6) : convert_to_dtype(second, form.state_dtype),
      Bytes(static_cast<size_t>(kUpdated * dtype_bytes(form.copy_dtype)))};
  if (has_8bit_states)
    for (std::vector<float>* scales : {&first, &second}) {
      scales->resize(static_cast<size_t>(divide_up(kUpdated, kCodeBlock)));
      parts.push_back(convert_to_dtype(*scales, DType::kF32));
    }
  return {form, std::move(parts), has_8bit_states, narrow_master || narrow_states};
}

/// Returns the update of arrays that lie at these addresses (by UpdateInputs::Part).
FlatUpdate update_at(const UpdateInputs& inputs, std::span<void* const> places) {
  FlatUpdate update = inputs.form;
  update.parameters = places[UpdateInputs::kParameters];
  update.gradients = places[UpdateInputs::kGradients];
  update.states = {places[UpdateInputs::kFirstState], places[UpdateInputs::kSecondState]};
  update.copy = places[UpdateInputs::kCopy];
  if (inputs.has_8bit_states)
    update.scales = {static_cast<float*>(places[UpdateInputs::kFirstScales]),
                     static_cast<float*>(places[UpdateInputs::kSecondScales])};
  return update;
}

/// UpdateRun is an update that has run on the CPU and on the GPU.
struct UpdateRun {
  /// The arrays on the CPU, with its results.
  UpdateInputs on_host;
  /// The arrays on the GPU, equal to those on the CPU before the update.
  std::vector<GpuBlock> on_gpu;
};

/// KernelComparer compares the results of GPU kernels with those of CPU kernels, and keeps the
/// largest difference.
class KernelComparer {
 public:
  explicit KernelComparer(Gpu& gpu)
      : gpu_(gpu), scalars_(GpuBlock::allocate_on_device(gpu, sizeof(StepScalars))) {
    step_.token_loss_factor = 0.01F;
    step_.learning_rate = 0.01F;
    step_.update = 2;
    step_.bias_correction1 = 0.5F;
    step_.bias_correction2 = 0.5F;
    step_.rounding_key = rounding_key(1, 1);
    step_.dropout_key = dropout_key(1, 1);
    gpu_.upload(scalars_.data(), &step_, sizeof step_);
  }

  void compare(const ModelDescription& model, bool documents);
  void compare_updates(const Config& config);
  const KernelComparison& result() const { return result_; }

 private:
  void compare_update(const Config& config, bool has_8bit_states);
  UpdateRun run_update(const Config& config, bool has_8bit_states);
  void compare_state(const UpdateRun& run, size_t state);
  Bytes download_part(const UpdateRun& run, size_t part);
  void compare_values(const std::string& operation, DType tolerated, DType dtype, BytesView on_gpu,
                      BytesView on_host);

  Gpu& gpu_;
  StepScalars step_;
  GpuBlock scalars_;
  KernelComparison result_;
  friend class GraphComparison;
};

void KernelComparer::compare_values(const std::string& operation, DType tolerated, DType dtype,
                                    BytesView on_gpu, BytesView on_host) {
  const double off = relative_difference(on_gpu, on_host, dtype);
  if (off > result_.largest_difference) {
    result_.largest_difference = off;
    result_.worst_operation = operation;
  }
  if (off <= tolerance_of(tolerated)) return;
  const DeviceInfo& info = gpu_.info();
  throw RankError(
      Error(ExitCode::kEnvironment,
            cat("GPU ", info.index, " (", info.name, ") computes ", operation,
                " differently from the CPU: relative difference ", off, ", tolerance ",
                tolerance_of(tolerated)),
            "set device: cpu, check the GPU (nvidia-smi -q -d ECC), and report this line"),
      RankError::kThisRank, /*is_device_failure=*/true);
}

/// GraphComparison holds the values of a graph on the CPU and on the GPU. It runs each operation on
/// both and compares the results.
class GraphComparison {
 public:
  GraphComparison(KernelComparer& all, const ModelDescription& model, LayerGraph graph,
                  bool documents)
      : all_(all),
        model_(model),
        graph_(std::move(graph)),
        documents_(documents),
        on_host_(graph_) {
    on_host_.dtypes.kernels = KernelDevice::kCpu;
    for (const std::vector<Op>* list : {&graph_.forward, &graph_.backward})
      for (const Op& op : *list) host_ops_.push_back(host_op(op));
    const std::vector<int64_t> offsets = offsets_of(on_host_), on_device = offsets_of(graph_);
    host_memory_ = HostBlock(offsets.back(), "comparing kernels");
    for (size_t id = 0; id < on_host_.values.size(); ++id) {
      host_storage_.push_back(host_memory_.data() + offsets[id]);
      const Bytes content = make_initial_content(on_host_.values[id], id);
      std::memcpy(host_storage_.back(), content.data(), content.size());
    }
    memory_ = GpuBlock::allocate_on_device(all_.gpu_, on_device.back());
    for (size_t id = 0; id < graph_.values.size(); ++id)
      storage_.push_back(memory_.data() + on_device[id]);
  }

  void run() {
    size_t next = 0;
    for (const std::vector<Op>* list : {&graph_.forward, &graph_.backward})
      for (const Op& op : *list) run(op, host_ops_[next++]);
  }

 private:
  /// Returns the byte offset of each value, and at the end the total number of bytes.
  static std::vector<int64_t> offsets_of(const LayerGraph& graph) {
    std::vector<int64_t> offsets{0};
    for (const Value& value : graph.values)
      offsets.push_back(offsets.back() +
                        round_up(std::max<int64_t>(value.bytes(), 1), kValueAlignment));
    return offsets;
  }

  /// Returns the operation with the scratch memory that it needs on the CPU.
  Op host_op(const Op& op) {
    Op own = op;
    own.workspace = -1;
    if (is_collective(op.kind)) return own;
    if (const int64_t bytes = workspace_bytes(on_host_, own); bytes > 0) {
      on_host_.values.push_back(
          {.name = "scratch", .dtype = DType::kU8, .dims = {bytes}, .role = ValueRole::kWorkspace});
      own.workspace = static_cast<ValueId>(on_host_.values.size()) - 1;
    }
    return own;
  }

  Bytes make_initial_content(const Value& value, size_t seed) const {
    const int64_t count = element_count(value.dims);
    if (value.quantized) return quantize_matrix(random_floats(count, seed), value);
    if (value.dtype == DType::kI32) return make_integers(value, count);
    if (value.role == ValueRole::kWorkspace || value.dtype == DType::kF64 ||
        value.dtype == DType::kU8)
      return Bytes(static_cast<size_t>(value.bytes()));
    return convert_to_dtype(random_floats(count, seed), value.dtype);
  }

  Bytes make_integers(const Value& value, int64_t count) const {
    const std::optional<BatchValueKind> kind = batch_value_kind(value.port);
    std::vector<int32_t> numbers(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
      int64_t number = i * 37 % model_.vocab_rows;
      if (kind == BatchValueKind::kPositions) number = i;
      if (kind == BatchValueKind::kStarts) number = documents_ && i >= count / 3 ? count / 3 : 0;
      numbers[static_cast<size_t>(i)] = static_cast<int32_t>(number);
    }
    Bytes bytes(static_cast<size_t>(value.bytes()));
    std::memcpy(bytes.data(), numbers.data(), bytes.size());
    return bytes;
  }

  std::span<std::byte> value(ValueId id) const {
    const auto at = static_cast<size_t>(id);
    return {static_cast<std::byte*>(host_storage_[at]),
            static_cast<size_t>(on_host_.at(id).bytes())};
  }

  /// Returns whether a value is used only by operations of the same device, like the logits of a
  /// chunk. Its form depends on the device, so it is not compared.
  bool is_device_specific(ValueId id) const {
    const auto makes = [id](const Op& op) {
      const int result = op_spec(op.kind).device_specific_result;
      return result >= 0 && op.out[static_cast<size_t>(result)] == id;
    };
    return std::any_of(graph_.forward.begin(), graph_.forward.end(), makes);
  }

  void upload(ValueId id) {
    if (is_device_specific(id)) return;
    all_.gpu_.upload(storage_[static_cast<size_t>(id)], value(id).data(),
                     static_cast<int64_t>(value(id).size()));
  }

  /// Fills the result of a collective as if every rank held the same values as this one.
  void run_collective_alone(const Op& op) {
    const BytesView from = value(op.in[0]);
    const std::span<std::byte> to = value(op.out[0]);
    for (size_t i = 0; i < to.size(); ++i) to[i] = from[i % from.size()];
  }

  void run(const Op& op, const Op& on_host) {
    if (is_collective(op.kind)) return run_collective_alone(op);
    for (const ValueId id : op.in) upload(id);
    for (const ValueId id : op.out) upload(id);
    KernelContext context;
    context.scalars = all_.scalars_.as<StepScalars>();
    DeviceKernels& kernels = all_.gpu_.kernels();
    kernels.run_ops(graph_, {&op, 1}, storage_, context, all_.gpu_.stream(Lane::kCompute));
    context.scalars = &all_.step_;
    run_op(on_host_, on_host, host_storage_, context);
    ++all_.result_.operations;
    for (size_t i = 0; i < op.out.size(); ++i) {
      if (is_device_specific(op.out[i])) continue;
      const Value& made = graph_.at(op.out[i]);
      Bytes found(static_cast<size_t>(made.bytes()));
      all_.gpu_.download(found.data(), storage_[static_cast<size_t>(op.out[i])], made.bytes());
      all_.compare_values(cat(op_name(op.kind), " of ", graph_.name), graph_.dtypes.compute,
                          made.dtype, found, value(op.out[i]));
    }
  }

  KernelComparer& all_;
  const ModelDescription& model_;
  const LayerGraph graph_;
  const bool documents_;
  LayerGraph on_host_;
  std::vector<Op> host_ops_;
  HostBlock host_memory_;
  std::vector<void*> host_storage_;
  GpuBlock memory_;
  std::vector<void*> storage_;
};

void KernelComparer::compare(const ModelDescription& model, bool documents) {
  const bool by_library = gpu_.kernels().library_use().in_use != "own";
  for (const LayerGraph& graph : model.graphs) {
    // If the program uses a library that makes plans by shape, the library must also plan these
    // shapes.
    if (by_library) gpu_.kernels().prepare(graph);
    GraphComparison(*this, model, graph, documents).run();
  }
}

/// Compares an update of states that are plain numbers and, if the optimizer codes some states, an
/// update of 8-bit states.
void KernelComparer::compare_updates(const Config& config) {
  compare_update(config, false);
  if (optimizer_traits(config.optimizer.type).has_8bit_states) compare_update(config, true);
}

void KernelComparer::compare_update(const Config& config, bool has_8bit_states) {
  const UpdateRun run = run_update(config, has_8bit_states);
  const size_t weights = UpdateInputs::kParameters;
  compare_values("the optimizer's update", run.on_host.is_narrow ? DType::kBF16 : DType::kF32,
                 run.on_host.form.parameter_dtype, download_part(run, weights),
                 run.on_host.parts[weights]);
  for (const size_t state : {size_t{0}, size_t{1}}) compare_state(run, state);
}

UpdateRun KernelComparer::run_update(const Config& config, bool has_8bit_states) {
  UpdateRun run{make_update_inputs(config, has_8bit_states), {}};
  std::vector<void*> device, host;
  for (Bytes& part : run.on_host.parts) {
    run.on_gpu.push_back(GpuBlock::allocate_on_device(gpu_, static_cast<int64_t>(part.size())));
    gpu_.upload(run.on_gpu.back().data(), part.data(), static_cast<int64_t>(part.size()));
    device.push_back(run.on_gpu.back().data());
    host.push_back(part.data());
  }
  gpu_.kernels().optimizer_update(update_at(run.on_host, device), config.optimizer,
                                  scalars_.as<StepScalars>(), gpu_.stream(Lane::kCompute));
  optimizer_update(update_at(run.on_host, host), config.optimizer, step_);
  ++result_.operations;
  return run;
}

/// Compares the first (0) or the second (1) state after an update.
void KernelComparer::compare_state(const UpdateRun& run, size_t state) {
  const size_t part = UpdateInputs::kFirstState + state;
  const UpdateInputs& on_host = run.on_host;
  const DType tolerated = on_host.is_narrow ? DType::kBF16 : DType::kF32;
  if (!on_host.has_8bit_states)
    return compare_values("the optimizer's update", tolerated, on_host.form.state_dtype,
                          download_part(run, part), on_host.parts[part]);
  // Rounding may move a number across the border between two codes, so codes are compared with the
  // tolerance of bf16.
  const size_t scales = UpdateInputs::kFirstScales + state;
  compare_values("the optimizer's update", tolerated, DType::kF32, download_part(run, scales),
                 on_host.parts[scales]);
  compare_values("the optimizer's update of codes", DType::kBF16, DType::kF32,
                 decode_states(download_part(run, part), download_part(run, scales)),
                 decode_states(on_host.parts[part], on_host.parts[scales]));
}

/// Returns what an array on the GPU (UpdateInputs::Part) holds after an update.
Bytes KernelComparer::download_part(const UpdateRun& run, size_t part) {
  Bytes found(run.on_host.parts[part].size());
  gpu_.download(found.data(), run.on_gpu[part].data(), static_cast<int64_t>(found.size()));
  return found;
}

}  // namespace

KernelComparison compare_kernels(const Config& config, const ModelConfig& model, int rank,
                                 Gpu& gpu) {
  const auto start = std::chrono::steady_clock::now();
  const Config run = shrink_run_config(config);
  const ModelConfig small = shrink_model(model, config.parallel.tensor);
  const bool documents = config.data.packing == SequencePacking::kDocuments;
  KernelComparer comparer(gpu);
  comparer.compare(build_training_model(run, small, rank), documents);
  comparer.compare(build_evaluation_model(run, small, rank), documents);
  comparer.compare_updates(config);
  KernelComparison found = comparer.result();
  found.seconds = seconds_since(start);
  return found;
}

}  // namespace ftrun
