#include "program/step_builder.h"

#include <map>
#include <set>
#include <string>
#include <utility>

#include "base/error.h"
#include "program/layer_instr.h"
#include "program/passes.h"
#include "program/unit_store.h"

namespace ftrun {

std::string optimizer_buffer_name(int32_t state) {
  return cat("optimizer.", state);
}

namespace {

/// All-reduces work in place: what is summed lies where the sum goes, if that is not in scratch.
void sum_in_place(const LayerGraph& graph, const std::vector<Op>& list, ValuePlaces& places) {
  for (const Op& op : list) {
    if (op.kind != OpKind::kTensorAllReduce) continue;
    const bool moves = graph.at(op.in[0]).role == ValueRole::kTemp &&
                       graph.at(op.out[0]).role != ValueRole::kTemp;
    if (moves) places[op.in[0]] = places.at(op.out[0]);
  }
}

/// Emits the plain program of a step; storage plans of a graph are made once and used by every
/// layer that shares it.
class StepBuilder {
 public:
  StepBuilder(std::string name, const ModelDescription& model, const Partition& partition,
              const StepOptions& options, bool trains)
      : model_(model),
        partition_(partition),
        options_(options),
        trains_(trains),
        store_(program_, model, partition, options.state, trains ? options.micro_batches : 0) {
    program_.name = std::move(name);
    for (const LayerGraph& graph : model.graphs) {
      forward_.push_back(plan_scratch(graph, graph.forward));
      backward_.push_back(plan_scratch(graph, graph.backward));
      saved_.push_back(plan_saved(graph));
    }
  }

  /// Where a layer's boundary values of one micro-batch lie.
  struct Flow {
    int32_t micro_batch = 0;
    std::map<Port, BufferId> ports;  // batch inputs and the rope table
    std::vector<BufferId> hidden;    // output of each layer
    std::vector<BufferId> on_host;   // where it waits for backward, or -1
    std::vector<BufferId> saved;     // of each layer
    /// Where outputs that leave for the host lie in turn.
    std::vector<BufferId> slots;
  };

  BufferId persistent(const std::string& name, DType dtype, int64_t elements) {
    return add({.name = name,
                .category = Category::kBuffers,
                .bytes = elements * dtype_bytes(dtype),
                .persistent = true,
                .dtype = dtype});
  }

  void begin(std::vector<BufferId> cleared);
  void reduce_loss(BufferId loss);
  Flow load_batch(int32_t micro_batch);
  /// `keep`: for a backward pass; `first`: the step's first write of gradients.
  void forward(Flow& flow, BufferId result, bool keep);
  /// With `last`, gradients of the whole step are complete behind it.
  void backward(Flow& flow, bool last);
  void decide(BufferId norm, BufferId loss);

  UnitStore& store() { return store_; }
  Step finish();

 private:
  BufferId add(Buffer buffer) {
    program_.buffers.push_back(std::move(buffer));
    return static_cast<BufferId>(program_.buffers.size()) - 1;
  }
  BufferId temporary(std::string name, int64_t bytes, Tier tier = Tier::kDevice) {
    return add({.name = std::move(name), .tier = tier, .bytes = bytes});
  }
  /// For values that collectives of a list may touch.
  BufferId exchanged(std::string name, int64_t bytes) {
    const bool visible = store_.groups().tensor != kNoGroup;
    return add({.name = std::move(name), .bytes = bytes, .peer_visible = visible});
  }
  const LayerGraph& graph_of(size_t layer) const { return model_.graph_of(model_.layers[layer]); }
  Range whole(BufferId id) const { return {id, 0, program_.at(id).bytes}; }
  Instr& emit(InstrKind kind) {
    program_.instrs.emplace_back().kind = kind;
    return program_.instrs.back();
  }

  BufferId hidden_buffer(Flow& flow, size_t layer, int64_t bytes, bool leaves);
  void place_inputs(const LayerGraph& graph, const Flow& flow, size_t layer,
                    ValuePlaces& places) const;
  void place_outputs(const LayerGraph& graph, Flow& flow, size_t layer, BufferId result,
                     bool leaves, ValuePlaces& places);
  /// Makes the parameters that `list` reads readable and places them.
  void bring_parameters(size_t layer, int32_t micro_batch, const std::vector<Op>& list,
                        ValuePlaces& places);
  void place_gradients(size_t layer, int32_t micro_batch, const std::vector<Op>& list,
                       ValuePlaces& places);
  void place_scratch(const LayerGraph& graph, const ScratchPlan& plan, const std::string& name,
                     ValuePlaces& places);
  void run_list(InstrKind kind, size_t layer, int32_t micro_batch, const std::vector<Op>& list,
                ValuePlaces& places, bool accumulate);
  void run_ops(const Instr& like, size_t first, size_t end, const ValuePlaces& places);
  void run_collective(const Instr& like, const Op& op, const ValuePlaces& places);
  bool accumulates(const Layer& layer, int32_t micro_batch);
  void send_to_host(Flow& flow, size_t layer);
  void bring_back(Flow& flow, size_t layer);

  const ModelDescription& model_;
  const Partition& partition_;
  const StepOptions& options_;
  const bool trains_;
  Program program_;
  UnitStore store_;
  std::vector<ScratchPlan> forward_;
  std::vector<ScratchPlan> backward_;
  std::vector<ScratchPlan> saved_;
  std::set<TensorId> written_;
  int32_t written_in_ = -1;
};

void StepBuilder::begin(std::vector<BufferId> cleared) {
  Instr& instr = emit(InstrKind::kBegin);
  for (const BufferId buffer : cleared) instr.writes.push_back(whole(buffer));
}

void StepBuilder::reduce_loss(BufferId loss) {
  const GroupId all = store_.groups().all;
  if (all == kNoGroup) return;
  Instr& instr = emit(InstrKind::kAllReduce);
  instr.lane = lane_of(all);
  instr.group = all;
  instr.dtype = DType::kF64;
  instr.reads = instr.writes = {whole(loss)};
}

StepBuilder::Flow StepBuilder::load_batch(int32_t micro_batch) {
  Flow flow;
  flow.micro_batch = micro_batch;
  const int64_t bytes = model_.batch.rows * model_.batch.row_tokens * dtype_bytes(DType::kI32);
  std::vector<Range> writes;
  for (const Port port : kBatchPorts) {
    flow.ports[port] = temporary(cat(port_name(port), ".", micro_batch), bytes);
    writes.push_back(whole(flow.ports[port]));
  }
  Instr& instr = emit(InstrKind::kLoadBatch);
  instr.micro_batch = micro_batch;
  instr.writes = std::move(writes);
  return flow;
}

void StepBuilder::place_inputs(const LayerGraph& graph, const Flow& flow, size_t layer,
                               ValuePlaces& places) const {
  for (const ValueId id : graph.with_role(ValueRole::kInput)) {
    const Port port = graph.at(id).port;
    places[id] = whole(port == Port::kHidden ? flow.hidden[layer - 1] : flow.ports.at(port));
  }
}

/// Outputs that leave for the host use three buffers in turn: a layer writes one while the next to
/// last is still on its way. With a buffer each, all would stay until backward.
BufferId StepBuilder::hidden_buffer(Flow& flow, size_t layer, int64_t bytes, bool leaves) {
  const auto name = [&](size_t index) { return cat("hidden.", index, ".", flow.micro_batch); };
  constexpr size_t kSlots = 3;
  if (!leaves) return exchanged(name(layer), bytes);
  if (flow.slots.size() < kSlots) flow.slots.push_back(exchanged(name(layer), bytes));
  const BufferId slot = flow.slots[layer % kSlots];
  require(program_.at(slot).bytes == bytes, "layers hand on equally much");
  return slot;
}

void StepBuilder::place_outputs(const LayerGraph& graph, Flow& flow, size_t layer, BufferId result,
                                bool leaves, ValuePlaces& places) {
  for (const ValueId id : graph.with_role(ValueRole::kOutput)) {
    const Value& value = graph.at(id);
    BufferId to = result;
    if (value.port == Port::kHidden) {
      to = flow.hidden[layer] = hidden_buffer(flow, layer, value.bytes(), leaves);
    } else if (value.port == Port::kRope) {
      to = temporary(cat(port_name(value.port), ".", layer, ".", flow.micro_batch), value.bytes());
      flow.ports[Port::kRope] = to;
    }
    places[id] = {to, 0, value.bytes()};
  }
}

void StepBuilder::bring_parameters(size_t l, int32_t micro_batch, const std::vector<Op>& list,
                                   ValuePlaces& places) {
  const std::set<ValueId> read = values_read(list);
  const Layer& layer = model_.layers[l];
  const LayerGraph& graph = model_.graph_of(layer);
  for (size_t i = 0; i < layer.params.size(); ++i) {
    const ValueId id = layer.params[i].value;
    if (!read.contains(id)) continue;
    const ParamPlace& place = partition_.places[l][i];
    store_.bring(place.unit, micro_batch);
    places[id] = store_.parameters(place, graph.at(id).bytes());
  }
}

/// Places of the gradients that `list` writes: asking for one makes room for it.
void StepBuilder::place_gradients(size_t l, int32_t micro_batch, const std::vector<Op>& list,
                                  ValuePlaces& places) {
  std::set<ValueId> made;
  for (const Op& op : list) made.insert(op.out.begin(), op.out.end());
  const Layer& layer = model_.layers[l];
  const LayerGraph& graph = model_.graph_of(layer);
  for (size_t i = 0; i < layer.params.size(); ++i) {
    const ValueId id = graph.at(layer.params[i].value).grad;
    if (id < 0 || !made.contains(id)) continue;
    places[id] = store_.gradient(partition_.places[l][i], graph.at(id).bytes(), micro_batch);
  }
}

void StepBuilder::place_scratch(const LayerGraph& graph, const ScratchPlan& plan,
                                const std::string& name, ValuePlaces& places) {
  if (plan.bytes > 0) place_planned(graph, plan, exchanged(name, plan.bytes), places);
}

/// Cut at its collectives, which go to their group's lane, and before the first operation that
/// reads what one brings: operations between the two run beside it.
void StepBuilder::run_list(InstrKind kind, size_t layer, int32_t micro_batch,
                           const std::vector<Op>& list, ValuePlaces& places, bool accumulate) {
  Instr like;
  like.kind = kind;
  like.layer = static_cast<int32_t>(layer);
  like.micro_batch = micro_batch;
  like.graph = model_.layers[layer].graph;
  like.accumulate = accumulate;
  sum_in_place(graph_of(layer), list, places);
  size_t first = 0;
  std::set<ValueId> on_the_way;
  for (size_t i = 0; i < list.size(); ++i) {
    const Op& op = list[i];
    if (is_collective(op.kind)) {
      run_ops(like, first, i, places);
      run_collective(like, op, places);
      on_the_way.insert(op.out[0]);
      first = i + 1;
      continue;
    }
    size_t arrived = 0;
    for (const ValueId id : op.in) arrived += on_the_way.erase(id);
    if (arrived == 0) continue;
    run_ops(like, first, i, places);
    first = i;
  }
  run_ops(like, first, list.size(), places);
}

void StepBuilder::run_ops(const Instr& like, size_t first, size_t end, const ValuePlaces& places) {
  if (first == end) return;
  Instr instr = like;
  instr.first_op = static_cast<int32_t>(first);
  instr.op_count = static_cast<int32_t>(end - first);
  bind_ops(instr, model_.graphs[static_cast<size_t>(instr.graph)], places);
  program_.instrs.push_back(std::move(instr));
}

void StepBuilder::run_collective(const Instr& like, const Op& op, const ValuePlaces& places) {
  const LayerGraph& graph = model_.graphs[static_cast<size_t>(like.graph)];
  const Range& in = places.at(op.in[0]);
  const Range& out = places.at(op.out[0]);
  const bool sums = op.kind == OpKind::kTensorAllReduce;
  if (sums && in != out) {
    Instr& copy = emit(InstrKind::kCopy);
    copy.layer = like.layer;
    copy.micro_batch = like.micro_batch;
    copy.reads = {in};
    copy.writes = {out};
  }
  Instr& instr = emit(sums ? InstrKind::kAllReduce
                           : op.kind == OpKind::kTensorAllGather ? InstrKind::kAllGather
                                                                 : InstrKind::kReduceScatter);
  instr.group = store_.groups().tensor;
  instr.lane = lane_of(instr.group);
  instr.dtype = graph.at(op.in[0]).dtype;
  instr.layer = like.layer;
  instr.micro_batch = like.micro_batch;
  instr.reads = {sums ? out : in};
  instr.writes = {out};
}

/// The first layer in backward order that writes a parameter's gradient overwrites, later ones add:
/// within a step where one buffer holds it all the time, else within a micro-batch.
bool StepBuilder::accumulates(const Layer& layer, int32_t micro_batch) {
  if (!store_.lists_accumulate() && std::exchange(written_in_, micro_batch) != micro_batch)
    written_.clear();
  bool seen = false;
  bool fresh = false;
  for (const GraphParam& param : layer.params)
    for (const TensorId tensor : param.tensors)
      (written_.insert(tensor).second ? fresh : seen) = true;
  require(!(seen && fresh), "a layer's gradients are all new or all known");
  return seen;
}

void StepBuilder::forward(Flow& flow, BufferId result, bool keep) {
  const size_t layers = model_.layers.size();
  const int32_t m = flow.micro_batch;
  flow.hidden.assign(layers, -1);
  flow.on_host.assign(layers, -1);
  flow.saved.assign(layers, -1);
  for (size_t l = 0; l < layers; ++l) {
    const Layer& layer = model_.layers[l];
    const LayerGraph& graph = model_.graph_of(layer);
    const auto g = static_cast<size_t>(layer.graph);
    ValuePlaces places;
    bring_parameters(l, m, graph.forward, places);
    place_inputs(graph, flow, l, places);
    place_outputs(graph, flow, l, result, keep && options_.offload_activations, places);
    place_scratch(graph, forward_[g], cat("scratch.f", l, ".", m), places);
    if (keep) place_gradients(l, m, graph.forward, places);
    if (keep && saved_[g].bytes > 0) {
      flow.saved[l] = exchanged(cat("saved.", l, ".", m), saved_[g].bytes);
      place_planned(graph, saved_[g], flow.saved[l], places);
    }
    // The head's kernel makes its matrix's gradient in the forward pass: the first of its
    // micro-batch.
    const bool accumulate =
        keep && layer.kind == LayerKind::kHead && m > 0 && store_.lists_accumulate();
    run_list(InstrKind::kForward, l, m, graph.forward, places, accumulate);
    store_.release(l + 1 < layers ? units_read(model_, partition_, l + 1, graph_of(l + 1).forward)
                                  : std::set<UnitId>());
    if (keep && options_.offload_activations && l > 0 && l + 1 < layers) send_to_host(flow, l - 1);
  }
}

/// The input of a block has been read by its forward pass: it leaves the device until backward.
void StepBuilder::send_to_host(Flow& flow, size_t layer) {
  const BufferId from = flow.hidden[layer];
  flow.on_host[layer] = temporary(cat("hidden_on_host.", layer, ".", flow.micro_batch),
                                  program_.at(from).bytes, Tier::kHost);
  Instr& instr = emit(InstrKind::kCopy);
  instr.lane = Lane::kToHost;
  instr.reads = {whole(from)};
  instr.writes = {whole(flow.on_host[layer])};
}

void StepBuilder::bring_back(Flow& flow, size_t layer) {
  const BufferId from = flow.on_host[layer];
  if (from < 0) return;
  flow.hidden[layer] =
      exchanged(cat("hidden_again.", layer, ".", flow.micro_batch), program_.at(from).bytes);
  Instr& instr = emit(InstrKind::kCopy);
  instr.lane = Lane::kToDevice;
  instr.hold = true;
  instr.reads = {whole(from)};
  instr.writes = {whole(flow.hidden[layer])};
}

void StepBuilder::backward(Flow& flow, bool last) {
  const int32_t m = flow.micro_batch;
  BufferId incoming = -1;
  for (size_t l = model_.layers.size(); l-- > 0;) {
    const Layer& layer = model_.layers[l];
    const LayerGraph& graph = model_.graph_of(layer);
    const auto g = static_cast<size_t>(layer.graph);
    // The input of the layer before comes beside this layer's work.
    if (l > 1) bring_back(flow, l - 2);
    ValuePlaces places;
    bring_parameters(l, m, graph.backward, places);
    place_inputs(graph, flow, l, places);
    if (const ValueId id = graph.find(ValueRole::kOutputGrad, Port::kHidden); id >= 0)
      places[id] = whole(incoming);
    if (const ValueId id = graph.find(ValueRole::kInputGrad, Port::kHidden); id >= 0) {
      incoming = exchanged(cat("d_hidden.", l, ".", m), graph.at(id).bytes());
      places[id] = whole(incoming);
    }
    place_gradients(l, m, graph.backward, places);
    place_scratch(graph, backward_[g], cat("scratch.b", l, ".", m), places);
    if (flow.saved[l] >= 0) place_planned(graph, saved_[g], flow.saved[l], places);
    run_list(InstrKind::kBackward, l, m, graph.backward, places, accumulates(layer, m));
    store_.release(l > 0 ? units_read(model_, partition_, l - 1, graph_of(l - 1).backward)
                         : std::set<UnitId>());
    // In the order in which gradients lie, so that buckets are one range.
    const std::vector<UnitId> units = partition_.units_of(static_cast<int>(l));
    for (auto unit = units.rbegin(); unit != units.rend(); ++unit)
      if (partition_.unit(*unit).layers.front() == static_cast<int>(l))
        store_.reduce(*unit, m, last);
  }
}

void StepBuilder::decide(BufferId norm, BufferId loss) {
  Instr& instr = emit(InstrKind::kDecide);
  instr.reads = {whole(norm), whole(loss)};
}

Step StepBuilder::finish() {
  Program program =
      reuse_gathered(std::move(program_), options_.reuse_distance, options_.max_live_elements);
  // What a step has written may be older than the parameters when another program runs.
  if (trains_)
    program = gather_within_nodes(std::move(program), store_.groups());
  program = prefetch_gathers(std::move(program), options_.overlap ? options_.prefetch_elements : 0,
                             options_.max_live_elements);
  program = bucket_gradients(std::move(program), options_.bucket_elements);
  program = bucket_gathers(std::move(program), options_.gather_bucket_elements);
  program = plan_memory(order_communication(std::move(program), options_.overlap));
  program = overlap_disk_requests(std::move(program));
  return {std::move(program), store_.pieces()};
}

}  // namespace

Step build_training_step(const ModelDescription& model, const Partition& partition,
                         const StepOptions& options) {
  require(model.mode == Mode::kTrain, "a training step needs a model built for training");
  StepBuilder builder("train", model, partition, options, true);
  const BufferId loss = builder.persistent(buffer_names::kLoss, DType::kF64, kLossSlots);
  const BufferId norm =
      builder.persistent(buffer_names::kNorm, DType::kF64, builder.store().norm_slots());
  builder.begin({loss, norm});
  for (int32_t m = 0; m < options.micro_batches; ++m) {
    const bool last = m + 1 == options.micro_batches;
    StepBuilder::Flow flow = builder.load_batch(m);
    builder.forward(flow, loss, true);
    if (last) builder.reduce_loss(loss);
    builder.backward(flow, last);
  }
  builder.store().norm(norm);
  builder.decide(norm, loss);
  builder.store().update();
  return builder.finish();
}

Step build_evaluation_step(const ModelDescription& model, const Partition& partition,
                           const StepOptions& options) {
  require(model.mode == Mode::kEvaluate, "an evaluation step needs a model built for evaluation");
  StepBuilder builder("evaluate", model, partition, options, false);
  const BufferId loss = builder.persistent(buffer_names::kLoss, DType::kF64, kLossSlots);
  builder.begin({loss});
  for (int32_t m = 0; m < options.micro_batches; ++m) {
    StepBuilder::Flow flow = builder.load_batch(m);
    builder.forward(flow, loss, false);
  }
  builder.reduce_loss(loss);
  return builder.finish();
}

Step build_logits_step(const ModelDescription& model, const Partition& partition,
                       const StepOptions& options) {
  require(model.mode == Mode::kLogits, "a logits step needs a model built for logits");
  StepBuilder builder("logits", model, partition, options, false);
  StepBuilder::Flow flow = builder.load_batch(0);
  const BufferId logits = builder.persistent(buffer_names::kLogits, model.dtypes.compute,
                                             model.batch.tokens() * model.vocab_rows);
  builder.forward(flow, logits, false);
  return builder.finish();
}

}  // namespace ftrun
