#include "program/plan_notes.h"

#include "base/error.h"
#include "program/gpu_overhead.h"

namespace ftrun {
namespace {

/// A note is written if parameters that stay whole are at least this share of all elements.
constexpr double kMuchWhole = 0.05;

std::string clamp_note(const char* key, int64_t requested, int64_t used, const char* to) {
  return cat("clamped: zero_optimization.", key, " = ", used, " elements instead of ", requested,
             " (", to, ")");
}

void note_buckets(const Config& config, const StepPlan& plan, std::vector<std::string>& notes) {
  if (count_gradient_ranks(plan.options.state) == 1) return;
  const auto note_if_clamped = [&](const char* key, int64_t requested, int64_t used,
                                   const char* to) {
    if (used < requested) notes.push_back(clamp_note(key, requested, used, to));
  };
  const char* quarter = "a quarter of the rank's gradients";
  note_if_clamped("reduce_bucket_size", config.zero.reduce_bucket_size,
                  plan.options.bucket_elements, quarter);
  if (config.zero.stage > 0)
    note_if_clamped("allgather_bucket_size", config.zero.allgather_bucket_size,
                    plan.options.gather_bucket_elements, quarter);
  if (config.zero.stage != 3) return;
  int64_t total_elements = 0;
  for (const Unit& unit : plan.partition.units) total_elements += unit.padded_numel;
  note_if_clamped("stage3_prefetch_bucket_size", config.zero.prefetch_bucket_size,
                  plan.options.prefetch_elements,
                  plan.options.prefetch_elements < total_elements / 8
                      ? "the buffers of offload_param"
                      : "an eighth of the model");
}

void note_whole_parameters(const Config& config, const StepPlan& plan,
                           std::vector<std::string>& notes) {
  int64_t small = 0;
  int64_t total_elements = 0;
  for (const Unit& unit : plan.partition.units) {
    total_elements += unit.padded_numel;
    if (unit.holds_small_tensors) small += unit.padded_numel;
  }
  if (config.zero.stage < 3 ||
      static_cast<double>(small) <= kMuchWhole * static_cast<double>(total_elements))
    return;
  notes.push_back(cat("not sharded: tensors of at most stage3_param_persistence_threshold = ",
                      config.zero.param_persistence_threshold, " elements, together ", small,
                      " of ", total_elements, "; a lower threshold shards them"));
}

void note_wide_gradients(const Config& config, const StepPlan& plan,
                         std::vector<std::string>& notes) {
  if (config.reduction.communication_data_type != ConfigDtype::kModel) return;
  const StateOptions& state = plan.options.state;
  if (count_gradient_ranks(state) == 1) return;
  if (state.communication != DType::kF32 || plan.train.model.dtypes.compute == DType::kF32) return;
  notes.push_back(
      "gradients are sent in fp32, as they are accumulated; communication_data_type: bf16 halves "
      "that traffic");
}

}  // namespace

std::vector<std::string> list_plan_notes(const Config& config, const StepPlan& plan) {
  std::vector<std::string> notes;
  note_buckets(config, plan, notes);
  note_whole_parameters(config, plan, notes);
  note_wide_gradients(config, plan, notes);
  if (const std::string beside = gpu_overhead_text(list_gpu_overheads(config, plan));
      !beside.empty())
    notes.push_back(beside);
  return notes;
}

}  // namespace ftrun
