#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/adapter.h"
#include "model/non_decoder_modules.h"

namespace ftrun {

/// ExclusionProblem says why an entry of exclude_modules changes nothing.
enum class ExclusionProblem : uint8_t {
  kNoAdapter,    // the modules that it names get no adapter anyway
  kHoldsOthers,  // it names modules that only hold others; PEFT excludes by a module's own path
  kUnknown,      // it names no module
};

/// IneffectiveExclusion describes an entry of exclude_modules, or its expression, that changes
/// nothing.
struct IneffectiveExclusion {
  std::string entry;
  ExclusionProblem problem = ExclusionProblem::kNoAdapter;
  /// The first module that the entry names, by its path in memory. For an unknown entry, the
  /// nearest name, or "".
  std::string module;
  bool operator==(const IneffectiveExclusion&) const = default;
};

/// Finds the entries of exclude_modules that change nothing: without them PEFT
/// (check_target_module_exists() of PEFT 0.21.2) would choose the same modules of the whole model.
/// `stored` holds the tensors of the model's folder; null if they cannot be read. In that case an
/// entry of a multimodal model that names nothing in the decoder may name a module of another part,
/// so it is not reported. Neither is the expression of exported adapters that names the other parts
/// (kNonDecoderPattern). Returns nothing for options with a broken expression, which make_adapter()
/// refuses.
std::vector<IneffectiveExclusion> find_ineffective_exclusions(const ModelConfig& config,
                                                              const LoraOptions& options,
                                                              const StoredShapes* stored);

}  // namespace ftrun
