#include "storage/aio_options.h"

#include "base/error.h"

namespace ftrun {
namespace {
constexpr int64_t kMaxBlocks = 4096;             // more than the queue of any disk
constexpr int64_t kMaxBlock = int64_t{1} << 30;  // the kernel shortens operations of 2 GiB and more
}  // namespace

std::optional<std::string> aio_problem(const AioOptions& options) {
  const int64_t block = options.block_size;
  if (block < kSwapAlignment || block > kMaxBlock || block % kSwapAlignment != 0)
    return cat("aio.block_size is ", block, "; it must be a multiple of ", kSwapAlignment, " from ",
               kSwapAlignment, " to ", kMaxBlock);
  if (options.queue_depth < 1 || options.queue_depth > kMaxBlocks)
    return cat("aio.queue_depth is ", options.queue_depth, "; it must be from 1 to ", kMaxBlocks);
  if (options.intra_op_parallelism < 1)
    return cat("aio.intra_op_parallelism is ", options.intra_op_parallelism,
               "; it must be at least 1");
  const int64_t blocks = int64_t{options.queue_depth} * options.intra_op_parallelism;
  if (blocks > kMaxBlocks)
    return cat("aio.queue_depth ", options.queue_depth, " x aio.intra_op_parallelism ",
               options.intra_op_parallelism, " = ", blocks, " operations in flight; at most ",
               kMaxBlocks, " are allowed");
  return std::nullopt;
}

}  // namespace ftrun
