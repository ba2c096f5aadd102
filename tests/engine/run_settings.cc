#include "run_settings.h"

#include "optimizers/optimizers.h"
#include "rank_fixture.h"

namespace ftrun::testing {

void set_precision(Config& config, Precision precision) {
  config.fp16.enabled = precision == kFp16;
  config.bf16.enabled = precision >= kBf16;
  config.bf16.bf16_optimizer_states = precision == kNarrowMoments;
  config.bf16.bf16_master_weights_and_grads = precision == kNarrowMasters;
}

void set_adapter(Config& config, Adapter adapter) {
  if (adapter == kNoAdapter) return;
  config = with_dropout(config);
  if (adapter != kLoraDropout) config.adapter.lora_dropout = 0;
  config.adapter.use_dora = adapter == kDora;
  if (adapter == kLoraOnNf4) config.quantization.type = QuantizationType::kNf4;
}

std::span<const OptimizerType> updating_optimizers() {
  static constexpr OptimizerType kTypes[] = {OptimizerType::kAdamW, OptimizerType::kSgd,
                                             OptimizerType::kLion, OptimizerType::kAdagrad,
                                             OptimizerType::kAdamW8bit};
  return kTypes;
}

void set_optimizer(Config& config, OptimizerType type) {
  config.optimizer = optimizer_traits(type).defaults;
  config.optimizer.type = type;
  config.optimizer.lr = 1e-2;
  if (type == OptimizerType::kSgd) config.optimizer.momentum = 0.9;
  config.optimizer.min_8bit_size = 500;
}

const char* name_of(Precision precision) {
  constexpr const char* kNames[] = {"fp32", "fp16", "bf16", "bf16 moments", "bf16 masters"};
  return kNames[precision];
}

const char* name_of(Adapter adapter) {
  constexpr const char* kNames[] = {"no adapter", "LoRA", "LoRA with dropout", "DoRA",
                                    "LoRA on NF4"};
  return kNames[adapter];
}

}  // namespace ftrun::testing
