# Tests that third_party/cuda.cmake can use the module FindCUDAToolkit of Debian 12's CMake (run by
# cmake -P). With CUDA 13 that module ends the configuration of projects that require CMake 3.25.
# The folder cuda_toolkit has a stand-in for the module.
cmake_minimum_required(VERSION 3.25)
set(CMAKE_MODULE_PATH "${CMAKE_CURRENT_LIST_DIR}/cuda_toolkit")
set(FTRUN_CUDA AUTO)
set(FTRUN_ENGINE ON)
set(FTRUN_VENV "${CMAKE_MODULE_PATH}")
set(looked_for_toolkit FALSE)
set(ended_at_tools_extension FALSE)
include("${CMAKE_CURRENT_LIST_DIR}/../../third_party/cuda.cmake")
if(NOT looked_for_toolkit)
  message(FATAL_ERROR "the toolkit was not searched with the module of this test")
endif()
if(ended_at_tools_extension)
  message(FATAL_ERROR
          "CMake 3.25.1 would mark CUDA::nvToolsExt as deprecated here; CUDA 13 does not have it")
endif()
if(NOT CMAKE_MINIMUM_REQUIRED_VERSION STREQUAL "3.25")
  message(FATAL_ERROR
          "the required version of CMake has become ${CMAKE_MINIMUM_REQUIRED_VERSION}, not 3.25")
endif()
