#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "model/description.h"
#include "partition/layout.h"
#include "partition/units.h"
#include "program/program.h"

namespace ftrun {

/// What a step does beside the model's own lists.
struct StepOptions {
  /// Micro-batches of a step on each rank (gradient accumulation).
  int32_t micro_batches = 1;
  /// State ranges an update reads and writes beside the parameters: Adam 2, SGD with momentum 1, SGD 0.
  int32_t optimizer_states = 2;
  /// Tensors that weight decay applies to; all when empty.
  std::function<bool(const TensorInfo&)> decays;
  /// DeepSpeed's reduce_bucket_size, in elements.
  int64_t bucket_elements = 500'000'000;
  /// DeepSpeed's overlap_comm.
  bool overlap = true;
};

/// Names of the persistent buffers, by which the programs of a rank share them.
namespace buffer_names {
inline constexpr const char* kParameters = "parameters";
inline constexpr const char* kGradients = "gradients";
inline constexpr const char* kLoss = "loss";
inline constexpr const char* kNorm = "norm";
inline constexpr const char* kLogits = "logits";
}  // namespace buffer_names

/// The loss buffer, F64: sum of token losses, counted tokens, votes to stop; all-reduced together.
inline constexpr int64_t kLossSlots = 3;

/// "optimizer.0", "optimizer.1": the flat state buffers, laid out as the parameters.
std::string optimizer_buffer_name(int32_t state);

/// Micro-batch inputs in the order of a kLoadBatch instruction's writes.
inline constexpr Port kBatchPorts[] = {Port::kTokens, Port::kPositions, Port::kStarts, Port::kLabels};

/// Flat layouts of a rank: parameters (and optimizer state) in forward order of units, gradients in
/// the order backward finishes them, so that a bucket is one range.
struct StepLayouts {
  FlatLayout parameters;
  FlatLayout gradients;
};
StepLayouts step_layouts(const Partition& partition);

/// One optimizer step of data parallelism: micro-batches forward and backward, gradient and loss
/// all-reduce, norm, decision, update; passes applied. The model must be built with Mode::kTrain.
Program build_training_step(const ModelDescription& model, const Partition& partition, const StepOptions& options);

/// Forward passes of `micro_batches` micro-batches with the loss summed into the loss buffer over all
/// ranks. The model must be built with Mode::kEvaluate.
Program build_evaluation_step(const ModelDescription& model, const Partition& partition, const StepOptions& options);

/// One forward pass that leaves logits F32[N,V] in the buffer "logits" (Mode::kLogits).
Program build_logits_step(const ModelDescription& model, const Partition& partition);

}  // namespace ftrun
