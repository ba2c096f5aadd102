#include "training/check_ranks.h"

#include <algorithm>
#include <string>

#include "base/checksum.h"
#include "sim/class_plans.h"

namespace ftrun {

/// Checks the programs of all ranks on each rank, with its own for its class: whatever the number
/// of ranks, that is a handful of plans and a walk over all. Ranks of other stages run other
/// programs, so what they compare is all of them.
PredictedStep check_ranks(const Config& config, const TrainingSetup& setup, Session& session) {
  std::string all;
  PredictedStep predicted;
  session.together("checking the step program", [&] {
    const ClassPlans plans(config, setup.model_config(), session.rank(), setup.plan());
    plans.require_sound();
    all = hex64(plans.hash());
    if (session.rank() == 0)
      predicted = predict_here(
          plans,
          std::count(session.nodes().begin(), session.nodes().end(), session.nodes().front()),
          config.threads);
  });
  session.require_equal("the step program", all);
  return predicted;
}

}  // namespace ftrun
