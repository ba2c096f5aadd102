#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "model/description.h"

namespace ftrun {

/// StoredNames maps the names of tensors that a reader needs to those in a folder. Programs store
/// one model under different names: wrappers add their own name to those of what they wrap
/// (torch.compile `_orig_mod.`, DistributedDataParallel `module.`), names of a model inside another
/// model begin with its path there, and a model without its head has no `model.`.
struct StoredNames {
  /// The stored name of each tensor whose stored name differs from the name by which it is read.
  std::map<std::string, std::string> stored_name_of;
  /// The reason why names differ by more than a wrapper or a prefix, as part of a sentence; else
  /// empty.
  std::string cause;
  /// The remedy against `cause`; may be empty.
  std::string remedy;
};

/// Finds `needed_names` in `stored`. The names of `needed_names` begin with `root`, which may be
/// replaced by another prefix, the same one for all names; wrappers' names may be anywhere. A
/// tensor that is stored under its own name, or under two others, has no entry.
StoredNames find_stored_names(const std::vector<std::string>& needed_names,
                              const std::vector<std::string>& stored, std::string_view root);

/// Finds the stored names of a model's tensors in a model folder. A tied matrix may be stored only
/// as the head, as transformers reads it.
StoredNames find_stored_names(const ModelDescription& model,
                              const std::vector<std::string>& stored);

/// Returns an example for a notice: `stored_name for name`; "" where all tensors are stored under
/// their own names.
std::string stored_name_example(const ModelDescription& model, const StoredNames& names);

}  // namespace ftrun
