#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"
#include "config/written_config.h"

namespace ftrun {

/// The maximum number of ranks of a run; a larger number is refused as a mistake.
constexpr int64_t kMaxRanks = 1 << 20;

/// RankCount holds the number of ranks of a run, and the rule that determined it.
struct RankCount {
  int64_t ranks = 1;
  /// The rule as text: "the launcher started 8 ranks", "train_batch_size 32 / (micro 4 ×
  /// accumulation 2)".
  std::string rule;
  std::vector<Problem> problems;
  /// Says whether the rule names all degrees of the mesh.
  bool rule_names_mesh = false;
};

/// Determines the number of ranks: the launcher's world size; else --nproc; else the product of the
/// mesh (if parallel.data is an integer); else train_batch_size / (micro × accumulation) times the
/// model-parallel degrees; else 1.
RankCount count_ranks(const WrittenConfig& config, std::optional<int64_t> launcher_world,
                      std::optional<int64_t> nproc);

/// Returns tensor × pipeline × context (AxisRanks::kModel), the number of ranks that share one
/// model; 0 if the product is too large.
int64_t model_ranks(const ParallelConfig& mesh);

/// Formats the degrees above 1: "tensor 2 × context 4"; "" if each rank has a whole model.
std::string model_degrees(const ParallelConfig& mesh);

/// Lists these degrees with a text between name and number: {"tensor: 2", "context: 4"}.
std::vector<std::string> model_degrees(const ParallelConfig& mesh, std::string_view between);

/// Formats the mesh: "data 2 × tensor 3".
std::string mesh_text(const ParallelConfig& mesh);

}  // namespace ftrun
