#include "sim/check_op_lists.h"

#include <map>
#include <set>
#include <utility>

#include "base/error.h"

namespace ftrun {
namespace {

/// ListProgress says how far the check has followed an operation list.
struct ListProgress {
  InstrKind kind = InstrKind::kForward;
  int32_t graph = -1;
  /// The last instruction of the list so far that is not a collective.
  size_t last = 0;
  /// The number of operations up to the end of that instruction, and of collectives after it.
  int64_t operations = 0;
  int64_t collectives = 0;
};

/// ListEnd says where an operation list ended: after how many operations, and at which instruction.
struct ListEnd {
  int64_t operations = 0;
  std::string location;
};

/// AgreedFacts holds the facts that must be equal in all programs.
struct AgreedFacts {
  std::map<int32_t, int32_t> graph_of_layer;
  std::map<std::pair<int32_t, InstrKind>, ListEnd> list_ends;
};

/// ListWalk follows the operation lists of one program.
class ListWalk {
 public:
  ListWalk(const RankProgram& rank, AgreedFacts& facts, std::vector<std::string>& faults)
      : rank_(rank.rank), program_(*rank.program), facts_(facts), faults_(faults) {}

  void run() {
    for (size_t i = 0; i < program_.instrs.size(); ++i) {
      const Instr& instr = program_.instrs[i];
      if (instr.layer < 0) continue;
      if (instr.runs_ops())
        advance_list(i);
      else if (instr.is_collective())
        ++lists_[{instr.layer, instr.micro_batch}].collectives;
    }
    for (const auto& [layer, list] : lists_) end_list(list, list.operations + list.collectives);
  }

 private:
  std::string location_of(size_t at) const {
    return cat("instruction ", at, " (", instr_label(program_.instrs[at]), ") on rank ", rank_);
  }

  void advance_list(size_t at) {
    const Instr& instr = program_.instrs[at];
    check_layer_graph(at);
    ListProgress& list = lists_[{instr.layer, instr.micro_batch}];
    if (list.graph >= 0 && instr.kind != list.kind) begin_next_list(at, list);
    const LayerOps& ops = instr.ops();
    const int64_t next = list.operations + list.collectives;
    if (ops.first_op != next)
      faults_.push_back(cat(location_of(at), " begins with operation ", ops.first_op,
                            " of its list, but operation ", next, " comes next"));
    list.kind = instr.kind;
    list.graph = ops.graph;
    list.last = at;
    list.operations = int64_t{ops.first_op} + ops.op_count;
    list.collectives = 0;
  }

  /// Ends an operation list and begins the next list of the same layer. Collectives between the two
  /// may belong to either list: first_op of the next list's first instruction that computes tells
  /// how many of them belong to the next list.
  void begin_next_list(size_t at, ListProgress& list) {
    const Instr& instr = program_.instrs[at];
    if (instr.kind < list.kind)
      faults_.push_back(cat(location_of(at), " comes after ", location_of(list.last)));
    const int64_t collectives_of_next =
        instr.ops().first_op <= list.collectives ? int64_t{instr.ops().first_op} : list.collectives;
    end_list(list, list.operations + list.collectives - collectives_of_next);
    list.operations = 0;
    list.collectives = collectives_of_next;
  }

  void check_layer_graph(size_t at) {
    const Instr& instr = program_.instrs[at];
    const auto [known, added] = facts_.graph_of_layer.try_emplace(instr.layer, instr.ops().graph);
    if (known->second != instr.ops().graph)
      faults_.push_back(cat(location_of(at), " runs graph ", instr.ops().graph,
                            ", but that of the layer is ", known->second));
  }

  void end_list(const ListProgress& list, int64_t operations) {
    if (list.graph < 0) return;
    const auto known = facts_.list_ends.find({list.graph, list.kind});
    if (known == facts_.list_ends.end())
      facts_.list_ends[{list.graph, list.kind}] = {operations, location_of(list.last)};
    else if (known->second.operations != operations)
      faults_.push_back(cat("the list of ", location_of(list.last), " ends after ", operations,
                            " operations, that of ", known->second.location, " after ",
                            known->second.operations));
  }

  int rank_;
  const Program& program_;
  AgreedFacts& facts_;
  std::vector<std::string>& faults_;
  /// The current operation list of each layer and micro-batch.
  std::map<std::pair<int32_t, int32_t>, ListProgress> lists_;
};

}  // namespace

void check_op_lists(std::span<const RankProgram> ranks, std::vector<std::string>& faults) {
  AgreedFacts facts;
  std::set<const Program*> seen;
  for (const RankProgram& rank : ranks)
    if (seen.insert(rank.program).second) ListWalk(rank, facts, faults).run();
}

}  // namespace ftrun
