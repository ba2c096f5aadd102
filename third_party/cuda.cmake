# Sets FTRUN_WITH_CUDA according to FTRUN_CUDA (AUTO, ON or OFF). A build without CUDA compiles stub
# files instead; no other code differs. The root CMakeLists.txt includes this file, because
# enable_language(CUDA) affects only the folders below the one that calls it.
set(FTRUN_CUDA_ARCHITECTURES AUTO CACHE STRING
    "GPU architectures of kernels: AUTO (8.0, 9.0, this machine's), ALL (the compiler's) or a list")
set(FTRUN_WITH_CUDA OFF CACHE INTERNAL "CUDA kernels and NCCL are built")
set(FTRUN_CUDA_VERSION "" CACHE INTERNAL "version of the CUDA toolkit, empty without one")

if(NOT FTRUN_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "FTRUN_CUDA is '${FTRUN_CUDA}'; it may be AUTO, ON or OFF.")
endif()
if(FTRUN_CUDA STREQUAL "OFF" OR NOT FTRUN_ENGINE)
  return()
endif()

# The module of CMake 3.25.1 (Debian 12) marks CUDA::nvToolsExt as deprecated in projects that
# require CMake 3.25, also if the toolkit does not have it. CUDA 13 does not, and configuring would
# end there. So the module sees a lower required version.
set(required_version "${CMAKE_MINIMUM_REQUIRED_VERSION}")
set(CMAKE_MINIMUM_REQUIRED_VERSION 3.24)
find_package(CUDAToolkit 12.4 QUIET)
# If the machine has no toolkit, the compiler's wheels are used (scripts/setup.sh).
file(GLOB wheels "${FTRUN_VENV}/lib/python3*/site-packages/nvidia/cu13/bin/nvcc")
if(NOT CUDAToolkit_FOUND AND wheels)
  list(GET wheels 0 nvcc)
  cmake_path(GET nvcc PARENT_PATH CUDAToolkit_ROOT)
  cmake_path(GET CUDAToolkit_ROOT PARENT_PATH CUDAToolkit_ROOT)
  find_package(CUDAToolkit 12.4 QUIET)
endif()
set(CMAKE_MINIMUM_REQUIRED_VERSION "${required_version}")
if(CUDAToolkit_FOUND)
  include(CheckLanguage)
  # The architectures are set before the compiler is checked, because CMake's default contains some
  # that newer compilers no longer support.
  include("${CMAKE_CURRENT_LIST_DIR}/cuda_architectures.cmake")
  if(NOT CMAKE_CUDA_COMPILER AND CUDAToolkit_NVCC_EXECUTABLE)
    set(CMAKE_CUDA_COMPILER "${CUDAToolkit_NVCC_EXECUTABLE}")
  endif()
  ftrun_cuda_architectures("${FTRUN_CUDA_ARCHITECTURES}" "${CUDAToolkit_NVCC_EXECUTABLE}"
                           CMAKE_CUDA_ARCHITECTURES)
  check_language(CUDA)
endif()
if(NOT CUDAToolkit_FOUND OR NOT CMAKE_CUDA_COMPILER OR NOT TARGET CUDA::cublas)
  if(FTRUN_CUDA STREQUAL "ON")
    message(FATAL_ERROR
            "FTRUN_CUDA=ON, but no CUDA toolkit (12.4 or later, with nvcc and cuBLAS) was found. "
            "Put nvcc on PATH or set CUDAToolkit_ROOT, or configure with -DFTRUN_CUDA=OFF.")
  endif()
  message(STATUS "CUDA: no toolkit found, building for the CPU")
  return()
endif()

enable_language(CUDA)
if(CMAKE_VERSION VERSION_LESS 3.25.2)  # these versions do not know nvcc's option for C++20
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
endif()
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)
set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)
set(FTRUN_WITH_CUDA ON CACHE INTERNAL "")
set(FTRUN_BUILT_ARCHITECTURES "${CMAKE_CUDA_ARCHITECTURES}" CACHE INTERNAL
    "GPU architectures for which kernels are compiled")
set(FTRUN_CUDA_VERSION "${CUDAToolkit_VERSION}" CACHE INTERNAL "")
message(STATUS "CUDA: ${CUDAToolkit_VERSION}, architectures ${CMAKE_CUDA_ARCHITECTURES}")
