#include "exec/check_ranks.h"

#include <algorithm>
#include <map>
#include <vector>

#include "base/checksum.h"
#include "base/error.h"
#include "base/text.h"
#include "sim/check.h"

namespace ftrun {
namespace {

/// Ranks whose programs each rank checks beside its own: planning is cheap, planning every rank of a
/// large job on every rank is not.
constexpr int kCheckedRanks = 8;
constexpr PassPlan StepPlan::*kPrograms[] = {&StepPlan::train, &StepPlan::evaluate};

void check_own_programs(const Config& config, const TrainingSetup& setup, int rank, int world) {
  const StepPlan& own = setup.plan();
  const bool alike = own.options.state.stage == 0 && own.options.state.tensor.count == 1;
  const int planned = alike ? 1 : std::min(world, kCheckedRanks);
  std::map<int, StepPlan> others;
  for (int other = 0; other < planned; ++other)
    if (other != rank) others[other] = plan_steps(config, setup.model_config(), other);
  for (const auto program : kPrograms) {
    std::vector<RankProgram> ranks{{rank, &(own.*program).program}};
    for (const auto& [other, plan] : others) ranks.push_back({other, &(plan.*program).program});
    const std::vector<std::string> faults = check_programs(ranks);
    if (!faults.empty()) bug(cat("the step program is wrong: ", join(faults, "; ")));
  }
}

}  // namespace

void check_programs_of_ranks(const Config& config, const TrainingSetup& setup, Session& session) {
  session.together("checking the step program",
                   [&] { check_own_programs(config, setup, session.rank(), session.world()); });
  for (const auto program : kPrograms) {
    const Program& own = (setup.plan().*program).program;
    session.require_equal(cat("the program \"", own.name, "\""), hex64(program_hash(own)));
  }
}

}  // namespace ftrun
