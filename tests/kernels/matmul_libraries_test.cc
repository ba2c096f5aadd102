#include "kernels/cpu/matmul_libraries.h"

#include <link.h>
#include <pthread.h>
#include <ucontext.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <ctime>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "base/text.h"
#include "each_matmul_library.h"
#include "kernels/cpu/cpu_vendor.h"
#include "kernels/cpu/matmul.h"
#include "requirements.h"

#include <catch2/catch.hpp>

namespace ftrun::testing {
namespace {

constexpr MatmulLibrary kMkl = MatmulLibrary::kMkl, kOneDnn = MatmulLibrary::kOneDnn,
                        kOpenBlas = MatmulLibrary::kOpenBlas;
constexpr AvailableLibraries kAll{}, kNoOpenBlas{.openblas = false}, kNoOneDnn{.onednn = false},
    kNone{.onednn = false, .openblas = false};

CpuTraits cpu_of(const char* vendor, Isa isa, bool avx512_bf16 = false, bool amx = false) {
  return {.vendor = vendor, .isa = isa, .avx512_bf16 = avx512_bf16, .amx_bf16 = amx};
}

TEST_CASE("CPU vendor, instructions, dtype and present libraries decide which library multiplies") {
  const CpuTraits haswell = cpu_of("GenuineIntel", Isa::kAvx2);
  const CpuTraits skylake = cpu_of("GenuineIntel", Isa::kAvx512);
  const CpuTraits cooper_lake = cpu_of("GenuineIntel", Isa::kAvx512, true);
  CpuTraits sapphire_rapids = cpu_of("GenuineIntel", Isa::kAmx, true, true);
  sapphire_rapids.avx512_fp16 = true;
  CpuTraits without_amx = cpu_of("GenuineIntel", Isa::kAvx512, true);
  without_amx.avx512_fp16 = true;
  const CpuTraits zen3 = cpu_of("AuthenticAMD", Isa::kAvx2);
  const CpuTraits zen5 = cpu_of("AuthenticAMD", Isa::kAvx512Bf16, true);
  CpuTraits later_amd = zen5;
  later_amd.avx512_fp16 = true;
  const CpuTraits zen5_held_to_avx512 = cpu_of("AuthenticAMD", Isa::kAvx512, true);
  const CpuTraits intel_held_to_avx512 = cpu_of("GenuineIntel", Isa::kAvx512, true, true);
  const CpuTraits zen5_held_to_avx2 = cpu_of("AuthenticAMD", Isa::kAvx2, true);
  const CpuTraits hygon = cpu_of("HygonGenuine", Isa::kAvx2);
  const CpuTraits zhaoxin = cpu_of("CentaurHauls", Isa::kAvx2);
  struct Row {
    CpuTraits cpu;
    AvailableLibraries available;
    MatmulRule rule;
  };
  const std::vector<Row> table{
      {haswell, kAll, {kMkl, {}}},
      {skylake, kAll, {kMkl, {}}},
      {cooper_lake, kAll, {kMkl, kOneDnn}},
      {cooper_lake, kNoOneDnn, {kMkl, {}}},
      {sapphire_rapids, kAll, {kMkl, kMkl}},
      {sapphire_rapids, kNone, {kMkl, kMkl}},
      {without_amx, kAll, {kMkl, {}}},
      {zen3, kAll, {kMkl, {}}},
      {zen3, kNone, {kMkl, {}}},
      {zen5, kAll, {kOneDnn, kOneDnn}},
      {later_amd, kAll, {kOneDnn, kOneDnn}},
      {zen5, kNoOpenBlas, {kOneDnn, kOneDnn}},
      {zen5, kNoOneDnn, {kOpenBlas, {}}},
      {zen5, kNone, {kMkl, {}}},
      {zen5_held_to_avx512, kAll, {kOneDnn, kOneDnn}},
      {intel_held_to_avx512, kAll, {kMkl, kMkl}},
      {zen5_held_to_avx2, kAll, {kMkl, {}}},
      {hygon, kAll, {kMkl, {}}},
      {zhaoxin, kAll, {kMkl, {}}},
  };
  for (const Row& row : table) {
    CAPTURE(row.cpu.vendor, row.cpu.avx512_bf16, row.available.onednn, row.available.openblas);
    REQUIRE(choose_matmul_rule(row.cpu, row.available) == row.rule);
  }
}

TEST_CASE(
    "a matrix library that the config names is used on every CPU, and for bf16 if it supports "
    "bf16") {
  const CpuTraits zen5 = cpu_of("AuthenticAMD", Isa::kAvx512Bf16, true);
  const CpuTraits intel = cpu_of("GenuineIntel", Isa::kAmx, true, true);
  REQUIRE(choose_matmul_rule(zen5, kAll, kMkl) == MatmulRule{kMkl, {}});
  REQUIRE(choose_matmul_rule(zen5, kAll, kOneDnn) == MatmulRule{kOneDnn, kOneDnn});
  REQUIRE(choose_matmul_rule(zen5, kAll, kOpenBlas) == MatmulRule{kOpenBlas, {}});
  REQUIRE(choose_matmul_rule(intel, kAll, kMkl) == MatmulRule{kMkl, kMkl});
  REQUIRE(choose_matmul_rule(intel, kAll, kOpenBlas) == MatmulRule{kOpenBlas, {}});
}

const testing::Requirement kMatmulLibraries("matmul_libraries", [] {
  std::string missing;
  for (const MatmulLibrary library : {kOneDnn, kOpenBlas})
    if (!has_matmul_library(library))
      missing +=
          cat(missing.empty() ? "" : ", ", matmul_library_name(library), " is not installed");
  return missing;
});

// The cases below test only the libraries that can be called; this entry makes CTest count a
// missing one as skipped.
TEST_CASE("oneDNN and OpenBLAS can be called", "[.needs-matmul_libraries]") {
  REQUIRE(has_matmul_library(kOneDnn));
  REQUIRE(has_matmul_library(kOpenBlas));
}

TEST_CASE("attention uses an Intel CPU's matrix units unless the config says own") {
  const Isa isa_before = isa_in_use();
  set_isa(best_isa());
  const auto uses_matrix_units = [](std::optional<bool> choice) {
    return choose_matmul_library(std::nullopt, choice).attention == kOnMatrixUnits;
  };
  REQUIRE(uses_matrix_units(std::nullopt) == (is_intel(cpu_vendor()) && can_run(Isa::kAmx)));
  REQUIRE(uses_matrix_units(true) == can_run(Isa::kAmx));
  REQUIRE_FALSE(uses_matrix_units(false));
  set_isa(isa_before);
}

TEST_CASE("the libraries in use are named with their versions") {
  for_each_matmul_library([](MatmulLibrary library) {
    const MatmulLibrariesInUse in_use = choose_matmul_library(library);
    REQUIRE(in_use.fp32.starts_with(matmul_library_name(library)));
    REQUIRE((library == kMkl) == (in_use.fp32 == "mkl"));
    REQUIRE(in_use.missing.empty());
    REQUIRE(matmul_rule_in_use().fp32 == library);
  });
}

TEST_CASE("tiles cover a result and depend on its shape alone") {
  struct Row {
    int64_t m, n, rows, columns;
  };
  const std::vector<Row> table{{512, 960, 256, 240},  {512, 576, 256, 144},  {512, 3072, 512, 256},
                               {3072, 576, 512, 288}, {576, 1536, 288, 256}, {512, 49152, 512, 512},
                               {1, 49152, 16, 512},   {7, 5, 16, 16},        {1, 1, 16, 16}};
  for (const Row& row : table) {
    CAPTURE(row.m, row.n);
    const MatmulTiles tiles = matmul_tiles(row.m, row.n);
    REQUIRE(tiles.rows == row.rows);
    REQUIRE(tiles.columns == row.columns);
  }
}

struct Shape {
  int64_t m, n, k;
};
// The shapes are smaller than a tile, one row, uneven tiles, and those of a small layer.
const std::vector<Shape> kShapes{{1, 1, 1},     {7, 5, 3},       {1, 515, 33},  {130, 48, 96},
                                 {67, 1031, 9}, {192, 576, 192}, {700, 530, 65}};

/// Computes op(a) op(b) + beta * before in fp64, one row at a time.
Array matmul_in_fp64(const MatmulShape& p, const Array& a, const Array& b, double beta,
                     const Array& before) {
  Array c = before;
  for (int64_t i = 0; i < p.m; ++i) {
    std::vector<double> sums(static_cast<size_t>(p.n), 0.0);
    for (int64_t l = 0; l < p.k; ++l) {
      const int64_t at_a = p.transpose_a == Transpose::kYes ? l * p.m + i : i * p.k + l;
      const double factor = a.data[static_cast<size_t>(at_a)];
      const bool is_turned = p.transpose_b == Transpose::kYes;
      const double* from = &b.data[static_cast<size_t>(is_turned ? l : l * p.n)];
      const int64_t step = is_turned ? p.k : 1;
      for (double& sum : sums) {
        sum += factor * *from;
        from += step;
      }
    }
    double* out = &c.data[static_cast<size_t>(i * p.n)];
    for (const double sum : sums) {
      *out = sum + beta * *out;
      ++out;
    }
  }
  return c;
}

/// Returns random numbers that `dtype` can represent. Each array is created once and shared by all
/// cases.
const Array& shared_operand(const std::vector<int64_t>& dims, uint64_t seed, DType dtype) {
  static std::map<std::tuple<std::vector<int64_t>, uint64_t, DType>, Array> made;
  const auto [at, is_new] = made.try_emplace({dims, seed, dtype});
  if (is_new) at->second = rounded(random_array(dims, seed), dtype);
  return at->second;
}

template <class S>
std::vector<S> stored_as(const Array& array) {
  std::vector<S> out;
  for (const double v : array.data) {
    if constexpr (std::is_same_v<S, BFloat16>)
      out.push_back({bits_of(v, DType::kBF16)});
    else
      out.push_back(static_cast<S>(v));
  }
  return out;
}

/// Returns op(a) op(b) + beta * before, computed by matmul().
template <class S, class R>
std::vector<R> call_matmul(const MatmulShape& p, const Array& a, const Array& b, double beta,
                           const Array& before) {
  const std::vector<S> x = stored_as<S>(a), y = stored_as<S>(b);
  std::vector<R> c = stored_as<R>(before);
  matmul(p, x.data(), p.transpose_a == Transpose::kYes ? p.m : p.k, y.data(),
         p.transpose_b == Transpose::kYes ? p.k : p.n, beta, c.data(), p.n);
  return c;
}

/// Calls f(shape, a, b, beta, before) for each shape, transposition and beta, with operands that
/// `dtype` can represent.
template <class F>
void for_each_matmul_shape(DType dtype, F f) {
  for (const Shape& s : kShapes)
    for (const Transpose ta : {Transpose::kNo, Transpose::kYes})
      for (const Transpose tb : {Transpose::kNo, Transpose::kYes})
        for (const double beta : {0.0, 1.0}) {
          CAPTURE(s.m, s.n, s.k, ta == Transpose::kYes, tb == Transpose::kYes, beta);
          f(MatmulShape{ta, tb, s.m, s.n, s.k}, shared_operand({s.m, s.k}, 1, dtype),
            shared_operand({s.k, s.n}, 2, dtype), beta, shared_operand({s.m, s.n}, 3, DType::kF32));
        }
}

/// Requires that each result differs from fp64 by at most `allowed`. `with_each` calls its argument
/// once for each library under test, after selecting it.
template <class S, class R, class WithEach>
void require_matmul(DType dtype, double allowed, WithEach with_each) {
  for_each_matmul_shape(dtype, [&](const MatmulShape& p, const Array& a, const Array& b,
                                   double beta, const Array& before) {
    const Array expected = matmul_in_fp64(p, a, b, beta, before);
    with_each([&](MatmulLibrary library) {
      CAPTURE(matmul_library_name(library));
      const std::vector<R> c = call_matmul<S, R>(p, a, b, beta, before);
      Array actual = before;
      actual.data.assign(c.begin(), c.end());
      REQUIRE(relative_error(actual, expected) < allowed);
    });
  });
}

TEST_CASE("results of every library agree with fp64 at every shape and transposition") {
  require_matmul<float, float>(DType::kF32, 1e-6,
                               [](auto multiply) { for_each_matmul_library(multiply); });
  require_matmul<double, double>(DType::kF64, 1e-14, [](auto multiply) {
    choose_matmul_library(kMkl);
    multiply(kMkl);
  });
  choose_matmul_library(std::nullopt);
}

// MKL multiplies bf16 on any CPU, however slowly; oneDNN needs AVX-512 for it.
TEST_CASE("oneDNN multiplies bf16 where there is AVX-512, and only there") {
  REQUIRE(has_bf16_matmul(kOneDnn) == (has_matmul_library(kOneDnn) && can_run(Isa::kAvx512)));
}

TEST_CASE("results for bf16 as it is stored agree with fp64") {
  require_matmul<BFloat16, float>(DType::kBF16, 1e-6, [](auto multiply) {
    for (const MatmulLibrary library : {kMkl, kOneDnn}) {
      if (!has_bf16_matmul(library)) continue;
      set_matmul_rule({kMkl, library});
      multiply(library);
    }
  });
  choose_matmul_library(std::nullopt);
}

template <class S, class R>
std::vector<std::vector<R>> all_matmuls(DType dtype, int threads) {
  set_kernel_threads(threads);
  std::vector<std::vector<R>> all;
  for_each_matmul_shape(
      dtype, [&](const MatmulShape& p, const Array& a, const Array& b, double beta,
                 const Array& before) { all.push_back(call_matmul<S, R>(p, a, b, beta, before)); });
  return all;
}

TEST_CASE("results of every library have the same bits for 1, 2, 3 and 4 threads") {
  for_each_matmul_library([](MatmulLibrary library) {
    CAPTURE(matmul_library_name(library));
    const auto one = all_matmuls<float, float>(DType::kF32, 1);
    for (const int threads : {2, 3, 4})
      REQUIRE(all_matmuls<float, float>(DType::kF32, threads) == one);
  });
  set_matmul_rule({kMkl, kMkl});
  const auto one = all_matmuls<BFloat16, float>(DType::kBF16, 1);
  for (const int threads : {2, 3}) {
    CAPTURE(threads);
    REQUIRE(all_matmuls<BFloat16, float>(DType::kBF16, threads) == one);
  }
  choose_matmul_library(std::nullopt);
  set_kernel_threads(2);
}

/// StackWatch holds the bounds of the calling thread's stack, the number of signals, and how many
/// of them found the stack pointer outside of this stack.
struct StackWatch {
  uintptr_t begin = 0;
  uintptr_t end = 0;
  volatile int signals = 0;
  volatile int elsewhere = 0;
} watch;

void read_stack_pointer(int, siginfo_t*, void* context) {
  const auto pointer =
      static_cast<uintptr_t>(static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RSP]);
  watch.signals = watch.signals + 1;
  if (pointer < watch.begin || pointer >= watch.end) watch.elsewhere = watch.elsewhere + 1;
}

/// SignalRain sends signals to the calling thread at intervals of its CPU time, from its
/// construction to its destruction. The handler runs on a separate stack.
class SignalRain {
 public:
  SignalRain() {
    pthread_attr_t attributes;
    void* stack = nullptr;
    size_t size = 0;
    REQUIRE(::pthread_getattr_np(::pthread_self(), &attributes) == 0);
    REQUIRE(::pthread_attr_getstack(&attributes, &stack, &size) == 0);
    ::pthread_attr_destroy(&attributes);
    watch.begin = reinterpret_cast<uintptr_t>(stack);
    watch.end = watch.begin + size;
    const stack_t own{.ss_sp = stack_.data(), .ss_flags = 0, .ss_size = stack_.size()};
    REQUIRE(::sigaltstack(&own, &stack_before_) == 0);
    struct sigaction action {};
    action.sa_sigaction = read_stack_pointer;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
    ::sigaction(SIGPROF, &action, &action_before_);
    sigevent to_this_thread{};
    to_this_thread.sigev_notify = SIGEV_THREAD_ID;
    to_this_thread.sigev_signo = SIGPROF;
    to_this_thread._sigev_un._tid = ::gettid();
    REQUIRE(::timer_create(CLOCK_THREAD_CPUTIME_ID, &to_this_thread, &timer_) == 0);
    const itimerspec often{{0, kNanoseconds}, {0, kNanoseconds}};
    ::timer_settime(timer_, 0, &often, nullptr);
  }
  ~SignalRain() {
    ::timer_delete(timer_);
    ::sigaction(SIGPROF, &action_before_, nullptr);
    ::sigaltstack(&stack_before_, nullptr);
  }
  SignalRain(const SignalRain&) = delete;
  SignalRain& operator=(const SignalRain&) = delete;

 private:
  static constexpr int kNanoseconds = 500'000;
  std::vector<char> stack_ = std::vector<char>(65536);
  stack_t stack_before_{};
  struct sigaction action_before_ {};
  timer_t timer_{};
};

// A signal handler's frame is written below the stack pointer. If a library used that register for
// something else in between, as oneDNN's AVX-512 kernels of fp32 do, the frame would overwrite the
// heap.
TEST_CASE("a signal that comes while a library multiplies finds the stack pointer on the stack") {
  constexpr int kEdge = 256, kSignals = 20;
  const auto multiply_under_signals = [&]<class S>(MatmulLibrary library, S one) {
    const std::vector<S> a(kEdge * kEdge, one), b(kEdge * kEdge, one);
    std::vector<float> c(kEdge * kEdge);
    for (const bool transpose_a : {false, true})
      for (const bool transpose_b : {false, true}) {
        CAPTURE(matmul_library_name(library), sizeof(S), transpose_a, transpose_b);
        watch.signals = 0;
        watch.elsewhere = 0;
        const SignalRain rain;
        while (watch.signals < kSignals)
          multiply_with(
              library, MatmulCall<S, float>{transpose_a, transpose_b, kEdge, kEdge, kEdge, a.data(),
                                            kEdge, b.data(), kEdge, 0, c.data(), kEdge});
        REQUIRE(c.back() == kEdge);
        REQUIRE(watch.elsewhere == 0);
      }
  };
  for (const MatmulLibrary library : {kMkl, kOneDnn, kOpenBlas}) {
    if (!has_matmul_library(library)) continue;
    multiply_under_signals(library, 1.0F);
    if (library != kOpenBlas && has_bf16_matmul(library))
      multiply_under_signals(library, BFloat16{0x3F80});
  }
}

TEST_CASE("all libraries share one OpenMP runtime") {
  for_each_matmul_library([](MatmulLibrary) {});
  std::set<std::string> runtimes;
  ::dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* found) {
        const std::string path = info->dlpi_name;
        for (const char* const name : {"libgomp", "libiomp", "libomp."})
          if (path.find(name) != std::string::npos)
            static_cast<std::set<std::string>*>(found)->insert(path);
        return 0;
      },
      &runtimes);
  REQUIRE(runtimes.size() == 1);
}

}  // namespace
}  // namespace ftrun::testing
