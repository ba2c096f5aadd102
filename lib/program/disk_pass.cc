#include "program/passes.h"

namespace ftrun {

Program overlap_disk_requests(Program program) {
  const Instr* last = nullptr;
  for (Instr& instr : program.instrs) {
    if (instr.lane != Lane::kDisk) continue;
    instr.detail = DiskRequest{last != nullptr && !share_written_bytes(program, *last, instr)};
    last = &instr;
  }
  return program;
}

}  // namespace ftrun
