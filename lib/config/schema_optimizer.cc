#include "config/schema_tables.h"

namespace ftrun {
namespace {

using Types = std::vector<std::string>;
const Types kAdamLike{"AdamW", "Adam", "OneBitAdam", "ZeroOneAdam", "MuAdam", "MuAdamW"};
const Types kOneBit{"OneBitAdam", "OneBitLamb", "ZeroOneAdam"};
const Types kLambLike{"Lamb", "OneBitLamb"};
const Types kSgdLike{"SGD", "MuSGD"};

Types joined(Types a, const Types& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Parameters of optimizers that are recognised and not offered: their files load, their runs are
// refused by capability.
void declare_foreign_parameters(SectionRows& params) {
  params.unkept<int64_t>("freeze_step", 100'000, "Steps before compression.").of(kOneBit);
  params.unkept<bool>("cuda_aware", false, "CUDA-aware MPI.").of(kOneBit);
  params.free("comm_backend_name", "nccl or mpi.").of(kOneBit);
  params.unkept<int64_t>("var_freeze_step", 100'000, "").of({"ZeroOneAdam"});
  params.unkept<int64_t>("var_update_scaler", 16, "").of({"ZeroOneAdam"});
  params.unkept<int64_t>("local_step_scaler", 32'678, "").of({"ZeroOneAdam"});
  params.unkept<int64_t>("local_step_clipper", 16, "").of({"ZeroOneAdam"});
  params.unkept<double>("coeff_beta", 0.9, "").of({"OneBitLamb"});
  params.unkept<double>("factor_max", 4.0, "").of({"OneBitLamb"});
  params.unkept<double>("factor_min", 0.5, "").of({"OneBitLamb"});
  params.unkept<double>("factor_threshold", 0.1, "").of({"OneBitLamb"});
  params.unkept<double>("muon_lr", 0.02, "").of({"Muon"});
  params.unkept<double>("adam_lr", 3e-4, "").of({"Muon"});
  params.unkept_choice("ns_method", {"gram", "standard"}, "").of({"Muon"});
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
                            .vocabulary = kDs},
                           part);
  optimizer
      .key("type", &OptimizerConfig::type,
           "AdamW, Adam, SGD, Lamb, Lion or Adagrad. As in DeepSpeed, Adam decays like AdamW "
           "unless adam_w_mode is false.")
      .in_any_case();
  optimizer.unkept<bool>("legacy_fusion", false, "Of DeepSpeed's fused kernels.");

  auto params = section(
      s, {.path = "optimizer.params", .doc = "Parameters of the optimizer.", .vocabulary = kDs},
      part);
  params.key("lr", &OptimizerConfig::lr, "Learning rate.")
      .at_least(0)
      .defaults_to("0.001 (Adagrad 0.01); without an optimizer section 5e-05");
  params.key("betas", &OptimizerConfig::betas, "Decay rates of the two moments.")
      .from_to_below(0, 1)
      .of(joined(joined(kAdamLike, kLambLike), {"Lion", "Muon"}));
  params.key("eps", &OptimizerConfig::eps, "Added to the root of the second moment.")
      .at_least(0)
      .defaults_to("1e-08 (Adagrad 1e-10)")
      .of(joined(joined(kAdamLike, kLambLike), {"Adagrad", "Muon"}));
  params.key("weight_decay", &OptimizerConfig::weight_decay, "Weight decay.").at_least(0);
  params
      .key("bias_correction", &OptimizerConfig::bias_correction,
           "Divide the moments by 1 - beta^t.")
      .of(joined(kAdamLike, kLambLike));
  params
      .key("adam_w_mode", &OptimizerConfig::adam_w_mode,
           "Decoupled decay for type Adam; no effect for AdamW.")
      .of({"AdamW", "Adam"});
  params.key("momentum", &OptimizerConfig::momentum, "Share of the last update that is kept.")
      .at_least(0)
      .of(joined(kSgdLike, {"Muon"}));
  params.key("dampening", &OptimizerConfig::dampening, "Dampening of momentum.").of(kSgdLike);
  params.key("nesterov", &OptimizerConfig::nesterov, "Nesterov momentum.").of(kSgdLike);
  params.key("max_coeff", &OptimizerConfig::max_coeff, "Largest trust ratio.").of(kLambLike);
  params.key("min_coeff", &OptimizerConfig::min_coeff, "Smallest trust ratio.").of(kLambLike);
  params.key("lr_decay", &OptimizerConfig::lr_decay, "Decay of the learning rate.")
      .at_least(0)
      .of({"Adagrad"});
  params
      .key("initial_accumulator_value", &OptimizerConfig::initial_accumulator_value,
           "Start of the sum of squares.")
      .at_least(0)
      .of({"Adagrad"});
  params.unkept<bool>("amsgrad", false, "AMSGrad; DeepSpeed's fused kernels refuse it too.")
      .reject_if_on()
      .of(joined(kAdamLike, kLambLike));
  params.unkept<bool>("eps_inside_sqrt", false, "eps inside the root.")
      .reject_if_on()
      .of(kLambLike);
  params.free("torch_adam", "Which kernel of DeepSpeed.").of({"AdamW", "Adam"});
  params
      .unkept<bool>("fp32_optimizer_states", true,
                    "Moments of the CPU update in fp32; here always.")
      .of({"AdamW", "Adam", "Lion", "Adagrad"});
  params.unkept<bool>("set_grad_none", true, "Of Python gradients.")
      .of({"AdamW", "Adam", "Lamb", "Lion"});
  params.unkept<double>("max_grad_norm", 0.0,
                        "Read as gradient_clipping, as is max_grad_norm at top level.")
      .honoured();
  declare_foreign_parameters(params);
}

void declare_scheduler(Schema& s) {
  const auto part = [](auto& c) -> auto& {
    return c.scheduler;
  };
  auto scheduler = section(
      s,
      {.path = "scheduler", .doc = "Absent: constant after train.warmup_steps.", .vocabulary = kDs},
      part);
  scheduler
      .key("type", &SchedulerConfig::type,
           "DeepSpeed's WarmupLR, WarmupDecayLR, WarmupCosineLR, OneCycle, LRRangeTest, or "
           "ftrun's constant, linear, cosine.")
      .in_any_case();

  auto params = section(
      s, {.path = "scheduler.params", .doc = "Parameters of the scheduler.", .vocabulary = kDs},
      part);
  using C = SchedulerConfig;
  const Types warmup{"WarmupLR", "WarmupDecayLR"};
  const Types all_warmup{"WarmupLR", "WarmupDecayLR", "WarmupCosineLR",
                         "constant", "linear",        "cosine"};
  const Types cycle{"OneCycle"};
  const Types range_test{"LRRangeTest"};
  params.key("warmup_min_lr", &C::warmup_min_lr, "Learning rate at the start.")
      .at_least(0)
      .of(warmup);
  params.key("warmup_max_lr", &C::warmup_max_lr, "Learning rate after warm-up.")
      .at_least(0)
      .or_null()
      .of(warmup)
      .defaults_to("WarmupLR: optimizer.params.lr; WarmupDecayLR: 0.001");
  params.key("warmup_num_steps", &C::warmup_num_steps, "Steps of warm-up.")
      .at_least(0)
      .in("steps")
      .of(all_warmup)
      .defaults_to("1000; for ftrun's types 0");
  params.key("warmup_type", &C::warmup_type, "Shape of the warm-up.")
      .of({"WarmupLR", "WarmupDecayLR", "WarmupCosineLR"});
  params.key("total_num_steps", &C::total_num_steps, "Steps until the end of the decay.")
      .at_least(1)
      .in("steps")
      .unset_is_zero()
      .defaults_to("the run's steps")
      .of({"WarmupDecayLR", "WarmupCosineLR", "linear", "cosine"});
  params.key("warmup_min_ratio", &C::warmup_min_ratio, "Start, as a share of optimizer.params.lr.")
      .at_least(0)
      .of({"WarmupCosineLR"});
  params.key("cos_min_ratio", &C::cos_min_ratio, "End, as a share of optimizer.params.lr.")
      .at_least(0)
      .of({"WarmupCosineLR"});
  params.key("min_lr", &C::min_lr, "Learning rate at the end.")
      .at_least(0)
      .of({"linear", "cosine"});
  params.key("cycle_min_lr", &C::cycle_min_lr, "Lowest learning rate; needed.")
      .at_least(0)
      .of(cycle);
  params.key("cycle_max_lr", &C::cycle_max_lr, "Highest learning rate; needed.")
      .at_least(0)
      .of(cycle);
  params.key("decay_lr_rate", &C::decay_lr_rate, "Decay after the cycle.").at_least(0).of(cycle);
  params.key("cycle_first_step_size", &C::cycle_first_step_size, "Steps of the rising half.")
      .at_least(1)
      .in("steps")
      .of(cycle);
  params.key("cycle_second_step_size", &C::cycle_second_step_size, "Steps of the falling half.")
      .at_least(0)
      .in("steps")
      .or_null()
      .of(cycle)
      .defaults_to("cycle_first_step_size");
  params.key("cycle_first_stair_count", &C::cycle_first_stair_count, "Stairs of the rising half.")
      .at_least(0)
      .of(cycle);
  params
      .key("cycle_second_stair_count", &C::cycle_second_stair_count, "Stairs of the falling half.")
      .at_least(0)
      .or_null()
      .of(cycle)
      .defaults_to("cycle_first_stair_count");
  params.key("decay_step_size", &C::decay_step_size, "Steps of a decay step; 0 = no decay.")
      .at_least(0)
      .in("steps")
      .of(cycle);
  params.key("cycle_momentum", &C::cycle_momentum, "Cycle beta1 too; beta2 is 0.99 then.")
      .of(cycle);
  params.key("cycle_min_mom", &C::cycle_min_mom, "Lowest beta1.").from_to_below(0, 1).of(cycle);
  params.key("cycle_max_mom", &C::cycle_max_mom, "Highest beta1.").from_to_below(0, 1).of(cycle);
  params.key("decay_mom_rate", &C::decay_mom_rate, "Decay of beta1 after the cycle.").of(cycle);
  params.key("lr_range_test_min_lr", &C::lr_range_test_min_lr, "Learning rate at the start.")
      .above(0)
      .of(range_test);
  params.key("lr_range_test_step_size", &C::lr_range_test_step_size, "Steps of one increase.")
      .at_least(1)
      .in("steps")
      .of(range_test);
  params.key("lr_range_test_step_rate", &C::lr_range_test_step_rate, "Increase per step size.")
      .of(range_test);
  params.key("lr_range_test_staircase", &C::lr_range_test_staircase, "Increase in stairs.")
      .of(range_test);
  params
      .unkept<int64_t>("last_batch_iteration", -1,
                       "Where DeepSpeed resumes; ftrun's checkpoints know.")
      .of({"WarmupLR", "WarmupDecayLR", "WarmupCosineLR", "OneCycle", "LRRangeTest"});
}

}  // namespace ftrun
