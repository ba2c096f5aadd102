#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "graph/layer_graph.h"
#include "program/layer_instr.h"
#include "program/program.h"

namespace ftrun {

struct ScratchPlan;

/// OpListPart is a part of a list that one instruction runs: one collective, or the operations
/// between two splits. The list is split at each collective, which runs on its group's lane, and
/// before the first operation that reads the collective's result: the operations between the two
/// run while it is in progress.
struct OpListPart {
  size_t first = 0;
  size_t end = 0;
  bool is_collective = false;
  /// The values that the operations read or write; empty for a collective.
  OperandValues operands = {};
};

/// BufferPlan is a buffer of a layer and the values that lie in it.
struct BufferPlan {
  BufferPlan(const LayerGraph& graph, const ScratchPlan& plan);

  int64_t bytes;
  /// The ranges have no buffer yet.
  std::vector<std::pair<ValueId, BufferRange>> values;
};

/// OpListInfo holds what all instructions of one list have in common, regardless of their layer and
/// micro-batch.
struct OpListInfo {
  OpListInfo(const LayerGraph& graph, const std::vector<Op>& ops);

  const std::vector<Op>& op_list;
  /// Says for each value (ValueId) whether the list reads it, and whether it writes it.
  std::vector<char> reads;
  std::vector<char> writes;
  std::vector<OpListPart> parts;
  BufferPlan scratch;
};

/// GraphStorage is the storage of a graph's values, made once for all layers that share the graph.
class GraphStorage {
 public:
  /// Borrows `graph` for this object's life.
  GraphStorage(const LayerGraph& graph, bool separate_weight_grads);

  /// Returns the OpListInfo of the list that instructions of a kind run, made at the first call.
  const OpListInfo& info(InstrKind kind);

  /// The ranges of values that forward leaves for backward, and input gradients for weight
  /// gradients. If the two lists run separately, values of forward that weight gradients do not
  /// read have their own buffer, which ends with the input gradients.
  BufferPlan saved;
  BufferPlan saved_for_input_grad;
  BufferPlan deferred;

 private:
  const LayerGraph* graph_;
  std::map<InstrKind, OpListInfo> infos_;
};

/// Gives the input of each all-reduce the storage of its output, because an all-reduce works in
/// place. For values in the operation list's scratch buffer the scratch plan has done this already.
void sum_in_place(const LayerGraph& graph, const std::vector<Op>& op_list, ValueRanges& ranges);

}  // namespace ftrun
