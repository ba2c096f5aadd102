#include "model/stored_names.h"

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "model/tensors.h"

namespace ftrun {
namespace {

/// The names of modules that wrap another module and add nothing to it
/// (scripts/import_checkpoint.py has the same list), and "default", PEFT's name for an adapter
/// without a name: it is a part of names in memory, and PEFT's own files leave it out.
constexpr std::array<std::string_view, 6> kWrappers{
    "module",          "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module",
    "_forward_module", "default"};
/// The parts that PEFT's adapters add to the names of the modules that they adapt.
constexpr std::array<std::string_view, 3> kAdapterParts{".base_layer.", ".lora_A.",
                                                        ".modules_to_save."};

std::string without_wrappers(const std::string& name) {
  std::vector<std::string> parts = split(name, '.');
  std::erase_if(parts, [](const std::string& part) {
    return std::find(kWrappers.begin(), kWrappers.end(), part) != kWrappers.end();
  });
  return join(parts, ".");
}

/// Maps names without wrappers to the stored names. If two stored names become the same, the one
/// without a wrapper counts; if both have one, neither does.
std::map<std::string, std::string> map_unwrapped_names(const std::vector<std::string>& stored) {
  std::map<std::string, std::string> plain;
  std::set<std::string> ambiguous;
  for (const std::string& name : stored) {
    const std::string bare = without_wrappers(name);
    const auto [at, added] = plain.emplace(bare, name);
    if (added) continue;
    if (name == bare) at->second = name;
    if (at->second != bare) ambiguous.insert(bare);
  }
  for (const std::string& name : ambiguous)
    if (plain.at(name) != name) plain.erase(name);
  return plain;
}

/// Counts, for each prefix of the stored names, how many of `cores` follow it. A prefix is empty or
/// ends with a dot.
std::map<std::string, size_t> count_prefixes(const std::map<std::string, std::string>& plain,
                                             const std::set<std::string, std::less<>>& cores) {
  std::map<std::string, size_t> counts;
  for (const auto& [name, stored_name] : plain) {
    size_t begin = 0;  // where a part of the name begins
    do {
      if (cores.contains(std::string_view(name).substr(begin))) ++counts[name.substr(0, begin)];
      begin = name.find('.', begin) + 1;
    } while (begin != 0);
  }
  return counts;
}

/// Returns the prefixes that the most cores follow; only `root` if any core follows it.
std::vector<std::string> most_frequent_prefixes(const std::map<std::string, size_t>& counts,
                                                std::string_view root) {
  if (counts.contains(std::string(root))) return {std::string(root)};
  std::vector<std::string> best;
  size_t highest = 0;
  for (const auto& [prefix, count] : counts) {
    if (count > highest) best.clear();
    if (count >= highest) best.push_back(prefix);
    highest = std::max(highest, count);
  }
  return best;
}

/// Finds the only stored tensor that is the model's head, or its bias; nothing if there is none, or
/// if there are several, none of them under its own name.
std::optional<std::string> find_head(const std::map<std::string, std::string>& plain,
                                     const std::string& head) {
  if (const auto exact = plain.find(head); exact != plain.end()) return exact->second;
  std::optional<std::string> head_name;
  const std::string end = cat('.', head);
  for (const auto& [name, stored_name] : plain) {
    if (!name.ends_with(end)) continue;
    if (head_name) return std::nullopt;
    head_name = stored_name;
  }
  return head_name;
}

/// Sets cause and remedy: what the folder holds in place of the needed tensors.
void explain_missing(const std::vector<std::string>& stored,
                     const std::vector<std::string>& prefixes, StoredNames& names) {
  const auto is_adapters = [](const std::string& name) {
    return std::any_of(kAdapterParts.begin(), kAdapterParts.end(),
                       [&](std::string_view part) { return name.find(part) != std::string::npos; });
  };
  if (const auto part = std::find_if(stored.begin(), stored.end(), is_adapters);
      part != stored.end()) {
    names.cause = cat("they are those of a model with an adapter that is not merged into it (\"",
                      *part, "\")");
    names.remedy =
        "merge it and save the model again (PEFT: merge_and_unload(), then save_pretrained())";
  } else if (prefixes.size() > 1) {
    names.cause = cat("the folder holds the tensors ", prefixes.size(), " times, under \"",
                      join(prefixes, "\", \""), "\"");
    names.remedy = "save only the model that should be trained";
  } else if (prefixes.empty() && !stored.empty()) {
    names.cause = cat("none of the model's tensors is there, under any prefix; the first of ",
                      stored.size(), " is called \"", stored.front(), "\"");
  }
}

}  // namespace

StoredNames find_stored_names(const std::vector<std::string>& needed_names,
                              const std::vector<std::string>& stored, std::string_view root) {
  StoredNames names;
  const std::map<std::string, std::string> plain = map_unwrapped_names(stored);
  std::set<std::string, std::less<>> cores;
  for (const std::string& name : needed_names)
    if (name.starts_with(root)) cores.insert(name.substr(root.size()));
  const std::vector<std::string> prefixes =
      most_frequent_prefixes(count_prefixes(plain, cores), root);
  if (prefixes.size() == 1)
    for (const std::string& core : cores)
      if (const auto found = plain.find(prefixes.front() + core);
          found != plain.end() && found->second != cat(root, core))
        names.stored_name_of[cat(root, core)] = found->second;
  const auto is_found = [&](const std::string& name) {
    return names.stored_name_of.contains(name) ||
           std::find(stored.begin(), stored.end(), name) != stored.end();
  };
  if (!std::all_of(needed_names.begin(), needed_names.end(), is_found))
    explain_missing(stored, prefixes, names);
  return names;
}

StoredNames find_stored_names(const ModelDescription& model,
                              const std::vector<std::string>& stored) {
  std::vector<std::string> needed_names;
  for (const TensorInfo& tensor : model.tensors) {
    if (tensor.initial.source != InitialSource::kFolder) continue;
    for (std::string& name : tensor.file_names()) needed_names.push_back(std::move(name));
  }
  const TensorNames& family = tensor_names(model.family);
  StoredNames names = find_stored_names(needed_names, stored, family.root);
  const std::map<std::string, std::string> plain = map_unwrapped_names(stored);
  const std::string bias_name = cat(family.head, ".bias");
  if (std::find(needed_names.begin(), needed_names.end(), bias_name) != needed_names.end())
    if (const auto bias = find_head(plain, bias_name); bias && *bias != bias_name)
      names.stored_name_of[bias_name] = *bias;
  const std::string head_name = cat(family.head, ".weight");
  const auto head = find_head(plain, head_name);
  if (!head) return names;
  const std::string embedding = cat(family.embedding, ".weight");
  const bool is_alone = !names.stored_name_of.contains(embedding) &&
                        std::find(stored.begin(), stored.end(), embedding) == stored.end();
  if (model.tied && is_alone)
    names.stored_name_of[embedding] = *head;
  else if (*head != head_name)
    names.stored_name_of[head_name] = *head;
  return names;
}

std::string stored_name_example(const ModelDescription& model, const StoredNames& names) {
  const TensorNames& family = tensor_names(model.family);
  const std::string embedding = cat(family.embedding, ".weight"),
                    head = cat(family.head, ".weight");
  for (const auto& [name, stored] : names.stored_name_of)
    if (name != embedding || !stored.ends_with(head))
      return cat("\"", stored, "\" for \"", name, "\"");
  return "";
}

}  // namespace ftrun
