#pragma once

#include "base/enum_names.h"

namespace ftrun {

/// SequencePacking is data.packing: how documents become rows of T tokens.
enum class SequencePacking {
  /// The token stream is cut every T tokens, regardless of the ends of documents: row i is tokens
  /// iT ... iT+T.
  kConcat,
  /// Rows hold several documents each, packed by first fit within a window. Attention stays inside
  /// each document; documents longer than a row are split.
  kDocuments,
  /// Rows hold one document each, cut at T or padded.
  kNone,
};
template <>
struct EnumNames<SequencePacking> {
  static constexpr auto kNames = enum_names<SequencePacking>({"concat", "documents", "none"});
};

}  // namespace ftrun
