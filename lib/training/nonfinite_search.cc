#include "training/nonfinite_search.h"

namespace ftrun {
namespace {

/// Returns a sort key for the time at which an instruction runs within a step, comparable between
/// ranks that share their sequences: ordered by micro-batch, then by layer (forward layers
/// ascending, then backward layers descending), then by instruction number. Pipeline stages run
/// different programs, so instruction numbers alone cannot be compared.
int64_t order_of(const ProgramPlan& train, InstrId id) {
  if (id < 0) return -1;
  const Instr& instr = train.program.instr(id);
  const auto layers = static_cast<int64_t>(train.model.layers.size());
  const int64_t layer = instr.kind == InstrKind::kForward ? instr.layer : 2 * layers - instr.layer;
  return ((int64_t{instr.micro_batch} * 3 * layers + layer + 1) << 32) + id;
}

}  // namespace

NonfiniteSearchResult find_nonfinite(Session& session, TrainingSetup& setup, StepRun step) {
  const NonfiniteLocation own = setup.train_executor().find_nonfinite(step);
  const int data = data_parallel_place(setup.plan().options.state).index;
  const std::vector<std::string> all = session.all_gather_text(
      "nonfinite", encode_nonfinite({order_of(setup.train_plan(), own.instr), data, own.text}));
  return {nonfinite_locations(all), step.result.finite};
}

}  // namespace ftrun
