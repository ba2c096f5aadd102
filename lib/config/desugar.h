#pragma once

#include <optional>
#include <utility>

#include "config/config_node.h"

namespace ftrun {

/// ConfigSourceTree is one source of a config as it was written: a file together with the adapter's
/// file that it names, or an override.
struct ConfigSourceTree {
  /// The root node of the source's sections.
  ConfigNode root;
  /// Says whether the adapter section was read from a PEFT file.
  bool has_peft_adapter = false;
  /// The folder of the adapter that training continues from, if the source gives it in place of the
  /// adapter section.
  std::optional<ConfigNode> adapter_folder = std::nullopt;
};

/// DesugaredTree holds the content of sources under the keys of the schema. Unknown keys are kept,
/// and read_config() refuses them. Only desugar() makes one from a source.
class DesugaredTree {
 public:
  /// Makes an empty tree.
  DesugaredTree() = default;

  const ConfigNode& root() const { return root_; }
  /// Merges a source that is read later into this tree: sections are merged key by key, all other
  /// values are replaced. Keys that contradict keys of the later source are removed
  /// (config/contradicted_keys.h).
  void merge(const DesugaredTree& later, Problems& problems);

 private:
  friend DesugaredTree desugar(ConfigSourceTree source, Problems& problems);
  explicit DesugaredTree(ConfigNode root) : root_(std::move(root)) {}

  ConfigNode root_;
};

/// Translates one source's aliases and deprecated spellings into the keys of the schema, so that
/// sources can be merged. Two spellings of one key in one source are an error.
DesugaredTree desugar(ConfigSourceTree source, Problems& problems);

}  // namespace ftrun
