#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "config/learning_rate.h"
#include "config/resolve_state.h"
#include "optimizers/optimizers.h"

// This file resolves the section train, precision, optimizer, scheduler and ZeRO. The rules for
// "auto" are those of Hugging Face's trainer, for whose files "auto" is meant.

namespace ftrun {
namespace {

/// Refuses a key of optimizer or scheduler and its counterpart in train if both are written with
/// different values.
void refuse_unequal(ResolveState& r, const std::string& path, double value,
                    const std::string& train_path, double train_value) {
  if (r.is_written(path) && r.is_written(train_path) && value != train_value)
    r.error(path,
            cat(path, " ", number_text(value), " contradicts ", train_path, " ",
                number_text(train_value)),
            cat("keep one of the two, or write \"auto\" for ", path));
}

void decide_learning_rate(ResolveState& r) {
  OptimizerConfig& optimizer = r.config.optimizer;
  const std::string path = "optimizer.params.lr";
  if (r.is_written(path)) return;
  if (r.config.origins.find("optimizer") == nullptr) {
    optimizer.lr = r.config.train.learning_rate;
  } else if (r.is_auto(path) || r.is_written("train.learning_rate")) {
    r.decide(path, optimizer.lr, r.config.train.learning_rate, "train.learning_rate");
  } else {
    r.decide(path, optimizer.lr, optimizer_traits(optimizer.type).defaults.lr,
             "DeepSpeed's default");
  }
}

/// Sets parameters that the config leaves out to the optimizer's own defaults, except those that
/// train also has.
void apply_optimizer_defaults(ResolveState& r) {
  OptimizerConfig& config = r.config.optimizer;
  const OptimizerTraits& optimizer = optimizer_traits(config.type);
  for (const Hyperparameter& parameter : optimizer.parameters) {
    const std::string name = parameter.name;
    if (name == hyperparameters::kLr.name || name == hyperparameters::kWeightDecay.name) continue;
    if (r.is_written(cat("optimizer.params.", name))) continue;
    std::visit([&](auto member) { config.*member = optimizer.defaults.*member; }, parameter.member);
  }
}

}  // namespace

void resolve_train(ResolveState& r) {
  TrainConfig& train = r.config.train;
  if (train.steps != 0 && train.epochs != 0)
    r.error("train.epochs",
            cat("train.steps ", train.steps, " and train.epochs ", number_text(train.epochs),
                " both say how long to train"),
            "keep one of the two");
  if (train.steps == 0 && train.epochs == 0) {
    train.epochs = 1;
    if (r.context.for_training)
      r.record_decision("train.epochs", "1", "neither steps nor epochs is given");
  }
  if (r.is_auto("train.steps") && train.steps == 0)
    r.record_decision("train.steps", "0", "unset: train.epochs counts");
  if (r.is_auto("train.epochs") && train.epochs == 0)
    r.record_decision("train.epochs", "0", "unset: train.steps counts");
  const std::string exempt = "train.weight_decay_exempt";
  if (r.is_undecided(exempt)) {
    const bool as_deepspeed = r.config.origins.find("optimizer") != nullptr;
    train.weight_decay_exempt = as_deepspeed ? DecayExempt::kNone : DecayExempt::kNormsAndBiases;
    r.config.auto_keys.erase(exempt);
  }
  if (!r.context.for_training || r.config.origins.is_incomplete) return;
  if (r.config.model.path.empty())
    r.error("model", "model.path is missing: it names the model to train",
            "name a Hugging Face folder, for example --set model.path=models/SmolLM2-135M");
  if (r.config.data.train.empty() && !r.context.plans_only)
    r.error("data", "data.train is missing: it names the data to train on",
            "name a tokenized data set, as scripts/prepare_data.py writes it: --set "
            "data.train=data/train.bin");
}

void resolve_precision(ResolveState& r) {
  Config& c = r.config;
  // Only the device decides, not the processor: the same config trains the same numbers on each
  // machine of a kind.
  const bool on_gpus = c.device == DeviceKind::kCuda;
  if (r.is_auto("bf16.enabled"))
    r.decide("bf16.enabled", c.bf16.enabled, on_gpus && !c.fp16.enabled,
             c.fp16.enabled ? "fp16 is enabled"
             : on_gpus      ? "the run computes on GPUs"
                            : "fp32 on CPUs unless bf16 is requested");
  if (r.is_auto("fp16.enabled"))
    r.decide("fp16.enabled", c.fp16.enabled, false,
             c.bf16.enabled ? "bf16 is enabled" : "fp32 unless fp16 is requested");
}

void resolve_optimizer(ResolveState& r) {
  OptimizerConfig& optimizer = r.config.optimizer;
  TrainConfig& train = r.config.train;
  refuse_unequal(r, "optimizer.params.lr", optimizer.lr, "train.learning_rate",
                 train.learning_rate);
  refuse_unequal(r, "optimizer.params.weight_decay", optimizer.weight_decay, "train.weight_decay",
                 train.weight_decay);
  decide_learning_rate(r);
  const std::string decay = "optimizer.params.weight_decay";
  if (r.is_auto(decay))
    r.decide(decay, optimizer.weight_decay, train.weight_decay, "train.weight_decay");
  else if (!r.is_written(decay))
    optimizer.weight_decay = train.weight_decay;
  apply_optimizer_defaults(r);
  if (r.config.origins.find("optimizer") == nullptr)
    r.lines.push_back(
        {"optimizer", cat("default: optimizer = ", name_of(optimizer.type), ", lr ",
                          number_text(optimizer.lr), ", weight decay ",
                          number_text(optimizer.weight_decay), " (no optimizer section)")});
  if (r.config.origins.find("gradient_clipping") == nullptr || r.is_auto("gradient_clipping"))
    r.record_decision("gradient_clipping", number_text(r.config.gradient_clipping),
                      "DeepSpeed's since 0.19.3 and Hugging Face's; 0 = no clipping");
  train.learning_rate = optimizer.lr;
  train.weight_decay = optimizer.weight_decay;
}

namespace {

/// Decides the number of warm-up steps. DeepSpeed's types need a warm-up: they begin at the lowest
/// rate, and with a warm-up of one step their first two steps have that rate.
void resolve_warmup(ResolveState& r) {
  SchedulerConfig& scheduler = r.config.scheduler;
  TrainConfig& train = r.config.train;
  const std::string path = "scheduler.params.warmup_num_steps";
  const bool needs_warmup = !is_of_transformers(scheduler.type);
  const int64_t least = needs_warmup ? 1 : 0;
  refuse_unequal(r, path, static_cast<double>(scheduler.warmup_num_steps), "train.warmup_steps",
                 static_cast<double>(train.warmup_steps));
  if (r.is_auto(path)) {
    const int64_t steps = std::max(least, train.warmup_steps);
    r.decide(path, scheduler.warmup_num_steps, steps,
             steps == train.warmup_steps ? "train.warmup_steps"
                                         : cat("the least of a ", name_of(scheduler.type),
                                               "; train.warmup_steps is ", train.warmup_steps));
  } else if (!r.is_written(path)) {
    scheduler.warmup_num_steps = !needs_warmup || r.is_written("train.warmup_steps")
                                     ? std::max(least, train.warmup_steps)
                                     : 1000;
  }
  if (needs_warmup && scheduler.warmup_num_steps == 0)
    r.error(path, cat(path, ": expected a whole number of at least 1, found 0"),
            cat("write scheduler: {type: ", name_of(traits_of(scheduler.type).without_warmup),
                "} for no warm-up; a ", name_of(scheduler.type), " begins with one"));
  train.warmup_steps = scheduler.warmup_num_steps;
}

void resolve_warmup_max_lr(ResolveState& r) {
  SchedulerConfig& scheduler = r.config.scheduler;
  const std::string path = "scheduler.params.warmup_max_lr";
  if (r.is_auto(path)) {
    r.decide(path, scheduler.warmup_max_lr, r.config.optimizer.lr, "the optimizer's lr");
  } else if (!r.is_written(path)) {
    const bool is_optimizers = scheduler.type == SchedulerType::kWarmupLR;
    r.decide(path, scheduler.warmup_max_lr, is_optimizers ? r.config.optimizer.lr : 0.001,
             is_optimizers ? "the optimizer's lr" : "DeepSpeed's default");
  }
}

void resolve_total_steps(ResolveState& r) {
  SchedulerConfig& scheduler = r.config.scheduler;
  const std::string path = "scheduler.params.total_num_steps";
  if (scheduler.total_num_steps != 0) return;
  if (r.config.train.steps != 0)
    r.decide(path, scheduler.total_num_steps, r.config.train.steps, "the run's steps");
  else
    r.record_decision(path, "null", "known when the data is counted");
}

/// Reports a decaying schedule that is shorter than the run, because usually both have the same
/// length.
void report_short_decay(ResolveState& r) {
  const SchedulerConfig& scheduler = r.config.scheduler;
  const int64_t steps = r.config.train.steps;
  if (scheduler.total_num_steps < steps)
    r.notice("scheduler.params.total_num_steps",
             cat("scheduler: total_num_steps ", scheduler.total_num_steps, " < the run's ", steps,
                 " steps: those after the schedule's end train with its last learning rate, ",
                 number_text(final_learning_rate(scheduler, r.config.optimizer))),
             "remove total_num_steps for a schedule as long as the run");
}

void report_unfinished_warmup(ResolveState& r) {
  const SchedulerConfig& scheduler = r.config.scheduler;
  const int64_t steps = r.config.train.steps;
  const std::string text = steps == 0 ? "" : unfinished_warmup_text(scheduler, steps);
  if (text.empty()) return;
  for (const char* path : {"scheduler.params.warmup_num_steps",
                           "scheduler.params.cycle_first_step_size", "train.warmup_steps"})
    if (r.is_written(path)) return r.notice(path, text);
}

void resolve_cycle(ResolveState& r) {
  SchedulerConfig& scheduler = r.config.scheduler;
  for (const char* key : {"cycle_min_lr", "cycle_max_lr"})
    if (r.config.origins.find(std::string("scheduler.params.") + key) == nullptr)
      r.error("scheduler", cat("scheduler.params.", key, " is missing: OneCycle needs it"),
              cat("write scheduler.params.", key, ", for example 1.0e-4"));
  if (!r.is_written("scheduler.params.cycle_second_step_size"))
    scheduler.cycle_second_step_size = scheduler.cycle_first_step_size;
  if (!r.is_written("scheduler.params.cycle_second_stair_count"))
    scheduler.cycle_second_stair_count = scheduler.cycle_first_stair_count;
}

void check_min_lr(ResolveState& r) {
  const bool as_share = r.is_written("scheduler.params.min_lr_rate"),
             as_rate = r.is_written("scheduler.params.min_lr");
  if (!as_share && !as_rate)
    r.error("scheduler",
            "scheduler.params.min_lr is missing: cosine_with_min_lr needs it or min_lr_rate",
            "write min_lr: 1e-6, or min_lr_rate: 0.1 for a tenth of the optimizer's lr");
  if (as_share && as_rate && r.config.scheduler.min_lr != 0)
    r.error("scheduler.params.min_lr_rate",
            "scheduler.params.min_lr_rate and min_lr exclude each other", "keep one of the two");
}

void check_lr_end(ResolveState& r) {
  const double lr = r.config.optimizer.lr, end = r.config.scheduler.lr_end;
  if (end < lr) return;
  r.error(r.is_written("scheduler.params.lr_end") ? "scheduler.params.lr_end" : "scheduler",
          cat("scheduler.params.lr_end ", number_text(end), " is not below the optimizer's lr ",
              number_text(lr)),
          "set a smaller lr_end, or constant as the type");
}

void resolve_stable_decay(ResolveState& r) {
  SchedulerConfig& scheduler = r.config.scheduler;
  if (!r.is_written("scheduler.params.warmup_type")) scheduler.warmup_type = WarmupShape::kLinear;
  if (scheduler.warmup_type == WarmupShape::kLog)
    r.error("scheduler.params.warmup_type",
            "scheduler.params.warmup_type: expected one of linear, cosine, 1-sqrt for "
            "warmup_stable_decay, found log");
  if (!r.is_written("scheduler.params.num_decay_steps"))
    r.error("scheduler",
            "scheduler.params.num_decay_steps is missing: warmup_stable_decay needs it",
            "write the number of decay steps; a tenth of the run's steps is usual");
}

/// Decides the last step of warmup_stable_decay: the sum of its three parts if all are written.
void resolve_stable_decay_steps(ResolveState& r) {
  SchedulerConfig& scheduler = r.config.scheduler;
  if (scheduler.num_stable_steps >= 0) {
    scheduler.total_num_steps =
        scheduler.warmup_num_steps + scheduler.num_stable_steps + scheduler.num_decay_steps;
  } else {
    resolve_total_steps(r);
    if (scheduler.total_num_steps != 0 &&
        scheduler.warmup_num_steps + scheduler.num_decay_steps > scheduler.total_num_steps)
      r.error("scheduler.params.num_decay_steps",
              cat("scheduler: warmup_num_steps ", scheduler.warmup_num_steps, " + num_decay_steps ",
                  scheduler.num_decay_steps, " > total_num_steps ", scheduler.total_num_steps),
              "lower one of the two, or raise total_num_steps (train.steps, if it is not written)");
  }
}

/// Resolves the keys that some types have in addition to warm-up and total steps.
void resolve_keys_of_type(ResolveState& r) {
  SchedulerConfig& scheduler = r.config.scheduler;
  switch (scheduler.type) {
    case SchedulerType::kWarmupLR:
    case SchedulerType::kWarmupDecayLR:
      return resolve_warmup_max_lr(r);
    case SchedulerType::kOneCycle:
      return resolve_cycle(r);
    case SchedulerType::kCosineWithRestarts:
      if (!r.is_written("scheduler.params.num_cycles")) scheduler.num_cycles = 1.0;
      return;
    case SchedulerType::kCosineWithMinLr:
      return check_min_lr(r);
    case SchedulerType::kPolynomial:
      return check_lr_end(r);
    case SchedulerType::kWarmupStableDecay:
      return resolve_stable_decay(r);
    case SchedulerType::kConstant:
    case SchedulerType::kLinear:
    case SchedulerType::kCosine:
    case SchedulerType::kInverseSqrt:
    case SchedulerType::kWarmupCosineLR:
    case SchedulerType::kLRRangeTest:
    case SchedulerType::kTorch:
      return;
  }
}

/// Decides the last step of a schedule that has an end.
void resolve_last_step(ResolveState& r) {
  if (r.config.scheduler.type == SchedulerType::kWarmupStableDecay)
    resolve_stable_decay_steps(r);
  else
    resolve_total_steps(r);
  if (r.config.scheduler.total_num_steps != 0) report_short_decay(r);
}

/// Checks the warm-up's type: DeepSpeed's types accept only log and linear.
void check_warmup_type(ResolveState& r) {
  const SchedulerConfig& scheduler = r.config.scheduler;
  if (is_of_transformers(scheduler.type) || scheduler.warmup_type == WarmupShape::kLog ||
      scheduler.warmup_type == WarmupShape::kLinear)
    return;
  r.error("scheduler.params.warmup_type",
          cat("scheduler.params.warmup_type: expected one of log, linear for ",
              name_of(scheduler.type), ", found ", name_of(scheduler.warmup_type)));
}

void resolve_bucket(ResolveState& r, const std::string& key, int64_t& value, int64_t hidden,
                    int64_t from_hidden, const char* formula) {
  const std::string path = "zero_optimization." + key;
  if (!r.is_auto(path)) return;
  if (hidden == 0) {
    r.record_decision(path, std::to_string(value),
                      cat("its default; ", formula, " once the model is known"));
    return;
  }
  r.decide(path, value, from_hidden, cat(formula, ", hidden size ", hidden));
}

}  // namespace

std::string unfinished_warmup_text(const SchedulerConfig& scheduler, int64_t steps) {
  if (traits_of(scheduler.type).warms_up && scheduler.warmup_num_steps > steps)
    return cat("scheduler: warmup_num_steps ", scheduler.warmup_num_steps, " > the run's ", steps,
               " steps: training ends inside the warm-up");
  if (scheduler.type == SchedulerType::kOneCycle && scheduler.cycle_first_step_size > steps)
    return cat("scheduler: cycle_first_step_size ", scheduler.cycle_first_step_size,
               " > the run's ", steps, " steps: training ends before the learning rate falls");
  return "";
}

void resolve_scheduler(ResolveState& r) {
  SchedulerConfig& scheduler = r.config.scheduler;
  const bool written = r.config.origins.find("scheduler") != nullptr;
  if (written && !is_of_transformers(scheduler.type) &&
      r.config.origins.find("scheduler.params") == nullptr)
    r.error("scheduler", cat("scheduler: ", name_of(scheduler.type), " needs a section params"),
            "write params: {} for all defaults");
  if (traits_of(scheduler.type).warms_up) resolve_warmup(r);
  resolve_keys_of_type(r);
  check_warmup_type(r);
  if (traits_of(scheduler.type).has_last_step) resolve_last_step(r);
  report_unfinished_warmup(r);
  if (!written)
    r.lines.push_back(
        {"scheduler", cat("default: scheduler = constant after ", scheduler.warmup_num_steps,
                          " steps of warm-up (no scheduler section)")});
}

void resolve_zero(ResolveState& r) {
  ZeroConfig& zero = r.config.zero;
  const int64_t hidden = r.context.hidden_size.value_or(0);
  resolve_bucket(r, "reduce_bucket_size", zero.reduce_bucket_size, hidden, hidden * hidden,
                 "hidden²");
  // Hugging Face sets these only at stage 3; at other stages they have no effect.
  if (zero.stage == 3) {
    resolve_bucket(r, "prefetch_bucket_size", zero.prefetch_bucket_size, hidden,
                   static_cast<int64_t>(0.9 * static_cast<double>(hidden * hidden)),
                   "0.9 × hidden²");
    resolve_bucket(r, "param_persistence_threshold", zero.param_persistence_threshold, hidden,
                   10 * hidden, "10 × hidden");
  }
  if (!r.is_written("zero_optimization.overlap_comm")) zero.overlap_comm = zero.stage == 3;
  if (zero.stage == 3 && !r.is_written("zero_optimization.max_reuse_distance"))
    r.record_decision(
        "zero_optimization.max_reuse_distance", std::to_string(zero.max_reuse_distance),
        "nothing is kept from forward to backward; DeepSpeed's 1e9 keeps small models whole");
}

}  // namespace ftrun
