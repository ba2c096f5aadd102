#include "training/nonfinite_search.h"

namespace ftrun {
namespace {

/// Returns a sort key for the time at which an instruction runs within a step, comparable between
/// ranks that share their sequences: ordered by micro-batch, then by layer (forward layers
/// ascending, then backward layers descending), then by instruction number. Pipeline stages run
/// different programs, so instruction numbers alone cannot be compared.
int64_t execution_order_key(const ProgramPlan& train, InstrId id) {
  if (id < 0) return -1;
  const Instr& instr = train.program.instr(id);
  const auto layers = static_cast<int64_t>(train.model.layers.size());
  const int64_t layer = instr.kind == InstrKind::kForward ? instr.layer : 2 * layers - instr.layer;
  return ((int64_t{instr.micro_batch} * 3 * layers + layer + 1) << 32) + id;
}

}  // namespace

NonfiniteSearchResult find_nonfinite(Session& session, TrainingSetup& setup, StepRun step) {
  const NonfiniteLocation own_location = setup.train_executor().find_nonfinite(step);
  const int data_parallel_index = data_parallel_place(setup.plan().options.state).index;
  const std::vector<std::string> reports = session.all_gather_text(
      "nonfinite",
      encode_nonfinite_report({execution_order_key(setup.train_plan(), own_location.instr),
                               data_parallel_index, own_location.text}));
  return {nonfinite_locations(reports), step.result.finite};
}

}  // namespace ftrun
