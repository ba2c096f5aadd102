#include "engine/communication_runner.h"

#include <numeric>

#include "base/collective_kind.h"
#include "base/error.h"

namespace ftrun {

/// Runs a collective: one call for each pair of ranges. Starts all calls before it waits for the
/// last one.
void CommunicationRunner::run_collective(const Instr& instr) const {
  Communicator& group = *communicators_[static_cast<size_t>(instr.group())];
  device_.prepare_communicator(instr.lane, group);
  if (instr.kind == InstrKind::kCountedAllToAll) return run_counted_all_to_all(instr, group);
  Work last;
  for (size_t i = 0; i < instr.writes.size(); ++i) last = start_collective(instr, i, group);
  last.wait();
}

Work CommunicationRunner::start_collective(const Instr& instr, size_t index,
                                           Communicator& group) const {
  const Communication& communication = instr.communication();
  const DType dtype = communication.dtype;
  const int64_t size = dtype_bytes(dtype);
  const int64_t read = instr.reads[index].bytes / size, written = instr.writes[index].bytes / size;
  auto* in = memory_.at(program_, instr.reads[index]);
  auto* out = memory_.at(program_, instr.writes[index]);
  const CallSite site{program_.at(instr.writes[index].buffer).name};
  switch (collective_kind(instr.kind)) {
    case CollectiveKind::kAllReduce:
      return group.all_reduce(out, written, dtype,
                              communication.is_max ? ReduceOp::kMax : ReduceOp::kSum, site);
    case CollectiveKind::kReduceScatter:
      return group.reduce_scatter(in, out, written, dtype, ReduceOp::kSum, site);
    case CollectiveKind::kAllGather:
      return group.all_gather(in, out, read, dtype, site);
    case CollectiveKind::kAllToAll:
      return group.all_to_all(in, out, read / group.size(), dtype, site);
    case CollectiveKind::kShift:
      return group.shift(in, out, read, dtype, communication.shift, site);
    case CollectiveKind::kCountedAllToAll:
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kBarrier:
    case CollectiveKind::kSend:
    case CollectiveKind::kReceive:
      break;
  }
  bug(cat(instr_name(instr.kind), " is not a collective of ranges"));
}

/// Runs an all-to-all whose row counts differ by rank. It exchanges the counts first, because a
/// rank knows how many rows it sends, but not how many it receives.
void CommunicationRunner::run_counted_all_to_all(const Instr& instr, Communicator& group) const {
  const Communication& communication = instr.communication();
  const CallSite site{program_.at(instr.writes[0].buffer).name};
  const TypedSpan own = span_of(program_, memory_, instr.reads[1]),
                  theirs = span_of(program_, memory_, instr.writes[1]);
  group.all_to_all(own.data, theirs.data, 1, DType::kI32, site).wait();
  std::vector<int64_t> sends = device_.read_i32(instr.lane, own),
                       receives = device_.read_i32(instr.lane, theirs);
  const int64_t size = dtype_bytes(communication.dtype) * communication.row_elements;
  const int64_t rows = instr.reads[0].bytes / size, capacity = instr.writes[0].bytes / size;
  const int64_t sent = std::reduce(sends.begin(), sends.end()),
                received = std::reduce(receives.begin(), receives.end());
  if (sent > rows) bug(cat(instr_label(instr), " counts ", sent, " rows of ", rows));
  if (received > capacity)
    throw Error(ExitCode::kEnvironment,
                cat("the other ranks send ", received, " rows of ", site.what,
                    " to a rank that has room for ", capacity),
                "report this: the program reserves too few rows");
  for (std::vector<int64_t>* counts : {&sends, &receives})
    for (int64_t& count : *counts) count *= communication.row_elements;
  TypedSpan to = span_of(program_, memory_, instr.writes[0]);
  to.dtype = communication.dtype;
  to.count = capacity * communication.row_elements;
  group
      .counted_all_to_all(memory_.at(program_, instr.reads[0]), sends, to.data, receives,
                          rows * communication.row_elements, communication.dtype, site)
      .wait();
  if (received < capacity)
    device_.clear(instr.lane, to.subspan(received * communication.row_elements,
                                         (capacity - received) * communication.row_elements));
}

/// Runs a send or a receive on the lane of its link, so a late receiver delays only later transfers
/// of the same link.
void CommunicationRunner::run_transfer(const Instr& instr) const {
  Communicator& link = *communicators_[static_cast<size_t>(instr.group())];
  device_.prepare_communicator(instr.lane, link);
  const bool sends = instr.kind == InstrKind::kSend;
  const BufferRange& range = sends ? instr.reads[0] : instr.writes[0];
  const DType dtype = instr.communication().dtype;
  const int64_t count = range.bytes / dtype_bytes(dtype);
  const CallSite site{program_.at(range.buffer).name};
  const int other = 1 - link.rank();
  Work work = sends ? link.send(memory_.at(program_, range), count, dtype, other, site)
                    : link.receive(memory_.at(program_, range), count, dtype, other, site);
  work.wait();
}

}  // namespace ftrun
