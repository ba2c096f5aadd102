#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/adapter.h"
#include "model/other_parts.h"

namespace ftrun {

/// IdleKind says why an entry of exclude_modules changes nothing.
enum class IdleKind : uint8_t {
  kNoAdapter,    // the modules that it names get no adapter anyway
  kHoldsOthers,  // it names modules that hold others: PEFT excludes a module by its own path alone
  kUnknown,      // it names no module
};

/// IdleExclusion is an entry, or the expression, of exclude_modules that changes nothing.
struct IdleExclusion {
  std::string entry;
  IdleKind kind = IdleKind::kNoAdapter;
  /// The first module that it names, by its path in memory; of an unknown entry the nearest name,
  /// or "".
  std::string module;
  bool operator==(const IdleExclusion&) const = default;
};

/// Finds what of exclude_modules changes nothing: without it PEFT (check_target_module_exists() of
/// PEFT 0.21.2) would choose the same modules of the whole model. `stored` are the tensors of the
/// model's folder; null if they cannot be read: an entry of a multimodal model that names nothing
/// in the decoder may then name a module of another part, and is passed over. So is the expression
/// of the other parts that exported adapters have (kOtherPartsPattern). Options with a broken
/// expression, which make_adapter() refuses, have none.
std::vector<IdleExclusion> find_idle_exclusions(const ModelConfig& config,
                                                const LoraOptions& options,
                                                const StoredShapes* stored);

}  // namespace ftrun
