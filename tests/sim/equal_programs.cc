#include "equal_programs.h"

#include <algorithm>

#include "base/error.h"
#include "sim/walk.h"

namespace ftrun::testing {
namespace {

bool equal(const Buffer& a, const Buffer& b) {
  return a.name == b.name && a.tier == b.tier && a.category == b.category && a.bytes == b.bytes &&
         a.persistent_kind == b.persistent_kind && a.peer_visible == b.peer_visible &&
         a.in_gap == b.in_gap && a.shadow_offset == b.shadow_offset &&
         a.arena_offset == b.arena_offset && a.format == b.format;
}

bool equal(const Binding& a, const Binding& b) {
  return a.value == b.value && a.range == b.range;
}

bool equal_details(const LayerOps& a, const LayerOps& b) {
  return a.graph == b.graph && a.first_op == b.first_op && a.op_count == b.op_count &&
         a.accumulate == b.accumulate &&
         std::equal(a.bindings.begin(), a.bindings.end(), b.bindings.begin(), b.bindings.end(),
                    [](const Binding& x, const Binding& y) { return equal(x, y); });
}
bool equal_details(const Communication& a, const Communication& b) {
  return a.group == b.group && a.dtype == b.dtype && a.is_max == b.is_max && a.shift == b.shift &&
         a.row_elements == b.row_elements;
}
/// Compares updates; the elements that are updated may differ, because they are a rank's own part.
bool equal_details(const UpdateDetail& a, const UpdateDetail& b) {
  return a.decay == b.decay && a.writes_working_copy == b.writes_working_copy &&
         a.blocks.has_value() == b.blocks.has_value();
}
/// Compares slots of the norm; which slots are a rank's own may differ.
bool equal_details(const GradientNormSlots& a, const GradientNormSlots& b) {
  return a.ranks == b.ranks;
}
bool equal_details(const DiskRequest& a, const DiskRequest& b) {
  return a.starts_early == b.starts_early;
}
bool equal_details(std::monostate /*a*/, std::monostate /*b*/) {
  return true;
}
template <typename A, typename B>
bool equal_details(const A& /*a*/, const B& /*b*/) {
  return false;
}

bool equal_fields(const Instr& a, const Instr& b) {
  return a.kind == b.kind && a.lane == b.lane && a.waits == b.waits && a.if_finite == b.if_finite &&
         a.layer == b.layer && a.micro_batch == b.micro_batch && a.unit == b.unit &&
         std::visit([](const auto& x, const auto& y) { return equal_details(x, y); }, a.detail,
                    b.detail);
}

/// Returns whether instructions of this kind may touch a rank's own part of a whole.
bool touches_parts(const Instr& instr) {
  switch (instr.kind) {
    case InstrKind::kAllReduce:
    case InstrKind::kReduceScatter:
    case InstrKind::kAllGather:
    case InstrKind::kAllToAll:
    case InstrKind::kCountedAllToAll:
    case InstrKind::kShift:
    case InstrKind::kCopy:
    case InstrKind::kAccumulate:
    case InstrKind::kGradientNorm:
    case InstrKind::kComputeScales:
    case InstrKind::kUpdate:
      return true;
    default:
      return false;
  }
}

bool equal_ranges(const std::vector<BufferRange>& a, const std::vector<BufferRange>& b,
                  bool parts) {
  return std::equal(
      a.begin(), a.end(), b.begin(), b.end(), [&](const BufferRange& x, const BufferRange& y) {
        return x.buffer == y.buffer && x.bytes == y.bytes && (parts || x.offset == y.offset);
      });
}

bool equal_groups(const Program& a, const Program& b) {
  return std::equal(a.groups.begin(), a.groups.end(), b.groups.begin(), b.groups.end(),
                    [](const ProgramGroup& x, const ProgramGroup& y) {
                      return x.members.label == y.members.label && x.place.count == y.place.count;
                    });
}

/// Returns the first difference in what ranks announce in collectives, which includes the offsets
/// of wholes: these must not depend on the rank.
std::string difference_of_collectives(const Program& a, const Program& b) {
  const LaneSchedule one = make_lane_schedule(a);
  const LaneSchedule other = make_lane_schedule(b);
  for (size_t lane = 0; lane < one.lanes.size(); ++lane)
    for (size_t i = 0; i < one.lanes[lane].size(); ++i)
      if (one.lanes[lane][i].announcement_hash != other.lanes[lane][i].announcement_hash)
        return numbered_instr_text(a, one.lanes[lane][i].instr) + " meets others";
  return "";
}

}  // namespace

std::string difference_but_place(const Program& a, const Program& b) {
  if (!std::equal(a.buffers.begin(), a.buffers.end(), b.buffers.begin(), b.buffers.end(),
                  [](const Buffer& x, const Buffer& y) { return equal(x, y); }))
    return "buffers";
  if (a.arena_bytes != b.arena_bytes) return "arenas";
  if (a.initialized_ranges != b.initialized_ranges) return "what is given";
  if (!equal_groups(a, b)) return "groups";
  if (a.instrs.size() != b.instrs.size())
    return cat(a.instrs.size(), " and ", b.instrs.size(), " instructions");
  for (size_t i = 0; i < a.instrs.size(); ++i) {
    const Instr& x = a.instrs[i];
    const Instr& y = b.instrs[i];
    const bool parts = touches_parts(x);
    if (!equal_fields(x, y) || !equal_ranges(x.reads, y.reads, parts) ||
        !equal_ranges(x.writes, y.writes, parts))
      return numbered_instr_text(a, static_cast<InstrId>(i));
  }
  return difference_of_collectives(a, b);
}

}  // namespace ftrun::testing
