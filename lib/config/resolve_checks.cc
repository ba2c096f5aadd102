#include "base/error.h"
#include "base/text.h"
#include "config/resolve_steps.h"

namespace ftrun {
namespace {

void check_precision(Resolving& r) {
  const Config& c = r.config;
  if (c.fp16.enabled && c.bf16.enabled)
    r.error("fp16.enabled", "fp16.enabled and bf16.enabled are both true",
            "switch one of them off; bf16 needs no loss scaling");
  const Fp16Config& f = c.fp16;
  if (f.enabled && f.loss_scale == 0) {
    if (f.loss_scale_window <= 0)
      r.error("fp16.loss_scale_window",
              cat("fp16.loss_scale_window: expected a whole number above 0, found ",
                  f.loss_scale_window));
    if (f.min_loss_scale <= 0)
      r.error("fp16.min_loss_scale", cat("fp16.min_loss_scale: expected a number above 0, found ",
                                         number_text(f.min_loss_scale)));
  }
  const ConfigDtype mode = c.fp16.enabled   ? ConfigDtype::kFp16
                           : c.bf16.enabled ? ConfigDtype::kBf16
                                            : ConfigDtype::kFp32;
  const ConfigDtype wanted = c.data_types.param_dtype;
  if (wanted != ConfigDtype::kModel && wanted != mode)
    r.error("data_types.param_dtype", cat("data_types.param_dtype ", name_of(wanted),
                                          " contradicts training in ", name_of(mode)));
}

void check_reduction(Resolving& r) {
  const ReductionConfig& reduction = r.config.reduction;
  const ZeroConfig& zero = r.config.zero;
  if (reduction.gradient_allreduce_op == AllreduceOp::kSum && zero.stage == 3)
    r.error("gradient_allreduce_op", "gradient_allreduce_op sum cannot be used with ZeRO stage 3");
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

void check_zero(Resolving& r) {
  const ZeroConfig& z = r.config.zero;
  if ((z.stage == 1 || z.stage == 2) && z.allgather_bucket_size % 2 != 0)
    r.error("zero_optimization.allgather_bucket_size",
            cat("zero_optimization.allgather_bucket_size ", z.allgather_bucket_size,
                " is odd; stages 1 and 2 need an even number"));
  if (z.offload_optimizer.ratio < 1 && z.stage != 3)
    r.error("zero_optimization.offload_optimizer.ratio",
            cat("zero_optimization.offload_optimizer.ratio ",
                number_text(z.offload_optimizer.ratio), " needs stage 3, found stage ", z.stage));
  if (z.stage >= 2 && r.config.parallel.pipeline > 1)
    r.error("zero_optimization.stage",
            cat("ZeRO stage ", z.stage, " cannot be used with parallel.pipeline ",
                r.config.parallel.pipeline),
            "use stage 0 or 1");
  if (z.offload_param.device != OffloadDevice::kNone && z.stage != 3)
    r.notice(
        "zero_optimization.offload_param.device",
        cat("zero_optimization.offload_param: has effect at stage 3 only, found stage ", z.stage));
  if (z.offload_optimizer.device != OffloadDevice::kNone && z.stage == 0)
    r.notice("zero_optimization.offload_optimizer.device",
             "zero_optimization.offload_optimizer: has effect at stages 1 to 3 only");
}

void check_nvme(Resolving& r) {
  const ZeroConfig& z = r.config.zero;
  const auto check = [&](const std::string& section, OffloadDevice device,
                         const std::string& folder) {
    if (device == OffloadDevice::kNvme && folder.empty())
      r.error(section + ".device", cat(section, ": device nvme needs nvme_path"));
  };
  check("zero_optimization.offload_param", z.offload_param.device, z.offload_param.nvme_path);
  check("zero_optimization.offload_optimizer", z.offload_optimizer.device,
        z.offload_optimizer.nvme_path);
}

void check_log_level(Resolving& r) {
  const std::string& level = r.config.log_level;
  for (const char* known : {"", "debug", "info", "notice", "warning", "warn", "error", "critical"})
    if (level == known) return;
  r.error(
      "log_level",
      cat("log_level: expected one of debug, info, notice, warning, error, found \"", level, "\""));
}

}  // namespace

void check_contradictions(Resolving& r) {
  check_precision(r);
  check_reduction(r);
  check_zero(r);
  check_nvme(r);
  check_log_level(r);
}

}  // namespace ftrun
