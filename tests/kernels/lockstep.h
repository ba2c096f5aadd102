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

namespace ftrun::testing {

/// TokenBatch is the input of a micro-batch, for all layers.
struct TokenBatch {
  std::vector<int32_t> tokens, positions, starts, labels;
};
/// Returns rows of two documents each. Every `masked_every`-th token (0: none) and the first
/// `masked_first` tokens have no label.
TokenBatch token_batch(const BatchShape& shape, int64_t vocabulary, int64_t masked_every,
                       int64_t masked_first = 0);

/// NamedNumbers holds the elements of whole tensors, or of whole batches, by name.
using NamedNumbers = std::map<std::string, std::vector<double>>;

/// Lockstep runs the layers of all tensor-parallel ranks of a model in one thread: each operation
/// runs on one rank after the other. Scratch memory is planned as in programs, and starts as NaN. A
/// collective takes as long as it may: its result stays NaN until the first operation that reads
/// it, and its operands are read only then.
class Lockstep {
 public:
  /// Allocates and initializes the ranks' states. `ranks` holds the model of each rank, by rank
  /// index.
  explicit Lockstep(std::vector<ModelDescription> ranks);

  /// Sets the parameters, by tensor name, instead of the random ones from the constructor.
  void set_parameters(const NamedNumbers& tensors);

  /// Runs the forward lists of all layers and, when training, their backward lists. `accumulate`
  /// adds to the gradients. `deferred` runs all weight gradients of a layer after its input
  /// gradients, in separate scratch memory.
  void step(const TokenBatch& batch, bool accumulate = false, bool deferred = false);

  /// Returns, by name: "loss" {sum, counted tokens}; "hidden LAYER", the output of a layer, and
  /// when training its gradient "d_hidden LAYER"; "logits"; and the gradient of each tensor. Fails
  /// the test if ranks differ in values that they should share.
  NamedNumbers results() const;

  StepScalars scalars;

 private:
  /// Memory is a 64-byte aligned block of bytes.
  class Memory {
   public:
    Memory() = default;
    explicit Memory(int64_t bytes);
    std::byte* at(int64_t offset) { return begin_ + offset; }

   private:
    std::vector<std::byte> owner_;
    std::byte* begin_ = nullptr;
  };
  /// LayerMemory holds the memory of one layer on one rank.
  struct LayerMemory {
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
  static void assign_planned(LayerMemory& layer, const ScratchPlan& plan, Memory& memory);
  void assign_deferred(size_t layer);
  void run(size_t layer, ListKind which, bool accumulate);
  void begin_collective(size_t layer, const Op& op);
  void end_collective(size_t layer, const std::vector<Op>& ops);
  std::vector<double> read(size_t rank, size_t layer, ValueId id) const;
  void add_hidden(NamedNumbers& found, size_t layer, ValueRole role, const std::string& name) const;
  void add_gradients(NamedNumbers& found, size_t layer) const;

  std::vector<ModelDescription> ranks_;
  /// Indexed by [rank][layer].
  std::vector<std::vector<LayerMemory>> memory_;
};

}  // namespace ftrun::testing
