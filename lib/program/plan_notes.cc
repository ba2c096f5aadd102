#include "program/plan_notes.h"

#include "base/error.h"
#include "program/gpu_overhead.h"

namespace ftrun {
namespace {

/// A note is written if parameters that stay whole are at least this share of all elements.
constexpr double kMuchWhole = 0.05;

std::string clamped(const char* key, int64_t asked, int64_t used, const char* to) {
  return cat("clamped: zero_optimization.", key, " = ", used, " elements instead of ", asked, " (",
             to, ")");
}

void note_buckets(const Config& config, const StepPlan& plan, std::vector<std::string>& notes) {
  if (gradient_ranks(plan.options.state) == 1) return;
  const auto bucket = [&](const char* key, int64_t asked, int64_t used, const char* to) {
    if (used < asked) notes.push_back(clamped(key, asked, used, to));
  };
  const char* quarter = "a quarter of the rank's gradients";
  bucket("reduce_bucket_size", config.zero.reduce_bucket_size, plan.options.bucket_elements,
         quarter);
  if (config.zero.stage > 0)
    bucket("allgather_bucket_size", config.zero.allgather_bucket_size,
           plan.options.gather_bucket_elements, quarter);
  if (config.zero.stage != 3) return;
  int64_t all = 0;
  for (const Unit& unit : plan.partition.units) all += unit.padded_numel;
  bucket("stage3_prefetch_bucket_size", config.zero.prefetch_bucket_size,
         plan.options.prefetch_elements,
         plan.options.prefetch_elements < all / 8 ? "the buffers of offload_param"
                                                  : "an eighth of the model");
}

void note_whole_parameters(const Config& config, const StepPlan& plan,
                           std::vector<std::string>& notes) {
  int64_t small = 0;
  int64_t all = 0;
  for (const Unit& unit : plan.partition.units) {
    all += unit.padded_numel;
    if (unit.holds_small_tensors) small += unit.padded_numel;
  }
  if (config.zero.stage < 3 || static_cast<double>(small) <= kMuchWhole * static_cast<double>(all))
    return;
  notes.push_back(cat("not sharded: tensors of at most stage3_param_persistence_threshold = ",
                      config.zero.param_persistence_threshold, " elements, together ", small,
                      " of ", all, "; a lower threshold shards them"));
}

void note_wide_gradients(const Config& config, const StepPlan& plan,
                         std::vector<std::string>& notes) {
  if (config.reduction.communication_data_type != ConfigDtype::kModel) return;
  const StateOptions& state = plan.options.state;
  if (gradient_ranks(state) == 1) return;
  if (state.communication != DType::kF32 || plan.train.model.dtypes.compute == DType::kF32) return;
  notes.push_back(
      "gradients are sent in fp32, as they are accumulated; communication_data_type: bf16 halves "
      "that traffic");
}

}  // namespace

std::vector<std::string> plan_notes(const Config& config, const StepPlan& plan) {
  std::vector<std::string> notes;
  note_buckets(config, plan, notes);
  note_whole_parameters(config, plan, notes);
  note_wide_gradients(config, plan, notes);
  if (const std::string beside = gpu_overhead_text(gpu_overheads(config, plan)); !beside.empty())
    notes.push_back(beside);
  return notes;
}

}  // namespace ftrun
