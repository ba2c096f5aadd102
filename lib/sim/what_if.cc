#include "sim/what_if.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>

#include "base/amount_text.h"
#include "base/error.h"
#include "base/text.h"
#include "machine/quantity.h"

namespace ftrun {
namespace {

/// The largest factor by which a rank may be slower or faster than others. A larger factor is
/// surely a mistake.
constexpr double kMaxSlowFactor = 1e4;

std::optional<int64_t> parse_whole_number(std::string_view text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return number;
}

SlowRank parse_slow_rank(const std::string& text) {
  constexpr std::string_view kKey = "rank=";
  const size_t colon = text.find(':');
  if (!text.starts_with(kKey) || colon == std::string::npos)
    throw Error(ExitCode::kUsage, cat("--slow ", text, ": expected a rank and how slow it is"),
                "write for example --slow rank=5:1.3");
  const std::string_view rest(text);
  const auto rank = parse_whole_number(rest.substr(kKey.size(), colon - kKey.size()));
  if (!rank || *rank < 0)
    throw Error(ExitCode::kUsage,
                cat("--slow ", text, ": \"", rest.substr(kKey.size(), colon - kKey.size()),
                    "\" is not a rank"),
                "give a rank, counted from 0: for example --slow rank=5:1.3");
  std::string_view after = rest.substr(colon + 1);
  const double times = consume_number(after).value_or(0);
  if (!after.empty() || times < 1 / kMaxSlowFactor || times > kMaxSlowFactor)
    throw Error(ExitCode::kUsage,
                cat("--slow ", text, ": \"", rest.substr(colon + 1), "\" is not a factor above 0"),
                "give for example 1.3 for a rank that takes 30 % longer than the others");
  return {*rank, times};
}

}  // namespace

std::vector<SlowRank> parse_slow_ranks(const std::vector<std::string>& texts) {
  std::vector<SlowRank> slow_ranks;
  for (const std::string& text : texts) {
    const SlowRank one = parse_slow_rank(text);
    for (const SlowRank& other : slow_ranks)
      if (other.rank == one.rank)
        throw Error(ExitCode::kUsage, cat("--slow ", text, ": rank ", one.rank, " is given twice"),
                    "remove one of them");
    slow_ranks.push_back(one);
  }
  return slow_ranks;
}

double slow_factor_of(const std::vector<SlowRank>& slow_ranks, int64_t rank) {
  for (const SlowRank& one : slow_ranks)
    if (one.rank == rank) return one.factor;
  return 1;
}

void check_slow_ranks_exist(const std::vector<SlowRank>& slow_ranks, int64_t ranks) {
  for (const SlowRank& one : slow_ranks)
    if (one.rank >= ranks)
      throw Error(ExitCode::kUsage,
                  cat("--slow rank=", one.rank, ":", number_text(one.factor), ": the run has ",
                      count_text(ranks, "rank"), ", counted from 0"),
                  ranks == 1 ? "give rank 0" : cat("give a rank from 0 to ", ranks - 1));
}

void set_network_bandwidth(const std::string& bandwidth, int64_t nodes, Machine& machine) {
  std::string why;
  const std::optional<double> rate = parse_quantity(bandwidth, QuantityUnit::kNetworkRate, why);
  if (!rate)
    throw Error(ExitCode::kUsage, cat("--network ", why), "write for example --network 200Gb/s");
  if (nodes == 1)
    throw Error(ExitCode::kUsage,
                cat("--network ", bandwidth, ": there is one node, so nothing goes between nodes"),
                "add --nodes, or remove --network");
  if (machine.inter_node_link.bandwidth == 0)
    throw Error(ExitCode::kUsage,
                cat("--network ", bandwidth, ": the machine ", machine.name,
                    " has no links.cluster, so the latency between its nodes is unknown"),
                "add cluster: {latency: 8 us, bandwidth: 200 Gb/s} to the links of its file");
  machine.inter_node_link.bandwidth = *rate;
}

std::string what_if_text(const std::vector<SlowRank>& slow_ranks, const Machine& machine,
                         bool has_network) {
  std::vector<std::string> parts;
  for (const SlowRank& one : slow_ranks)
    parts.push_back(cat("rank ", one.rank, " takes ", number_text(one.factor), " times as long"));
  if (has_network)
    parts.push_back(cat("the network has ",
                        quantity_text(machine.inter_node_link.bandwidth, QuantityUnit::kByteRate)));
  return join(parts, ", ");
}

}  // namespace ftrun
