#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "search/search.h"

namespace ftrun {

/// Describes the devices of a machine's nodes: "2 nodes of 8 GPUs (h100-80gb)". `suffix` is added
/// after the machine's name.
std::string machine_text(const Machine& machine, int64_t nodes, std::string_view suffix = "");

/// Returns the device memory of a rank, "23.10 GiB", and the main memory that it needs in addition
/// to a GPU.
std::string rank_memory_text(const MemoryNeed& memory);

/// Returns a line with the number of layouts by outcome, and whether the first choice is proved to
/// be the best.
std::string search_counts_text(const SearchTask& task, const SearchResult& result);

/// Returns the reason why a common setting was not chosen: "needs 95.10 GiB of 78.70 GiB", "0.1 s,
/// 23 % slower; waits for collectives take 41 %".
std::string why_not_text(const SearchTask& task, const SearchResult& result,
                         const CommonSettingComparison& comparison);

/// Returns the text of a search result, as `ftrun plan --search` prints it.
std::string search_text(const SearchTask& task, const SearchResult& result);

/// Returns the JSON of a search result, as `ftrun plan --search --json` prints it.
nlohmann::ordered_json search_json(const SearchTask& task, const SearchResult& result);

}  // namespace ftrun
