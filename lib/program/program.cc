#include "program/program.h"

#include <algorithm>
#include <array>
#include <sstream>

#include "base/checksum.h"
#include "base/error.h"
#include "base/text.h"
#include "program/lifetime.h"

namespace ftrun {

bool overlaps(const Range& a, const Range& b) {
  return a.buffer == b.buffer && a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
}

std::string_view instr_name(InstrKind kind) {
  static constexpr std::array<std::string_view, 8> kNames{
      "load_batch", "begin", "forward", "backward", "all_reduce", "gradient_norm", "decide", "update"};
  return kNames[static_cast<size_t>(kind)];
}

std::string_view lane_name(Lane lane) {
  return lane == Lane::kCompute ? "compute" : "communication";
}

std::string_view category_name(Category category) {
  static constexpr std::array<std::string_view, 5> kNames{"parameters", "gradients", "optimizer",
                                                          "activations", "buffers"};
  return kNames[static_cast<size_t>(category)];
}

std::string instr_label(const Instr& instr) {
  std::string text(instr_name(instr.kind));
  if (instr.layer >= 0) text += cat(" layer ", instr.layer);
  if (instr.micro_batch >= 0) text += cat(" mb ", instr.micro_batch);
  return text;
}

namespace {

std::string range_text(const Program& program, const Range& range) {
  const Buffer& buffer = program.at(range.buffer);
  if (range.offset == 0 && range.bytes == buffer.bytes) return buffer.name;
  return cat(buffer.name, "[", range.offset, "+", range.bytes, "]");
}

std::string ranges_text(const Program& program, const std::vector<Range>& ranges) {
  std::vector<std::string> parts;
  for (const Range& range : ranges) parts.push_back(range_text(program, range));
  return join(parts, " ");
}

void put_instr(std::ostringstream& out, const Program& program, size_t at) {
  const Instr& instr = program.instrs[at];
  out << (at < 10 ? "   " : at < 100 ? "  " : at < 1000 ? " " : "") << at << "  "
      << (instr.lane == Lane::kCompute ? "" : "| ") << instr_label(instr);
  if (instr.accumulate) out << " accumulate";
  if (instr.kind == InstrKind::kUpdate) out << (instr.decay ? " decay" : " no-decay");
  if (!instr.reads.empty()) out << "  reads " << ranges_text(program, instr.reads);
  if (!instr.writes.empty()) out << "  writes " << ranges_text(program, instr.writes);
  if (!instr.waits.empty()) {
    out << "  waits";
    for (const InstrId wait : instr.waits) out << " #" << wait;
  }
  if (instr.if_finite) out << "  if finite";
  out << '\n';
}

void put_buffer(std::ostringstream& out, const Buffer& buffer) {
  out << "  " << buffer.name << "  " << category_name(buffer.category) << "  " << buffer.bytes << " B";
  if (buffer.persistent)
    out << "  persistent";
  else
    out << "  arena+" << buffer.arena_offset;
  if (buffer.peer_visible) out << "  peer-visible";
  out << '\n';
}

}  // namespace

std::string program_text(const Program& program) {
  std::ostringstream out;
  out << "program " << program.name << ": " << program.instrs.size() << " instructions, "
      << program.buffers.size() << " buffers, arena " << human_bytes(program.arena_bytes) << "\n";
  out << "buffers\n";
  for (const Buffer& buffer : program.buffers) put_buffer(out, buffer);
  out << "instructions (| marks the communication lane)\n";
  for (size_t i = 0; i < program.instrs.size(); ++i) put_instr(out, program, i);
  return out.str();
}

uint64_t program_hash(const Program& program) {
  // What the text for people leaves out goes behind it.
  std::ostringstream out;
  out << program_text(program) << program.arena_bytes;
  for (const Buffer& buffer : program.buffers) out << ' ' << static_cast<int>(buffer.tier);
  for (const Instr& instr : program.instrs) {
    out << '\n' << instr.graph << ' ' << static_cast<int>(instr.group) << ' ' << dtype_name(instr.dtype);
    for (const Binding& binding : instr.bindings)
      out << ' ' << binding.value << '@' << binding.range.buffer << '+' << binding.range.offset;
  }
  const std::string text = out.str();
  return xxh3(text.data(), text.size());
}

MemoryAccount memory_account(const Program& program) {
  std::array<int64_t, 5> bytes{};
  int64_t persistent = 0;
  for (const Buffer& buffer : program.buffers) {
    if (!buffer.persistent) continue;
    bytes[static_cast<size_t>(buffer.category)] += buffer.bytes;
    persistent += buffer.bytes;
  }
  // The arena belongs to activations, whatever else passes through it for a moment.
  bytes[static_cast<size_t>(Category::kActivations)] += program.arena_bytes;
  MemoryAccount account;
  for (size_t i = 0; i < bytes.size(); ++i)
    account.by_category.emplace_back(static_cast<Category>(i), bytes[i]);
  account.total = persistent + program.arena_bytes;
  return account;
}

int64_t all_reduce_bytes(const Program& program, int64_t group_size) {
  int64_t bytes = 0;
  for (const Instr& instr : program.instrs)
    if (instr.kind == InstrKind::kAllReduce) bytes += instr.writes[0].bytes;
  return 2 * bytes * (group_size - 1) / group_size;
}

}  // namespace ftrun
