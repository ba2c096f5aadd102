#include "kernels/cpu/operand_memory.h"

#include <dlfcn.h>
#include <malloc.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/matmul_library.h"
#include "kernels/choose_matmul_library.h"
#include "kernels/cpu/matmul_libraries.h"
#include "kernels/kernels.h"

#include <catch2/catch.hpp>

namespace ftrun::testing {
namespace {

/// Allocates memory as the library does, and writes all of it.
void* allocate_as_library(size_t bytes) {
  void* address = nullptr;
  REQUIRE(OperandMemoryScope::allocate(&address, 64, bytes) == 0);
  std::memset(address, 1, bytes);
  return address;
}

TEST_CASE("a thread's block serves one multiplication after another, and grows if it must") {
  void* first = nullptr;
  {
    const OperandMemoryScope scope;
    first = allocate_as_library(200'000);
    // Only one allocation at a time has the block.
    void* const second = allocate_as_library(100'000);
    CHECK(second != first);
    OperandMemoryScope::release(first);
    OperandMemoryScope::release(second);
    CHECK(allocate_as_library(150'000) == first);
    OperandMemoryScope::release(first);
  }
  const OperandMemoryScope scope;
  void* const again = allocate_as_library(200'000);
  CHECK(again == first);
  OperandMemoryScope::release(again);
  void* const larger = allocate_as_library(2'000'000);
  OperandMemoryScope::release(larger);
  CHECK(allocate_as_library(200'000) == larger);
  OperandMemoryScope::release(larger);
}

TEST_CASE("memory that the library does not release belongs to it") {
  void* kept = nullptr;
  {
    const OperandMemoryScope scope;
    kept = allocate_as_library(300'000);
  }
  {
    const OperandMemoryScope scope;
    void* const other = allocate_as_library(300'000);
    CHECK(other != kept);
    OperandMemoryScope::release(other);
  }
  std::memset(kept, 2, 300'000);
  std::thread([kept] { OperandMemoryScope::release(kept); }).join();
}

TEST_CASE("outside of a scope, allocations are the system's") {
  void* address = nullptr;
  CHECK(OperandMemoryScope::allocate(&address, 3, 64) == EINVAL);
  REQUIRE(OperandMemoryScope::allocate(&address, 8192, 100'000) == 0);
  CHECK(reinterpret_cast<uintptr_t>(address) % 8192 == 0);
  void* other = nullptr;
  REQUIRE(OperandMemoryScope::allocate(&other, 64, 100'000) == 0);
  CHECK(other != address);
  std::free(address);  // NOLINT: it is memory of posix_memalign()
  OperandMemoryScope::release(other);
  OperandMemoryScope::release(std::malloc(10));
  OperandMemoryScope::release(nullptr);
}

/// Returns the bytes of the calling thread's block, at least 100,000; 0 if memory is short.
size_t kept_bytes() {
  const OperandMemoryScope scope;
  void* block = nullptr;
  if (OperandMemoryScope::allocate(&block, 64, 100'000) != 0) return 0;
  const size_t bytes = malloc_usable_size(block);
  OperandMemoryScope::release(block);
  return bytes;
}

/// Returns the bytes of code that this process has in no file: kernels that a library has compiled.
int64_t compiled_code_bytes() {
  std::ifstream maps("/proc/self/maps");
  int64_t bytes = 0;
  for (std::string line; std::getline(maps, line);) {
    std::istringstream words(line);
    std::string range, rights, offset, device, inode, path;
    words >> range >> rights >> offset >> device >> inode >> path;
    const size_t dash = range.find('-');
    if (rights.find('x') != std::string::npos && inode == "0" && path.empty())
      bytes += std::stoll(range.substr(dash + 1), nullptr, 16) -
               std::stoll(range.substr(0, dash), nullptr, 16);
  }
  return bytes;
}

TEST_CASE("after the warm-up, no fp32 multiplication needs a larger block or more code",
          "[.needs-matmul_libraries]") {
  constexpr int kSide = 512, kDepth = 1024, kFarther = 2 * kDepth;
  const std::vector<float> operand(kDepth * kFarther);
  std::vector<float> result(kSide * kSide);
  const int threads = kernel_threads();
  set_kernel_threads(1);
  choose_matmul_library(MatmulLibrary::kOneDnn);
  size_t after_warm_up = 0, at_end = 0;
  int64_t code_after_warm_up = 0;
  // A new thread has no block before.
  std::thread([&] {
    std::vector<std::byte> memory(static_cast<size_t>(warm_up_bytes()));
    warm_up_matmul(DType::kF32, memory.data());
    after_warm_up = kept_bytes();
    code_after_warm_up = compiled_code_bytes();
    for (const bool transpose_a : {false, true})
      for (const bool transpose_b : {false, true})
        for (const int row_distance : {kDepth, kFarther})
          for (const int rows : {1, 2, 15, 17, kSide})
            multiply_with(MatmulLibrary::kOneDnn,
                          MatmulCall<float, float>{.transpose_a = transpose_a,
                                                   .transpose_b = transpose_b,
                                                   .m = rows,
                                                   .n = kSide,
                                                   .k = kDepth,
                                                   .a = operand.data(),
                                                   .lda = row_distance,
                                                   .b = operand.data(),
                                                   .ldb = row_distance,
                                                   .c = result.data(),
                                                   .ldc = kSide});
    at_end = kept_bytes();
  }).join();
  choose_matmul_library(std::nullopt);
  set_kernel_threads(threads);
  CHECK(after_warm_up > 1'000'000);
  CHECK(after_warm_up == at_end);
  CHECK(compiled_code_bytes() == code_after_warm_up);
}

TEST_CASE("oneDNN's multiplications leave the memory of their operands to the thread",
          "[.needs-matmul_libraries]") {
  // Rows that are further apart than they are long, so that oneDNN does not use them in place.
  constexpr int kSide = 512, kStride = 1024;
  const std::vector<float> a(kSide * kStride, 1.0F), b(kSide * kStride, 0.5F);
  std::vector<float> c(kSide * kSide);
  size_t block_bytes = 0;
  // A new thread has no block before.
  std::thread([&] {
    multiply_with(MatmulLibrary::kOneDnn, MatmulCall<float, float>{.transpose_a = true,
                                                                   .m = kSide,
                                                                   .n = kSide,
                                                                   .k = kSide,
                                                                   .a = a.data(),
                                                                   .lda = kStride,
                                                                   .b = b.data(),
                                                                   .ldb = kStride,
                                                                   .beta = 0,
                                                                   .c = c.data(),
                                                                   .ldc = kSide});
    block_bytes = kept_bytes();
  }).join();
  CHECK(c[0] == kSide * 0.5F);
  // Each operand has 1 MiB, of which oneDNN packs a part at a time.
  CHECK(block_bytes > 200'000);
  // A library that does not call both functions is left as it is.
  void* const libm = ::dlopen("libm.so.6", RTLD_NOW);
  REQUIRE(libm != nullptr);
  CHECK_FALSE(OperandMemoryScope::redirect(libm));
}

}  // namespace
}  // namespace ftrun::testing
