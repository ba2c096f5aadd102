# Replaces the module of Debian 12's CMake. It finds no toolkit, and records whether the condition
# holds under which that module ends a configuration with CUDA 13.
set(looked_for_toolkit TRUE)
if(CMAKE_MINIMUM_REQUIRED_VERSION VERSION_GREATER_EQUAL 3.25)
  set(ended_at_tools_extension TRUE)
endif()
set(CUDAToolkit_FOUND FALSE)
