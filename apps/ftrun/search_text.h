#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "search/search.h"

namespace ftrun {

/// Describes the devices of a machine's nodes: "2 nodes of 8 GPUs (h100-80gb)", with `more` after
/// the machine's name.
std::string machine_place(const Machine& machine, int64_t nodes, std::string_view more = "");

/// Returns the memory of a rank, "23.10 GiB", and the main memory that it needs beside a GPU.
std::string rank_memory_text(const MemoryNeed& memory);

/// Returns a line that says how many layouts had which outcome, and whether the first choice is
/// proved.
std::string counts_text(const SearchTask& task, const SearchResult& result);

/// Returns the reason why a plain choice was not chosen: "needs 95.10 GiB of 78.70 GiB", "0.1 s, 23
/// % slower; waits for collectives take 41 %".
std::string why_not_text(const SearchTask& task, const SearchResult& result,
                         const PlainChoiceComparison& why);

/// Returns the text of a result that `ftrun plan --search` prints.
std::string search_text(const SearchTask& task, const SearchResult& result);

/// Returns the JSON of a result that `ftrun plan --search --json` prints.
nlohmann::ordered_json search_json(const SearchTask& task, const SearchResult& result);

}  // namespace ftrun
