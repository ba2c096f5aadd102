#include "program/step_builder.h"

#include <map>
#include <set>
#include <string>
#include <utility>

#include "base/error.h"
#include "program/passes.h"

namespace ftrun {

std::string optimizer_buffer_name(int32_t state) { return cat("optimizer.", state); }

StepLayouts step_layouts(const Partition& partition) {
  return {flat_layout(partition, FlatOrder::kForward), flat_layout(partition, FlatOrder::kBackward)};
}

namespace {

constexpr int64_t kFloat = 4;
constexpr int64_t kDouble = 8;

/// Emits the plain program; storage plans of a graph are made once and used by every layer that
/// shares it.
class StepBuilder {
 public:
  StepBuilder(std::string name, const ModelDescription& model, const Partition& partition)
      : model_(model), partition_(partition), layouts_(step_layouts(partition)) {
    program_.name = std::move(name);
    parameters_ = persistent(buffer_names::kParameters, Category::kParameters, layouts_.parameters.total * kFloat);
    for (const LayerGraph& graph : model.graphs) {
      forward_.push_back(plan_scratch(graph, graph.forward));
      backward_.push_back(plan_scratch(graph, graph.backward));
      saved_.push_back(plan_saved(graph));
    }
  }

  BufferId persistent(const std::string& name, Category category, int64_t bytes, bool peer_visible = false) {
    program_.buffers.push_back({name, Tier::kDevice, category, bytes, true, peer_visible, -1});
    return last_buffer();
  }

  BufferId temporary(std::string name, Category category, int64_t bytes) {
    program_.buffers.push_back({std::move(name), Tier::kDevice, category, bytes, false, false, -1});
    return last_buffer();
  }

  Range whole(BufferId id) const { return {id, 0, program_.at(id).bytes}; }

  Instr& emit(InstrKind kind) {
    program_.instrs.emplace_back().kind = kind;
    return program_.instrs.back();
  }

  void begin(BufferId loss) { emit(InstrKind::kBegin).writes = {whole(loss)}; }

  void all_reduce(const Range& range, DType dtype) {
    Instr& instr = emit(InstrKind::kAllReduce);
    instr.lane = Lane::kCommunication;
    instr.group = CommGroup::kData;
    instr.dtype = dtype;
    instr.reads = instr.writes = {range};
  }

  /// Where a layer's boundary values of one micro-batch lie.
  struct Flow {
    std::map<Port, BufferId> ports;   // batch inputs and the rope table
    std::vector<BufferId> hidden;     // output of each layer
    std::vector<BufferId> saved;      // of each layer
  };

  Flow load_batch(int32_t micro_batch) {
    Flow flow;
    const int64_t bytes = model_.batch.rows * model_.batch.row_tokens * kFloat;
    std::vector<Range> writes;
    for (const Port port : kBatchPorts) {
      flow.ports[port] = temporary(cat(port_name(port), ".", micro_batch), Category::kActivations, bytes);
      writes.push_back(whole(flow.ports[port]));
    }
    Instr& instr = emit(InstrKind::kLoadBatch);
    instr.micro_batch = micro_batch;
    instr.writes = std::move(writes);
    return flow;
  }

  void forward(Flow& flow, int32_t micro_batch, BufferId result, bool keep, bool first_write);
  /// With `last`, the gradients of each unit are reduced as soon as no earlier layer adds to them.
  void backward(Flow& flow, int32_t micro_batch, bool last);

  void add_gradients() {
    gradients_ = persistent(buffer_names::kGradients, Category::kGradients, layouts_.gradients.total * kFloat, true);
  }
  BufferId gradients() const { return gradients_; }

  /// One update instruction for each run of parameters with the same weight decay.
  void update(const std::vector<BufferId>& states, const std::function<bool(const TensorInfo&)>& decays);
  Program take() { return std::move(program_); }
  const StepLayouts& layouts() const { return layouts_; }
  BufferId parameters() const { return parameters_; }

  /// Reduces the gradients of units that the backward pass of layer `l` completes.
  void reduce_finished_units(size_t l);

 private:
  BufferId last_buffer() const { return static_cast<BufferId>(program_.buffers.size()) - 1; }

  Range unit_range(const FlatLayout& layout, UnitId unit, BufferId buffer) const {
    return {buffer, layout.at(unit) * kFloat, partition_.unit(unit).padded * kFloat};
  }

  Range param_range(const ParamPlace& place, const FlatLayout& layout, BufferId buffer, int64_t bytes) const {
    return {buffer, (layout.at(place.unit) + place.position) * kFloat, bytes};
  }

  /// Ranges of a layer's parameters and, when there are gradients, of their gradients.
  void bind_params(size_t l, std::vector<Binding>& bindings, bool gradients) const {
    const Layer& layer = model_.layers[l];
    const LayerGraph& graph = model_.graph_of(layer);
    for (size_t i = 0; i < layer.params.size(); ++i) {
      const ParamPlace& place = partition_.places[l][i];
      const ValueId id = layer.params[i].value;
      const Value& value = graph.at(id);
      bindings.push_back({id, param_range(place, layouts_.parameters, parameters_, value.bytes())});
      if (gradients && value.grad >= 0)
        bindings.push_back({value.grad, param_range(place, layouts_.gradients, gradients_, value.bytes())});
    }
  }

  void bind_scratch(const LayerGraph& graph, const ScratchPlan& plan, const std::string& name,
                    std::vector<Binding>& bindings) {
    if (plan.bytes == 0) return;
    const BufferId scratch = temporary(name, Category::kActivations, plan.bytes);
    for (size_t v = 0; v < plan.offset.size(); ++v)
      if (plan.offset[v] >= 0)
        bindings.push_back({static_cast<ValueId>(v), {scratch, plan.offset[v], graph.values[v].bytes()}});
  }

  void bind_saved(const LayerGraph& graph, const ScratchPlan& plan, BufferId saved, std::vector<Binding>& bindings) {
    for (size_t v = 0; v < plan.offset.size(); ++v)
      if (plan.offset[v] >= 0)
        bindings.push_back({static_cast<ValueId>(v), {saved, plan.offset[v], graph.values[v].bytes()}});
  }

  void bind_inputs(const LayerGraph& graph, const Flow& flow, size_t layer, std::vector<Binding>& bindings) {
    for (const ValueId id : graph.with_role(ValueRole::kInput)) {
      const Port port = graph.at(id).port;
      const BufferId from = port == Port::kHidden ? flow.hidden[layer - 1] : flow.ports.at(port);
      bindings.push_back({id, whole(from)});
    }
  }

  void bind_outputs(const LayerGraph& graph, Flow& flow, size_t layer, int32_t micro_batch, BufferId result,
                    std::vector<Binding>& bindings) {
    for (const ValueId id : graph.with_role(ValueRole::kOutput)) {
      const Value& value = graph.at(id);
      BufferId to = result;
      if (value.port == Port::kHidden || value.port == Port::kRope)
        to = temporary(cat(port_name(value.port), ".", layer, ".", micro_batch), Category::kActivations, value.bytes());
      if (value.port == Port::kHidden) flow.hidden[layer] = to;
      if (value.port == Port::kRope) flow.ports[Port::kRope] = to;
      bindings.push_back({id, {to, 0, value.bytes()}});
    }
  }

  /// Reads and writes of an instruction from what its list touches.
  void list_ranges(Instr& instr, const LayerGraph& graph, const std::vector<Op>& list) const {
    std::map<ValueId, Range> where;
    for (const Binding& binding : instr.bindings) where[binding.value] = binding.range;
    std::set<ValueId> reads;
    std::set<ValueId> writes;
    for (const Op& op : list) {
      for (const ValueId id : op.in)
        if (!writes.contains(id)) reads.insert(id);
      writes.insert(op.out.begin(), op.out.end());
      if (op.workspace >= 0) writes.insert(op.workspace);
    }
    for (const ValueId id : reads) add_range(instr.reads, where.at(id));
    for (const ValueId id : writes) add_range(instr.writes, where.at(id));
    if (instr.accumulate)
      for (const ValueId id : writes)
        if (graph.at(id).role == ValueRole::kParamGrad) add_range(instr.reads, where.at(id));
  }

  static void add_range(std::vector<Range>& ranges, const Range& range) {
    for (Range& known : ranges) {
      if (known.buffer != range.buffer) continue;
      if (known.offset + known.bytes == range.offset) {
        known.bytes += range.bytes;
        return;
      }
      if (range.offset >= known.offset && range.offset + range.bytes <= known.offset + known.bytes) return;
    }
    ranges.push_back(range);
  }

  void keep_only_used(Instr& instr, const std::vector<Op>& list) const {
    std::set<ValueId> used;
    for (const Op& op : list) {
      used.insert(op.in.begin(), op.in.end());
      used.insert(op.out.begin(), op.out.end());
      used.insert(op.workspace);
    }
    std::erase_if(instr.bindings, [&](const Binding& b) { return !used.contains(b.value); });
  }

  /// The first layer in backward order that writes a parameter's gradient overwrites, later ones add.
  bool accumulates(const Layer& layer) {
    bool seen = false;
    bool fresh = false;
    for (const GraphParam& param : layer.params)
      for (const TensorId tensor : param.tensors) (written_.insert(tensor).second ? fresh : seen) = true;
    require(!(seen && fresh), "a layer's gradients are all new or all known");
    return seen;
  }

  const ModelDescription& model_;
  const Partition& partition_;
  const StepLayouts layouts_;
  Program program_;
  BufferId parameters_ = -1;
  BufferId gradients_ = -1;
  std::vector<ScratchPlan> forward_;
  std::vector<ScratchPlan> backward_;
  std::vector<ScratchPlan> saved_;
  std::set<TensorId> written_;
};

void StepBuilder::forward(Flow& flow, int32_t micro_batch, BufferId result, bool keep, bool first_write) {
  flow.hidden.assign(model_.layers.size(), -1);
  flow.saved.assign(model_.layers.size(), -1);
  for (size_t l = 0; l < model_.layers.size(); ++l) {
    const Layer& layer = model_.layers[l];
    const LayerGraph& graph = model_.graph_of(layer);
    const auto g = static_cast<size_t>(layer.graph);
    Instr instr;
    instr.kind = InstrKind::kForward;
    instr.layer = static_cast<int32_t>(l);
    instr.micro_batch = micro_batch;
    instr.graph = layer.graph;
    bind_inputs(graph, flow, l, instr.bindings);
    bind_outputs(graph, flow, l, micro_batch, result, instr.bindings);
    bind_params(l, instr.bindings, keep);
    bind_scratch(graph, forward_[g], cat("scratch.f", l, ".", micro_batch), instr.bindings);
    if (keep && saved_[g].bytes > 0) {
      flow.saved[l] = temporary(cat("saved.", l, ".", micro_batch), Category::kActivations, saved_[g].bytes);
      bind_saved(graph, saved_[g], flow.saved[l], instr.bindings);
    }
    // The head's kernel makes its matrix's gradient in the forward pass.
    instr.accumulate = keep && layer.kind == LayerKind::kHead && !first_write;
    keep_only_used(instr, graph.forward);
    list_ranges(instr, graph, graph.forward);
    program_.instrs.push_back(std::move(instr));
  }
}

void StepBuilder::backward(Flow& flow, int32_t micro_batch, bool last) {
  BufferId incoming = -1;
  for (size_t l = model_.layers.size(); l-- > 0;) {
    const Layer& layer = model_.layers[l];
    const LayerGraph& graph = model_.graph_of(layer);
    const auto g = static_cast<size_t>(layer.graph);
    Instr instr;
    instr.kind = InstrKind::kBackward;
    instr.layer = static_cast<int32_t>(l);
    instr.micro_batch = micro_batch;
    instr.graph = layer.graph;
    bind_inputs(graph, flow, l, instr.bindings);
    if (const ValueId id = graph.find(ValueRole::kOutputGrad, Port::kHidden); id >= 0)
      instr.bindings.push_back({id, whole(incoming)});
    if (const ValueId id = graph.find(ValueRole::kInputGrad, Port::kHidden); id >= 0) {
      incoming = temporary(cat("d_hidden.", l, ".", micro_batch), Category::kActivations, graph.at(id).bytes());
      instr.bindings.push_back({id, whole(incoming)});
    }
    bind_params(l, instr.bindings, true);
    bind_scratch(graph, backward_[g], cat("scratch.b", l, ".", micro_batch), instr.bindings);
    if (flow.saved[l] >= 0) bind_saved(graph, saved_[g], flow.saved[l], instr.bindings);
    instr.accumulate = accumulates(layer);
    keep_only_used(instr, graph.backward);
    list_ranges(instr, graph, graph.backward);
    program_.instrs.push_back(std::move(instr));
    if (last) reduce_finished_units(l);
  }
}

void StepBuilder::reduce_finished_units(size_t l) {
  for (const UnitId unit : layouts_.gradients.order)
    if (partition_.unit(unit).layers.front() == static_cast<int>(l))
      all_reduce(unit_range(layouts_.gradients, unit, gradients_), DType::kF32);
}

void StepBuilder::update(const std::vector<BufferId>& states,
                         const std::function<bool(const TensorInfo&)>& decays) {
  for (const Unit& unit : partition_.units) {
    for (const DecayRange& run : decay_ranges(unit, model_, decays)) {
      const int64_t bytes = (run.end - run.begin) * kFloat;
      const auto part = [&](const FlatLayout& layout, BufferId buffer) {
        return Range{buffer, (layout.at(unit.id) + run.begin) * kFloat, bytes};
      };
      Instr& instr = emit(InstrKind::kUpdate);
      instr.decay = run.decay;
      instr.if_finite = true;
      instr.reads = {part(layouts_.gradients, gradients_)};
      instr.writes = {part(layouts_.parameters, parameters_)};
      for (const BufferId state : states) instr.writes.push_back(part(layouts_.parameters, state));
      // Read and written: the passes must see both.
      instr.reads.insert(instr.reads.end(), instr.writes.begin(), instr.writes.end());
    }
  }
}

}  // namespace

Program build_training_step(const ModelDescription& model, const Partition& partition, const StepOptions& options) {
  require(model.mode == Mode::kTrain, "a training step needs a model built for training");
  StepBuilder builder("train", model, partition);
  builder.add_gradients();
  std::vector<BufferId> states;
  for (int32_t i = 0; i < options.optimizer_states; ++i)
    states.push_back(builder.persistent(optimizer_buffer_name(i), Category::kOptimizer,
                                        builder.layouts().parameters.total * kFloat));
  const BufferId loss = builder.persistent(buffer_names::kLoss, Category::kBuffers, kLossSlots * kDouble);
  const BufferId norm = builder.persistent(buffer_names::kNorm, Category::kBuffers, kDouble);
  builder.begin(loss);
  for (int32_t m = 0; m < options.micro_batches; ++m) {
    StepBuilder::Flow flow = builder.load_batch(m);
    builder.forward(flow, m, loss, true, m == 0);
    if (m + 1 == options.micro_batches) builder.all_reduce(builder.whole(loss), DType::kF64);
    builder.backward(flow, m, m + 1 == options.micro_batches);
  }
  Instr& sum = builder.emit(InstrKind::kGradientNorm);
  sum.reads = {builder.whole(builder.gradients())};
  sum.writes = {builder.whole(norm)};
  Instr& decide = builder.emit(InstrKind::kDecide);
  decide.reads = {builder.whole(norm), builder.whole(loss)};
  builder.update(states, options.decays ? options.decays : [](const TensorInfo&) { return true; });
  Program program = bucket_gradients(builder.take(), options.bucket_elements);
  return plan_memory(order_communication(std::move(program), options.overlap));
}

Program build_evaluation_step(const ModelDescription& model, const Partition& partition, const StepOptions& options) {
  require(model.mode == Mode::kEvaluate, "an evaluation step needs a model built for evaluation");
  StepBuilder builder("evaluate", model, partition);
  const BufferId loss = builder.persistent(buffer_names::kLoss, Category::kBuffers, kLossSlots * kDouble);
  builder.begin(loss);
  for (int32_t m = 0; m < options.micro_batches; ++m) {
    StepBuilder::Flow flow = builder.load_batch(m);
    builder.forward(flow, m, loss, false, true);
  }
  builder.all_reduce(builder.whole(loss), DType::kF64);
  return plan_memory(order_communication(builder.take(), options.overlap));
}

Program build_logits_step(const ModelDescription& model, const Partition& partition) {
  require(model.mode == Mode::kLogits, "a logits step needs a model built for logits");
  StepBuilder builder("logits", model, partition);
  StepBuilder::Flow flow = builder.load_batch(0);
  const BufferId logits = builder.persistent(buffer_names::kLogits, Category::kBuffers,
                                             model.batch.tokens() * model.vocab_rows * kFloat);
  builder.forward(flow, 0, logits, false, true);
  return plan_memory(order_communication(builder.take(), true));
}

}  // namespace ftrun
