#include "cluster/slurm_lists.h"

#include <charconv>
#include <optional>

#include "base/error.h"
#include "base/text.h"

namespace ftrun {
namespace {

constexpr size_t kMaxHosts = 65536;

[[noreturn]] void throw_malformed(const char* what, std::string_view text) {
  throw Error(ExitCode::kUsage, cat("cannot read SLURM's ", what, " \"", text, "\""),
              "set MASTER_ADDR, RANK, WORLD_SIZE and LOCAL_RANK yourself, or report this text");
}

std::optional<int> parse_whole_number(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size() || value < 0)
    return std::nullopt;
  return value;
}

/// Splits at commas that are not inside brackets.
std::vector<std::string> split_outside_brackets(std::string_view text) {
  std::vector<std::string> parts(1);
  int depth = 0;
  for (const char c : text) {
    if (c == '[') ++depth;
    if (c == ']') --depth;
    if (depth < 0 || depth > 1) throw_malformed("host list", text);
    if (c == ',' && depth == 0) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  if (depth != 0) throw_malformed("host list", text);
  return parts;
}

std::string zero_padded(int value, size_t width) {
  std::string digits = std::to_string(value);
  if (digits.size() < width) digits.insert(0, width - digits.size(), '0');
  return digits;
}

/// Expands a range: "01-03" gives 01 02 03; "7" gives 7. The numbers keep the width of the first
/// bound.
std::vector<std::string> expand_range(std::string_view range, std::string_view host_list) {
  const size_t dash = range.find('-');
  const std::string_view first = range.substr(0, dash);
  const std::string_view last = dash == range.npos ? first : range.substr(dash + 1);
  const auto from = parse_whole_number(first), to = parse_whole_number(last);
  if (!from || !to || *from > *to || static_cast<size_t>(*to - *from) >= kMaxHosts)
    throw_malformed("host list", host_list);
  std::vector<std::string> values;
  for (int i = *from; i <= *to; ++i) values.push_back(zero_padded(i, first.size()));
  return values;
}

/// Lists the hosts of one pattern; its brackets are expanded from left to right.
std::vector<std::string> expand_pattern(std::string_view pattern, std::string_view host_list) {
  std::vector<std::string> hosts = {""};
  while (!pattern.empty()) {
    const size_t open = pattern.find('[');
    for (std::string& host : hosts) host += pattern.substr(0, open);
    if (open == pattern.npos) break;
    const size_t close = pattern.find(']', open);
    std::vector<std::string> wider;
    for (const std::string& range : split(pattern.substr(open + 1, close - open - 1), ',')) {
      for (const std::string& value : expand_range(range, host_list)) {
        for (const std::string& host : hosts) wider.push_back(host + value);
        if (wider.size() > kMaxHosts) throw_malformed("host list", host_list);
      }
    }
    hosts = std::move(wider);
    pattern.remove_prefix(close + 1);
  }
  return hosts;
}

}  // namespace

std::vector<std::string> expand_hostlist(std::string_view text) {
  std::vector<std::string> hosts;
  for (const std::string& pattern : split_outside_brackets(text)) {
    for (std::string& host : expand_pattern(pattern, text)) {
      if (host.empty()) throw_malformed("host list", text);
      hosts.push_back(std::move(host));
    }
    if (hosts.size() > kMaxHosts) throw_malformed("host list", text);
  }
  return hosts;
}

std::vector<int> expand_tasks_per_node(std::string_view text) {
  std::vector<int> tasks;
  for (const std::string& part : split(text, ',')) {
    const size_t open = part.find("(x");
    const bool repeated = open != std::string::npos;
    const auto count = parse_whole_number(std::string_view(part).substr(0, open));
    if (repeated && part.back() != ')') throw_malformed("tasks per node", text);
    const auto times =
        repeated
            ? parse_whole_number(std::string_view(part).substr(open + 2, part.size() - open - 3))
            : 1;
    if (!count || !times || *count < 1 || *times < 1) throw_malformed("tasks per node", text);
    if (tasks.size() + static_cast<size_t>(*times) > kMaxHosts)
      throw_malformed("tasks per node", text);
    tasks.insert(tasks.end(), static_cast<size_t>(*times), *count);
  }
  return tasks;
}

}  // namespace ftrun
