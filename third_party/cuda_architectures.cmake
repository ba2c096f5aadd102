# Which GPU architectures kernels are compiled for. An architecture that is not among them starts with the instructions of an older
# one, which the driver translates: tens of seconds at the first start of every rank.

# Architectures of 8.0 and 9.0 serve what the kernels were tuned for.
set(FTRUN_USUAL_ARCHITECTURES 80 90)
# With those of Blackwell (data centres, workstations) they run on all GPUs that the kernels know.
set(FTRUN_ALL_ARCHITECTURES 80 90 100 120)

# The architectures among `wanted` that the compiler has.
function(ftrun_known_architectures compiler wanted result)
  execute_process(COMMAND "${compiler}" --list-gpu-arch OUTPUT_VARIABLE listed ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
  string(REGEX MATCHALL "[0-9]+" listed "${listed}")
  set(known)
  foreach(architecture IN LISTS wanted)
    if(architecture IN_LIST listed)
      list(APPEND known ${architecture})
    endif()
  endforeach()
  set(${result} "${known}" PARENT_SCOPE)
endfunction()

# 100 for GPUs of 10.0 and 10.3: a family runs what is compiled for its first member. Empty without a GPU or its driver.
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

# AUTO: the usual ones and those of this machine's GPUs. ALL: all that the compiler has. Anything else is a list, taken as it is.
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
