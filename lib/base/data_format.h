#pragma once

#include <array>
#include <string_view>

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
  static constexpr std::array<std::string_view, 5> kNames{"auto", "megatron", "llmc", "nanogpt",
                                                          "jsonl"};
};

}  // namespace ftrun
