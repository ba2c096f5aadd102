#pragma once

#include "model/description.h"
#include "model/model_config.h"

namespace ftrun {

/// Builds a decoder: embedding (and rotary table or position vectors); blocks of attention and MLP,
/// in sequence or in parallel, with the norms, biases and windows that the config requests; final
/// norm and output matrix.
///
/// Each layer passes hidden [N,D] to the next one, and the embedding passes rope F32 [N,d] to every
/// block; the batch has tokens, positions, starts and labels, all I32 [N].
///
/// With a split the graphs are those of one of t tensor-parallel ranks (axes/tensor/split.h), and
/// weights are its parts. With sequence parallelism hidden is [N/t,D], the rank's block of the
/// tokens; everything else is the same on all ranks. Losses of the ranks add up to the loss; logits
/// are [t,N,V/t].
///
/// Linear layers that have an adapter (model/adapter.h) get its low-rank matrices as tensors after
/// the block's own, named as PEFT names them without its prefix. If the ranks divide a linear layer
/// by rows, A is whole on each rank and B is split by rows; if they divide it by columns, A is
/// split by columns and B is whole. So adapters need no further communication.
ModelDescription build_decoder(const ModelConfig& config, const BatchShape& batch, GraphMode mode,
                               const ModelDtypes& dtypes, const RecomputeOptions& recompute,
                               const TensorSplit& split = {}, const Adapter& adapter = {});

}  // namespace ftrun
