#include "comm/gloo_communicator.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <future>
#include <iterator>
#include <limits>
#include <mutex>
#include <numeric>
#include <optional>
#include <set>
#include <stop_token>
#include <thread>
#include <utility>

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "base/clock.h"
#include "base/error.h"
#include "base/round_up.h"
#include "base/text.h"
#include "comm/c10d_types.h"
#include "comm/gloo_addresses.h"
#include "comm/in_thread.h"
#include "comm/out_of_memory.h"
#include "comm/reduce.h"
#include "comm/socket_bytes.h"

namespace ftrun {
namespace {

using Clock = std::chrono::steady_clock;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using GroupPtr = c10::intrusive_ptr<c10d::ProcessGroupGloo>;
/// The maximum size of a piece in bytes. Collectives whose transport allocates as much memory as
/// they move run in pieces.
constexpr int64_t kStagingBytes = 2 << 20;
/// The maximum number of pieces that are in memory at the same time: outgoing_ and incoming_, and
/// the memory from which c10d sends and into which it gathers before it copies.
constexpr int64_t kMaxPieces = 4;
// Gloo ends a collective at the timeout; if it does not, this rank stops waiting kSlack later. Gloo
// does not end messages (send, receive) at the timeout.
constexpr std::chrono::milliseconds kSlack{2000};
// The times between two checks: whether another thread of this rank has aborted the group
// (kWaitSlice), and whether a peer has (kPeerSlice).
constexpr std::chrono::milliseconds kWaitSlice{200};
constexpr std::chrono::milliseconds kPeerSlice{1000};

at::Tensor view_of(const void* data, int64_t count, at::ScalarType type) {
  return at::from_blob(const_cast<void*>(data), {count}, at::TensorOptions().dtype(type));
}
at::Tensor byte_tensor(const void* data, int64_t bytes) {
  return view_of(data, bytes, at::kByte);
}

std::shared_ptr<gloo::transport::Device> choose_device(Rendezvous& rendezvous,
                                                       const std::vector<int>& members) {
  using c10d::ProcessGroupGloo;
  if (const char* interface = std::getenv("GLOO_SOCKET_IFNAME"))
    return ProcessGroupGloo::createDeviceForInterface(interface);
  const std::string& own = rendezvous.identity(rendezvous.rank()).machine;
  const bool one_machine = std::all_of(members.begin(), members.end(), [&](int rank) {
    return rendezvous.identity(rank).machine == own;
  });
  return ProcessGroupGloo::createDeviceForHostname(one_machine ? "127.0.0.1"
                                                               : rendezvous.local_address());
}

class GlooCommunicator final : public Communicator {
 public:
  GlooCommunicator(Setup setup, Rendezvous& rendezvous, int64_t checked_collectives)
      : Communicator(std::move(setup)),
        rendezvous_(rendezvous),
        checked_collectives_(checked_collectives) {
    const std::set<OpenSocket> earlier_connections = list_tcp_connections();
    group_ = connect();
    std::ranges::set_difference(list_tcp_connections(), earlier_connections,
                                std::inserter(sockets_, sockets_.end()));
    initial_received_bytes_ = count_received_bytes(sockets_);
  }

  /// Leaks the group until the process ends after a failure: operations may still hang in Gloo's
  /// threads, and the destructor would wait for them.
  ~GlooCommunicator() override {
    if (failed_) group_.release();
  }

  std::string_view backend() const override { return "gloo"; }
  std::optional<int64_t> transported_bytes() const override {
    if (sockets_.empty()) return std::nullopt;
    return count_received_bytes(sockets_) - initial_received_bytes_;
  }
  int64_t working_bytes() const override { return kMaxPieces * kStagingBytes; }
  void shutdown() override { barrier({"shutdown"}); }
  void abort(const std::string& reason) noexcept override;

 protected:
  void begin_collective(Collective& collective) override {
    if (collective.record.kind == CollectiveKind::kSend) start_send(collective);
  }

  void complete_collective(Collective& collective) override {
    const CollectiveRecord& record = collective.record;
    const bool check = checked_collectives_ < 0 || record.sequence <= checked_collectives_;
    if (check && !is_point_to_point(record.kind)) compare_signatures(record);
    switch (record.kind) {
      case CollectiveKind::kAllReduce:
        return all_reduce_now(collective);
      case CollectiveKind::kReduceScatter:
        return reduce_scatter_now(collective);
      case CollectiveKind::kAllGather:
        return all_gather_now(collective);
      case CollectiveKind::kAllToAll:
      case CollectiveKind::kCountedAllToAll:
      case CollectiveKind::kShift:
        return move_blocks(collective, check);
      case CollectiveKind::kBroadcast:
        return broadcast_now(collective);
      case CollectiveKind::kBarrier:
        return barrier_now();
      case CollectiveKind::kSend:
        return finish_send(collective);
      case CollectiveKind::kReceive:
        return receive_now(collective);
    }
  }

  std::vector<PeerView> view_peers() override {
    return rendezvous_.view_members(members(), name());
  }

 private:
  struct SendInFlight {
    int64_t handle;
    CollectiveRecord header;
    WorkPtr header_work, data_work;
  };

  GroupPtr connect();
  /// Records a failure. Messages in flight are abandoned, because the caller may free their memory.
  void mark_failed() {
    failed_ = true;
    for (SendInFlight& send : sends_) send.header_work = send.data_work = nullptr;
  }
  void await(const WorkPtr& work);
  void end_operation(const WorkPtr& work);
  void await_message(const WorkPtr& work);
  bool wait_for_message(const WorkPtr& work);
  void watch_messages(const std::stop_token& stop);
  [[noreturn]] void throw_aborted();
  CollectiveFailure to_collective_failure(const std::exception& error, Clock::time_point start);

  void compare_signatures(const CollectiveRecord& record);
  void all_reduce_now(const Collective& collective);
  void all_reduce_pieces(const Collective& collective);
  void reduce_scatter_now(const Collective& collective);
  void exchange_and_add(const CollectiveRecord& record, int64_t count, void* out);
  void gather_bytes(const void* in, void* out, int64_t bytes);
  void gather_piece(const void* in, void* out, int64_t bytes);
  void all_gather_now(const Collective& collective) {
    gather_bytes(collective.in, collective.out, payload_bytes(collective.record));
  }
  void move_blocks(const Collective& collective, bool check);
  void exchange_bytes(const void* in, int64_t sent, void* out, int64_t received,
                      BytesByRank blocks = {});
  void broadcast_now(const Collective& collective);
  void barrier_now();
  void start_send(Collective& collective);
  void finish_send(const Collective& collective);
  void receive_now(const Collective& collective);

  /// Returns the elements in a piece of one rank's block, such that the pieces of all blocks fit
  /// the staging memory.
  int64_t elements_per_piece(DType dtype) const {
    return std::max<int64_t>(kStagingBytes / size() / dtype_bytes(dtype), 1);
  }
  std::byte* resize_staging(std::vector<std::byte>& memory) const {
    memory.resize(static_cast<size_t>(std::max<int64_t>(kStagingBytes, 16 * size())));
    return memory.data();
  }

  Rendezvous& rendezvous_;
  /// The number of first collectives that are compared among the ranks (CommOptions); -1 for all.
  const int64_t checked_collectives_;
  GroupPtr group_;
  std::vector<std::byte> outgoing_, incoming_;
  std::vector<SendInFlight> sends_;
  int64_t next_handle_ = 1;
  bool failed_ = false;
  std::atomic<bool> aborted_ = false;
  std::mutex message_mutex_;
  /// The message for which a thread of this rank waits, and the number of waits so far.
  WorkPtr message_;
  int64_t message_waits_ = 0;
  /// The connections that were opened for this group.
  std::set<OpenSocket> sockets_;
  int64_t initial_received_bytes_ = 0;
  std::condition_variable_any watch_wake_;
  /// The thread that checks the peers during waits for messages, started with the first of them. It
  /// is declared last, so that it stops before the members it uses are destroyed.
  std::jthread watch_;
};

/// Connects the group in another thread, while this thread checks whether a member is lost: if a
/// member never arrives, Gloo waits for its connection until the time limit. Once the addresses are
/// exchanged, the other thread uses nothing of this object, so it can be abandoned.
GroupPtr GlooCommunicator::connect() {
  const CollectiveRecord record = enter_connecting_state("connecting over Gloo");
  const auto has_met = std::make_shared<std::atomic<bool>>(false);
  const auto addresses =
      c10::make_intrusive<GlooAddresses>([this, has_met](const std::string& own) {
        auto all = rendezvous_.all_gather_text("gloo/" + name(), own, members());
        *has_met = true;
        return all;
      });
  auto options = c10d::ProcessGroupGloo::Options::create(setup().timeout);
  // Gloo needs two threads: with one every operation takes milliseconds.
  options->threads = 2;
  options->devices = {choose_device(rendezvous_, members())};
  std::packaged_task<GroupPtr()> task([addresses, options, rank = rank(), size = size()] {
    return c10::make_intrusive<c10d::ProcessGroupGloo>(addresses, rank, size, options);
  });
  auto next_check = Clock::now() + kPeerSlice;
  const auto lost = [&] {
    if (!*has_met || Clock::now() < next_check) return false;
    next_check = Clock::now() + kPeerSlice;
    return rendezvous_.is_any_lost(members(), name());
  };
  const std::optional<GroupPtr> group =
      run_in_abandonable_thread(std::move(task), kWaitSlice, lost);
  if (!group) throw failure_error(record, {"lost a peer in", ""});
  if (board_slot() != nullptr) board_slot()->finish();
  return *group;
}

/// Converts an exception of Gloo about a peer to a CollectiveFailure. Throws an out-of-memory error
/// if this rank lacks memory. Only the text of Gloo's exception shows that it is a timeout.
CollectiveFailure GlooCommunicator::to_collective_failure(const std::exception& error,
                                                          Clock::time_point start) {
  mark_failed();
  rethrow_out_of_memory(error);
  const std::string text = error.what();
  const double waited = seconds_since(start);
  const bool timed_out = text.find("imed out") != text.npos;
  return {timed_out ? cat("waited ", human_seconds(waited), " in") : "lost a connection in",
          first_line(text), timed_out};
}

/// Aborts the group. Gloo has no call for this: a thread of this rank that is inside a collective
/// leaves it because of aborted_, a wait for a message is ended here, and the peers find a note in
/// the store, because only the ranks that wait for this one would notice that its process ended.
void GlooCommunicator::abort(const std::string& reason) noexcept {
  if (aborted_.exchange(true)) return;
  {
    const std::lock_guard lock(message_mutex_);
    if (message_) message_->abort();
  }
  rendezvous_.post_abort(name(), reason);
}

void GlooCommunicator::throw_aborted() {
  mark_failed();
  throw Error(ExitCode::kPeerLost, cat("rank ", members()[static_cast<size_t>(rank())],
                                       " gave up group ", name(), " because of another failure"));
}

/// Waits for a collective in slices, because nothing can interrupt c10d's own wait. Between slices
/// all members are checked: a collective needs every rank, but a rank has connections to only some
/// of them.
void GlooCommunicator::await(const WorkPtr& work) {
  const auto start = Clock::now();
  const auto deadline = start + setup().timeout + kSlack;
  auto next_check = start + kPeerSlice;
  while (true) {
    const bool over = work->isCompleted() || Clock::now() >= deadline;
    try {
      work->wait(kWaitSlice);
      return;
    } catch (const std::exception& error) {
      if (over) {
        end_operation(work);
        throw to_collective_failure(error, start);
      }
    }
    if (aborted_) {
      end_operation(work);
      throw_aborted();
    }
    if (Clock::now() < next_check) continue;
    next_check = Clock::now() + kPeerSlice;
    if (work->isCompleted() || !rendezvous_.is_any_lost(members(), name())) continue;
    end_operation(work);
    mark_failed();
    throw CollectiveFailure{"lost a peer in", ""};
  }
}

/// Ends an operation that this rank gives up, so that Gloo's threads do not use its memory any
/// more, which the caller may free. Gloo has no call for this, but it closes all connections of a
/// group, and ends the operations on them, when a wait for a message times out; so this rank waits
/// a moment for a message that no rank sends. The peers notice that the connections are closed.
void GlooCommunicator::end_operation(const WorkPtr& work) {
  constexpr int kUnusedTag = std::numeric_limits<int>::max();  // larger than those of messages
  constexpr std::chrono::milliseconds kMoment{1};
  std::byte unused{};
  // A peer whose connection is closed already cannot be waited for.
  for (int peer = 0; peer < size() && !work->isCompleted(); ++peer) {
    if (peer == rank()) continue;
    std::vector<at::Tensor> message = {byte_tensor(&unused, 1)};
    try {
      group_->recv(message, peer, kUnusedTag)->wait(kMoment);
    } catch (const std::exception&) {
      // This is the timeout.
    }
  }
  const auto deadline = Clock::now() + kSlack;
  while (!work->isCompleted() && Clock::now() < deadline) std::this_thread::sleep_for(kMoment);
}

/// Waits for a message without slices: Gloo closes the connection when a wait reaches its timeout.
/// Another thread ends the wait if this rank aborts the group (abort()) or a peer is lost.
void GlooCommunicator::await_message(const WorkPtr& work) {
  if (!watch_.joinable())
    watch_ = std::jthread([this](const std::stop_token& stop) { watch_messages(stop); });
  const auto start = Clock::now();
  bool completed = false;
  try {
    completed = wait_for_message(work);
  } catch (const std::exception& error) {
    throw to_collective_failure(error, start);
  }
  if (completed) return;
  if (aborted_) throw_aborted();
  mark_failed();
  throw CollectiveFailure{"lost a peer in", ""};
}

/// Waits for a message, as other threads see in message_. Returns false if one of them ended the
/// wait, or has aborted the group before.
bool GlooCommunicator::wait_for_message(const WorkPtr& work) {
  {
    const std::lock_guard lock(message_mutex_);
    if (aborted_) return false;
    message_ = work;
    ++message_waits_;
  }
  struct EndOfWait {
    GlooCommunicator& self;
    ~EndOfWait() {
      const std::lock_guard lock(self.message_mutex_);
      self.message_ = nullptr;
    }
  } const end_of_wait{*this};
  return work->wait(setup().timeout);
}

/// Checks whether a peer is lost while a message is awaited, and then ends the wait. A wait that is
/// new since the last check is left alone, so that short ones cost nothing.
void GlooCommunicator::watch_messages(const std::stop_token& stop) {
  int64_t known_wait = 0;
  std::unique_lock lock(message_mutex_);
  while (!stop.stop_requested()) {
    watch_wake_.wait_for(lock, stop, kPeerSlice, [] { return false; });
    const bool is_long = message_ && known_wait == message_waits_;
    known_wait = message_waits_;
    if (!is_long || stop.stop_requested()) continue;
    lock.unlock();
    const bool lost = rendezvous_.is_any_lost(members(), name());
    lock.lock();
    if (lost && message_ && known_wait == message_waits_) message_->abort();
  }
}

void GlooCommunicator::compare_signatures(const CollectiveRecord& record) {
  std::vector<CollectiveRecord> all(static_cast<size_t>(size()));
  gather_bytes(&record, all.data(), sizeof record);
  const bool agree = std::all_of(all.begin(), all.end(), [&](const CollectiveRecord& other) {
    return same_collective(record, other);
  });
  if (agree) return;
  throw mismatch_error(all);
}

void GlooCommunicator::all_reduce_now(const Collective& collective) {
  const CollectiveRecord& record = collective.record;
  if (record.count == 0) return;
  const bool floating = record.dtype == DType::kF64 || record.dtype == DType::kF32 ||
                        record.dtype == DType::kBF16 || record.dtype == DType::kF16;
  // Two addends have only one order, and the order of integers does not matter. Gloo's own sum of
  // fp16 converts one element at a time, so it is not used.
  const bool ordered = size() == 2 && record.dtype != DType::kF16;
  if (floating && record.op == ReduceOp::kSum && !ordered) return all_reduce_pieces(collective);
  const int64_t element_bytes = dtype_bytes(record.dtype), step = kStagingBytes / element_bytes;
  c10d::AllreduceOptions options;
  options.reduceOp = reduce_op(record.op);
  options.timeout = setup().timeout;
  for (int64_t start = 0; start < record.count; start += step) {
    std::vector<at::Tensor> tensors = {
        view_of(static_cast<std::byte*>(collective.out) + start * element_bytes,
                std::min(step, record.count - start), scalar_type(record.dtype))};
    await(group_->allreduce(tensors, options));
  }
}

/// Reduces in pieces: each rank adds up its own part of a piece, then the parts are gathered.
void GlooCommunicator::all_reduce_pieces(const Collective& collective) {
  const int64_t element_bytes = dtype_bytes(collective.record.dtype);
  auto* data = static_cast<std::byte*>(collective.out);
  const int64_t step = elements_per_piece(collective.record.dtype) * size();
  for (int64_t start = 0; start < collective.record.count; start += step) {
    const int64_t count = std::min(step, collective.record.count - start);
    const int64_t part = divide_up(count, size());  // the last part is padded with zeros
    std::byte* piece = resize_staging(outgoing_);
    std::memcpy(piece, data + start * element_bytes, static_cast<size_t>(count * element_bytes));
    std::memset(piece + count * element_bytes, 0,
                static_cast<size_t>((part * size() - count) * element_bytes));
    std::byte* own = piece + rank() * part * element_bytes;
    exchange_and_add(collective.record, part, own);
    gather_bytes(own, resize_staging(incoming_), part * element_bytes);
    std::memcpy(data + start * element_bytes, incoming_.data(),
                static_cast<size_t>(count * element_bytes));
  }
}

void GlooCommunicator::reduce_scatter_now(const Collective& collective) {
  const int64_t element_bytes = dtype_bytes(collective.record.dtype);
  const auto* in = static_cast<const std::byte*>(collective.in);
  auto* out = static_cast<std::byte*>(collective.out);
  const int64_t step = elements_per_piece(collective.record.dtype);
  for (int64_t start = 0; start < collective.record.count; start += step) {
    const int64_t count = std::min(step, collective.record.count - start);
    std::byte* piece = resize_staging(outgoing_);
    for (int block = 0; block < size(); ++block)
      std::memcpy(piece + block * count * element_bytes,
                  in + (block * collective.record.count + start) * element_bytes,
                  static_cast<size_t>(count * element_bytes));
    exchange_and_add(collective.record, count, out + start * element_bytes);
  }
}

/// Exchanges outgoing_, which holds size() parts of `count` elements; adds this rank's part, as
/// received from every rank, into `out`.
void GlooCommunicator::exchange_and_add(const CollectiveRecord& record, int64_t count, void* out) {
  const int64_t bytes = count * dtype_bytes(record.dtype);
  exchange_bytes(outgoing_.data(), bytes * size(), resize_staging(incoming_), bytes * size());
  std::vector<const void*> inputs;
  for (int from_rank = 0; from_rank < size(); ++from_rank)
    inputs.push_back(incoming_.data() + from_rank * bytes);
  reduce_in_order(record.dtype, record.op, inputs.data(), size(), out, count);
}

/// Sends `sent` and receives `received` bytes in all, in the order of ranks: in equal blocks, or in
/// blocks of the sizes in `blocks`.
void GlooCommunicator::exchange_bytes(const void* in, int64_t sent, void* out, int64_t received,
                                      BytesByRank blocks) {
  at::Tensor from = byte_tensor(in, sent);
  at::Tensor to = byte_tensor(out, received);
  c10d::AllToAllOptions options;
  options.timeout = setup().timeout;
  await(group_->alltoall_base(to, from, blocks.received, blocks.sent, options));
}

void GlooCommunicator::move_blocks(const Collective& collective, bool check) {
  const CollectiveRecord& record = collective.record;
  if (record.count == 0) return;
  const int64_t total_bytes = payload_bytes(record) * size();
  if (record.kind == CollectiveKind::kAllToAll)
    return exchange_bytes(collective.in, total_bytes, collective.out, total_bytes);
  if (record.kind == CollectiveKind::kCountedAllToAll && check) {
    const auto row = static_cast<int64_t>(collective.sends.size() * sizeof(int64_t));
    std::vector<int64_t> sends(collective.sends.size() * collective.sends.size());
    gather_bytes(collective.sends.data(), sends.data(), row);
    for (int from = 0; from < size(); ++from)
      check_received_count(collective, from, sends[static_cast<size_t>(from * size() + rank())]);
  }
  BytesByRank blocks = bytes_by_rank(collective, rank(), size());
  const int64_t sent = std::reduce(blocks.sent.begin(), blocks.sent.end());
  const int64_t received = std::reduce(blocks.received.begin(), blocks.received.end());
  exchange_bytes(collective.in, sent, collective.out, received, std::move(blocks));
}

/// Gathers blocks of `bytes` bytes, in pieces if all blocks together are larger than the staging
/// memory.
void GlooCommunicator::gather_bytes(const void* in, void* out, int64_t bytes) {
  if (bytes * size() <= kStagingBytes) return gather_piece(in, out, bytes);
  const int64_t step = elements_per_piece(DType::kU8);
  for (int64_t start = 0; start < bytes; start += step) {
    const int64_t piece_bytes = std::min(step, bytes - start);
    std::byte* pieces = resize_staging(incoming_);
    gather_piece(static_cast<const std::byte*>(in) + start, pieces, piece_bytes);
    for (int block = 0; block < size(); ++block)
      std::memcpy(static_cast<std::byte*>(out) + block * bytes + start,
                  pieces + block * piece_bytes, static_cast<size_t>(piece_bytes));
  }
}

void GlooCommunicator::gather_piece(const void* in, void* out, int64_t bytes) {
  if (bytes == 0) return;
  at::Tensor input = byte_tensor(in, bytes);
  at::Tensor output = byte_tensor(out, bytes * size());
  c10d::AllgatherOptions options;
  options.timeout = setup().timeout;
  await(group_->_allgather_base(output, input, options));
}

void GlooCommunicator::broadcast_now(const Collective& collective) {
  if (collective.record.count == 0) return;
  std::vector<at::Tensor> tensors = {byte_tensor(collective.out, payload_bytes(collective.record))};
  c10d::BroadcastOptions options;
  options.rootRank = collective.record.peer;
  options.timeout = setup().timeout;
  await(group_->broadcast(tensors, options));
}

/// Waits for all ranks by gathering a byte. Gloo's own barrier is not used, because it waits for
/// the earlier operations of the group by itself.
void GlooCommunicator::barrier_now() {
  const std::byte own{1};
  std::vector<std::byte> all(static_cast<size_t>(size()));
  gather_bytes(&own, all.data(), 1);
}

/// Sends a header ahead of the data, so that a receiver that expects another size can report it
/// instead of crashing inside Gloo. Tags distinguish the messages between two ranks.
void GlooCommunicator::start_send(Collective& collective) {
  collective.handle = next_handle_++;
  sends_.push_back({collective.handle, collective.record, {}, {}});
  SendInFlight& send = sends_.back();
  const int tag = static_cast<int>(2 * (collective.record.sequence % (1 << 29)));
  try {
    std::vector<at::Tensor> header = {byte_tensor(&send.header, sizeof send.header).clone()};
    send.header_work = group_->send(header, collective.record.peer, tag);
    if (collective.record.count > 0) {
      std::vector<at::Tensor> data = {byte_tensor(collective.in, payload_bytes(collective.record))};
      send.data_work = group_->send(data, collective.record.peer, tag + 1);
    }
  } catch (const std::exception& error) {
    mark_failed();
    rethrow_out_of_memory(error);
    // The connection is lost; finish_send() throws the failure with the peer's name.
  }
}

void GlooCommunicator::finish_send(const Collective& collective) {
  const auto found = std::find_if(sends_.begin(), sends_.end(), [&](const SendInFlight& send) {
    return send.handle == collective.handle;
  });
  const SendInFlight send = *found;
  sends_.erase(found);
  const bool started = send.header_work && (send.data_work || collective.record.count == 0);
  if (!started) throw CollectiveFailure{"lost a connection in", ""};
  await_message(send.header_work);
  if (send.data_work) await_message(send.data_work);
}

void GlooCommunicator::receive_now(const Collective& collective) {
  const CollectiveRecord& record = collective.record;
  const int tag = static_cast<int>(2 * (record.sequence % (1 << 29)));
  CollectiveRecord header;
  std::vector<at::Tensor> header_bytes = {byte_tensor(&header, sizeof header)};
  const auto receive = [&](std::vector<at::Tensor>& tensors, int which) {
    try {
      return group_->recv(tensors, record.peer, which);
    } catch (const std::exception& error) {
      mark_failed();
      rethrow_out_of_memory(error);
      throw CollectiveFailure{"lost a connection in", first_line(error.what())};
    }
  };
  await_message(receive(header_bytes, tag));
  check_message_matches(header, record);
  if (record.count == 0) return;
  std::vector<at::Tensor> data = {byte_tensor(collective.out, payload_bytes(record))};
  await_message(receive(data, tag + 1));
}

}  // namespace

std::unique_ptr<Communicator> make_gloo_communicator(Communicator::Setup setup,
                                                     Rendezvous& rendezvous,
                                                     int64_t checked_collectives) {
  const std::string name = setup.name;
  try {
    return std::make_unique<GlooCommunicator>(std::move(setup), rendezvous, checked_collectives);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    rethrow_out_of_memory(error);
    throw Error(ExitCode::kPeerLost,
                cat("rank ", rendezvous.rank(), " could not connect group ", name,
                    " over Gloo: ", first_line(error.what())),
                "choose the network interface with GLOO_SOCKET_IFNAME");
  }
}

}  // namespace ftrun
