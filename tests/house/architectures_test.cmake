# Tests for which GPU architectures a build compiles kernels (run by cmake -P). The compiler and
# nvidia-smi are scripts that the test writes.
cmake_minimum_required(VERSION 3.25)
include("${CMAKE_CURRENT_LIST_DIR}/../../third_party/cuda_architectures.cmake")

set(folder "$ENV{TMPDIR}")
if(folder STREQUAL "")
  set(folder /tmp)
endif()
string(RANDOM LENGTH 12 name)
set(folder "${folder}/ftrun-architectures-${name}")

function(write_program name text)
  file(WRITE "${folder}/${name}" "#!/bin/sh\n${text}\n")
  file(CHMOD "${folder}/${name}" PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
endfunction()

function(require_architectures wanted compiler expected)
  ftrun_cuda_architectures("${wanted}" "${folder}/${compiler}" found)
  if(NOT found STREQUAL expected)
    file(REMOVE_RECURSE "${folder}")
    message(FATAL_ERROR "${wanted} with ${compiler}: '${found}' and not '${expected}'")
  endif()
endfunction()

write_program(nvcc_12_4 "printf 'compute_75\\ncompute_80\\ncompute_89\\ncompute_90\\n'")
write_program(nvcc_13_0 "printf 'compute_%s\\n' 80 90 100 110 103 120")
set(ENV{PATH} "${folder}:/usr/bin:/bin")

write_program(nvidia-smi "exit 9")
require_architectures(AUTO nvcc_13_0 "80;90")
require_architectures(ALL nvcc_13_0 "80;90;100;120")
require_architectures(ALL nvcc_12_4 "80;90")
require_architectures("86;90" nvcc_13_0 "86;90")

write_program(nvidia-smi "printf '8.9\\n12.0\\n12.0\\n10.3\\n'")
require_architectures(AUTO nvcc_13_0 "80;90;120;100")
require_architectures(AUTO nvcc_12_4 "80;90")
file(REMOVE_RECURSE "${folder}")
