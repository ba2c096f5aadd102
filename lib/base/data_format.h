#pragma once

#include "base/enum_names.h"

namespace ftrun {

/// DataFormat is data.format: the kind of the data files.
enum class DataFormat {
  kAuto,  // by name and content
  kMegatron,
  kLlmc,
  kNanogpt,
  kJsonl,
};
template <>
struct EnumNames<DataFormat> {
  static constexpr auto kNames =
      enum_names<DataFormat>({"auto", "megatron", "llmc", "nanogpt", "jsonl"});
};

}  // namespace ftrun
