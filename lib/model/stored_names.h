#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "model/description.h"

namespace ftrun {

/// StoredNames says how a folder spells the names of tensors that a reader wants. Programs store
/// one model under several spellings: wrappers leave their own names in those of what they wrap
/// (torch.compile `_orig_mod.`, DistributedDataParallel `module.`), models inside others have their
/// place in front, and a model without its head has no `model.`.
struct StoredNames {
  /// The stored name of each tensor that is stored under another name than the one that it is read
  /// by.
  std::map<std::string, std::string> stored;
  /// The reason why names differ by more than a wrapper or a prefix, as a sentence's part; else
  /// empty.
  std::string cause;
  /// The remedy against `cause`; may be empty.
  std::string remedy;
};

/// Finds `wanted` in `stored`. The names of `wanted` begin with `root`, for which another prefix
/// may stand, the same one for all of them; wrappers' names may stand anywhere. A tensor that is
/// stored under its own name, or under two others, has no entry.
StoredNames find_stored_names(const std::vector<std::string>& wanted,
                              const std::vector<std::string>& stored, std::string_view root);

/// Finds the stored names of a model's tensors in a model folder. A tied matrix may be stored only
/// as the head, as transformers reads it.
StoredNames find_stored_names(const ModelDescription& model,
                              const std::vector<std::string>& stored);

/// Returns an example of a spelling for a notice: `stored_name for name`; "" where all have their
/// own names.
std::string spelling_text(const ModelDescription& model, const StoredNames& names);

}  // namespace ftrun
