#pragma once

#include <string>

#include "machine/machine.h"

namespace ftrun {

/// SoftwareStack describes what share of a machine's peak rates another program's kernels and
/// collectives reach, to plan a run of that program. Only the shares are fitted to the program.
struct SoftwareStack {
  std::string name;
  /// The shares of the peak that large matrix multiplications and attention reach.
  double matmul_efficiency = 1;
  double attention_efficiency = 1;
  /// The share of the memory rate that all other work reaches, counted in the passes of ftrun's own
  /// kernels: below 1 also where another program makes more passes.
  double memory_efficiency = 1;
  /// The shares of links.node and links.cluster that communication appears to reach; above 1 if
  /// most of it is hidden behind matrix multiplications of the same layer.
  double intra_node_efficiency = 1;
  double inter_node_efficiency = 1;
  /// Says whether full recompute runs the whole forward list of a layer again, with its last matrix
  /// multiplication and collective, whose results backward does not read.
  bool recomputes_whole_layers = false;

  bool operator==(const SoftwareStack&) const = default;
};

/// EfficiencyField is a share of a stack with its key in stack files.
struct EfficiencyField {
  const char* key;
  double SoftwareStack::*value;
};
inline constexpr EfficiencyField kStackEfficiencies[] = {
    {"products", &SoftwareStack::matmul_efficiency},
    {"attention", &SoftwareStack::attention_efficiency},
    {"memory", &SoftwareStack::memory_efficiency},
    {"node", &SoftwareStack::intra_node_efficiency},
    {"cluster", &SoftwareStack::inter_node_efficiency}};

/// Returns the machine with another program's rates in place of those measured with ftrun's
/// kernels. Small matrix multiplications and attention keep the factor by which they are slower
/// than large ones in the machine file.
Machine apply_stack(const Machine& machine, const SoftwareStack& stack);

}  // namespace ftrun
