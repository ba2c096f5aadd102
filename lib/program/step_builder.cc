#include "program/step_builder.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "base/collective_kind.h"
#include "base/error.h"
#include "base/round_up.h"
#include "graph/collective_attrs.h"
#include "graph/op_spec.h"
#include "program/buffer_names.h"
#include "program/gradient_reducer.h"
#include "program/layer_instr.h"
#include "program/list_storage.h"
#include "program/parameter_uses.h"
#include "program/passes.h"
#include "program/state_pieces.h"
#include "program/transfers.h"
#include "program/unit_placement.h"
#include "program/unit_update.h"

namespace ftrun {
namespace {

/// Returns the beginning of the names of a list's scratch buffers.
const char* scratch_name(InstrKind kind) {
  return kind == InstrKind::kForward      ? "scratch.f"
         : kind == InstrKind::kInputGrad  ? "scratch.i"
         : kind == InstrKind::kWeightGrad ? "scratch.w"
                                          : "scratch.b";
}

/// Names a buffer of a layer in a micro-batch.
std::string numbered_name(std::string_view name, size_t layer, int32_t micro_batch) {
  return cat(name, layer, ".", micro_batch);
}

/// Lists the actions of a step that does not train. A chunk runs as many micro-batches as there are
/// stages before the next chunk, so that no stage waits for a micro-batch to return to the first
/// stage.
StageActions list_forward_actions(const StepOptions& options, int32_t micro_batches) {
  const PipelineLayout& pipeline = options.state.pipeline;
  std::vector<ScheduleAction> all;
  for (int32_t first = 0; first < micro_batches; first += pipeline.stages())
    for (int32_t chunk = 0; chunk < pipeline.chunks(); ++chunk)
      for (int32_t m = first; m < std::min<int32_t>(first + pipeline.stages(), micro_batches); ++m)
        all.push_back({.phase = Phase::kForward, .chunk = chunk, .micro_batch = m});
  return StageActions(static_cast<size_t>(pipeline.stages()), all);
}

bool has_input_grads(const StageActions& actions) {
  return std::any_of(actions.begin(), actions.end(), [](const std::vector<ScheduleAction>& stage) {
    return std::any_of(stage.begin(), stage.end(), [](const ScheduleAction& action) {
      return action.phase == Phase::kInputGrad;
    });
  });
}

/// Returns whether the operation lists of the layers contain collectives.
bool has_collectives(const ModelDescription& model) {
  return std::any_of(model.graphs.begin(), model.graphs.end(), [](const LayerGraph& graph) {
    return std::any_of(graph.forward.begin(), graph.forward.end(),
                       [](const Op& op) { return is_collective(op.kind); });
  });
}

/// Trains says whether a program trains: it has backward passes and an update.
enum class Trains { kNo, kYes };

/// ResultKind says what a program computes.
enum class ResultKind { kLoss, kLogits };

/// GradientWrite says how an operation list writes gradients: in place of the values in their
/// buffers, or added to them.
enum class GradientWrite { kOverwrites, kAdds };

/// StepBuilder emits the plain program of a step: the computation, and the collectives within
/// layers.
class StepBuilder {
 public:
  StepBuilder(std::string name, const ModelDescription& model, const Partition& partition,
              const StepOptions& options, StageActions actions, Trains trains)
      : model_(model),
        partition_(partition),
        options_(options),
        actions_(std::move(actions)),
        trains_(trains == Trains::kYes),
        exchanges_(has_collectives(model)),
        placement_(program_, model, partition, options.state, trains_ ? options.micro_batches : 0),
        parameters_(program_, placement_),
        gradients_(program_, model, options.state, placement_),
        pieces_(list_unit_state_pieces(program_, model, options.state, placement_)) {
    program_.name = std::move(name);
    const bool separate_weight_grads = has_input_grads(actions_);
    for (const LayerGraph& graph : model.graphs)
      storage_.emplace_back(graph, separate_weight_grads);
  }

  /// MicroBatchFlow holds the buffers of one micro-batch whose values go from layer to layer or
  /// from pass to pass.
  struct MicroBatchFlow {
    int32_t micro_batch = 0;
    std::map<Port, BufferId> ports;  // batch inputs and the rope table
    std::vector<BufferId> hidden;    // output of each layer
    std::vector<BufferId> d_hidden;  // gradient with respect to the input of each layer
    std::vector<BufferId> saved;     // of each layer, for backward
    std::vector<BufferId> saved_for_input_grad;
    std::vector<BufferId> deferred;  // for its weight gradients
  };

  BufferId add_sums_buffer(PersistentKind kind, const std::string& name, DType dtype,
                           int64_t elements) {
    return program_.add({.name = name,
                         .category = Category::kSums,
                         .bytes = elements * dtype_bytes(dtype),
                         .persistent_kind = kind,
                         .format = {.dtype = dtype}});
  }

  BufferId add_result_buffer(const std::string& name, DType dtype, int64_t elements) {
    return program_.add({.name = name,
                         .bytes = elements * dtype_bytes(dtype),
                         .is_result = true,
                         .format = {.dtype = dtype}});
  }

  void emit_begin(std::vector<BufferId> cleared);
  /// Adds all phases that the schedule lists for this stage. The model's output is written to
  /// `result`. A loss is summed over all ranks after the last forward pass.
  void expand_schedule(BufferId result, ResultKind kind);
  void emit_decide(BufferId norm, BufferId loss);

  int64_t gradient_norm_slots() const {
    return ftrun::gradient_norm_slots(options_.state, placement_);
  }
  void emit_gradient_norm(BufferId norm) {
    add_gradient_norm(program_, options_.state, placement_, norm);
  }
  void emit_updates() {
    add_updates(program_, model_, options_.state, placement_, options_.gather_bucket_elements);
  }
  StepProgram apply_passes();

 private:
  BufferId add_temporary_buffer(std::string name, int64_t bytes, Tier tier = Tier::kDevice) {
    return program_.add({.name = std::move(name), .tier = tier, .bytes = bytes});
  }
  /// Adds a buffer for values that the collectives within layers may read or write.
  BufferId add_exchanged_buffer(std::string name, int64_t bytes) {
    return program_.add({.name = std::move(name), .bytes = bytes, .peer_visible = exchanges_});
  }
  const LayerGraph& graph_of(size_t layer) const { return model_.graph_of(model_.layers[layer]); }
  BufferRange full_range(BufferId id) const { return program_.full_range(id); }
  Instr& emit(InstrKind kind) {
    program_.instrs.emplace_back().kind = kind;
    return program_.instrs.back();
  }

  const PipelineLayout& pipeline() const { return options_.state.pipeline; }
  bool has_layer(size_t layer) const {
    return pipeline().stage_has_layer(options_.state.pipeline_stage, static_cast<int32_t>(layer));
  }
  int32_t layer_count() const { return static_cast<int32_t>(model_.layers.size()); }
  LayerCounts all_layers() const { return {layer_count(), model_.first_trained}; }

  void reduce_loss(BufferId loss);
  void add_phase(const ScheduleAction& action, BufferId result);
  /// Adds the flow of a micro-batch, and the instructions that load its batch.
  void begin_micro_batch(int32_t micro_batch);
  void load_batch(MicroBatchFlow& flow);
  void make_rope_table(MicroBatchFlow& flow);
  void record_receive(const Transfer& transfer, size_t action, MicroBatchFlow& flow);
  void record_send(const Transfer& transfer, size_t action, const MicroBatchFlow& flow);
  /// Sets the ranges of the values of one of a layer's operation lists, and emits the list.
  void add_layer_list(InstrKind kind, size_t layer, MicroBatchFlow& flow, BufferId result);
  void set_input_ranges(size_t layer, const MicroBatchFlow& flow, ValueRanges& ranges) const;
  void set_output_ranges(size_t layer, MicroBatchFlow& flow, BufferId result, ValueRanges& ranges);
  void set_hidden_gradient_ranges(size_t layer, MicroBatchFlow& flow, ValueRanges& ranges);
  void set_parameter_ranges(size_t layer, int32_t micro_batch, const OpListInfo& info,
                            ValueRanges& ranges);
  void set_gradient_ranges(size_t layer, int32_t micro_batch, const OpListInfo& info,
                           ValueRanges& ranges);
  void set_ranges_in(BufferId& buffer, const char* name, size_t layer, const BufferPlan& plan,
                     int32_t micro_batch, ValueRanges& ranges);
  /// Emits an instruction for each part of a list; `list_instr` is the instruction for the whole
  /// list.
  void emit_parts(const Instr& list_instr, const OpListInfo& info, ValueRanges& ranges);
  void emit_compute(const Instr& list_instr, const OpListPart& part, const ValueRanges& ranges);
  void emit_collective(const Instr& list_instr, const Op& op, const ValueRanges& ranges);
  GradientWrite record_gradient_writes(size_t layer, int32_t micro_batch, const OpListInfo& info);
  const std::set<UnitId>& units_read_by(size_t layer, InstrKind kind);
  std::vector<std::vector<BufferId>> offloaded_outputs() const;
  GatherOptions gather_options() const;

  const ModelDescription& model_;
  const Partition& partition_;
  const StepOptions& options_;
  const StageActions actions_;
  const bool trains_;
  const bool exchanges_;
  Program program_;
  const UnitPlacement placement_;
  ParameterUses parameters_;
  GradientReducer gradients_;
  std::vector<UnitStatePiece> pieces_;
  std::vector<GraphStorage> storage_;
  /// The units that each layer's lists read, found when first asked for.
  std::map<std::pair<size_t, InstrKind>, std::set<UnitId>> units_read_;
  std::map<int32_t, MicroBatchFlow> flows_;
  /// The tensors whose gradients an operation list has written already, by micro-batch; -1 for
  /// gradients that all micro-batches share.
  std::map<int32_t, std::set<TensorId>> written_;
  /// The first instruction of each action, and the values that actions receive from or send to
  /// other stages.
  std::vector<size_t> action_begins_;
  std::vector<BufferedTransfer> transfers_;
};

void StepBuilder::emit_begin(std::vector<BufferId> cleared) {
  Instr& instr = emit(InstrKind::kBegin);
  for (const BufferId buffer : cleared) instr.writes.push_back(full_range(buffer));
}

void StepBuilder::reduce_loss(BufferId loss) {
  const GroupId all = placement_.groups().world;
  if (all == kNoGroup) return;
  program_.instrs.push_back(make_collective(InstrKind::kAllReduce, {all, DType::kF64},
                                            full_range(loss), full_range(loss)));
}

void StepBuilder::begin_micro_batch(int32_t micro_batch) {
  MicroBatchFlow& flow = flows_[micro_batch];
  flow.micro_batch = micro_batch;
  for (auto* buffers :
       {&flow.hidden, &flow.d_hidden, &flow.saved, &flow.saved_for_input_grad, &flow.deferred})
    buffers->assign(model_.layers.size(), -1);
  load_batch(flow);
  if (!has_layer(0)) make_rope_table(flow);
}

void StepBuilder::load_batch(MicroBatchFlow& flow) {
  const int64_t bytes = model_.batch.tokens() * dtype_bytes(DType::kI32);
  Instr instr;
  instr.kind = InstrKind::kLoadBatch;
  instr.micro_batch = flow.micro_batch;
  for (const BatchPort& of_batch : kBatchPorts) {
    const Port port = of_batch.port;
    flow.ports[port] = add_temporary_buffer(cat(port_name(port), ".", flow.micro_batch), bytes);
    instr.writes.push_back(full_range(flow.ports[port]));
  }
  program_.instrs.push_back(std::move(instr));
}

/// Computes the rope table on a stage that does not have the embedding layer; on the first stage
/// the embedding's operation list computes it. Does nothing if the model has no rotary embedding.
void StepBuilder::make_rope_table(MicroBatchFlow& flow) {
  if (model_.rope_graph < 0) return;
  const LayerGraph& graph = model_.graphs[static_cast<size_t>(model_.rope_graph)];
  ValueRanges ranges(graph);
  for (const ValueId id : graph.values_with_role(ValueRole::kInput))
    ranges.set(id, full_range(flow.ports.at(graph.at(id).port)));
  for (const ValueId id : graph.values_with_role(ValueRole::kOutput)) {
    flow.ports[graph.at(id).port] = add_temporary_buffer(
        cat(port_name(graph.at(id).port), ".", flow.micro_batch), graph.at(id).bytes());
    ranges.set(id, full_range(flow.ports.at(graph.at(id).port)));
  }
  Instr instr;
  instr.kind = InstrKind::kForward;
  instr.micro_batch = flow.micro_batch;
  instr.detail =
      LayerOps{.graph = model_.rope_graph, .op_count = static_cast<int32_t>(graph.forward.size())};
  bind_ops(instr, graph, list_operand_values(graph.forward), ranges);
  program_.instrs.push_back(std::move(instr));
}

void StepBuilder::set_input_ranges(size_t layer, const MicroBatchFlow& flow,
                                   ValueRanges& ranges) const {
  const LayerGraph& graph = graph_of(layer);
  for (const ValueId id : graph.values_with_role(ValueRole::kInput)) {
    const Port port = graph.at(id).port;
    ranges.set(id,
               full_range(port == Port::kHidden ? flow.hidden[layer - 1] : flow.ports.at(port)));
  }
}

void StepBuilder::set_output_ranges(size_t layer, MicroBatchFlow& flow, BufferId result,
                                    ValueRanges& ranges) {
  const LayerGraph& graph = graph_of(layer);
  for (const ValueId id : graph.values_with_role(ValueRole::kOutput)) {
    const Value& value = graph.at(id);
    std::string name = numbered_name(cat(port_name(value.port), "."), layer, flow.micro_batch);
    BufferId to = result;
    if (value.port == Port::kHidden)
      to = flow.hidden[layer] = add_exchanged_buffer(std::move(name), value.bytes());
    else if (value.port == Port::kRope)
      to = flow.ports[Port::kRope] = add_temporary_buffer(std::move(name), value.bytes());
    ranges.set(id, {to, 0, value.bytes()});
  }
}

/// Assigns buffers to the gradient with respect to the layer's output, which the next layer has
/// computed, and to the gradient with respect to its input.
void StepBuilder::set_hidden_gradient_ranges(size_t layer, MicroBatchFlow& flow,
                                             ValueRanges& ranges) {
  const LayerGraph& graph = graph_of(layer);
  if (const ValueId id = graph.find(ValueRole::kOutputGrad, Port::kHidden); id >= 0)
    ranges.set(id, full_range(flow.d_hidden[layer + 1]));
  const ValueId id = graph.find(ValueRole::kInputGrad, Port::kHidden);
  if (id < 0) return;
  BufferId& buffer = flow.d_hidden[layer];
  if (buffer < 0)
    buffer = add_exchanged_buffer(numbered_name("d_hidden.", layer, flow.micro_batch),
                                  graph.at(id).bytes());
  ranges.set(id, full_range(buffer));
}

void StepBuilder::set_parameter_ranges(size_t layer, int32_t micro_batch, const OpListInfo& info,
                                       ValueRanges& ranges) {
  const std::vector<GraphParam>& params = model_.layers[layer].params;
  for (size_t i = 0; i < params.size(); ++i) {
    const ValueId id = params[i].value;
    if (info.reads[static_cast<size_t>(id)] == 0) continue;
    ranges.set(id, parameters_.assign_parameter_range(partition_.param_locations[layer][i],
                                                      graph_of(layer).at(id).bytes(), micro_batch));
  }
}

/// Sets the ranges of those gradients that a list makes.
void StepBuilder::set_gradient_ranges(size_t layer, int32_t micro_batch, const OpListInfo& info,
                                      ValueRanges& ranges) {
  const std::vector<GraphParam>& params = model_.layers[layer].params;
  const LayerGraph& graph = graph_of(layer);
  for (size_t i = 0; i < params.size(); ++i) {
    const ValueId id = graph.at(params[i].value).grad;
    if (id < 0 || info.writes[static_cast<size_t>(id)] == 0) continue;
    ranges.set(id, gradients_.assign_gradient_range(partition_.param_locations[layer][i],
                                                    graph.at(id).bytes(), micro_batch));
  }
}

/// Sets the ranges of the values of a storage plan, in a buffer that is made when it is first
/// needed.
void StepBuilder::set_ranges_in(BufferId& buffer, const char* name, size_t layer,
                                const BufferPlan& plan, int32_t micro_batch, ValueRanges& ranges) {
  if (plan.bytes == 0) return;
  if (buffer < 0)
    buffer = add_exchanged_buffer(numbered_name(name, layer, micro_batch), plan.bytes);
  for (const auto& [id, range] : plan.values) ranges.set(id, {buffer, range.offset, range.bytes});
}

void StepBuilder::emit_parts(const Instr& list_instr, const OpListInfo& info, ValueRanges& ranges) {
  sum_in_place(graph_of(static_cast<size_t>(list_instr.layer)), info.op_list, ranges);
  for (const OpListPart& part : info.parts) {
    if (part.is_collective)
      emit_collective(list_instr, info.op_list[part.first], ranges);
    else
      emit_compute(list_instr, part, ranges);
  }
}

void StepBuilder::emit_compute(const Instr& list_instr, const OpListPart& part,
                               const ValueRanges& ranges) {
  Instr& instr = program_.instrs.emplace_back(list_instr);
  instr.ops().first_op = static_cast<int32_t>(part.first);
  instr.ops().op_count = static_cast<int32_t>(part.end - part.first);
  bind_ops(instr, model_.graphs[static_cast<size_t>(instr.ops().graph)], part.operands, ranges);
}

void StepBuilder::emit_collective(const Instr& list_instr, const Op& op,
                                  const ValueRanges& ranges) {
  const LayerGraph& graph = model_.graphs[static_cast<size_t>(list_instr.ops().graph)];
  const BufferRange& in = ranges.at(op.in[0]);
  const BufferRange& out = ranges.at(op.out[0]);
  const auto& over = op.attrs.get<CollectiveAttrs>();
  const GroupId group = placement_.groups().layer_group(over.axis);
  require(program_.place_in_group(group).count == over.ranks,
          "a collective of a layer has its group");
  const std::optional<CollectiveKind> collective = op_spec(op.kind).collective;
  require(collective.has_value(), "the operation is a collective");
  const bool is_all_reduce = collective == CollectiveKind::kAllReduce;
  const auto emit_for_layer = [&](Instr instr) {
    instr.layer = list_instr.layer;
    instr.micro_batch = list_instr.micro_batch;
    program_.instrs.push_back(std::move(instr));
  };
  if (is_all_reduce && in != out) emit_for_layer(make_copy(program_, in, out));
  const Communication communication{
      .group = group, .dtype = graph.at(op.in[0]).dtype, .shift = static_cast<int32_t>(over.shift)};
  emit_for_layer(
      make_collective(instr_kind(*collective), communication, is_all_reduce ? out : in, out));
}

/// Records the gradients that a list writes, so it is called once for a list, and returns how the
/// list writes them: the first list that writes a parameter's gradient overwrites, later ones add,
/// within a step where one buffer holds it all the time, else within a micro-batch.
GradientWrite StepBuilder::record_gradient_writes(size_t layer, int32_t micro_batch,
                                                  const OpListInfo& info) {
  bool adds = false;
  bool overwrites = false;
  const std::vector<GraphParam>& params = model_.layers[layer].params;
  for (size_t i = 0; i < params.size(); ++i) {
    const GraphParam& param = params[i];
    const ValueId grad = graph_of(layer).at(param.value).grad;
    if (grad < 0 || info.writes[static_cast<size_t>(grad)] == 0) continue;
    const UnitId unit = partition_.param_locations[layer][i].unit;
    const bool separately = placement_.spec(unit).reduces_each_micro_batch;
    for (const TensorId tensor : param.tensors) {
      const bool first = written_[separately ? micro_batch : -1].insert(tensor).second;
      (first && !gradients_.must_be_zeroed_first(unit, tensor) ? overwrites : adds) = true;
    }
  }
  require(!(adds && overwrites), "the gradients of a list are all new or all known");
  return adds ? GradientWrite::kAdds : GradientWrite::kOverwrites;
}

void StepBuilder::add_layer_list(InstrKind kind, size_t layer, MicroBatchFlow& flow,
                                 BufferId result) {
  Instr list_instr;
  list_instr.kind = kind;
  list_instr.layer = static_cast<int32_t>(layer);
  list_instr.micro_batch = flow.micro_batch;
  list_instr.detail = LayerOps{.graph = model_.layers[layer].graph};
  if (op_list_of(graph_of(layer), kind).empty()) return;
  GraphStorage& storage = storage_[static_cast<size_t>(list_instr.ops().graph)];
  const OpListInfo& info = storage.info(kind);
  const bool forward = kind == InstrKind::kForward;
  ValueRanges ranges(graph_of(layer));
  set_parameter_ranges(layer, flow.micro_batch, info, ranges);
  set_input_ranges(layer, flow, ranges);
  if (forward)
    set_output_ranges(layer, flow, result, ranges);
  else
    set_hidden_gradient_ranges(layer, flow, ranges);
  if (trains_) {
    set_gradient_ranges(layer, flow.micro_batch, info, ranges);
    list_instr.ops().accumulate =
        record_gradient_writes(layer, flow.micro_batch, info) == GradientWrite::kAdds;
  }
  BufferId scratch = -1;
  set_ranges_in(scratch, scratch_name(kind), layer, info.scratch, flow.micro_batch, ranges);
  if (trains_)
    set_ranges_in(flow.saved[layer], "saved.", layer, storage.saved, flow.micro_batch, ranges);
  if (trains_ && kind != InstrKind::kWeightGrad)
    set_ranges_in(flow.saved_for_input_grad[layer], "saved_for_input_grad.", layer,
                  storage.saved_for_input_grad, flow.micro_batch, ranges);
  if (kind == InstrKind::kInputGrad || kind == InstrKind::kWeightGrad)
    set_ranges_in(flow.deferred[layer], "deferred.", layer, storage.deferred, flow.micro_batch,
                  ranges);
  emit_parts(list_instr, info, ranges);
}

const std::set<UnitId>& StepBuilder::units_read_by(size_t layer, InstrKind kind) {
  const auto [known, is_new] = units_read_.try_emplace({layer, kind});
  if (is_new)
    known->second = find_units_read(model_, partition_, layer, op_list_of(graph_of(layer), kind));
  return known->second;
}

/// Adds the buffer for the value that an action receives from another stage: the output of the
/// layer before the action's first layer, or the gradient with respect to the output of its last
/// layer.
void StepBuilder::record_receive(const Transfer& transfer, size_t action, MicroBatchFlow& flow) {
  if (transfer.from < 0) return;
  const auto next = static_cast<size_t>(transfer.layer) + 1;
  const LayerGraph& graph = graph_of(transfer.is_gradient ? next - 1 : next);
  const ValueId id =
      graph.find(transfer.is_gradient ? ValueRole::kOutputGrad : ValueRole::kInput, Port::kHidden);
  BufferId& buffer = transfer.is_gradient ? flow.d_hidden[next] : flow.hidden[next - 1];
  buffer =
      add_temporary_buffer(numbered_name(transfer.is_gradient ? "d_hidden." : "hidden.",
                                         transfer.is_gradient ? next : next - 1, flow.micro_batch),
                           graph.at(id).bytes());
  transfers_.push_back({transfer, buffer, action});
}

void StepBuilder::record_send(const Transfer& transfer, size_t action, const MicroBatchFlow& flow) {
  if (transfer.from < 0) return;
  const auto layer = static_cast<size_t>(transfer.layer);
  const BufferId buffer = transfer.is_gradient ? flow.d_hidden[layer + 1] : flow.hidden[layer];
  // A receiver on the same machine reads the buffer in place.
  program_.buffers[static_cast<size_t>(buffer)].peer_visible = true;
  transfers_.push_back({transfer, buffer, action});
}

/// Adds one phase of a micro-batch over the layers of a chunk.
void StepBuilder::add_phase(const ScheduleAction& action, BufferId result) {
  const size_t number = action_begins_.size();
  action_begins_.push_back(program_.instrs.size());
  if (!flows_.contains(action.micro_batch)) begin_micro_batch(action.micro_batch);
  MicroBatchFlow& flow = flows_.at(action.micro_batch);
  const int stage = options_.state.pipeline_stage;
  const ActionTransfers transfers = transfers_of(pipeline(), stage, action, all_layers());
  record_receive(transfers.received, number, flow);
  const InstrKind kind = instr_kind_of(action.phase);
  const LayerRange chunk =
      pipeline().layers_of(pipeline().model_chunk_of(stage, action.chunk), layer_count());
  const auto layers = static_cast<size_t>(chunk.end - chunk.first);
  for (size_t k = 0; k < layers; ++k) {
    const bool forward = kind == InstrKind::kForward;
    const size_t layer = static_cast<size_t>(chunk.first) + (forward ? k : layers - 1 - k);
    add_layer_list(kind, layer, flow, result);
    const size_t next = forward ? layer + 1 : layer - 1;
    parameters_.release(k + 1 < layers ? units_read_by(next, kind) : std::set<UnitId>());
  }
  record_send(transfers.sent, number, flow);
}

void StepBuilder::expand_schedule(BufferId result, ResultKind kind) {
  const std::vector<ScheduleAction>& stage_actions =
      actions_[static_cast<size_t>(options_.state.pipeline_stage)];
  const auto is_forward = [](const ScheduleAction& action) {
    return action.phase == Phase::kForward;
  };
  auto forwards = std::count_if(stage_actions.begin(), stage_actions.end(), is_forward);
  for (const ScheduleAction& action : stage_actions) {
    add_phase(action, result);
    if (kind == ResultKind::kLoss && is_forward(action) && --forwards == 0) reduce_loss(result);
  }
}

void StepBuilder::emit_decide(BufferId norm, BufferId loss) {
  Instr& instr = emit(InstrKind::kDecide);
  instr.reads = {full_range(norm), full_range(loss)};
}

/// Lists the layer outputs that are inputs of blocks or of the head, by micro-batch.
std::vector<std::vector<BufferId>> StepBuilder::offloaded_outputs() const {
  std::vector<std::vector<BufferId>> outputs;
  for (const auto& [micro_batch, flow] : flows_) {
    outputs.emplace_back();
    for (size_t layer = 0; layer + 1 < flow.hidden.size(); ++layer)
      if (flow.hidden[layer] >= 0 && has_layer(layer + 1))
        outputs.back().push_back(flow.hidden[layer]);
  }
  return outputs;
}

GatherOptions StepBuilder::gather_options() const {
  return {.reuse_distance = options_.reuse_distance,
          .prefetch_elements = options_.overlap ? options_.prefetch_elements : 0,
          .max_live_elements = options_.max_live_elements,
          // Only the training step keeps secondary shards: when another program runs, the shards
          // that the last step wrote may be older than the parameters.
          .keeps_secondary_shards = trains_ && placement_.groups().secondary != kNoGroup};
}

/// Runs the passes. Transfers are added first, so that the other passes treat a received value like
/// a value that this stage computes.
StepProgram StepBuilder::apply_passes() {
  if (!transfers_.empty())
    program_ =
        add_transfers(std::move(program_), transfers_, action_begins_, actions_, options_.state,
                      placement_.groups(), all_layers(), model_.dtypes.compute);
  std::vector<Insertion> moves;
  const auto add = [&](std::vector<Insertion> insertions) {
    std::move(insertions.begin(), insertions.end(), std::back_inserter(moves));
  };
  if (trains_ && options_.offload_activations)
    add(offload_outputs(program_, offloaded_outputs(), pipeline().stages() == 1));
  add(gather_parameters(program_, placement_, parameters_.uses(), gather_options()));
  add(reduce_gradients(program_, gradients_, options_.bucket_elements));
  Program program = merge_insertions(std::move(program_), std::move(moves));
  program = assign_arena_offsets(add_waits(std::move(program), options_.overlap), options_.arenas);
  program = overlap_disk_requests(std::move(program));
  return {std::move(program), std::move(pieces_), sharding_of_units(options_.state, placement_)};
}

}  // namespace

StepProgram build_training_step(const ModelDescription& model, const Partition& partition,
                                const StepOptions& options) {
  require(model.mode == GraphMode::kTrain, "a training step needs a model built for training");
  const PipelineLayout& pipeline = options.state.pipeline;
  StepBuilder builder(
      "train", model, partition, options,
      make_schedules(options.schedule, pipeline.stages(), pipeline.chunks(), options.micro_batches),
      Trains::kYes);
  const BufferId loss =
      builder.add_sums_buffer(PersistentKind::kLoss, buffer_names::kLoss, DType::kF64, kLossSlots);
  const BufferId norm =
      builder.add_sums_buffer(PersistentKind::kGradientNorm, buffer_names::kGradientNorm,
                              DType::kF64, builder.gradient_norm_slots());
  builder.emit_begin({loss, norm});
  builder.expand_schedule(loss, ResultKind::kLoss);
  builder.emit_gradient_norm(norm);
  builder.emit_decide(norm, loss);
  builder.emit_updates();
  return builder.apply_passes();
}

StepProgram build_evaluation_step(const ModelDescription& model, const Partition& partition,
                                  const StepOptions& options) {
  require(model.mode == GraphMode::kEvaluate,
          "an evaluation step needs a model built for evaluation");
  StepBuilder builder("evaluate", model, partition, options,
                      list_forward_actions(options, options.micro_batches), Trains::kNo);
  const BufferId loss =
      builder.add_sums_buffer(PersistentKind::kLoss, buffer_names::kLoss, DType::kF64, kLossSlots);
  builder.emit_begin({loss});
  builder.expand_schedule(loss, ResultKind::kLoss);
  return builder.apply_passes();
}

StepProgram build_generation_step(const ModelDescription& model, const Partition& partition,
                                  const StepOptions& options) {
  require(model.mode == GraphMode::kLogits, "a generation step needs a model built for logits");
  StepBuilder builder("logits", model, partition, options, list_forward_actions(options, 1),
                      Trains::kNo);
  const bool has_head = options.state.pipeline_stage == options.state.pipeline.last_stage();
  const int64_t ranks = model.split.degree;
  const int64_t columns = ranks * divide_up(model.vocab_rows, ranks);
  const BufferId logits =
      has_head ? builder.add_result_buffer(buffer_names::kLogits, model.dtypes.compute,
                                           model.batch.tokens() * columns)
               : -1;
  builder.expand_schedule(logits, ResultKind::kLogits);
  return builder.apply_passes();
}

}  // namespace ftrun
