#include "program/program.h"

#include <algorithm>
#include <array>
#include <sstream>

#include "base/checksum.h"
#include "base/enum_names.h"
#include "base/error.h"
#include "base/text.h"

namespace ftrun {

bool overlaps(const BufferRange& a, const BufferRange& b) {
  return a.buffer == b.buffer && a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
}

void add_range(std::vector<BufferRange>& ranges, const BufferRange& range) {
  for (BufferRange& known : ranges) {
    if (known.buffer != range.buffer) continue;
    if (known.offset + known.bytes == range.offset) {
      known.bytes += range.bytes;
      return;
    }
    if (range.offset >= known.offset && range.offset + range.bytes <= known.offset + known.bytes)
      return;
  }
  ranges.push_back(range);
}

CollectiveKind collective_kind(InstrKind kind) {
  switch (kind) {
#define FTRUN_STEP_COLLECTIVE(kind, name) \
  case InstrKind::kind:                   \
    return CollectiveKind::kind;
#define FTRUN_OTHER_COLLECTIVE(kind, name)
#include "base/collectives.inc"
    default:  // The list has all kinds that communicate.
      bug(cat(instr_name(kind), " is not a collective"));
  }
}

InstrKind instr_kind(CollectiveKind kind) {
  switch (kind) {
#define FTRUN_STEP_COLLECTIVE(kind, name) \
  case CollectiveKind::kind:              \
    return InstrKind::kind;
#define FTRUN_OTHER_COLLECTIVE(kind, name) \
  case CollectiveKind::kind:               \
    break;
#include "base/collectives.inc"
  }
  bug(cat("no instruction runs a ", collective_name(kind)));
}

std::string_view lane_name(Lane lane) {
  static constexpr std::array<std::string_view, 5> kNames{"compute", "to device", "to host", "disk",
                                                          "communication"};
  return kNames[static_cast<size_t>(std::min(lane, Lane::kFirstGroup))];
}

std::string_view tier_name(Tier tier) {
  static constexpr std::array<std::string_view, 3> kNames{"device", "host", "nvme"};
  return kNames[static_cast<size_t>(tier)];
}

std::string_view category_name(Category category) {
  static constexpr auto kNames =
      enum_names<Category>({"parameters", "gradients", "optimizer", "activations", "buckets",
                            "staging", "sums", "snapshot"});
  return kNames[static_cast<size_t>(category)];
}

std::string_view category_key(Category category) {
  return category == Category::kSums ? "buffers" : category_name(category);
}

Arena arena_of(const Buffer& buffer) {
  if (buffer.tier == Tier::kHost) return Arena::kHost;
  return in_shared_memory(buffer) ? Arena::kShared : Arena::kDevice;
}

BufferId find_persistent_buffer(const Program& program, PersistentKind which, Tier tier) {
  for (size_t b = 0; b < program.buffers.size(); ++b)
    if (program.buffers[b].persistent_kind == which && program.buffers[b].tier == tier)
      return static_cast<BufferId>(b);
  return -1;
}

BufferId find_result_buffer(const Program& program) {
  for (size_t b = 0; b < program.buffers.size(); ++b)
    if (program.buffers[b].is_result) return static_cast<BufferId>(b);
  return -1;
}

bool share_bytes(const Program& program, const BufferRange& a, const BufferRange& b) {
  const Buffer& x = program.at(a.buffer);
  const Buffer& y = program.at(b.buffer);
  if (x.persistent_kind || y.persistent_kind || arena_of(x) != arena_of(y)) return overlaps(a, b);
  const int64_t begin = x.arena_offset + a.offset;
  const int64_t other = y.arena_offset + b.offset;
  return begin < other + b.bytes && other < begin + a.bytes;
}

bool share_written_bytes(const Program& program, const Instr& a, const Instr& b) {
  const auto overlap = [&](const std::vector<BufferRange>& some,
                           const std::vector<BufferRange>& others) {
    return std::any_of(some.begin(), some.end(), [&](const BufferRange& x) {
      return std::any_of(others.begin(), others.end(),
                         [&](const BufferRange& y) { return share_bytes(program, x, y); });
    });
  };
  return overlap(a.writes, b.reads) || overlap(a.reads, b.writes) || overlap(a.writes, b.writes);
}

int lane_count(const Program& program) {
  return static_cast<int>(Lane::kFirstGroup) + static_cast<int>(program.groups.size());
}

const ProgramGroup* group_of_lane(const Program& program, Lane lane) {
  const auto group = static_cast<GroupId>(lane) - static_cast<GroupId>(Lane::kFirstGroup);
  return group >= 0 && group < static_cast<GroupId>(program.groups.size()) ? &program.group(group)
                                                                           : nullptr;
}

bool is_link(const Program& program, Lane lane) {
  const ProgramGroup* group = group_of_lane(program, lane);
  return group != nullptr && group->members.is_link();
}

bool is_between_stages(const Program& program, Lane lane) {
  const ProgramGroup* group = group_of_lane(program, lane);
  return group != nullptr && group->members.axes().intersects(kStageAxes);
}

Instr make_collective(InstrKind kind, const Communication& communication, const BufferRange& in,
                      const BufferRange& out, int32_t unit) {
  return {.kind = kind,
          .lane = lane_of(communication.group),
          .reads = {in},
          .writes = {out},
          .unit = unit,
          .detail = communication};
}

Instr make_copy(const Program& program, const BufferRange& from, const BufferRange& to,
                int32_t unit) {
  const Tier source = program.at(from.buffer).tier;
  const Tier target = program.at(to.buffer).tier;
  Lane lane = Lane::kCompute;
  if (source == Tier::kDisk || target == Tier::kDisk)
    lane = Lane::kDisk;
  else if (source != target)
    lane = target == Tier::kHost ? Lane::kToHost : Lane::kToDevice;
  return {.kind = InstrKind::kCopy, .lane = lane, .reads = {from}, .writes = {to}, .unit = unit};
}

int64_t element_count(const Program& program, const BufferRange& range) {
  return range.bytes / dtype_bytes(program.at(range.buffer).format.dtype);
}

std::string instr_label(const Instr& instr) {
  std::string text(instr_name(instr.kind));
  const auto add = [&](const char* what, int64_t number) {
    if (number >= 0) append_text(text, what, number);
  };
  add(" layer ", instr.layer);
  add(" unit ", instr.unit);
  add(" mb ", instr.micro_batch);
  return text;
}

namespace {

std::string range_text(const Program& program, const BufferRange& range) {
  const Buffer& buffer = program.at(range.buffer);
  if (range.offset == 0 && range.bytes == buffer.bytes) return buffer.name;
  return cat(buffer.name, "[", range.offset, "+", range.bytes, "]");
}

/// Returns the symbol that marks a lane in the program text; "" for the compute lane.
std::string_view lane_mark(Lane lane) {
  static constexpr std::array<std::string_view, 5> kMarks{"", "> ", "< ", "= ", "| "};
  return kMarks[static_cast<size_t>(std::min(lane, Lane::kFirstGroup))];
}

/// Returns " over tensor", or " over context by 1".
std::string group_text(const Program& program, const Instr& instr) {
  if (instr.group() == kNoGroup) return "";
  const std::string text = cat(" over ", program.group(instr.group()).members.label);
  return instr.kind == InstrKind::kShift ? cat(text, " by ", instr.communication().shift) : text;
}

std::string ranges_text(const Program& program, const std::vector<BufferRange>& ranges) {
  std::vector<std::string> parts;
  for (const BufferRange& range : ranges) parts.push_back(range_text(program, range));
  return join(parts, " ");
}

void put_instr(std::ostringstream& out, const Program& program, size_t at) {
  const Instr& instr = program.instrs[at];
  out << (at < 10     ? "   "
          : at < 100  ? "  "
          : at < 1000 ? " "
                      : "")
      << at << "  " << lane_mark(instr.lane) << instr_label(instr) << group_text(program, instr);
  if (instr.runs_ops() && instr.ops().accumulate) out << " accumulate";
  if (const auto* update = std::get_if<UpdateDetail>(&instr.detail))
    out << (update->decay ? " decay" : " no-decay");
  if (!instr.reads.empty()) out << "  reads " << ranges_text(program, instr.reads);
  if (!instr.writes.empty()) out << "  writes " << ranges_text(program, instr.writes);
  if (!instr.waits.empty()) {
    out << "  waits";
    for (const InstrId wait : instr.waits) out << " #" << wait;
  }
  if (instr.if_finite) out << "  if finite";
  if (instr.starts_early()) out << "  starts early";
  out << '\n';
}

void put_buffer(std::ostringstream& out, const Buffer& buffer) {
  out << "  " << buffer.name << "  ";
  if (buffer.tier != Tier::kDevice) out << tier_name(buffer.tier) << ' ';
  out << category_name(buffer.category) << "  " << buffer.bytes << " B";
  if (buffer.persistent_kind)
    out << "  persistent";
  else if (buffer.arena_offset >= 0)
    out << "  arena+" << buffer.arena_offset;
  else
    out << "  unused";
  if (buffer.is_result) out << "  result";
  if (buffer.peer_visible) out << "  peer-visible";
  if (buffer.in_gap) out << "  in a gap of what is peer-visible";
  if (buffer.shadow_offset >= 0) out << "  shadow+" << buffer.shadow_offset;
  out << '\n';
}

}  // namespace

namespace {

std::string arenas_text(const Program& program) {
  std::string text = human_bytes(program.bytes_of_arena(Arena::kDevice));
  if (program.bytes_of_arena(Arena::kShared) > 0)
    text += cat(" + ", human_bytes(program.bytes_of_arena(Arena::kShared)), " peer-visible");
  if (program.bytes_of_arena(Arena::kHost) > 0)
    text += cat(" + ", human_bytes(program.bytes_of_arena(Arena::kHost)), " host");
  return text;
}

}  // namespace

std::string program_text(const Program& program) {
  std::ostringstream out;
  out << "program " << program.name << ": " << program.instrs.size() << " instructions, "
      << program.buffers.size() << " buffers, arena " << arenas_text(program) << "\n";
  out << "buffers\n";
  for (const Buffer& buffer : program.buffers) put_buffer(out, buffer);
  out << "instructions (lanes: | communication, > to device, < to host, = disk)\n";
  for (size_t i = 0; i < program.instrs.size(); ++i) put_instr(out, program, i);
  return out.str();
}

uint64_t program_hash(const Program& program) {
  std::ostringstream out;
  out << program.name;
  for (const Instr& instr : program.instrs) {
    if (instr.runs_ops())
      out << '\n' << instr_label(instr) << (instr.ops().accumulate ? " accumulate" : "");
    if (!instr.communicates()) continue;
    out << '\n'
        << instr_name(instr.kind) << group_text(program, instr) << ' '
        << dtype_name(instr.communication().dtype)
        << (instr.communication().is_max ? " largest" : "")
        << (instr.kind == InstrKind::kCountedAllToAll
                ? cat(" rows of ", instr.communication().row_elements)
                : "")
        << (instr.if_finite ? " if finite" : "");
    for (const auto* ranges : {&instr.reads, &instr.writes})
      for (const BufferRange& range : *ranges)
        out << ' ' << program.at(range.buffer).name << ' ' << range.bytes;
  }
  const std::string text = out.str();
  return xxh3(text.data(), text.size());
}

}  // namespace ftrun
