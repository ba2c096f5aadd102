#include "kernels/cpu/operand_memory.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <span>
#include <utility>

#include "base/error.h"

namespace ftrun {
namespace {

/// The size from which a block is kept, in bytes: glibc reuses smaller ones without page faults.
constexpr size_t kSmallest = 64 << 10;
constexpr size_t kAlignment = 4096;

/// KeptBlock is the block that a thread keeps.
struct KeptBlock {
  void* address = nullptr;
  size_t bytes = 0;
  /// The library has it now.
  bool is_in_use = false;
  /// An OperandMemory object exists on this thread.
  bool is_offered = false;

  KeptBlock() = default;
  ~KeptBlock() {
    ::free(address);
    forget();  // the library may still release other memory on this thread
  }
  KeptBlock(const KeptBlock&) = delete;
  KeptBlock& operator=(const KeptBlock&) = delete;

  void forget() {
    address = nullptr;
    bytes = 0;
    is_in_use = false;
  }
};

KeptBlock& kept_block() {
  thread_local KeptBlock block;
  return block;
}

using Address = ElfW(Addr);

/// LoadedLibrary finds the entries of a loaded library's global offset table.
class LoadedLibrary {
 public:
  explicit LoadedLibrary(void* handle) {
    if (::dlinfo(handle, RTLD_DI_LINKMAP, &map_) != 0) return;
    for (const ElfW(Dyn)* entry = map_->l_ld; entry->d_tag != DT_NULL; ++entry) {
      if (entry->d_tag == DT_SYMTAB) symbols_ = at<ElfW(Sym)>(entry->d_un.d_ptr);
      if (entry->d_tag == DT_STRTAB) names_ = at<char>(entry->d_un.d_ptr);
      if (entry->d_tag == DT_JMPREL) tables_[0].first = at<ElfW(Rela)>(entry->d_un.d_ptr);
      if (entry->d_tag == DT_PLTRELSZ) tables_[0].count = entry->d_un.d_val / sizeof(ElfW(Rela));
      if (entry->d_tag == DT_RELA) tables_[1].first = at<ElfW(Rela)>(entry->d_un.d_ptr);
      if (entry->d_tag == DT_RELASZ) tables_[1].count = entry->d_un.d_val / sizeof(ElfW(Rela));
    }
  }

  /// Returns the entry that holds the address of a function of another library; null if the library
  /// has none.
  void** find_entry(const char* function) const {
    if (map_ == nullptr || symbols_ == nullptr || names_ == nullptr) return nullptr;
    for (const Relocations& table : tables_)
      for (size_t i = 0; table.first != nullptr && i < table.count; ++i) {
        const ElfW(Rela)& relocation = table.first[i];
        const auto type = ELF64_R_TYPE(relocation.r_info);
        if (type != R_X86_64_JUMP_SLOT && type != R_X86_64_GLOB_DAT) continue;
        const ElfW(Sym)& symbol = symbols_[ELF64_R_SYM(relocation.r_info)];
        if (std::strcmp(names_ + symbol.st_name, function) == 0)
          return reinterpret_cast<void**>(map_->l_addr + relocation.r_offset);
      }
    return nullptr;
  }

  /// Replaces entries. Returns false, and changes nothing, if they cannot be written.
  bool replace(std::span<const std::pair<void**, void*>> entries) const {
    for (const auto& [entry, function] : entries)
      if (::mprotect(page_of(entry), page_bytes(), PROT_READ | PROT_WRITE) != 0) return false;
    for (const auto& [entry, function] : entries) *entry = function;
    for (const auto& [entry, function] : entries)
      if (was_read_only(entry)) ::mprotect(page_of(entry), page_bytes(), PROT_READ);
    return true;
  }

 private:
  struct Relocations {
    const ElfW(Rela) * first = nullptr;
    size_t count = 0;
  };

  /// glibc has added the library's address to the pointers of its dynamic section.
  template <typename T>
  static const T* at(Address address) {
    return reinterpret_cast<const T*>(address);
  }
  static Address page_bytes() { return static_cast<Address>(::sysconf(_SC_PAGESIZE)); }
  static void* page_of(void** entry) {
    return reinterpret_cast<void*>(reinterpret_cast<Address>(entry) / page_bytes() * page_bytes());
  }

  /// Returns whether the loader made an entry read-only when it had filled it in (RELRO).
  bool was_read_only(void** entry) const {
    struct Search {
      Address library;
      Address entry;
      bool found;
    } search{map_->l_addr, reinterpret_cast<Address>(entry), false};
    const auto visit = [](dl_phdr_info* library, size_t, void* data) {
      auto& wanted = *static_cast<Search*>(data);
      if (library->dlpi_addr != wanted.library) return 0;
      for (int i = 0; i < library->dlpi_phnum; ++i) {
        const ElfW(Phdr)& segment = library->dlpi_phdr[i];
        const Address offset = wanted.entry - wanted.library - segment.p_vaddr;
        if (segment.p_type == PT_GNU_RELRO && offset < segment.p_memsz) wanted.found = true;
      }
      return 1;
    };
    ::dl_iterate_phdr(visit, &search);
    return search.found;
  }

  const link_map* map_ = nullptr;
  const ElfW(Sym) * symbols_ = nullptr;
  const char* names_ = nullptr;
  std::array<Relocations, 2> tables_;
};

}  // namespace

OperandMemory::OperandMemory() {
  require(!kept_block().is_offered, "operand memory is not nested");
  kept_block().is_offered = true;
}

OperandMemory::~OperandMemory() {
  KeptBlock& block = kept_block();
  block.is_offered = false;
  if (block.is_in_use) block.forget();
}

int OperandMemory::allocate(void** result, size_t alignment, size_t bytes) {
  KeptBlock& block = kept_block();
  if (!block.is_offered || block.is_in_use || bytes < kSmallest || alignment > kAlignment)
    return ::posix_memalign(result, alignment, bytes);
  if (block.bytes < bytes) {
    ::free(block.address);
    block.forget();
    if (const int error = ::posix_memalign(&block.address, kAlignment, bytes)) {
      block.forget();
      return error;
    }
    block.bytes = bytes;
  }
  block.is_in_use = true;
  *result = block.address;
  return 0;
}

void OperandMemory::release(void* address) {
  KeptBlock& block = kept_block();
  if (block.is_in_use && address == block.address)
    block.is_in_use = false;
  else
    ::free(address);
}

bool OperandMemory::redirect(void* library) {
  const LoadedLibrary loaded(library);
  const std::array entries{
      std::pair(loaded.find_entry("posix_memalign"), reinterpret_cast<void*>(&allocate)),
      std::pair(loaded.find_entry("free"), reinterpret_cast<void*>(&release))};
  if (entries[0].first == nullptr || entries[1].first == nullptr) return false;
  return loaded.replace(entries);
}

}  // namespace ftrun
