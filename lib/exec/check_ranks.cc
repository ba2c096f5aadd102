#include "exec/check_ranks.h"

#include <string>
#include <vector>

#include "base/checksum.h"
#include "base/error.h"
#include "base/text.h"
#include "program/program.h"
#include "sim/class_plans.h"

namespace ftrun {
namespace {

constexpr ProgramPlan StepPlan::*kPrograms[] = {&StepPlan::train, &StepPlan::evaluate};

/// Each rank does, with its own program for its class: whatever the number of ranks, that is a
/// handful of plans and a walk over all.
void check_all_programs(const Config& config, const TrainingSetup& setup, int rank) {
  ClassPlans(config, setup.model_config(), rank, setup.plan()).require_sound();
}

}  // namespace

void check_ranks(const Config& config, const TrainingSetup& setup, Session& session) {
  session.together("checking the step program",
                   [&] { check_all_programs(config, setup, session.rank()); });
  for (const auto program : kPrograms) {
    const Program& own = (setup.plan().*program).program;
    session.require_equal(cat("the program \"", own.name, "\""), hex64(program_hash(own)));
  }
}

}  // namespace ftrun
