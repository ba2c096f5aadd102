#include "exec/nonfinite_search.h"

namespace ftrun {

NonfiniteSearch find_nonfinite(Session& session, TrainingSetup& setup, StepRun step) {
  const NonfinitePlace own = setup.train_executor().find_nonfinite(step);
  const int data = data_index(setup.plan().options.state);
  const std::vector<std::string> all =
      session.exchange("nonfinite", encode_nonfinite({own.instr, data, own.text}));
  return {nonfinite_places(all), step.finite};
}

}  // namespace ftrun
