#include "training/describe_step.h"

#include "base/error.h"
#include "base/text.h"
#include "optimizers/optimizers.h"

namespace ftrun {
namespace {

std::string milliseconds(double seconds) {
  return fixed_text(seconds * 1e3, 2);
}

}  // namespace

std::string plain_step_text(const StepMetrics& m) {
  return cat(
      "step ", m.step, ": loss ", number_text(m.loss), ", ", milliseconds(m.step_seconds),
      " ms, waited ", milliseconds(m.data_wait_seconds), " ms for data",
      m.exposed_communication_seconds
          ? cat(" and ", milliseconds(*m.exposed_communication_seconds), " ms for other ranks")
          : "",
      m.skipped ? ", update skipped" : "");
}

std::string deepspeed_step_text(int64_t step, int64_t skipped, const StepRun& run,
                                const OptimizerConfig& optimizer) {
  const std::string momentum =
      optimizer_traits(optimizer.type).has_parameter(hyperparameters::kBetas.name)
          ? cat("[", number_text(run.scalars.beta1), ", ", number_text(run.scalars.beta2), "]")
          : number_text(optimizer.momentum);
  // The scalar is a float; seven digits show the rate as the config has it (0.001), not the exact
  // value of the float.
  const std::string rate = format_number("%.7g", static_cast<double>(run.scalars.learning_rate));
  return cat("step=", step, ", skipped=", skipped, ", lr=[", rate, "], mom=[", momentum, "]");
}

std::string breakdown_text(const std::array<double, kInstrKinds>& seconds) {
  std::string text = "time (ms)";
  for (size_t kind = 0; kind < seconds.size(); ++kind)
    if (seconds[kind] > 0)
      text +=
          cat(" | ", instr_name(static_cast<InstrKind>(kind)), ": ", milliseconds(seconds[kind]));
  return text;
}

std::string overlap_text(const DeviceTimes& times) {
  const std::string percent = fixed_text(
      times.copy_seconds > 0 ? 100 * times.hidden_copy_seconds / times.copy_seconds : 0.0, 0);
  return cat("copies between device and host: ", milliseconds(times.copy_seconds), " ms, ", percent,
             " % of it during computation");
}

}  // namespace ftrun
