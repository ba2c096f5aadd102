#include "storage/open_swap.h"

#include <cerrno>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "storage/swap_folder.h"
#include "storage/thread_queue.h"

namespace ftrun {
namespace {

[[noreturn]] void throw_swap_error(const std::string& path, const char* action, int status) {
  throw Error(ExitCode::kEnvironment, cat(path, ": ", action, " failed: ", errno_text(-status)),
              swap_folder_remedy());
}

void check_options(const SwapOptions& options) {
  if (const auto problem = aio_problem(options.aio))
    throw Error(ExitCode::kUsage, *problem, "change the aio section of the config");
  if (options.folder.empty())
    throw Error(ExitCode::kUsage, "nvme_path is empty", swap_folder_remedy());
  require(options.bytes > 0, "a swap file has at least one byte");
  require(!options.name.empty() && options.name.find('/') == std::string::npos,
          "the name of a swap file must be a plain one");
}

void make_folder(const std::string& folder, StorageSystem& system) {
  const int status = system.make_folder(folder);
  if (status < 0) throw_swap_error(cat("nvme_path ", folder), "making the folder", status);
  // A missing folder may mean that the disk is not mounted, so the notice names the file system to
  // which the bytes will be written.
  if (status > 0)
    log_notice(cat("nvme_path ", folder, " did not exist: it was made on the file system of ",
                   mount_point_of(folder), " (", human_bytes(system.free_bytes(folder)), " free)"));
  if (system.is_in_memory(folder))
    log_notice(cat("nvme_path ", folder,
                   " is in memory (tmpfs): data offloaded to it still uses memory; "
                   "set nvme_path to a folder on a disk"));
}

/// Opens a file and removes its name at once, while it is still empty. However this process ends,
/// even by a kill or a crash of the machine, the space is freed and nothing is left to clean up.
OwnedFd open_nameless(const std::string& path, StorageSystem& system) {
  int fd = system.open_new(path);
  if (fd == -EEXIST) {
    // A process of the same run and rank was killed after it made the file and before it removed
    // the name.
    if (const int status = system.remove(path); status < 0)
      throw_swap_error(path, "removing an old swap file", status);
    fd = system.open_new(path);
  }
  if (fd < 0) throw_swap_error(path, "making the swap file", fd);
  OwnedFd file(fd);
  if (const int status = system.remove(path); status < 0)
    throw_swap_error(path, "unlinking the swap file", status);
  return file;
}

std::string reserve_remedy(int status) {
  if (status == -ENOSPC || status == -EDQUOT) return full_disk_remedy();
  if (status == -EFBIG)
    return "raise the limit of file sizes (ulimit -f), or point nvme_path at a file system that "
           "takes files of this size";
  return swap_folder_remedy();
}

void reserve_space(const OpenSwapFile& swap, const SwapOptions& options, StorageSystem& system) {
  const int64_t bytes = round_up_to_sector(options.bytes);
  const int64_t free = system.free_bytes(options.folder);
  const int status = bytes > free ? -ENOSPC : system.reserve(swap.fd.get(), bytes);
  if (status == 0) return;
  throw Error(ExitCode::kEnvironment,
              cat(swap.path, ": reserving space failed: ", errno_text(-status), " (",
                  human_bytes(bytes), " wanted, ", human_bytes(free), " free)"),
              reserve_remedy(status));
}

bool try_direct_io(const OpenSwapFile& swap, const SwapOptions& options, StorageSystem& system) {
  const int status = system.use_direct(swap.fd.get());
  if (status == 0) return true;
  if (status != -EINVAL && status != -EOPNOTSUPP)
    throw_swap_error(swap.path, "a first write", status);
  log_notice(cat("nvme_path ", options.folder, ": its file system refuses direct I/O (",
                 errno_text(-status),
                 "): reads and writes go through the page cache, which takes memory and time"));
  if (const int back = system.use_page_cache(swap.fd.get()); back < 0)
    throw_swap_error(swap.path, "turning direct I/O off", back);
  return false;
}

void open_queue(OpenSwapFile& swap, const AioOptions& aio, StorageSystem& system) {
  const int depth = aio.blocks_in_flight();
  QueueOrErrno ring = system.open_ring_queue(swap.fd.get(), depth, aio.single_submit);
  swap.uses_ring = ring.queue != nullptr;
  if (swap.uses_ring) {
    swap.queue = std::move(ring.queue);
    return;
  }
  log_notice(cat("this machine refuses io_uring (", errno_text(ring.error_number), "): ",
                 ThreadQueue::threads_for(depth), " threads read and write the swap file instead"));
  swap.queue = system.open_thread_queue(swap.fd.get(), depth);
}

}  // namespace

OpenSwapFile open_swap(const SwapOptions& options, StorageSystem& system) {
  check_options(options);
  make_folder(options.folder, system);
  OpenSwapFile swap;
  swap.path = cat(options.folder, "/ftrun-", options.name, ".swap");
  swap.fd = open_nameless(swap.path, system);
  reserve_space(swap, options, system);
  swap.is_direct = try_direct_io(swap, options, system);
  open_queue(swap, options.aio, system);
  return swap;
}

}  // namespace ftrun
