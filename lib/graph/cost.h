#pragma once

#include <cstdint>

#include "graph/op.h"

namespace ftrun {

struct LayerGraph;

/// Floating-point operations of one operation (multiply and add count as two); causal attention
/// counts the half that is computed.
double flops(const LayerGraph& graph, const Op& op);
/// Floating-point operations of a product of each row of `x` with all of `w`.
double product_flops(const LayerGraph& graph, ValueId x, ValueId w);
/// Bytes read plus written, each operand once.
int64_t traffic_bytes(const LayerGraph& graph, const Op& op);

/// Operations a machine does in the time it moves one byte: 4 on a two-core server, 20 in fp32 on
/// an accelerator. It keeps the price of norms, rotations and gated products from being nothing.
inline constexpr double kFlopsPerByte = 16.0;

/// Time of an operation in the unit that one floating-point operation takes:
/// max(flops, kFlopsPerByte * traffic).
double op_price(const LayerGraph& graph, const Op& op);

}  // namespace ftrun
