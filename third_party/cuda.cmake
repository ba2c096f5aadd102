# Included from the root: enable_language(CUDA) is seen only below the directory that calls it.
# Decides FTRUN_WITH_CUDA from FTRUN_CUDA = AUTO | ON | OFF. A build without CUDA gets stub files; the
# code knows no difference.
set(FTRUN_CUDA_ARCHITECTURES AUTO CACHE STRING
    "GPU architectures to compile kernels for: AUTO (8.0, 9.0 and those of this machine's GPUs), ALL that the compiler has, or a list")
set(FTRUN_WITH_CUDA OFF CACHE INTERNAL "CUDA kernels and NCCL are built")
set(FTRUN_CUDA_VERSION "" CACHE INTERNAL "version of the CUDA toolkit, empty without one")

if(NOT FTRUN_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "FTRUN_CUDA is '${FTRUN_CUDA}'; it may be AUTO, ON or OFF.")
endif()
if(FTRUN_CUDA STREQUAL "OFF" OR NOT FTRUN_ENGINE)
  return()
endif()

# CMake 3.25.1's module (Debian 12) marks CUDA::nvToolsExt as deprecated for projects that require 3.25, without asking
# whether the toolkit has it. CUDA 13 has not, so that configuring would end there.
set(required_version "${CMAKE_MINIMUM_REQUIRED_VERSION}")
set(CMAKE_MINIMUM_REQUIRED_VERSION 3.24)
find_package(CUDAToolkit 12.4 QUIET)
# The compiler's wheels (scripts/setup.sh), where the machine has no toolkit of its own.
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
  # Set first: CMake's own default holds architectures that newer compilers have dropped.
  include("${CMAKE_CURRENT_LIST_DIR}/cuda_architectures.cmake")
  if(NOT CMAKE_CUDA_COMPILER AND CUDAToolkit_NVCC_EXECUTABLE)
    set(CMAKE_CUDA_COMPILER "${CUDAToolkit_NVCC_EXECUTABLE}")
  endif()
  ftrun_cuda_architectures("${FTRUN_CUDA_ARCHITECTURES}" "${CUDAToolkit_NVCC_EXECUTABLE}" CMAKE_CUDA_ARCHITECTURES)
  check_language(CUDA)
endif()
if(NOT CUDAToolkit_FOUND OR NOT CMAKE_CUDA_COMPILER OR NOT TARGET CUDA::cublas)
  if(FTRUN_CUDA STREQUAL "ON")
    message(FATAL_ERROR "FTRUN_CUDA=ON, but no CUDA toolkit of 12.4 or later with nvcc and cuBLAS was found. Put nvcc on "
                        "PATH or set CUDAToolkit_ROOT, or configure with -DFTRUN_CUDA=OFF.")
  endif()
  message(STATUS "CUDA: no toolkit found, building for the CPU")
  return()
endif()

enable_language(CUDA)
if(CMAKE_VERSION VERSION_LESS 3.25.2)  # does not know nvcc's C++20
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
endif()
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)
set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)
set(FTRUN_WITH_CUDA ON CACHE INTERNAL "")
set(FTRUN_BUILT_ARCHITECTURES "${CMAKE_CUDA_ARCHITECTURES}" CACHE INTERNAL "GPU architectures that kernels are compiled for")
set(FTRUN_CUDA_VERSION "${CUDAToolkit_VERSION}" CACHE INTERNAL "")
message(STATUS "CUDA: ${CUDAToolkit_VERSION}, architectures ${CMAKE_CUDA_ARCHITECTURES}")
