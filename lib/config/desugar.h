#pragma once

#include <optional>
#include <utility>

#include "config/node.h"

namespace ftrun {

/// SourceTree is one source of a config as it was written: a file with the adapter's file that it
/// names, or an override.
struct SourceTree {
  /// The sections.
  Node root;
  /// The adapter section is the content of a file of PEFT.
  bool adapter_of_peft = false;
  /// The folder of the adapter that training goes on from, where the source gives it in place of
  /// the adapter section.
  std::optional<Node> adapter_folder = std::nullopt;
};

/// SchemaTree holds what sources say by the keys of the schema; keys that no schema knows stay, for
/// read_config() to refuse. desugar() alone makes one of a source.
class SchemaTree {
 public:
  /// Makes the tree of no source.
  SchemaTree() = default;

  const Node& root() const { return root_; }
  /// Puts a source that is read later on this tree: sections are merged key by key, all else is
  /// replaced, as is what the later source says by another key (config/alternatives.h).
  void put(const SchemaTree& later, Problems& problems);

 private:
  friend SchemaTree desugar(SourceTree source, Problems& problems);
  explicit SchemaTree(Node root) : root_(std::move(root)) {}

  Node root_;
};

/// Translates one source's aliases and deprecated spellings into the keys of the schema, so that
/// sources can be put on each other. Two spellings of one key in one source are an error.
SchemaTree desugar(SourceTree source, Problems& problems);

}  // namespace ftrun
