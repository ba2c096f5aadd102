#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "base/error.h"
#include "config/nearest_multiples.h"
#include "config/resolve_state.h"

namespace ftrun {
namespace {

// The micro-batch that Hugging Face's trainer uses for "auto".
constexpr int64_t kAutoMicroBatch = 8;

constexpr const char* kTotal = "train_batch_size";
constexpr const char* kMicro = "train_micro_batch_size_per_gpu";
constexpr const char* kAccumulation = "gradient_accumulation_steps";

/// BatchSizes holds the three batch keys and the data-parallel ranks; 0 = not known yet.
struct BatchSizes {
  int64_t total, micro, accumulation, ranks;
};

std::optional<int64_t> batch_product(const BatchSizes& b) {
  int64_t out = 0;
  if (__builtin_mul_overflow(b.micro, b.accumulation, &out) ||
      __builtin_mul_overflow(out, b.ranks, &out))
    return std::nullopt;
  return out;
}

/// Multiplies with saturation; the result is used only in messages.
int64_t saturating_product(int64_t a, int64_t b) {
  int64_t out = 0;
  return __builtin_mul_overflow(a, b, &out) ? INT64_MAX : out;
}

std::string product_text(const BatchSizes& b) {
  return cat("micro ", b.micro, " × accumulation ", b.accumulation, " × data-parallel ", b.ranks);
}

/// Derives missing values from the written ones by DeepSpeed's rules, with integer division.
void derive_missing_sizes(BatchSizes& b) {
  if (b.total != 0 && b.micro != 0 && b.accumulation == 0) {
    b.accumulation = b.total / b.micro / b.ranks;
  } else if (b.total != 0 && b.micro == 0 && b.accumulation != 0) {
    b.micro = b.total / b.ranks / b.accumulation;
  } else if (b.total != 0 && b.micro == 0) {
    b.accumulation = 1;
    b.micro = b.total / b.ranks;
  } else if (b.accumulation == 0) {
    b.accumulation = 1;
  }
  if (b.total == 0) b.total = batch_product(b).value_or(0);
}

/// Suggests batch sizes: "use train_batch_size 24 or 32".
std::string nearest_totals_text(int64_t total, int64_t unit) {
  return nearest_multiples_text("use train_batch_size", total, unit);
}

/// Computes the batch that DeepSpeed derives from the same keys. It counts every rank, although the
/// ranks of a tensor group read the same sequences.
BatchSizes derive_as_deepspeed(const ResolveState& r, const BatchSizes& written) {
  BatchSizes b = written;
  b.ranks = saturating_product(written.ranks, r.config.parallel.tensor);
  derive_missing_sizes(b);
  return b;
}

bool is_autotp(const ResolveState& r) {
  const int64_t size = r.config.tensor_parallel.autotp_size;
  return size > 1 && size == r.config.parallel.tensor;
}

std::string deepspeed_count_text(const ResolveState& r, const BatchSizes& deepspeed) {
  return cat("with autotp_size ", r.config.tensor_parallel.autotp_size, " DeepSpeed counts all ",
             deepspeed.ranks, " ranks");
}

std::string deepspeed_product_text(const BatchSizes& deepspeed) {
  return cat("micro ", deepspeed.micro, " × accumulation ", deepspeed.accumulation, " × ",
             deepspeed.ranks);
}

void compare_with_deepspeed(ResolveState& r, const BatchSizes& written, const BatchSizes& b) {
  const BatchSizes deepspeed = derive_as_deepspeed(r, written);
  r.notice(
      "tensor_parallel.autotp_size",
      cat("train_batch_size ", b.total, " = ", product_text(b), "; ",
          deepspeed_count_text(r, deepspeed), ": ",
          batch_product(deepspeed) == deepspeed.total && deepspeed.total != 0
              ? cat("train_batch_size ", deepspeed.total, " = ", deepspeed_product_text(deepspeed))
              : cat("it refuses train_batch_size ", deepspeed.total)));
}

std::string contradiction_remedy(const ResolveState& r, const BatchSizes& written, int64_t value) {
  const BatchSizes deepspeed = derive_as_deepspeed(r, written);
  if (!is_autotp(r) || batch_product(deepspeed) != deepspeed.total)
    return "remove one of the three: it follows from the other two";
  return cat("write train_batch_size ", value,
             ", or remove it: ", deepspeed_count_text(r, deepspeed), " (",
             deepspeed_product_text(deepspeed), " = ", deepspeed.total,
             "), and those of a tensor group share their sequences");
}

/// Reports contradictions; returns whether it found none.
bool check_batch_sizes(ResolveState& r, const BatchSizes& written, const BatchSizes& b) {
  const char* blamed = r.is_written(kTotal) ? kTotal : kMicro;
  const auto refuse = [&](std::string message, std::string remedy = "") {
    r.error(blamed, std::move(message), std::move(remedy));
    return false;
  };
  if (b.micro != 0 && b.accumulation != 0 && (!batch_product(b) || b.total == 0))
    return refuse(cat(product_text(b), " overflows 64 bits"), "use smaller values");
  if (b.micro == 0)
    return refuse(
        cat("train_batch_size ", b.total, " < accumulation ", b.accumulation, " × data-parallel ",
            b.ranks, ": less than one sequence for each rank and micro-batch"),
        nearest_totals_text(b.total, saturating_product(b.accumulation, b.ranks)));
  if (b.accumulation == 0)
    return refuse(
        cat("train_batch_size ", b.total, " < micro ", b.micro, " × data-parallel ", b.ranks, " = ",
            saturating_product(b.micro, b.ranks), ": less than one micro-batch for each rank"),
        nearest_totals_text(b.total, saturating_product(b.micro, b.ranks)));
  const int64_t value = *batch_product(b);
  if (value == b.total) return true;
  const bool all_written = written.total != 0 && written.micro != 0 && written.accumulation != 0;
  const int64_t unit = saturating_product(written.micro != 0 ? b.micro : b.accumulation, b.ranks);
  return refuse(
      cat("train_batch_size ", b.total, " ≠ ", product_text(b), " = ", value),
      all_written ? contradiction_remedy(r, written, value) : nearest_totals_text(b.total, unit));
}

/// Records what was decided for batch keys that are "auto".
void record_decisions(ResolveState& r, const BatchSizes& written, const BatchSizes& b) {
  if (written.micro == 0 && r.is_auto(kMicro))
    r.record_decision(kMicro, std::to_string(b.micro),
                      written.total != 0 ? cat("train_batch_size ", b.total, " / accumulation ",
                                               b.accumulation, " / data-parallel ", b.ranks)
                                         : "Hugging Face's default");
  if (written.accumulation == 0 && r.is_auto(kAccumulation))
    r.record_decision(
        kAccumulation, std::to_string(b.accumulation),
        written.total != 0 && written.micro != 0
            ? cat("train_batch_size ", b.total, " / micro ", b.micro, " / data-parallel ", b.ranks)
            : "Hugging Face's default");
  if (written.total == 0 && r.is_auto(kTotal))
    r.record_decision(kTotal, std::to_string(b.total), product_text(b));
}

}  // namespace

void resolve_batch(ResolveState& r) {
  Config& c = r.config;
  if (c.elasticity.enabled) return resolve_elasticity(r);
  BatchSizes b{c.train_batch_size, c.train_micro_batch_size_per_gpu, c.gradient_accumulation_steps,
               c.parallel.data};
  const BatchSizes written = b;
  if (b.total == 0 && b.micro == 0) {
    if (!r.is_auto(kTotal) && !r.is_auto(kMicro) && !c.origins.is_incomplete) {
      r.problems.error(
          c.origins.position(kAccumulation), "no batch size is given",
          "write train_micro_batch_size_per_gpu (sequences a rank computes at once) or "
          "train_batch_size (sequences of an optimizer step)");
      return;
    }
    b.micro = kAutoMicroBatch;
  }
  const BatchSizes requested = b;  // includes a micro-batch that was "auto"
  derive_missing_sizes(b);
  if (check_batch_sizes(r, written, b) && is_autotp(r)) compare_with_deepspeed(r, requested, b);
  record_decisions(r, written, b);
  c.train_batch_size = b.total;
  c.train_micro_batch_size_per_gpu = b.micro;
  c.gradient_accumulation_steps = b.accumulation;
}

}  // namespace ftrun
