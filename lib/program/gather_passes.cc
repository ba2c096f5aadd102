#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>
#include <utility>
#include <vector>

#include "base/error.h"
#include "program/passes.h"
#include "program/step_builder.h"

namespace ftrun {
namespace {

/// The instructions that bring one unit's parameters, which stand right before their first reader.
struct Chain {
  size_t begin = 0;
  size_t end = 0;
  /// Where the parameters arrive, and their elements.
  BufferId buffer = -1;
  int64_t elements = 0;
  int32_t unit = -1;
  /// Last instruction that touches the buffer.
  size_t last_use = 0;
};

bool touches(const Instr& instr, BufferId buffer) {
  const auto is_it = [&](const Range& range) { return range.buffer == buffer; };
  return std::any_of(instr.reads.begin(), instr.reads.end(), is_it) ||
         std::any_of(instr.writes.begin(), instr.writes.end(), is_it);
}

std::vector<Chain> find_chains(const Program& program) {
  std::vector<Chain> chains;
  for (size_t i = 0; i < program.instrs.size();) {
    if (!program.instrs[i].ahead) {
      ++i;
      continue;
    }
    Chain chain{.begin = i, .unit = program.instrs[i].unit};
    while (i < program.instrs.size() && program.instrs[i].ahead &&
           program.instrs[i].unit == chain.unit)
      ++i;
    chain.end = i;
    // The last thing that it does may be to keep a part.
    size_t arrival = i - 1;
    while (program.at(program.instrs[arrival].writes[0].buffer).persistent) --arrival;
    const Range& arrives = program.instrs[arrival].writes[0];
    chain.buffer = arrives.buffer;
    chain.elements = element_count(program, arrives);
    chains.push_back(chain);
  }
  std::map<BufferId, size_t> last;
  for (size_t i = 0; i < program.instrs.size(); ++i) {
    for (const Range& range : program.instrs[i].reads) last[range.buffer] = i;
    for (const Range& range : program.instrs[i].writes) last[range.buffer] = i;
  }
  for (Chain& chain : chains) chain.last_use = last[chain.buffer];
  return chains;
}

/// Elements of gathered parameters alive at each instruction.
std::vector<int64_t> live_elements(const Program& program, const std::vector<Chain>& chains) {
  std::vector<int64_t> live(program.instrs.size(), 0);
  for (const Chain& chain : chains)
    for (size_t i = chain.begin; i <= chain.last_use; ++i) live[i] += chain.elements;
  return live;
}

void rename_buffer(Instr& instr, BufferId from, BufferId to) {
  const auto rename = [&](Range& range) {
    if (range.buffer == from) range.buffer = to;
  };
  for (Range& range : instr.reads) rename(range);
  for (Range& range : instr.writes) rename(range);
  for (Binding& binding : instr.bindings) rename(binding.range);
}

void drop(Program& program, const std::vector<char>& dropped) {
  std::vector<Instr> kept;
  for (size_t i = 0; i < program.instrs.size(); ++i)
    if (dropped[i] == 0) kept.push_back(std::move(program.instrs[i]));
  program.instrs = std::move(kept);
}

}  // namespace

Program reuse_gathered(Program program, int64_t reuse_distance, int64_t max_live_elements) {
  if (reuse_distance <= 0) return program;
  std::vector<Chain> chains = find_chains(program);
  std::vector<int64_t> live = live_elements(program, chains);
  std::vector<char> dropped(program.instrs.size(), 0);
  std::map<int32_t, size_t> before;  // the last chain of each unit
  for (size_t c = 0; c < chains.size(); ++c) {
    Chain& chain = chains[c];
    const auto found = before.find(chain.unit);
    if (found == before.end()) {
      before[chain.unit] = c;
      continue;
    }
    Chain& earlier = chains[found->second];
    int64_t distance = 0;
    for (const Chain& other : chains)
      if (other.begin > earlier.last_use && other.begin < chain.begin) distance += other.elements;
    int64_t peak = 0;
    for (size_t i = earlier.last_use + 1; i < chain.begin; ++i) peak = std::max(peak, live[i]);
    if (distance > reuse_distance || peak > max_live_elements - chain.elements) {
      before[chain.unit] = c;
      continue;
    }
    for (size_t i = earlier.last_use + 1; i < chain.begin; ++i) live[i] += chain.elements;
    std::fill(dropped.begin() + static_cast<std::ptrdiff_t>(chain.begin),
              dropped.begin() + static_cast<std::ptrdiff_t>(chain.end), 1);
    for (size_t i = chain.end; i < program.instrs.size(); ++i)
      if (touches(program.instrs[i], chain.buffer))
        rename_buffer(program.instrs[i], chain.buffer, earlier.buffer);
    earlier.last_use = chain.last_use;
  }
  drop(program, dropped);
  return program;
}

namespace {

/// Where the secondary shards of the units lie that are gathered over the shards more than once.
std::map<int32_t, Range> place_secondary(Program& program, const std::vector<Chain>& chains,
                                         const StateGroups& groups) {
  const ShardPlace node = program.place_in(groups.node);
  std::map<int32_t, std::vector<const Instr*>> gathers;
  for (const Chain& chain : chains) {
    const Instr& gather = program.instrs[chain.end - 1];
    if (gather.group == groups.shard) gathers[chain.unit].push_back(&gather);
  }
  Buffer buffer{.name = buffer_names::kSecondary,
                .category = Category::kParameters,
                .persistent = true,
                .peer_visible = true};
  const auto id = static_cast<BufferId>(program.buffers.size());
  std::map<int32_t, Range> parts;
  for (const auto& [unit, of_unit] : gathers) {
    if (of_unit.size() < 2) continue;
    const int64_t part = of_unit[0]->writes[0].bytes / node.count;
    require(part % of_unit[0]->reads[0].bytes == 0, "the parts of a node are whole strides");
    parts[unit] = {id, buffer.bytes, part};
    buffer.bytes += part;
    buffer.dtype = of_unit[0]->dtype;
  }
  if (!parts.empty()) program.buffers.push_back(std::move(buffer));
  return parts;
}

/// On the lane of the gather, so that compute does not wait for it.
Instr keep_part(const Instr& gather, const Range& part, ShardPlace node) {
  Instr copy = gather;
  copy.kind = InstrKind::kCopy;
  copy.group = kNoGroup;
  copy.dtype = Instr().dtype;
  copy.reads = {{gather.writes[0].buffer, node.index * part.bytes, part.bytes}};
  copy.writes = {part};
  return copy;
}

}  // namespace

Program gather_within_nodes(Program program, const StateGroups& groups) {
  if (groups.node == kNoGroup) return program;
  const ShardPlace node = program.place_in(groups.node);
  const std::vector<Chain> chains = find_chains(program);
  const std::map<int32_t, Range> parts = place_secondary(program, chains, groups);
  std::map<int32_t, int> times;
  std::vector<Instr> result;
  size_t next = 0;
  const auto keep = [&](size_t begin, size_t end) {
    for (; begin < end; ++begin) result.push_back(std::move(program.instrs[begin]));
  };
  for (const Chain& chain : chains) {
    const auto part = parts.find(chain.unit);
    if (part == parts.end()) continue;
    if (++times[chain.unit] == 1) {
      keep(next, chain.end);
      result.push_back(keep_part(result.back(), part->second, node));
    } else {
      keep(next, chain.begin);
      result.push_back(std::move(program.instrs[chain.end - 1]));
      result.back().group = groups.node;
      result.back().lane = lane_of(groups.node);
      result.back().reads = {part->second};
    }
    next = chain.end;
  }
  keep(next, program.instrs.size());
  program.instrs = std::move(result);
  return program;
}

Program prefetch_gathers(Program program, int64_t prefetch_elements, int64_t max_live_elements) {
  const std::vector<Chain> chains = find_chains(program);
  if (chains.empty() || prefetch_elements <= 0) return program;
  std::vector<std::vector<int64_t>> dies(program.instrs.size());  // elements by last use
  for (const Chain& chain : chains) dies[chain.last_use].push_back(chain.elements);
  std::vector<Instr> result;
  size_t next = 0;    // the first chain that is not placed yet
  int64_t ahead = 0;  // elements placed whose reader is still to come
  int64_t live = 0;   // elements placed and not read for the last time
  const auto place = [&](const Chain& chain) {
    std::move(program.instrs.begin() + static_cast<std::ptrdiff_t>(chain.begin),
              program.instrs.begin() + static_cast<std::ptrdiff_t>(chain.end),
              std::back_inserter(result));
    ahead += chain.elements;
    live += chain.elements;
  };
  size_t read = 0;  // chains before it have met their first reader
  for (size_t i = 0; i < program.instrs.size(); ++i) {
    if (read < chains.size() && i >= chains[read].begin && i < chains[read].end) {
      // Its place in the plain program: here at the latest.
      if (next == read) place(chains[next++]);
      if (i + 1 == chains[read].end) ahead -= chains[read++].elements;
      continue;
    }
    const bool works = program.instrs[i].lane == Lane::kCompute && program.instrs[i].graph >= 0;
    // A unit that is larger than the limit still comes beside the work before it.
    const auto may_come = [&](int64_t elements) {
      return (ahead == 0 || ahead + elements <= prefetch_elements) &&
             live + elements <= max_live_elements;
    };
    while (works && next < chains.size() && may_come(chains[next].elements)) place(chains[next++]);
    result.push_back(std::move(program.instrs[i]));
    for (const int64_t elements : dies[i]) live -= elements;
  }
  program.instrs = std::move(result);
  return program;
}

}  // namespace ftrun
