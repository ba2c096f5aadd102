#include "comm/store_opening.h"

#include <chrono>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "base/error.h"
#include "base/hmac.h"
#include "base/log.h"
#include "base/loopback.h"
#include "base/text.h"
#include "comm/job_store.h"
#include "comm/listen_socket.h"
#include "comm/open_files.h"
#include "comm/store_connection.h"
#include "comm/store_protocol.h"
#include "comm/store_worker.h"
#include "comm/torchrun_start.h"

namespace ftrun {
namespace {

using Clock = std::chrono::steady_clock;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

/// Warns if rank 0 cannot be reached yet. The name of its machine may become known only once that
/// machine runs, and a network may come up later, so neither is a failure yet. But a user should
/// not wait for a misspelled name without a message. Throws Error(kEnvironment) if the loopback
/// interface is down, through which rank 0 would have to be reached.
void warn_if_unreachable(const RendezvousOptions& options) {
  const auto warn = [&](const std::string& why, const char* remedy) {
    log_warning(cat("rank ", options.rank, ": ", why, "; trying for ",
                    human_seconds(static_cast<double>(options.timeout.count()) * 1e-3),
                    "\n  remedy: ", remedy));
  };
  if (const auto why = why_unresolved(options.address)) return warn(*why, kMasterAddrRemedy);
  if (is_loopback(options.address)) check_loopback();
  if (const auto why = why_unreachable(options.address))
    warn(*why,
         "bring up this machine's network, or set MASTER_ADDR to an address that is reachable from "
         "here");
}

std::string address_text(const RendezvousOptions& options, int port) {
  return port > 0 ? cat(options.address, ":", port) : options.address;
}

[[noreturn]] void throw_unreachable(const RendezvousOptions& options, int port,
                                    const std::string& last) {
  std::string why = last;
  if (const auto reason = why_unresolved(options.address)) why = *reason;
  const std::string by_file =
      options.token.empty() && !options.has_torchrun_store
          ? cat("check that all ranks see ", options.rendezvous_file,
                " and that no earlier start has left it there, or give all the same FTRUN_TOKEN; ")
          : "";
  throw Error(
      ExitCode::kPeerLost,
      cat("rank ", options.rank, " could not reach the rendezvous of rank 0 at ",
          address_text(options, port), " within ",
          human_seconds(static_cast<double>(options.timeout.count()) * 1e-3), ": ", why),
      cat(by_file,
          "check MASTER_ADDR and MASTER_PORT, that rank 0 runs, and that no firewall is between"));
}

/// Connects to the store that torchrun's agent serves.
StorePtr connect_torchrun_store(const RendezvousOptions& options) {
  c10d::TCPStoreOptions settings;
  settings.port = static_cast<uint16_t>(options.port);
  settings.waitWorkers = false;
  settings.timeout = options.timeout;
  std::string why = "no torchrun store answered there";
  try {
    // The store is opened in a thread with a time limit, because its constructor would wait forever
    // for a listener that never answers.
    StoreWorker worker;
    const auto store =
        worker.run([address = options.address,
                    settings] { return c10::make_intrusive<c10d::TCPStore>(address, settings); },
                   options.timeout + kControlTimeout);
    if (store) return *store;
  } catch (const std::exception& error) {
    why = first_line(error.what());
  }
  throw_unreachable(options, options.port, why);
}

/// Returns a port that is computed from the token, so that only those who have the token know it.
int port_of_token(const std::string& token) {
  const Digest digest = hmac_sha256(token, "port");
  return 20000 + (digest[0] << 8 | digest[1]) % 12000;
}

/// Makes the function that finds the store's address at each try.
JobStore::FindEndpoint make_endpoint_finder(const RendezvousOptions& options) {
  if (!options.token.empty()) {
    const int port = options.port > 0 ? options.port : port_of_token(options.token);
    return [=] { return std::optional(StoreEndpoint{options.address, port, options.token}); };
  }
  return [options]() -> std::optional<StoreEndpoint> {
    const auto content = RendezvousFile::read(options.rendezvous_file);
    if (!content) return std::nullopt;
    if (content->job != options.job)
      throw std::runtime_error(cat(options.rendezvous_file, " belongs to another job (\"",
                                   content->job, "\", this one is \"", options.job, "\")"));
    if (options.port > 0 && content->port != options.port)
      throw std::runtime_error(cat(options.rendezvous_file, " says port ", content->port,
                                   ", and MASTER_PORT is ", options.port));
    return StoreEndpoint{options.address, content->port, content->token};
  };
}

/// Makes the identity of this rank, which it shows on all of its connections.
StoreMember make_member(const RendezvousOptions& options, const std::string& instance) {
  return {.rank = static_cast<uint32_t>(options.rank),
          .world_size = static_cast<uint32_t>(options.world_size),
          .attempt = static_cast<uint32_t>(options.attempt),
          .instance = instance,
          .job = options.job};
}

/// OpeningReason says why the rendezvous is not open yet, for the thread that logs it.
class OpeningReason {
 public:
  void set(const std::string& text) {
    const std::lock_guard lock(mutex_);
    text_ = text;
  }
  std::string get() {
    const std::lock_guard lock(mutex_);
    return text_;
  }

 private:
  std::mutex mutex_;
  std::string text_;
};

c10::intrusive_ptr<JobStore> connect_job_store(const RendezvousOptions& options,
                                               const StoreMember& member,
                                               const JobStore::FindEndpoint& find_endpoint,
                                               const std::shared_ptr<StoreServer>& served = nullptr,
                                               OpeningReason* reason = nullptr) {
  int port = options.port;
  const auto find_and_record_port = [&]() {
    const auto endpoint = find_endpoint();
    if (endpoint) port = endpoint->port;
    return endpoint;
  };
  try {
    const auto set_reason = [reason](const std::string& why) {
      if (reason != nullptr) reason->set(first_line(why));
    };
    return c10::make_intrusive<JobStore>(find_and_record_port, member,
                                         Clock::now() + options.timeout, options.token.empty(),
                                         served, set_reason);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw_unreachable(options, port, first_line(error.what()));
  }
}

/// Throws an error if the ranks of another job are meeting by the file now; it must not be
/// replaced.
void check_file_unused(const RendezvousOptions& options) {
  const auto content = RendezvousFile::read(options.rendezvous_file);
  if (!content || !serves_store({content->address, content->port, content->token}, kControlTimeout))
    return;
  throw Error(ExitCode::kEnvironment,
              cat(options.rendezvous_file,
                  ": another job is connecting its ranks through this file (job \"", content->job,
                  "\", at ", content->address, ":", content->port, ")"),
              "wait until it has begun, end it, or choose another output_dir");
}

/// Serves rank 0's store, on a socket that it inherited or opens.
StoreClients serve_store(const RendezvousOptions& options) {
  check_loopback();  // rank 0 itself joins its store over it
  ListenSocket socket;
  if (options.listen_fd >= 0) {
    socket = {OwnedFd(options.listen_fd), bound_port(options.listen_fd)};
  } else {
    const bool by_token = !options.token.empty() && options.port == 0;
    socket = listen_on(options.address, by_token ? port_of_token(options.token) : options.port);
  }
  check_open_file_limit(options.world_size);
  StoreClients clients;
  std::string token = options.token;
  if (token.empty()) {
    token = hex_text(random_bytes(32));
    check_file_unused(options);
    clients.rendezvous_file = std::make_unique<RendezvousFile>(
        options.rendezvous_file,
        RendezvousFileContent{options.job, options.address, socket.port, token});
  }
  const StoreEndpoint endpoint{options.address, socket.port, token};
  const StoreMember member = make_member(options, random_bytes(kInstanceBytes));
  const auto server = std::make_shared<StoreServer>(std::move(socket.fd), token, member);
  const JobStore::FindEndpoint find_endpoint = [endpoint] { return std::optional(endpoint); };
  clients.main = connect_job_store(options, member, find_endpoint, server);
  clients.control = connect_job_store(options, member, find_endpoint, server);
  clients.connect_again = [=]() -> StorePtr {
    return connect_job_store(options, member, find_endpoint, server);
  };
  clients.server = server;
  return clients;
}

StoreClients find_store(const RendezvousOptions& options, OpeningReason& reason) {
  warn_if_unreachable(options);
  const StoreMember member = make_member(options, random_bytes(kInstanceBytes));
  const auto main =
      connect_job_store(options, member, make_endpoint_finder(options), nullptr, &reason);
  // Later connections need the endpoint, because the rendezvous file is removed once all ranks have
  // met.
  const JobStore::FindEndpoint find_endpoint = [endpoint = main->endpoint()] {
    return std::optional(endpoint);
  };
  return {main,
          connect_job_store(options, member, find_endpoint),
          [=]() -> StorePtr { return connect_job_store(options, member, find_endpoint); },
          nullptr,
          {},
          {}};
}

/// Joins the ranks of this start, and no others, in the store of torchrun's agent.
StoreClients join_torchrun_store(const RendezvousOptions& options, OpeningReason& reason) {
  warn_if_unreachable(options);
  const StorePtr main = connect_torchrun_store(options);
  reason.set("not all ranks of this start have registered in torchrun's store");
  StoreWorker worker;
  const auto agree = [main, options] {
    try {
      return agree_on_start(*main, options);
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {  // thrown by c10d if the server has ended
      throw_unreachable(options, options.port, first_line(error.what()));
    }
  };
  const auto start = worker.run(agree, options.timeout + kControlTimeout);
  if (!start) throw_unreachable(options, options.port, "torchrun's store no longer answers");
  const auto prefixed = [prefix = start->prefix](const StorePtr& store) -> StorePtr {
    return c10::make_intrusive<c10d::PrefixStore>(prefix, store);
  };
  return {prefixed(main),
          prefixed(connect_torchrun_store(options)),
          [=]() -> StorePtr { return prefixed(connect_torchrun_store(options)); },
          nullptr,
          start->launch,
          {}};
}

}  // namespace

StoreClients connect_to_store(const RendezvousOptions& options) {
  OpeningReason reason;
  const WaitReporter reporter(options.notices, [&](const std::string& waited) {
    const std::string why = reason.get();
    return cat("rank ", options.rank, " of ", options.world_size, " has waited ", waited,
               " for the rendezvous of rank 0 at ", address_text(options, options.port),
               why.empty() ? "" : cat(" (", why, ")"), "; it gives up after ",
               human_seconds(static_cast<double>(options.timeout.count()) * 1e-3));
  });
  StoreClients clients;
  if (options.has_torchrun_store) clients = join_torchrun_store(options, reason);
  if (options.world_size == 1) {
    clients.main = clients.control = c10::make_intrusive<c10d::HashStore>();
    clients.connect_again = [store = clients.main] { return store; };
  } else if (!options.has_torchrun_store) {
    require(!options.token.empty() || !options.rendezvous_file.empty(),
            "ranks meet by a token or a file");
    clients = options.rank == 0 ? serve_store(options) : find_store(options, reason);
  }
  return clients;
}

}  // namespace ftrun
