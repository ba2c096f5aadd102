#include "program/unit_placement.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "base/error.h"
#include "program/buffer_names.h"

namespace ftrun {
namespace {

constexpr std::array<std::pair<PersistentKind, const char*>, 3> kParameterBuffers{{
    {PersistentKind::kParameters, buffer_names::kParameters},
    {PersistentKind::kQuantizedParameters, buffer_names::kQuantizedParameters},
    {PersistentKind::kFp32Parameters, buffer_names::kFp32Parameters},
}};

/// Returns the persistent buffer for parameters stored in `format` if layers compute in dtype
/// `compute`: one buffer for quantized parameters, one for parameters in the compute dtype, and one
/// for other (fp32) parameters.
PersistentKind parameter_buffer(const StorageFormat& format, DType compute) {
  if (format.quantized) return PersistentKind::kQuantizedParameters;
  return format.dtype == compute ? PersistentKind::kParameters : PersistentKind::kFp32Parameters;
}

}  // namespace

BufferRange add_temporary(Program& program, std::string name, Tier tier, Category category,
                          const StorageFormat& format, int64_t elements, bool peer_visible) {
  return program.full_range(program.add({.name = std::move(name),
                                         .tier = tier,
                                         .category = category,
                                         .bytes = format.bytes(elements),
                                         .peer_visible = peer_visible,
                                         .format = format}));
}

UnitPlacement::UnitPlacement(Program& program, const ModelDescription& model,
                             const Partition& partition, const StateOptions& options,
                             int32_t micro_batches)
    : partition_(partition),
      options_(options),
      groups_(make_group_collection(options)),
      specs_(make_state_specs(model, partition, options, groups_, micro_batches)),
      sharding_(shard_units(partition, options)) {
  program.groups = groups_.list;
  program.stage = {options.pipeline.stages(), options.pipeline_stage};
  add_parameter_buffers(program, model.dtypes.compute);
  if (micro_batches == 0) return;
  add_gradient_buffers(program);
  add_optimizer_buffers(program);
  add_straddling_buffers(program, model);
}

/// Adds a buffer. The name of a buffer that is not persistent ends in the number of its first unit.
BufferId UnitPlacement::add_buffer(Program& program, const UnitBufferOptions& options, Tier tier,
                                   int64_t elements, UnitId first) {
  std::string name = options.name;
  if (tier != Tier::kDevice) name += cat(".", tier_name(tier));
  if (!options.persistent_kind) name += cat(".", first);
  const BufferRange whole =
      add_temporary(program, std::move(name), tier, options.category, options.format, elements,
                    options.peer_visible && tier == Tier::kDevice);
  program.buffers[static_cast<size_t>(whole.buffer)].persistent_kind = options.persistent_kind;
  if (options.persistent_kind) program.initialized_ranges.push_back(whole);
  return whole.buffer;
}

/// Groups consecutive units of the layout by the buffer that holds them. Persistent state has one
/// buffer. Gradients have several buffers: a buffer is full at StateOptions::gradient_buffer_bytes,
/// and occupies memory only while one of its gradients is in use.
std::vector<std::vector<UnitId>> UnitPlacement::group_by_buffer(
    const UnitBufferOptions& options, const FlatLayout& layout,
    const std::vector<int64_t>& elements) const {
  const int64_t buffer_capacity = options.persistent_kind ? std::numeric_limits<int64_t>::max()
                                                          : options_.gradient_buffer_bytes;
  std::vector<std::vector<UnitId>> buffers;
  int64_t room_bytes = 0;  // bytes until the last buffer is full
  for (const UnitId id : layout.order) {
    const int64_t unit_elements = elements[static_cast<size_t>(id)];
    if (unit_elements == 0) continue;
    if (room_bytes <= 0) {
      buffers.emplace_back();
      room_bytes = buffer_capacity;
    }
    buffers.back().push_back(id);
    room_bytes -= options.format.bytes(unit_elements);
  }
  return buffers;
}

std::vector<UnitPlacement::UnitBuffer> UnitPlacement::add_unit_buffers(
    Program& program, const UnitBufferOptions& options,
    const std::function<TierStatePart(const StateSpec&)>& part_of) const {
  std::vector<TierStatePart> parts;
  for (const StateSpec& spec : specs_) parts.push_back(part_of(spec));
  std::vector<UnitBuffer> unit_buffers(parts.size());
  for (const Tier tier : {Tier::kDevice, Tier::kHost, Tier::kDisk}) {
    std::vector<int64_t> elements(parts.size(), 0);
    for (size_t u = 0; u < parts.size(); ++u) {
      if (parts[u].tier != tier || !parts[u].exists || !specs_[u].used_by_stage) continue;
      const auto id = static_cast<UnitId>(u);
      elements[u] =
          parts[u].is_sharded ? sharding_.held_elements(id) : sharding_.padded_elements(id);
    }
    const FlatLayout layout = make_flat_layout(elements, options.order);
    for (const std::vector<UnitId>& units : group_by_buffer(options, layout, elements)) {
      const int64_t begin = layout.at(units.front());
      const int64_t end = layout.at(units.back()) + elements[static_cast<size_t>(units.back())];
      const BufferId buffer = add_buffer(program, options, tier, end - begin, units.front());
      for (const UnitId id : units)
        unit_buffers[static_cast<size_t>(id)] = {
            buffer, layout.at(id) - begin,
            parts[static_cast<size_t>(id)].is_sharded ? sharding_.begin(id) : 0, options.format};
    }
  }
  return unit_buffers;
}

void UnitPlacement::add_parameter_buffers(Program& program, DType compute) {
  const bool any_is_sharded = std::any_of(specs_.begin(), specs_.end(), [](const StateSpec& spec) {
    return spec.sharded.optimizer || spec.sharded.parameters;
  });
  parameters_.resize(specs_.size());
  for (const auto& [which, name] : kParameterBuffers) {
    const auto is_in_buffer = [&, buffer = which](const StateSpec& spec) {
      return parameter_buffer(spec.formats.compute, compute) == buffer;
    };
    const auto first = std::find_if(specs_.begin(), specs_.end(), is_in_buffer);
    if (first == specs_.end()) continue;
    const std::vector<UnitBuffer> unit_buffers =
        add_unit_buffers(program,
                         {.persistent_kind = which,
                          .name = name,
                          .category = Category::kParameters,
                          .format = first->formats.compute,
                          .peer_visible = any_is_sharded},
                         [&](const StateSpec& spec) {
                           return TierStatePart{.tier = spec.tiers.parameters,
                                                .exists = is_in_buffer(spec),
                                                .is_sharded = spec.sharded.parameters};
                         });
    for (size_t u = 0; u < unit_buffers.size(); ++u)
      if (unit_buffers[u].buffer >= 0) parameters_[u] = unit_buffers[u];
  }
}

void UnitPlacement::add_gradient_buffers(Program& program) {
  gradients_ = add_unit_buffers(program,
                                {.persistent_kind = std::nullopt,
                                 .name = buffer_names::kGradients,
                                 .category = Category::kGradients,
                                 .format = specs_.front().formats.gradient,
                                 .order = FlatOrder::kBackward,
                                 .peer_visible = groups_.world != kNoGroup},
                                [](const StateSpec& spec) {
                                  return TierStatePart{.tier = spec.tiers.gradients,
                                                       .exists = spec.trainable,
                                                       .is_sharded = spec.sharded.gradients};
                                });
}

void UnitPlacement::add_optimizer_buffers(Program& program) {
  const auto add_state_buffers = [&](PersistentKind which, std::string name,
                                     const StorageFormat& format,
                                     const std::function<bool(const StateSpec&)>& has_state) {
    return add_unit_buffers(program,
                            {.persistent_kind = which,
                             .name = std::move(name),
                             .category = Category::kOptimizer,
                             .format = format},
                            [&](const StateSpec& spec) {
                              // Scales are small and do not fill whole disk sectors, so they stay
                              // on the host.
                              const bool few =
                                  format.block > 1 && spec.tiers.optimizer == Tier::kDisk;
                              return TierStatePart{.tier = few ? Tier::kHost : spec.tiers.optimizer,
                                                   .exists = spec.trainable && has_state(spec),
                                                   .is_sharded = spec.sharded.optimizer};
                            });
  };
  masters_ = add_state_buffers(PersistentKind::kMaster, buffer_names::kMaster,
                               specs_.front().formats.master,
                               [](const StateSpec& spec) { return spec.has_master; });
  for (size_t s = 0; s < options_.optimizer_states.size(); ++s) {
    const OptimizerStateSpec& spec = options_.optimizer_states[s];
    const auto number = static_cast<int32_t>(s);
    states_.push_back(add_state_buffers(
        optimizer_state_kind(number), optimizer_buffer_name(number),
        {.dtype = spec.dtype, .block = spec.block},
        [&](const StateSpec& unit) { return unit.formats.states[s].has_value(); }));
  }
}

void UnitPlacement::add_straddling_buffers(Program& program, const ModelDescription& model) {
  straddling_.states = static_cast<size_t>(
      std::count_if(options_.optimizer_states.begin(), options_.optimizer_states.end(),
                    [](const OptimizerStateSpec& spec) { return spec.is_8bit && spec.block > 1; }));
  if (straddling_.states == 0) return;
  straddling_.tensors = list_straddling_tensors(model, partition_, options_, specs_);
  for (const Tier tier : {Tier::kDevice, Tier::kHost})
    if (const int64_t elements = straddling_.elements(tier); elements > 0)
      straddling_.buffers[tier] = add_buffer(program,
                                             {.persistent_kind = PersistentKind::kStraddlingScales,
                                              .name = buffer_names::kStraddlingScales,
                                              .category = Category::kOptimizer,
                                              .format = {.dtype = DType::kF32}},
                                             tier, elements, -1);
}

BufferRange UnitPlacement::range(const std::vector<UnitBuffer>& unit_buffers, UnitId id,
                                 const UnitRange& elements) {
  const UnitBuffer& unit_buffer = unit_buffers[static_cast<size_t>(id)];
  return {unit_buffer.buffer,
          unit_buffer.format.bytes(unit_buffer.offset + elements.begin - unit_buffer.first),
          unit_buffer.format.bytes(elements.size())};
}

const StraddlingTensor& StraddlingScales::find_tensor(TensorId tensor) const {
  const auto found =
      std::find_if(tensors.begin(), tensors.end(),
                   [&](const StraddlingTensor& known) { return known.tensor == tensor; });
  require(found != tensors.end(), "a tensor that straddles blocks");
  return *found;
}

int64_t StraddlingScales::blocks(Tier tier) const {
  int64_t blocks = 0;
  for (const StraddlingTensor& tensor : tensors)
    if (tensor.tier == tier) blocks += tensor.blocks;
  return blocks;
}

BufferRange StraddlingScales::range(const StraddlingTensor& tensor, size_t state,
                                    BufferId buffer) const {
  const int64_t size = dtype_bytes(DType::kF32);
  const int64_t first = static_cast<int64_t>(state) * blocks(tensor.tier) + tensor.first;
  return {buffer, first * size, tensor.blocks * size};
}

}  // namespace ftrun
