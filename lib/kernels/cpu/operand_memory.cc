#include "kernels/cpu/operand_memory.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/error.h"

namespace ftrun {
namespace {

/// The size from which a block is kept, in bytes: glibc reuses smaller ones without page faults.
constexpr size_t kSmallest = 64 << 10;
constexpr size_t kAlignment = 4096;

/// KeptBlock is the block that a thread keeps. It has no destructor, because the library may still
/// release memory on a thread whose objects are destroyed.
struct KeptBlock {
  void* address = nullptr;
  size_t bytes = 0;
  /// The library has it now.
  bool is_in_use = false;
  /// A scope exists on this thread.
  bool is_offered = false;

  void forget() {
    address = nullptr;
    bytes = 0;
    is_in_use = false;
  }
  void free_memory() {
    ::free(address);
    forget();
  }
};
thread_local constinit KeptBlock kept_block;

/// BlockFreer frees the block of a thread that ends.
struct BlockFreer {
  ~BlockFreer() { kept_block.free_memory(); }
};

using Address = ElfW(Addr);
using Relocation = ElfW(Rela);
using Symbol = ElfW(Sym);

/// LoadedLibrary finds and replaces the addresses of functions that a loaded library calls.
class LoadedLibrary {
 public:
  /// Entry is a place in the library's memory, and the function whose address it shall hold.
  struct Entry {
    void** address;
    void* function;
  };

  explicit LoadedLibrary(void* handle) {
    if (::dlinfo(handle, RTLD_DI_LINKMAP, &map_) != 0) return;
    for (const ElfW(Dyn)* entry = map_->l_ld; entry->d_tag != DT_NULL; ++entry) {
      if (entry->d_tag == DT_SYMTAB) symbols_ = at<Symbol>(entry->d_un.d_ptr);
      if (entry->d_tag == DT_STRTAB) names_ = at<char>(entry->d_un.d_ptr);
      if (entry->d_tag == DT_JMPREL) tables_[0].first = at<Relocation>(entry->d_un.d_ptr);
      if (entry->d_tag == DT_PLTRELSZ) tables_[0].count = entry->d_un.d_val / sizeof(Relocation);
      if (entry->d_tag == DT_RELA) tables_[1].first = at<Relocation>(entry->d_un.d_ptr);
      if (entry->d_tag == DT_RELASZ) tables_[1].count = entry->d_un.d_val / sizeof(Relocation);
    }
  }

  /// Adds all entries that hold the address of a function of another library, with the function
  /// that is to replace it. Returns whether there are any.
  bool add_entries(const char* function, void* replacement, std::vector<Entry>& entries) const {
    if (map_ == nullptr || symbols_ == nullptr || names_ == nullptr) return false;
    const size_t before = entries.size();
    for (const Relocations& table : tables_)
      for (size_t i = 0; table.first != nullptr && i < table.count; ++i) {
        const Relocation& relocation = table.first[i];
        const auto type = ELF64_R_TYPE(relocation.r_info);
        if (type != R_X86_64_JUMP_SLOT && type != R_X86_64_GLOB_DAT && type != R_X86_64_64)
          continue;
        const Symbol& symbol = symbols_[ELF64_R_SYM(relocation.r_info)];
        if (symbol.st_shndx != SHN_UNDEF || std::strcmp(names_ + symbol.st_name, function) != 0)
          continue;
        auto** const address = reinterpret_cast<void**>(map_->l_addr + relocation.r_offset);
        entries.push_back({address, replacement});
      }
    return entries.size() > before;
  }

  /// Replaces entries. Returns false, and replaces none, if they cannot be written.
  bool replace(const std::vector<Entry>& entries) const {
    const bool are_writable = std::ranges::all_of(entries, [&](const Entry& entry) {
      return ::mprotect(page_of(entry.address), page_bytes(), PROT_READ | PROT_WRITE) == 0;
    });
    if (are_writable)
      for (const Entry& entry : entries) *entry.address = entry.function;
    for (const Entry& entry : entries)
      if (was_read_only(entry.address)) ::mprotect(page_of(entry.address), page_bytes(), PROT_READ);
    return are_writable;
  }

 private:
  struct Relocations {
    const Relocation* first = nullptr;
    size_t count = 0;
  };

  /// Returns the place to which a pointer of the dynamic section points. The loader has added the
  /// library's address to it, unless the section is read-only.
  template <typename T>
  const T* at(Address pointer) const {
    return reinterpret_cast<const T*>(pointer < map_->l_addr ? map_->l_addr + pointer : pointer);
  }
  static Address page_bytes() { return static_cast<Address>(::sysconf(_SC_PAGESIZE)); }
  static void* page_of(void** entry) {
    return reinterpret_cast<void*>(reinterpret_cast<Address>(entry) / page_bytes() * page_bytes());
  }

  /// Returns whether the loader made an entry read-only when it had filled it in: whether its page
  /// lies wholly in the segment RELRO.
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
        const Address begin = wanted.library + segment.p_vaddr;
        const Address end = (begin + segment.p_memsz) / page_bytes() * page_bytes();
        if (segment.p_type == PT_GNU_RELRO && wanted.entry >= begin && wanted.entry < end)
          wanted.found = true;
      }
      return 1;
    };
    ::dl_iterate_phdr(visit, &search);
    return search.found;
  }

  const link_map* map_ = nullptr;
  const Symbol* symbols_ = nullptr;
  const char* names_ = nullptr;
  std::array<Relocations, 2> tables_;
};

}  // namespace

OperandMemoryScope::OperandMemoryScope() {
  require(!kept_block.is_offered, "scopes of operand memory are not nested");
  kept_block.is_offered = true;
}

OperandMemoryScope::~OperandMemoryScope() {
  kept_block.is_offered = false;
  if (kept_block.is_in_use) kept_block.forget();
}

int OperandMemoryScope::allocate(void** result, size_t alignment, size_t bytes) {
  KeptBlock& block = kept_block;
  const bool is_aligned = alignment > 0 && kAlignment % alignment == 0;
  if (!block.is_offered || block.is_in_use || bytes < kSmallest || !is_aligned)
    return ::posix_memalign(result, alignment, bytes);
  if (block.bytes < bytes) {
    thread_local const BlockFreer freer;
    block.free_memory();
    void* address = nullptr;
    if (const int error = ::posix_memalign(&address, kAlignment, bytes)) return error;
    block.address = address;
    block.bytes = bytes;
  }
  block.is_in_use = true;
  *result = block.address;
  return 0;
}

void OperandMemoryScope::release(void* address) {
  if (kept_block.is_in_use && address == kept_block.address)
    kept_block.is_in_use = false;
  else
    ::free(address);
}

bool OperandMemoryScope::redirect(void* library) {
  const LoadedLibrary loaded(library);
  std::vector<LoadedLibrary::Entry> entries;
  return loaded.add_entries("posix_memalign", reinterpret_cast<void*>(&allocate), entries) &&
         loaded.add_entries("free", reinterpret_cast<void*>(&release), entries) &&
         loaded.replace(entries);
}

}  // namespace ftrun
