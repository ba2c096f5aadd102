#include "exec/check_ranks.h"

#include <string>

#include "base/checksum.h"
#include "sim/class_plans.h"

namespace ftrun {

/// Each rank checks the programs of all, with its own for its class: whatever the number of ranks, that is a
/// handful of plans and a walk over all. Ranks of other stages run other programs, so what they compare is all of
/// them.
void check_ranks(const Config& config, const TrainingSetup& setup, Session& session) {
  std::string all;
  session.together("checking the step program", [&] {
    const ClassPlans plans(config, setup.model_config(), session.rank(), setup.plan());
    plans.require_sound();
    all = hex64(plans.hash());
  });
  session.require_equal("the step program", all);
}

}  // namespace ftrun
