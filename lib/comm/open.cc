#include "comm/open.h"

#include <algorithm>

#include "base/checksum.h"
#include "base/error.h"
#include "base/text.h"
#include "comm/gloo_communicator.h"
#include "comm/nccl_communicator.h"
#include "comm/shm_communicator.h"

namespace ftrun {
namespace {

/// SelfCommunicator is a group of one: every collective is a copy, done by the base class.
class SelfCommunicator final : public Communicator {
 public:
  explicit SelfCommunicator(Setup setup) : Communicator(std::move(setup)) {}
  std::string_view backend() const override { return "none"; }
  std::optional<int64_t> transported_bytes() const override { return 0; }

 protected:
  void complete_collective(Collective&) override {}
  std::vector<PeerView> view_peers() override { return {}; }
};

bool share_machine(const Rendezvous& rendezvous, const std::vector<int>& members) {
  const std::string& first = rendezvous.identity(members.front()).machine;
  return std::all_of(members.begin(), members.end(),
                     [&](int rank) { return rendezvous.identity(rank).machine == first; });
}

CommBackend choose_backend(const Rendezvous& rendezvous, const std::vector<int>& members,
                           const CommOptions& options) {
  if (options.backend != CommBackend::kAuto) return options.backend;
  if (options.device >= 0) return CommBackend::kNccl;
  return share_machine(rendezvous, members) ? CommBackend::kSharedMemory : CommBackend::kGloo;
}

/// Returns a text that identifies the members. Every member sends this text and reads the texts of
/// all, so for many ranks it holds only their number, the first and last rank, and a hash.
std::string ranks_text(const std::vector<int>& members) {
  constexpr size_t kListed = 16;
  if (members.size() > kListed)
    return cat(members.size(), " ranks ", members.front(), "..", members.back(), " (",
               hex64(xxh3(members.data(), members.size() * sizeof(int))), ")");
  return cat("ranks ", join_numbers(members, ","));
}

/// Checks that all members open the same group over the same backend. This exchange takes place
/// before the backend opens, so that an absent member is named in the error.
void check_members_agree(Rendezvous& rendezvous, const std::string& name,
                         const std::vector<int>& members, CommBackend backend) {
  const std::string own = cat(name, " of ", ranks_text(members), " over ", backend_name(backend));
  const auto all = rendezvous.all_gather_text("open/" + name, own, members);
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i] != own)
      bug(cat("rank ", rendezvous.rank(), " opens group ", own, " but rank ", members[i],
              " opens group ", all[i]));
  }
}

std::unique_ptr<Communicator> make_communicator(CommBackend backend, Communicator::Setup setup,
                                                Rendezvous& rendezvous,
                                                const CommOptions& options) {
  switch (backend) {
    case CommBackend::kGloo:
      return make_gloo_communicator(std::move(setup), rendezvous, options.checked_collectives);
    case CommBackend::kSharedMemory:
      return make_shm_communicator(std::move(setup), rendezvous);
    case CommBackend::kNccl:
      return make_nccl_communicator(std::move(setup), rendezvous, options.device);
    case CommBackend::kAuto:
      break;
  }
  bug("no backend was chosen");
}

}  // namespace

std::string_view backend_name(CommBackend backend) {
  switch (backend) {
    case CommBackend::kAuto:
      return "auto";
    case CommBackend::kGloo:
      return "gloo";
    case CommBackend::kSharedMemory:
      return "shm";
    case CommBackend::kNccl:
      return "nccl";
  }
  return "?";
}

std::unique_ptr<Communicator> open_communicator(Rendezvous& rendezvous, const std::string& name,
                                                const std::vector<int>& members,
                                                const CommOptions& options) {
  const auto own = std::find(members.begin(), members.end(), rendezvous.rank());
  require(own != members.end() && std::is_sorted(members.begin(), members.end()),
          "a communicator's members are ascending and include this rank");
  Communicator::Setup setup{
      .name = name,
      .members = members,
      .rank = static_cast<int>(own - members.begin()),
      .timeout = options.timeout,
      .board = &rendezvous.board(),
      .view_ranks =
          [&rendezvous](const std::vector<int>& ranks) { return rendezvous.view_ranks(ranks); },
      .sum_blocks = options.sum_blocks,
      .carries_messages = options.carries_messages};
  if (members.size() == 1 && options.device < 0)
    return std::make_unique<SelfCommunicator>(std::move(setup));
  const CommBackend backend = choose_backend(rendezvous, members, options);
  check_members_agree(rendezvous, name, members, backend);
  try {
    return make_communicator(backend, std::move(setup), rendezvous, options);
  } catch (...) {
    // Without this notice the other members would wait for this rank while they connect.
    rendezvous.post_abort(name, "it could not be opened");
    throw;
  }
}

}  // namespace ftrun
