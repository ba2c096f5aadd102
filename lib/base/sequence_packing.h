#pragma once

#include "base/enum_names.h"

namespace ftrun {

/// SequencePacking is data.packing: how documents become sequences of T tokens.
enum class SequencePacking {
  /// The token stream is cut every T tokens, regardless of the ends of documents: sequence i is
  /// tokens iT ... iT+T.
  kConcat,
  /// Sequences hold several documents each, packed by first fit within a window. Attention stays
  /// inside each document; documents longer than a sequence are split.
  kDocuments,
  /// Sequences hold one document each, cut at T or padded.
  kNone,
};
template <>
struct EnumNames<SequencePacking> {
  static constexpr auto kNames = enum_names<SequencePacking>({"concat", "documents", "none"});
};

}  // namespace ftrun
