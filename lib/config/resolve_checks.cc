#include <cctype>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <string>

#include "base/amount_text.h"
#include "base/error.h"
#include "base/text.h"
#include "config/resolve_state.h"
#include "optimizers/optimizers.h"

namespace ftrun {
namespace {

/// Formats the position of the other key of a contradicting pair: " (bf16.enabled at
/// cfg.yaml:3:17)".
std::string other_position_text(const ResolveState& r, const std::string& path) {
  const std::string position = to_text(r.config.origins.position(path));
  return position.empty() ? "" : cat(" (", path, " at ", position, ")");
}

void check_loss_scale(ResolveState& r) {
  const Fp16Config& f = r.config.fp16;
  if (!f.enabled || f.loss_scale != 0) return;
  if (f.loss_scale_window <= 0)
    r.error(
        "fp16.loss_scale_window",
        cat("fp16.loss_scale_window: expected a whole number above 0, found ", f.loss_scale_window),
        "write the number of steps without overflow after which the scale is doubled, for example "
        "1000");
  if (f.hysteresis <= 0)
    r.error("fp16.hysteresis",
            cat("fp16.hysteresis: expected a whole number above 0, found ", f.hysteresis,
                ": the scale would never be halved"),
            "write 1 to halve it at every overflow");
  if (f.min_loss_scale <= 0)
    r.error("fp16.min_loss_scale",
            cat("fp16.min_loss_scale: expected a number above 0, found ",
                number_text(f.min_loss_scale)),
            "write 1, or a fraction such as 0.5");
  const double initial = std::ldexp(1.0, static_cast<int>(f.initial_scale_power));
  if (f.min_loss_scale > initial)
    r.notice("fp16.min_loss_scale", cat("fp16.min_loss_scale ", number_text(f.min_loss_scale),
                                        " is above the first scale, 2^", f.initial_scale_power));
}

void check_param_dtype(ResolveState& r) {
  const ConfigDtype mode = training_dtype(r.config), wanted = r.config.data_types.param_dtype;
  if (wanted == ConfigDtype::kModel || wanted == mode) return;
  r.error(
      "data_types.param_dtype",
      cat("data_types.param_dtype ", name_of(wanted), " contradicts training in ", name_of(mode)),
      wanted == ConfigDtype::kFp32
          ? cat("remove it: master weights stay fp32 when ", name_of(mode), " is enabled")
          : cat("remove it, or write ", name_of(wanted), ".enabled: true"));
}

void check_gradient_dtypes(ResolveState& r) {
  const ConfigDtype mode = training_dtype(r.config), sum = gradient_dtype(r.config),
                    sent = communication_dtype(r.config);
  if (sum != mode && sum != ConfigDtype::kFp32)
    r.error("data_types.grad_accum_dtype",
            cat("data_types.grad_accum_dtype ", name_of(sum), " cannot hold the gradients of ",
                name_of(mode), " training"),
            mode == ConfigDtype::kFp32 ? "use fp32, or remove it"
                                       : cat("use ", name_of(mode), " or fp32"));
  const bool written = r.config.reduction.communication_data_type != ConfigDtype::kModel;
  const bool halves = mode != ConfigDtype::kFp32 && sent != ConfigDtype::kFp32;
  if (written && halves && sent != mode)
    r.error("communication_data_type",
            cat("communication_data_type ", name_of(sent), " cannot carry the gradients of ",
                name_of(mode),
                " training: fp16 lacks the range of bf16, and bf16 lacks the precision of fp16"),
            cat("use ", name_of(mode), " or fp32"));
}

void check_bf16_states(ResolveState& r) {
  const Config& c = r.config;
  const std::string master = "bf16.bf16_master_weights_and_grads";
  const std::string moments = "bf16.bf16_optimizer_states";
  if (!c.bf16.enabled) return;
  if (c.bf16.bf16_master_weights_and_grads && c.zero.stage == 0)
    r.error(master, cat(master, " needs ZeRO stage 1, 2 or 3, found stage 0"),
            "set zero_optimization.stage: 1 (on one rank it shards nothing)");
  if (c.bf16.bf16_master_weights_and_grads && gradient_dtype(c) == ConfigDtype::kFp32)
    r.error(master,
            cat(master, " contradicts data_types.grad_accum_dtype fp32",
                other_position_text(r, "data_types.grad_accum_dtype")),
            cat("remove grad_accum_dtype, or keep the master weights fp32 and write "
                "bf16_optimizer_states alone"));
  if (c.bf16.bf16_optimizer_states && optimizer_traits(c.optimizer.type).has_8bit_states)
    r.error(moments,
            cat(moments, " cannot be combined with ", name_of(c.optimizer.type),
                ", whose states are 8-bit codes, and fp32 for small tensors",
                other_position_text(r, "optimizer.type")),
            "remove it");
  else if (c.bf16.bf16_optimizer_states && !c.bf16.bf16_master_weights_and_grads)
    r.notice(moments, cat(moments,
                          ": the moments are bf16, the master weights stay fp32; "
                          "DeepSpeed allows this only together with bf16 master weights"));
}

void check_precision(ResolveState& r) {
  const Config& c = r.config;
  if (c.fp16.enabled && c.bf16.enabled)
    return r.error(
        "fp16.enabled",
        cat("fp16.enabled and bf16.enabled are both true", other_position_text(r, "bf16.enabled")),
        "switch one of them off; bf16 needs no loss scaling");
  check_loss_scale(r);
  check_param_dtype(r);
  check_gradient_dtypes(r);
  check_bf16_states(r);
}

void check_reduction(ResolveState& r) {
  const ReductionConfig& reduction = r.config.reduction;
  const ZeroConfig& zero = r.config.zero;
  if (reduction.gradient_allreduce_op == AllreduceOp::kSum && zero.stage == 3)
    r.error("gradient_allreduce_op", "gradient_allreduce_op sum cannot be used with ZeRO stage 3",
            "use another stage, or remove it and, if the optimizer does not normalize gradients, "
            "multiply the learning rate by the number of data-parallel ranks");
  if (reduction.prescale_gradients && reduction.gradient_predivide_factor != 1.0)
    r.notice("gradient_predivide_factor",
             cat("gradient_predivide_factor ", number_text(reduction.gradient_predivide_factor),
                 " has no effect with prescale_gradients",
                 other_position_text(r, "prescale_gradients")));
  if (zero.stage < 2 || !zero.reduce_scatter) return;
  if (reduction.prescale_gradients)
    r.error("prescale_gradients",
            cat("prescale_gradients cannot be used with ZeRO stage ", zero.stage),
            "remove it: the mean is the same");
  if (reduction.gradient_predivide_factor != 1.0)
    r.error("gradient_predivide_factor",
            cat("gradient_predivide_factor ", number_text(reduction.gradient_predivide_factor),
                " cannot be used with ZeRO stage ", zero.stage),
            "remove it: the mean is the same");
}

void check_zero(ResolveState& r) {
  const ZeroConfig& z = r.config.zero;
  if ((z.stage == 1 || z.stage == 2) && z.allgather_bucket_size % 2 != 0)
    r.error("zero_optimization.allgather_bucket_size",
            cat("zero_optimization.allgather_bucket_size ", z.allgather_bucket_size,
                " is odd; stages 1 and 2 need an even number"),
            cat("use ", z.allgather_bucket_size - 1));
  if (z.offload_optimizer.ratio < 1 && z.stage != 3)
    r.error("zero_optimization.offload_optimizer.ratio",
            cat("zero_optimization.offload_optimizer.ratio ",
                number_text(z.offload_optimizer.ratio), " needs stage 3, found stage ", z.stage),
            "remove ratio, or set zero_optimization.stage: 3");
  // DeepSpeed's pipeline engine has no stages 2 and 3, so the author of a DeepSpeed config may not
  // expect them.
  if (z.stage >= 2 && r.config.pipeline.stages > 1)
    r.notice("zero_optimization.stage",
             cat("ZeRO stage ", z.stage, " with pipeline.stages ", r.config.pipeline.stages,
                 ": DeepSpeed refuses the two together, but ftrun shards each stage's parameters"));
}

void check_offload(ResolveState& r) {
  const ZeroConfig& z = r.config.zero;
  const std::string optimizer = "zero_optimization.offload_optimizer";
  if (z.offload_param.device != OffloadDevice::kNone && z.stage != 3)
    r.error("zero_optimization.offload_param.device",
            cat("zero_optimization.offload_param: device ", name_of(z.offload_param.device),
                " needs stage 3, found stage ", z.stage),
            "set zero_optimization.stage: 3, or remove offload_param");
  if (z.offload_optimizer.device != OffloadDevice::kNone && z.stage == 0)
    r.error(optimizer + ".device",
            cat(optimizer, ": device ", name_of(z.offload_optimizer.device),
                " needs stage 1, 2 or 3, found stage 0"),
            "set zero_optimization.stage: 1 (on one rank it shards nothing), or remove "
            "offload_optimizer");
}

void check_nvme(ResolveState& r) {
  const ZeroConfig& z = r.config.zero;
  const bool used = z.offload_param.device == OffloadDevice::kNvme ||
                    z.offload_optimizer.device == OffloadDevice::kNvme;
  const int64_t block = r.config.aio.block_size;
  if (used && block % 4096 != 0)
    r.error(
        "aio.block_size",
        cat("aio.block_size ", block, " is not a multiple of 4096, which direct disk access needs"),
        cat("use ", (block / 4096 + 1) * 4096));
  const auto check = [&](const std::string& section, OffloadDevice device,
                         const std::string& folder) {
    if (device == OffloadDevice::kNvme && folder.empty())
      r.error(section + ".device", cat(section, ": device nvme needs nvme_path"),
              "name a folder on the fastest local disk, for example nvme_path: /mnt/nvme/ftrun");
  };
  check("zero_optimization.offload_param", z.offload_param.device, z.offload_param.nvme_path);
  check("zero_optimization.offload_optimizer", z.offload_optimizer.device,
        z.offload_optimizer.nvme_path);
}

/// Returns whether activation_checkpointing has more than the defaults that an effective config
/// contains.
bool configures_recompute(const Config& config) {
  if (config.activation_checkpointing.cpu_checkpointing) return true;
  for (const auto& [path, origin] : config.origins.keys)
    if (path.starts_with("activation_checkpointing.") && !path.ends_with(".cpu_checkpointing"))
      return true;
  return false;
}

void check_recompute(ResolveState& r) {
  const RecomputeConfig& recompute = r.config.recompute;
  const bool off = recompute.policy == RecomputeLevel::kNone;
  const Origins& origins = r.config.origins;
  if (off && recompute.every > 1 && origins.find("recompute.policy") == nullptr)
    r.error("recompute.every",
            cat("recompute.every ", recompute.every,
                " selects layers, but recompute.policy is missing"),
            "write recompute.policy: full or selective");
  else if (off && recompute.every > 1)
    r.notice("recompute.every",
             cat("recompute.every ", recompute.every, " has no effect with policy none"));
  if (off && configures_recompute(r.config))
    r.notice("activation_checkpointing",
             "activation_checkpointing: sets how activations are recomputed but does not enable it "
             "(in DeepSpeed the model's code does)",
             "write recompute: full to use it");
}

void check_backend(ResolveState& r) {
  if (r.config.comm.backend == BackendChoice::kNccl && r.config.device != DeviceKind::kCuda)
    r.error("comm.backend", "comm.backend nccl is for GPUs, but the ranks compute on CPUs",
            "remove it: auto uses shared memory within a machine and gloo between machines");
  if (r.config.comm.backend == BackendChoice::kGloo && r.config.device == DeviceKind::kCuda)
    r.error("comm.backend",
            "comm.backend gloo sends only main memory, but the ranks compute on GPUs",
            "remove it: auto uses nccl between GPUs");
}

void check_elastic(ResolveState& r) {
  const int64_t fewest = r.config.elastic.min_ranks;
  if (fewest > r.context.world_size)
    r.notice("elastic.min_ranks",
             cat("elastic.min_ranks ", fewest, " > the ", count_text(r.context.world_size, "rank"),
                 " of this run, so no rank can be removed"));
}

/// Refuses paths such as "~/runs" and "$HOME/runs", which would be folders of these names in the
/// working directory. They are accepted if they exist; for data, whose name may be a prefix, if
/// their folder exists.
void check_path(ResolveState& r, const std::string& key, const std::string& path) {
  const bool home = path == "~" || path.starts_with("~/");
  const bool variable = path.size() > 1 && path[0] == '$' &&
                        (path[1] == '{' || std::isalpha(static_cast<unsigned char>(path[1])) != 0);
  if (!home && !variable) return;
  std::error_code error;
  if (std::filesystem::exists(key.starts_with("data.") ? std::filesystem::path(path).parent_path()
                                                       : std::filesystem::path(path),
                              error))
    return;
  r.error(key, cat(key, ": ", path, ": ftrun does not expand ", home ? "~" : "variables"),
          cat("write the whole path",
              home ? "" : cat(", or give it on the command line: --set ", key, "=\"", path, "\"")));
}

void check_paths(ResolveState& r) {
  const Config& config = r.config;
  check_path(r, "output_dir", config.output_dir);
  check_path(r, "model.path", config.model.path);
  check_path(r, "adapter.path", config.adapter.path);
  check_path(r, "csv_monitor.output_path", config.csv_monitor.output_path);
  check_path(r, "zero_optimization.offload_param.nvme_path", config.zero.offload_param.nvme_path);
  check_path(r, "zero_optimization.offload_optimizer.nvme_path",
             config.zero.offload_optimizer.nvme_path);
  for (const std::string& path : config.data.train) check_path(r, "data.train", path);
  for (const std::string& path : config.data.validation) check_path(r, "data.validation", path);
}

void check_optimizer(ResolveState& r) {
  const OptimizerConfig& optimizer = r.config.optimizer;
  const auto conflict_of = optimizer_traits(optimizer.type).conflict;
  const std::optional<ParameterConflict> conflict =
      conflict_of == nullptr ? std::nullopt : conflict_of(optimizer);
  if (conflict)
    r.error(cat("optimizer.params.", conflict->parameter), conflict->message, conflict->remedy);
}

/// Checks that the run has the steps and ranks that are to be traced. A rank that an elastic run
/// has lost is left out without an error.
void check_trace(ResolveState& r) {
  constexpr size_t kMaxSteps = 32;
  const Config& c = r.config;
  const TraceConfig& trace = c.train.trace;
  const std::string steps = "train.trace.steps", ranks = "train.trace.ranks";
  if (trace.steps.empty() && !trace.ranks.empty())
    return r.error(ranks, "train.trace.ranks: no step is traced: train.trace.steps is empty",
                   "write the steps, for example train: {trace: {steps: [10]}}");
  if (trace.steps.size() > kMaxSteps)
    r.error(steps,
            cat(steps, ": ", trace.steps.size(), " steps, and a trace holds at most ", kMaxSteps),
            cat("list at most ", kMaxSteps, " steps"));
  const int64_t last = c.train.steps;  // 0: the data determine it
  for (const int64_t step : trace.steps)
    if (last != 0 && step > last)
      r.error(steps, cat(steps, ": step ", step, " is beyond the run's ", last, " steps"),
              cat("write steps from 1 to ", last));
  const bool elastic = c.elastic.min_ranks > 0 || c.elasticity.enabled;
  for (const int64_t rank : trace.ranks)
    if (rank >= r.context.world_size && !elastic)
      r.error(ranks,
              cat(ranks, ": there is no rank ", rank, ": the run has ",
                  r.context.world_size == 1 ? "only rank 0"
                                            : cat("ranks 0 to ", r.context.world_size - 1)),
              "list ranks of this run, or remove train.trace.ranks");
}

}  // namespace

void check_contradictions(ResolveState& r) {
  check_precision(r);
  check_reduction(r);
  check_zero(r);
  check_offload(r);
  check_nvme(r);
  check_recompute(r);
  check_backend(r);
  check_elastic(r);
  check_optimizer(r);
  check_paths(r);
  check_evaluation(r);
  check_trace(r);
}

}  // namespace ftrun
