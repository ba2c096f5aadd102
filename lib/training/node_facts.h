#pragma once

#include <span>
#include <string>
#include <vector>

#include "config/config.h"
#include "inputs/run_data.h"
#include "report/run_manifest.h"

namespace ftrun {

/// NodeFact is a fact that must be equal on all nodes of a run. It has a name, such as "the ftrun
/// binary", and a value, a fingerprint or size. Neither contains a tab or a line feed.
struct NodeFact {
  std::string name;
  std::string value;
};

/// Lists the version of the program and the fingerprints of its files as this process runs them.
std::vector<NodeFact> program_facts(const BuildInfo& build);

/// Lists facts about model, adapter and data as this node reads them from the config's paths:
/// sizes, and XXH3 hashes of samples (config.json as a whole, up to 20 pieces of 4 KiB of each
/// weights file, up to 32 sequences of each data set). Throws the errors of reading.
std::vector<NodeFact> input_facts(const Config& config, const RunData& data);

/// Lists the driver version of this node's GPUs, and the version of the kernel module if the system
/// reports it.
std::vector<NodeFact> driver_facts(int cuda_version);

/// Formats facts as text for an exchange between ranks.
std::string facts_text(std::span<const NodeFact> facts);

/// Returns a line for each fact in which a node differs from rank 0's node, with each node once: "
/// n2 (rank 1): the ftrun binary is 5d...; on n1 (rank 0): 7a...". `texts` are facts_text() of all
/// ranks, `nodes` the names of their nodes. Returns "" if all nodes are equal.
std::string differing_facts_text(std::span<const std::string> texts,
                                 std::span<const std::string> nodes);

}  // namespace ftrun
