#include "lockstep.h"
#include "ops/collective/collective.h"
#include "ops/kinds.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>

#include "operation_runner.h"

#include <catch2/catch.hpp>

namespace ftrun::testing {

namespace {

void store(DType dtype, void* to, size_t i, double number) {
  switch (dtype) {
    case DType::kF64:
      static_cast<double*>(to)[i] = number;
      break;
    case DType::kF32:
      static_cast<float*>(to)[i] = static_cast<float>(number);
      break;
    default:
      static_cast<uint16_t*>(to)[i] = bits_of(rounded(number, dtype), dtype);
  }
}

double load(DType dtype, const void* from, size_t i) {
  switch (dtype) {
    case DType::kF64:
      return static_cast<const double*>(from)[i];
    case DType::kF32:
      return static_cast<double>(static_cast<const float*>(from)[i]);
    default:
      return number_of(static_cast<const uint16_t*>(from)[i], dtype);
  }
}

uint64_t seed_of(const std::string& name) {
  uint64_t seed = 7;
  for (const char c : name) seed = (seed * 31 + static_cast<unsigned char>(c)) % 1'000'003;
  return seed;
}

/// Returns random weights of size about 1 / sqrt(inputs); weights of norms are around 1.
Array initial_parameter(const TensorInfo& tensor) {
  Array array = random_array(tensor.shape, seed_of(tensor.name));
  const bool matrix = tensor.shape.size() == 2;
  const bool norm = tensor.name.find("norm") != std::string::npos;
  const double scale = matrix ? std::sqrt(3.0 / static_cast<double>(tensor.shape[1])) : 0.3;
  for (double& v : array.data) v = v * scale + (norm ? 1.0 : 0.0);
  return array;
}

bool reads(const Op& op, ValueId id) {
  return std::find(op.in.begin(), op.in.end(), id) != op.in.end();
}

bool lives_in_list(const Value& value) {
  return value.role == ValueRole::kTemp || value.role == ValueRole::kDeferred ||
         value.role == ValueRole::kWorkspace;
}

}  // namespace

TokenBatch token_batch(const BatchShape& shape, int64_t vocabulary, int64_t masked_every,
                       int64_t masked_first) {
  TokenBatch batch;
  const int64_t break_at = shape.sequence_length * 2 / 3;
  for (int64_t n = 0; n < shape.tokens(); ++n) {
    const int64_t t = n % shape.sequence_length, start = t < break_at ? 0 : break_at;
    const bool masked = n < masked_first || (masked_every > 0 && n % masked_every == 0);
    batch.tokens.push_back(static_cast<int32_t>(n * 7919 % vocabulary));
    batch.labels.push_back(masked ? -100 : static_cast<int32_t>(n * 104729 % vocabulary));
    batch.starts.push_back(static_cast<int32_t>(start));
    batch.positions.push_back(static_cast<int32_t>(t - start));
  }
  return batch;
}

Lockstep::Memory::Memory(int64_t bytes) : owner_(static_cast<size_t>(bytes) + 64, std::byte{0xFF}) {
  void* begin = owner_.data();
  size_t room = owner_.size();
  begin_ = static_cast<std::byte*>(std::align(64, static_cast<size_t>(bytes), begin, room));
}

Lockstep::Lockstep(std::vector<ModelDescription> ranks)
    : ranks_(std::move(ranks)), memory_(ranks_.size()) {
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    memory_[rank].resize(ranks_[rank].layers.size());
    for (size_t layer = 0; layer < ranks_[rank].layers.size(); ++layer) {
      allocate(rank, layer);
      fill_parameters(rank, layer,
                      [](const TensorInfo& tensor) { return initial_parameter(tensor).data; });
    }
  }
}

void Lockstep::set_parameters(const NamedNumbers& tensors) {
  for (size_t rank = 0; rank < ranks_.size(); ++rank)
    for (size_t layer = 0; layer < ranks_[rank].layers.size(); ++layer)
      fill_parameters(rank, layer,
                      [&](const TensorInfo& tensor) { return tensors.at(tensor.name); });
}

const LayerGraph& Lockstep::graph(size_t rank, size_t layer) const {
  return ranks_[rank].graph_of(ranks_[rank].layers[layer]);
}

void Lockstep::allocate(size_t rank, size_t layer) {
  const LayerGraph& g = graph(rank, layer);
  LayerMemory& memory = memory_[rank][layer];
  memory.storage.assign(g.values.size(), nullptr);
  const ScratchPlan saved = plan_saved(g);
  memory.saved = Memory(saved.bytes);
  for (size_t i = 0; i < g.values.size(); ++i) {
    const auto id = static_cast<ValueId>(i);
    if (saved.offset[i] >= 0) {
      memory.storage[i] = memory.saved.at(saved.offset[i]);
    } else if (!lives_in_list(g.values[i])) {
      memory.storage[i] = memory.own.emplace(id, Memory(g.values[i].bytes())).first->second.at(0);
    }
  }
}

void Lockstep::fill_parameters(size_t rank, size_t layer, const ReadParameter& read) {
  const ModelDescription& model = ranks_[rank];
  const LayerGraph& g = graph(rank, layer);
  for (const GraphParam& param : model.layers[layer].params) {
    size_t at = 0;
    for (const TensorId id : param.tensors) {
      const TensorInfo& tensor = model.tensor(id);
      const std::vector<double> whole = read(tensor);
      REQUIRE(static_cast<int64_t>(whole.size()) == tensor.numel());
      visit_runs(tensor.shape, tensor.local, [&](int64_t begin, int64_t end, int64_t) {
        for (int64_t i = begin; i < end; ++i)
          store(g.at(param.value).dtype,
                memory_[rank][layer].storage[static_cast<size_t>(param.value)], at++,
                whole[static_cast<size_t>(i)]);
      });
    }
    REQUIRE(static_cast<int64_t>(at) == element_count(g.at(param.value).dims));
  }
}

void Lockstep::set_ints(size_t layer, Port port, const std::vector<int32_t>& numbers) {
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    const ValueId id = graph(rank, layer).find(ValueRole::kInput, port);
    if (id < 0) continue;
    REQUIRE(graph(rank, layer).at(id).dims == Dims{static_cast<int64_t>(numbers.size())});
    std::memcpy(memory_[rank][layer].storage[static_cast<size_t>(id)], numbers.data(),
                numbers.size() * 4);
  }
}

void Lockstep::set_inputs(size_t layer, const TokenBatch& batch) {
  set_ints(layer, Port::kTokens, batch.tokens);
  set_ints(layer, Port::kPositions, batch.positions);
  set_ints(layer, Port::kStarts, batch.starts);
  set_ints(layer, Port::kLabels, batch.labels);
}

void Lockstep::copy_to_layer(size_t from, ValueRole from_role, size_t to, ValueRole to_role,
                             Port port) {
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    const ValueId a = graph(rank, from).find(from_role, port),
                  b = graph(rank, to).find(to_role, port);
    if (a < 0 || b < 0) continue;
    REQUIRE(graph(rank, from).at(a).dims == graph(rank, to).at(b).dims);
    std::memcpy(memory_[rank][to].storage[static_cast<size_t>(b)],
                memory_[rank][from].storage[static_cast<size_t>(a)],
                static_cast<size_t>(graph(rank, from).at(a).bytes()));
  }
}

void Lockstep::step(const TokenBatch& batch, bool accumulate, bool deferred) {
  const size_t layers = ranks_[0].layers.size();
  for (size_t layer = 0; layer < layers; ++layer) {
    set_inputs(layer, batch);
    if (layer > 0) {
      copy_to_layer(layer - 1, ValueRole::kOutput, layer, ValueRole::kInput, Port::kHidden);
      copy_to_layer(0, ValueRole::kOutput, layer, ValueRole::kInput, Port::kRope);
    }
    if (layer + 1 == layers && ranks_[0].mode != GraphMode::kLogits) {
      for (size_t rank = 0; rank < ranks_.size(); ++rank) {
        const ValueId loss = graph(rank, layer).find(ValueRole::kOutput, Port::kLoss);
        if (!accumulate)
          std::memset(memory_[rank][layer].storage[static_cast<size_t>(loss)], 0, 16);
      }
    }
    run(layer, ListKind::kForward, accumulate);
  }
  if (ranks_[0].mode != GraphMode::kTrain) return;
  for (size_t layer = layers; layer-- > 0;) {
    if (layer + 1 < layers)
      copy_to_layer(layer + 1, ValueRole::kInputGrad, layer, ValueRole::kOutputGrad, Port::kHidden);
    if (!deferred) {
      run(layer, ListKind::kBackward, accumulate);
      continue;
    }
    assign_deferred(layer);
    run(layer, ListKind::kInputGrad, accumulate);
    run(layer, ListKind::kWeightGrad, accumulate);
  }
}

const std::vector<Op>& Lockstep::list_of(size_t rank, size_t layer, ListKind which) const {
  const LayerGraph& g = graph(rank, layer);
  switch (which) {
    case ListKind::kForward:
      return g.forward;
    case ListKind::kBackward:
      return g.backward;
    case ListKind::kInputGrad:
      return g.input_grad;
    default:
      return g.weight_grad;
  }
}

void Lockstep::assign_planned(LayerMemory& layer, const ScratchPlan& plan, Memory& memory) {
  memory = Memory(plan.bytes);
  for (size_t i = 0; i < plan.offset.size(); ++i)
    if (plan.offset[i] >= 0) layer.storage[i] = memory.at(plan.offset[i]);
}

void Lockstep::assign_deferred(size_t layer) {
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    LayerMemory& memory = memory_[rank][layer];
    assign_planned(memory, plan_deferred(graph(rank, layer)), memory.deferred);
  }
}

void Lockstep::run(size_t layer, ListKind which, bool accumulate) {
  std::vector<std::vector<Op>> lists;
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    lists.push_back(list_of(rank, layer, which));
    LayerMemory& memory = memory_[rank][layer];
    assign_planned(memory, plan_scratch(graph(rank, layer), lists.back()), memory.scratch);
  }
  if (lists[0].empty()) return;
  // The collectives that have begun and not ended, as positions in the lists, which are the same on
  // all ranks.
  std::vector<size_t> under_way;
  const auto end_first = [&] {
    std::vector<Op> ops;
    for (const auto& list : lists) ops.push_back(list[under_way[0]]);
    end_collective(layer, ops);
    under_way.erase(under_way.begin());
  };
  for (size_t i = 0; i < lists[0].size(); ++i) {
    const auto needed = [&](size_t at) { return reads(lists[0][i], lists[0][at].out[0]); };
    while (std::any_of(under_way.begin(), under_way.end(), needed)) end_first();
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      REQUIRE(lists[rank].size() == lists[0].size());
      const Op& op = lists[rank][i];
      REQUIRE(op.kind == lists[0][i].kind);
      if (!is_collective(op.kind)) {
        INFO("rank " << rank << ": " << op_text(graph(rank, layer), op));
        run_op(
            graph(rank, layer), op, memory_[rank][layer].storage,
            {.accumulate = accumulate, .scalars = &scalars, .layer = static_cast<int64_t>(layer)});
      }
    }
    if (!is_collective(lists[0][i].kind)) continue;
    begin_collective(layer, lists[0][i]);
    under_way.push_back(i);
  }
  while (!under_way.empty()) end_first();
}

void Lockstep::begin_collective(size_t layer, const Op& op) {
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    const auto& storage = memory_[rank][layer].storage;
    void* const out = storage[static_cast<size_t>(op.out[0])];
    if (out != storage[static_cast<size_t>(op.in[0])])
      std::memset(out, 0xFF, static_cast<size_t>(graph(rank, layer).at(op.out[0]).bytes()));
  }
}

void Lockstep::end_collective(size_t layer, const std::vector<Op>& ops) {
  const size_t degree = ranks_.size();
  const Op& op = ops[0];
  REQUIRE(op.attrs.get<CollectiveAttrs>().ranks == static_cast<int64_t>(degree));
  const DType dtype = graph(0, layer).at(op.out[0]).dtype;
  std::vector<std::vector<double>> in;
  for (size_t rank = 0; rank < degree; ++rank) in.push_back(read(rank, layer, ops[rank].in[0]));
  const auto count = static_cast<size_t>(element_count(graph(0, layer).at(op.out[0]).dims));
  for (size_t rank = 0; rank < degree; ++rank) {
    void* const out = memory_[rank][layer].storage[static_cast<size_t>(ops[rank].out[0])];
    for (size_t i = 0; i < count; ++i) {
      double number = 0.0;
      if (op.kind == OpKind::kAllGather) {
        number = in[i / in[0].size()][i % in[0].size()];
      } else {
        const size_t first = op.kind == OpKind::kReduceScatter ? rank * count : 0;
        for (size_t other = 0; other < degree; ++other) number += in[other][first + i];
      }
      store(dtype, out, i, number);
    }
  }
}

std::vector<double> Lockstep::read(size_t rank, size_t layer, ValueId id) const {
  const Value& value = graph(rank, layer).at(id);
  const void* const from = memory_[rank][layer].storage[static_cast<size_t>(id)];
  std::vector<double> numbers(static_cast<size_t>(element_count(value.dims)));
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = load(value.dtype, from, i);
  return numbers;
}

void Lockstep::add_hidden(NamedNumbers& found, size_t layer, ValueRole role,
                          const std::string& name) const {
  const BatchShape& batch = ranks_[0].batch;
  std::vector<double>& all = found[name];
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    const std::vector<double> own_values =
        read(rank, layer, graph(rank, layer).find(role, Port::kHidden));
    const bool whole = static_cast<int64_t>(own_values.size()) == batch.tokens() * ranks_[0].hidden;
    if (whole && rank > 0) {
      REQUIRE(own_values == all);
    } else {
      all.insert(all.end(), own_values.begin(), own_values.end());
    }
  }
  REQUIRE(static_cast<int64_t>(all.size()) == batch.tokens() * ranks_[0].hidden);
}

void Lockstep::add_gradients(NamedNumbers& found, size_t layer) const {
  // The gradients are of this layer only: a tied matrix has one in each of its two layers.
  std::map<std::string, std::vector<std::vector<double>>> by_rank;
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    const ModelDescription& model = ranks_[rank];
    for (const GraphParam& param : model.layers[layer].params) {
      const std::vector<double> joined = read(rank, layer, graph(rank, layer).at(param.value).grad);
      size_t at = 0;
      for (const TensorId id : param.tensors) {
        const TensorInfo& tensor = model.tensor(id);
        const auto count = static_cast<size_t>(tensor.local_numel());
        const auto first = joined.begin() + static_cast<std::ptrdiff_t>(at);
        std::vector<double> own_values(first, first + static_cast<std::ptrdiff_t>(count));
        at += count;
        auto& others = by_rank[tensor.name];
        const bool again =
            rank % static_cast<size_t>(tensor.copies) != 0 && !tensor.partial_gradient;
        if (again) {
          INFO(tensor.name);
          REQUIRE(own_values == others.back());
        }
        others.push_back(own_values);
        std::vector<double>& whole = found[tensor.name];
        whole.resize(static_cast<size_t>(tensor.numel()));
        if (again) continue;
        visit_runs(tensor.shape, tensor.local, [&](int64_t begin, int64_t end, int64_t position) {
          for (int64_t i = begin; i < end; ++i)
            whole[static_cast<size_t>(i)] += own_values[static_cast<size_t>(position + i - begin)];
        });
      }
    }
  }
}

NamedNumbers Lockstep::results() const {
  NamedNumbers found;
  const size_t layers = ranks_[0].layers.size();
  const bool train = ranks_[0].mode == GraphMode::kTrain;
  for (size_t layer = 0; layer < layers; ++layer) {
    const std::string& name = ranks_[0].layers[layer].name;
    if (layer + 1 < layers) {
      add_hidden(found, layer, ValueRole::kOutput, "hidden " + name);
      if (train) add_hidden(found, layer, ValueRole::kOutputGrad, "d_hidden " + name);
    }
    if (train) add_gradients(found, layer);
  }
  if (ranks_[0].mode == GraphMode::kLogits) {
    // Transposes the logits of all ranks from [t,N,V/t] to [N,V].
    const int64_t n = ranks_[0].batch.tokens(), t = static_cast<int64_t>(ranks_.size()),
                  v = ranks_[0].vocab_rows / t;
    std::vector<double>& logits = found["logits"];
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      const ValueId id = graph(rank, layers - 1).find(ValueRole::kOutput, Port::kLogits);
      const std::vector<double> blocks = read(rank, layers - 1, id);
      REQUIRE(graph(rank, layers - 1).at(id).dims == (t == 1 ? Dims{n, v} : Dims{t, n, v}));
      std::vector<double> own_values;
      for (int64_t i = 0; i < n; ++i)
        for (int64_t row = 0; row < t * v; ++row)
          own_values.push_back(blocks[static_cast<size_t>((row / v * n + i) * v + row % v)]);
      if (rank > 0) REQUIRE(own_values == logits);
      logits = own_values;
    }
    return found;
  }
  std::vector<double>& loss = found["loss"];
  loss.resize(2);
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    const auto own_values =
        read(rank, layers - 1, graph(rank, layers - 1).find(ValueRole::kOutput, Port::kLoss));
    for (size_t i = 0; i < 2; ++i) loss[i] += own_values[i];
  }
  return found;
}

}  // namespace ftrun::testing
