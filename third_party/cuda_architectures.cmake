# Chooses the GPU architectures for which kernels are compiled. On a GPU of another architecture the
# driver compiles the kernels from the instructions of an older one, which takes tens of seconds at
# the first start of each rank.

# The architectures for which the kernels were tuned.
set(FTRUN_USUAL_ARCHITECTURES 80 90)
# These architectures cover all GPUs that the kernels support (100 and 120 are Blackwell's).
set(FTRUN_ALL_ARCHITECTURES 80 90 100 120)

# Sets `result` to the architectures among `wanted` that the compiler supports.
function(ftrun_known_architectures compiler wanted result)
  execute_process(COMMAND "${compiler}" --list-gpu-arch OUTPUT_VARIABLE listed ERROR_QUIET
                  OUTPUT_STRIP_TRAILING_WHITESPACE)
  string(REGEX MATCHALL "[0-9]+" listed "${listed}")
  set(known)
  foreach(architecture IN LISTS wanted)
    if(architecture IN_LIST listed)
      list(APPEND known ${architecture})
    endif()
  endforeach()
  set(${result} "${known}" PARENT_SCOPE)
endfunction()

# Sets `result` to the architectures of this machine's GPUs, or to an empty list if it has no GPU or
# no driver. A family of GPUs runs what is compiled for its first member, so 10.3 counts as 100.
function(ftrun_architectures_here result)
  execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader
                  OUTPUT_VARIABLE told ERROR_QUIET RESULT_VARIABLE failed)
  set(here)
  if("${failed}" STREQUAL "0")
    string(REGEX MATCHALL "[0-9]+\\.[0-9]+" versions "${told}")
    foreach(version IN LISTS versions)
      string(REGEX REPLACE "\\..*" "0" architecture "${version}")
      list(APPEND here ${architecture})
    endforeach()
  endif()
  list(REMOVE_DUPLICATES here)
  set(${result} "${here}" PARENT_SCOPE)
endfunction()

# Sets `result` to the architectures to compile for. AUTO: the usual ones and those of this
# machine's GPUs. ALL: all that the compiler supports. Any other value is a list, which is used as
# it is.
function(ftrun_cuda_architectures wanted compiler result)
  if(wanted STREQUAL "ALL")
    ftrun_known_architectures("${compiler}" "${FTRUN_ALL_ARCHITECTURES}" wanted)
  elseif(wanted STREQUAL "AUTO")
    ftrun_architectures_here(here)
    ftrun_known_architectures("${compiler}" "${here}" here)
    set(wanted ${FTRUN_USUAL_ARCHITECTURES} ${here})
    list(REMOVE_DUPLICATES wanted)
  endif()
  set(${result} "${wanted}" PARENT_SCOPE)
endfunction()
