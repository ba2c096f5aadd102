#include <algorithm>
#include <initializer_list>

#include "base/error.h"
#include "base/text.h"
#include "config/schema_tables.h"
#include "optimizers/optimizers.h"

namespace ftrun {
namespace {

using Types = std::vector<std::string>;

/// Lists the default of most types, then the types with another default: "1e-08 (Adagrad 1e-10)".
/// Returns "" if all types have the same default.
std::string defaults_by_type(const Hyperparameter& parameter) {
  const auto* member = std::get_if<double OptimizerConfig::*>(&parameter.member);
  if (member == nullptr) return "";
  const double usual = optimizer_traits(OptimizerType{}).defaults.*(*member);
  Types others;
  for (size_t i = 0; i < kNamedOptimizers; ++i) {
    const auto type = static_cast<OptimizerType>(i);
    const double own = optimizer_traits(type).defaults.*(*member);
    if (optimizer_traits(type).has_parameter(parameter.name) && own != usual)
      others.push_back(cat(name_of(type), " ", number_text(own)));
  }
  return others.empty() ? "" : cat(number_text(usual), " (", join(others, ", "), ")");
}

/// Lists the types that can train, and the names that other programs give them.
std::string type_text() {
  Types offered, others;
  for (size_t i = 0; i < kNamedOptimizers; ++i)
    if (const auto type = static_cast<OptimizerType>(i); optimizer_traits(type).is_offered())
      offered.emplace_back(name_of(type));
  for (const auto& [alias, name, sets] : optimizer_aliases())
    if (std::find(offered.begin(), offered.end(), name) != offered.end())
      others.push_back(cat(alias, " (", name, ")"));
  return cat(join(offered, ", "),
             ". As in DeepSpeed, Adam decays like AdamW unless adam_w_mode is false. Other names: ",
             join(others, ", "), ".");
}

/// Adds the row of an optimizer parameter that a config keeps.
template <typename OptimizerRows>
void declare_parameter(OptimizerRows& params, const Hyperparameter& parameter) {
  Field& field =
      *std::visit([&](auto member) { return &params.key(parameter.name, member, parameter.doc); },
                  parameter.member);
  field.bounds = {.min = parameter.minimum,
                  .max = parameter.upper_bound,
                  .excludes_max = parameter.upper_bound.has_value()};
  field.default_text = defaults_by_type(parameter);
  if (std::string_view(parameter.name) == hyperparameters::kLr.name)
    field.default_text += cat("; without an optimizer section ", number_text(OptimizerConfig{}.lr));
  const Types types = types_with_parameter(parameter.name);
  // A key that all types except PyTorch's classes have needs no list of types.
  if (types.size() + 1 < kNamedOptimizers) field.types = types;
}

/// Adds parameters of optimizers that are recognized but not offered: such files can be loaded, and
/// unsupported.cc refuses to run them.
void declare_foreign_parameters(SectionKeyRows& params) {
  const Types one_bit{"OneBitAdam", "OneBitLamb", "ZeroOneAdam"};
  params.checked_only<int64_t>("freeze_step", 100'000, "Steps before compression.")
      .for_types(one_bit);
  params.checked_only<bool>("cuda_aware", false, "CUDA-aware MPI.").for_types(one_bit);
  params.any_value("comm_backend_name", "nccl or mpi.").for_types(one_bit);
  params
      .checked_only<int64_t>("var_freeze_step", 100'000, "The last step that updates the variance.")
      .for_types({"ZeroOneAdam"});
  params
      .checked_only<int64_t>(
          "var_update_scaler", 16,
          "Updates of the variance after which the interval between them doubles.")
      .for_types({"ZeroOneAdam"});
  params
      .checked_only<int64_t>("local_step_scaler", 32'678,
                             "Steps after which the interval between synchronizations doubles.")
      .for_types({"ZeroOneAdam"});
  params
      .checked_only<int64_t>("local_step_clipper", 16,
                             "The longest interval between synchronizations.")
      .for_types({"ZeroOneAdam"});
  params
      .checked_only<double>("coeff_beta", 0.9,
                            "Decay of the running average of LAMB's coefficients.")
      .for_types({"OneBitLamb"});
  params.checked_only<double>("factor_max", 4.0, "The largest factor of the frozen coefficients.")
      .for_types({"OneBitLamb"});
  params.checked_only<double>("factor_min", 0.5, "The smallest factor of the frozen coefficients.")
      .for_types({"OneBitLamb"});
  params
      .checked_only<double>("factor_threshold", 0.1,
                            "The largest change of that factor between two steps.")
      .for_types({"OneBitLamb"});
  params.checked_only<double>("muon_lr", 0.02, "Learning rate of the parameters that Muon updates.")
      .for_types({"Muon"});
  params.checked_only<double>("adam_lr", 3e-4, "Learning rate of the parameters that Adam updates.")
      .for_types({"Muon"});
  params
      .checked_choice("ns_method", {"gram", "standard"}, "Variant of the Newton-Schulz iteration.")
      .for_types({"Muon"});
}

}  // namespace

void declare_optimizer(Schema& s) {
  const auto part = [](auto& c) -> auto& {
    return c.optimizer;
  };
  auto optimizer = section(s,
                           {.path = "optimizer",
                            .doc = "Absent: AdamW with train.learning_rate and "
                                   "train.weight_decay, norms and biases exempt.",
                            .origin = kDs},
                           part);
  Field& type = optimizer.key("type", &OptimizerConfig::type, "").in_any_case();
  type.doc = type_text();
  for (const auto& [alias, name, sets] : optimizer_aliases())
    type.forms.synonyms.emplace_back(alias, name);
  optimizer.checked_only<bool>("legacy_fusion", false, "A setting of DeepSpeed's fused kernels.");

  auto params = section(
      s, {.path = "optimizer.params", .doc = "Parameters of the optimizer.", .origin = kDs}, part);
  for (const Hyperparameter& parameter : all_hyperparameters())
    declare_parameter(params, parameter);
  // These keys of DeepSpeed are checked but not kept.
  const Types adam_like = types_with_parameter("bias_correction"),
              lamb_like = types_with_parameter("max_coeff");
  params.checked_only<bool>("amsgrad", false, "AMSGrad; DeepSpeed's fused kernels also refuse it.")
      .refuse_unless_default()
      .for_types(adam_like);
  params.checked_only<bool>("eps_inside_sqrt", false, "eps inside the root.")
      .refuse_unless_default()
      .for_types(lamb_like);
  params.any_value("torch_adam", "Selects PyTorch's Adam instead of DeepSpeed's kernel.")
      .for_types({"AdamW", "Adam"});
  params
      .checked_only<bool>("fp32_optimizer_states", true,
                          "Moments of the CPU update in fp32; here always.")
      .for_types({"AdamW", "Adam", "Lion", "Adagrad"});
  params.checked_only<bool>("set_grad_none", true, "Sets PyTorch gradients to None.")
      .for_types({"AdamW", "Adam", "Lamb", "Lion"});
  params
      .checked_only<double>("max_grad_norm", 0.0,
                            "Another name of gradient_clipping, as is max_grad_norm at top level.")
      .implemented();
  declare_foreign_parameters(params);
}

namespace {

/// Lists the names of the types for which `has` holds, DeepSpeed's first.
template <class Has>
Types schedulers_with(const Has& has) {
  Types names;
  for (const SchedulerOrigin origin : {SchedulerOrigin::kDeepSpeed, SchedulerOrigin::kTransformers})
    for (const LearningRateScheduleTraits& traits : kLearningRateScheduleTraits)
      if (traits.origin == origin && has(traits)) names.emplace_back(traits.name);
  return names;
}

/// Lists the types of a program with their other names: "constant (also constant_with_warmup)".
std::string schedulers_text(SchedulerOrigin origin) {
  Types names;
  for (const LearningRateScheduleTraits& traits : kLearningRateScheduleTraits)
    if (traits.origin == origin)
      names.push_back(
          cat(traits.name, traits.alias.empty() ? "" : cat(" (also ", traits.alias, ")")));
  return join(names, ", ");
}

Types names_of(std::initializer_list<SchedulerType> types) {
  Types names;
  for (const SchedulerType type : types) names.emplace_back(name_of(type));
  return names;
}

void declare_warmup_parameters(KeyRows<SchedulerConfig>& params) {
  using C = SchedulerConfig;
  using S = SchedulerType;
  const Types warmup = names_of({S::kWarmupLR, S::kWarmupDecayLR});
  const Types all_warmup =
      schedulers_with([](const LearningRateScheduleTraits& traits) { return traits.warms_up; });
  const Types with_total = schedulers_with(
      [](const LearningRateScheduleTraits& traits) { return traits.has_last_step; });
  params.key("warmup_min_lr", &C::warmup_min_lr, "Learning rate at the start.")
      .at_least(0)
      .for_types(warmup);
  params.key("warmup_max_lr", &C::warmup_max_lr, "Learning rate after warm-up.")
      .at_least(0)
      .or_null()
      .for_types(warmup)
      .defaults_to("WarmupLR: optimizer.params.lr; WarmupDecayLR: 0.001");
  params.key("warmup_num_steps", &C::warmup_num_steps, "Steps of warm-up.")
      .at_least(0)
      .in_unit("steps")
      .for_types(all_warmup)
      .defaults_to("1000; for Hugging Face's types 0");
  params.key("warmup_type", &C::warmup_type, "Shape of the warm-up.")
      .for_types(
          names_of({S::kWarmupLR, S::kWarmupDecayLR, S::kWarmupCosineLR, S::kWarmupStableDecay}))
      .defaults_to("log; warmup_stable_decay: linear");
  params.key("total_num_steps", &C::total_num_steps, "Steps until the end of the decay.")
      .at_least(1)
      .in_unit("steps")
      .unset_is_zero()
      .defaults_to("the run's steps")
      .for_types(with_total);
}

void declare_decay_parameters(KeyRows<SchedulerConfig>& params) {
  using C = SchedulerConfig;
  using S = SchedulerType;
  const Types stable_decay = names_of({S::kWarmupStableDecay});
  params.key("warmup_min_ratio", &C::warmup_min_ratio, "Start, as a share of optimizer.params.lr.")
      .at_least(0)
      .for_types(names_of({S::kWarmupCosineLR}));
  params.key("cos_min_ratio", &C::cos_min_ratio, "End, as a share of optimizer.params.lr.")
      .at_least(0)
      .for_types(names_of({S::kWarmupCosineLR}));
  params.key("min_lr", &C::min_lr, "Learning rate at the end.")
      .at_least(0)
      .for_types(names_of({S::kLinear, S::kCosine, S::kCosineWithMinLr}));
  params
      .key("min_lr_rate", &C::min_lr_rate,
           "Learning rate at the end, as a share of optimizer.params.lr; min_lr or this is "
           "required.")
      .range(0, 1)
      .unset_is_zero()
      .for_types(names_of({S::kCosineWithMinLr}));
  params
      .key("num_cycles", &C::num_cycles,
           "Full waves of the cosine until the end of the decay; 0.5 = one fall. "
           "cosine_with_restarts: the number of falls, each of which begins at the full rate.")
      .greater_than(0)
      .for_types(names_of({S::kCosineWithRestarts, S::kCosineWithMinLr, S::kWarmupStableDecay}))
      .defaults_to("0.5; cosine_with_restarts: 1");
  params.key("lr_end", &C::lr_end, "Learning rate at the end, below optimizer.params.lr.")
      .at_least(0)
      .for_types(names_of({S::kPolynomial}));
  params.key("power", &C::power, "Exponent of the polynomial decay.")
      .greater_than(0)
      .for_types(names_of({S::kPolynomial}));
  params
      .key("timescale", &C::timescale,
           "Steps after the warm-up until the rate has fallen to lr / sqrt(2).")
      .at_least(1)
      .in_unit("steps")
      .unset_is_zero()
      .for_types(names_of({S::kInverseSqrt}))
      .defaults_to("warmup_num_steps, or 10000 without warm-up");
  params.key("num_decay_steps", &C::num_decay_steps, "Steps of the decay; required.")
      .at_least(0)
      .in_unit("steps")
      .for_types(stable_decay);
  params
      .key("num_stable_steps", &C::num_stable_steps,
           "Steps between warm-up and decay; -1: what these leave of total_num_steps.")
      .at_least(-1)
      .in_unit("steps")
      .for_types(stable_decay);
  params.key("decay_type", &C::decay_type, "Shape of the decay.").for_types(stable_decay);
  params
      .key("min_lr_ratio", &C::min_lr_ratio,
           "Learning rate at the start of warm-up and the end of decay, as a share of "
           "optimizer.params.lr.")
      .range(0, 1)
      .for_types(stable_decay);
}

void declare_cycle_parameters(KeyRows<SchedulerConfig>& params) {
  using C = SchedulerConfig;
  const Types cycle = names_of({SchedulerType::kOneCycle});
  params.key("cycle_min_lr", &C::cycle_min_lr, "Lowest learning rate; required.")
      .at_least(0)
      .for_types(cycle);
  params.key("cycle_max_lr", &C::cycle_max_lr, "Highest learning rate; required.")
      .at_least(0)
      .for_types(cycle);
  params.key("decay_lr_rate", &C::decay_lr_rate, "Rate of the decay after the cycle.")
      .at_least(0)
      .for_types(cycle);
  params.key("cycle_first_step_size", &C::cycle_first_step_size, "Steps of the rising half.")
      .at_least(1)
      .in_unit("steps")
      .for_types(cycle);
  params.key("cycle_second_step_size", &C::cycle_second_step_size, "Steps of the falling half.")
      .at_least(0)
      .in_unit("steps")
      .or_null()
      .for_types(cycle)
      .defaults_to("cycle_first_step_size");
  params.key("cycle_first_stair_count", &C::cycle_first_stair_count, "Stairs of the rising half.")
      .at_least(0)
      .for_types(cycle);
  params
      .key("cycle_second_stair_count", &C::cycle_second_stair_count, "Stairs of the falling half.")
      .at_least(0)
      .or_null()
      .for_types(cycle)
      .defaults_to("cycle_first_stair_count");
  params
      .key("decay_step_size", &C::decay_step_size,
           "Steps after which the rate decays once more; 0 = no decay.")
      .at_least(0)
      .in_unit("steps")
      .for_types(cycle);
  params.key("cycle_momentum", &C::cycle_momentum, "Cycle beta1 as well; beta2 is then 0.99.")
      .for_types(cycle);
  params.key("cycle_min_mom", &C::cycle_min_mom, "Lowest beta1.")
      .from_to_below(0, 1)
      .for_types(cycle);
  params.key("cycle_max_mom", &C::cycle_max_mom, "Highest beta1.")
      .from_to_below(0, 1)
      .for_types(cycle);
  params.key("decay_mom_rate", &C::decay_mom_rate, "Decay of beta1 after the cycle.")
      .for_types(cycle);
}

void declare_range_test_parameters(KeyRows<SchedulerConfig>& params) {
  using C = SchedulerConfig;
  const Types range_test = names_of({SchedulerType::kLRRangeTest});
  params.key("lr_range_test_min_lr", &C::lr_range_test_min_lr, "Learning rate at the start.")
      .greater_than(0)
      .for_types(range_test);
  params.key("lr_range_test_step_size", &C::lr_range_test_step_size, "Steps of one increase.")
      .at_least(1)
      .in_unit("steps")
      .for_types(range_test);
  params
      .key("lr_range_test_step_rate", &C::lr_range_test_step_rate,
           "Increase of the rate in each lr_range_test_step_size steps, as a multiple of "
           "lr_range_test_min_lr.")
      .for_types(range_test);
  params.key("lr_range_test_staircase", &C::lr_range_test_staircase, "Increase in stairs.")
      .for_types(range_test);
}

}  // namespace

void declare_scheduler(Schema& s) {
  const auto part = [](auto& c) -> auto& {
    return c.scheduler;
  };
  auto scheduler = section(
      s, {.path = "scheduler", .doc = "Absent: constant after train.warmup_steps.", .origin = kDs},
      part);
  const std::string types_text =
      cat("DeepSpeed's ", schedulers_text(SchedulerOrigin::kDeepSpeed), ", or Hugging Face's ",
          schedulers_text(SchedulerOrigin::kTransformers), ".");
  auto& type = scheduler.key("type", &SchedulerConfig::type, types_text.c_str()).in_any_case();
  for (const LearningRateScheduleTraits& traits : kLearningRateScheduleTraits)
    if (!traits.alias.empty()) type.synonym(traits.alias.data(), traits.name.data());  // literals

  auto params = section(
      s, {.path = "scheduler.params", .doc = "Parameters of the scheduler.", .origin = kDs}, part);
  declare_warmup_parameters(params);
  declare_decay_parameters(params);
  declare_cycle_parameters(params);
  declare_range_test_parameters(params);
  params
      .checked_only<int64_t>(
          "last_batch_iteration", -1,
          "The step that DeepSpeed's scheduler resumes from; ftrun's checkpoints record it.")
      .for_types(schedulers_with([](const LearningRateScheduleTraits& traits) {
        return traits.origin == SchedulerOrigin::kDeepSpeed;
      }));
}

}  // namespace ftrun
