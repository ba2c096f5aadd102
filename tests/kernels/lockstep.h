#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "graph/layer_graph.h"
#include "graph/scratch.h"
#include "kernels/kernels.h"
#include "model/description.h"

namespace ftrun::test {

/// TokenBatch is the input of a micro-batch for every layer that asks for it.
struct TokenBatch {
  std::vector<int32_t> tokens, positions, starts, labels;
};
/// Returns rows of two documents each; every `masked_every`-th token has no label (0: all have),
/// nor have the first `masked_first`.
TokenBatch token_batch(const BatchShape& shape, int64_t vocabulary, int64_t masked_every,
                       int64_t masked_first = 0);

/// NamedNumbers are numbers by name, of whole tensors and whole batches.
using NamedNumbers = std::map<std::string, std::vector<double>>;

/// Lockstep runs the layers of all tensor-parallel ranks of a model in one thread: each operation
/// on one rank after the other. Scratch is planned as programs plan it and starts as NaN. A
/// collective takes as long as it may: its result is NaN from its beginning until the first
/// operation that reads it, and only then are its operands read.
class Lockstep {
 public:
  /// Makes the ranks' states; `ranks` are the ranks of one model, by their index.
  explicit Lockstep(std::vector<ModelDescription> ranks);

  /// Sets whole parameters by the tensor's name, in place of those that the constructor drew.
  void set_parameters(const NamedNumbers& tensors);

  /// Runs forward and, when training, backward lists of all layers; `accumulate` adds to the
  /// gradients. `deferred`: all weight gradients of a layer run after its input gradients, in
  /// separate scratch.
  void step(const TokenBatch& batch, bool accumulate = false, bool deferred = false);

  /// Returns "loss" {sum, counted}; "hidden LAYER" and, when training, "d_hidden LAYER" of the
  /// outputs of a layer, "logits", and the gradient of each tensor by its name. Fails a test where
  /// ranks disagree on what they should have in common.
  NamedNumbers results() const;

  StepScalars scalars;

 private:
  /// Memory is 64-byte aligned.
  class Memory {
   public:
    Memory() = default;
    explicit Memory(int64_t bytes);
    std::byte* at(int64_t offset) { return begin_ + offset; }

   private:
    std::vector<std::byte> owner_;
    std::byte* begin_ = nullptr;
  };
  /// Place is one layer of one rank.
  struct Place {
    std::map<ValueId, Memory> own;
    Memory saved, scratch, deferred;
    std::vector<void*> storage;
  };

  const LayerGraph& graph(size_t rank, size_t layer) const;
  void allocate(size_t rank, size_t layer);
  using ReadParameter = std::function<std::vector<double>(const TensorInfo&)>;
  void fill_parameters(size_t rank, size_t layer, const ReadParameter& read);
  void set_inputs(size_t layer, const TokenBatch& batch);
  void set_ints(size_t layer, Port port, const std::vector<int32_t>& numbers);
  void copy_to_layer(size_t from, ValueRole from_role, size_t to, ValueRole to_role, Port port);
  enum class ListKind { kForward, kBackward, kInputGrad, kWeightGrad };
  const std::vector<Op>& list_of(size_t rank, size_t layer, ListKind which) const;
  static void place_planned(Place& place, const ScratchPlan& plan, Memory& memory);
  void place_deferred(size_t layer);
  void run(size_t layer, ListKind which, bool accumulate);
  void begin_collective(size_t layer, const Op& op);
  void end_collective(size_t layer, const std::vector<Op>& ops);
  std::vector<double> read(size_t rank, size_t layer, ValueId id) const;
  void add_hidden(NamedNumbers& found, size_t layer, ValueRole role, const std::string& name) const;
  void add_gradients(NamedNumbers& found, size_t layer) const;

  std::vector<ModelDescription> ranks_;
  /// [rank][layer]
  std::vector<std::vector<Place>> places_;
};

}  // namespace ftrun::test
