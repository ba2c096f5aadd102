# Stands in for the module of Debian 12's CMake: notes the condition at which that one ends a configuration with CUDA 13,
# and finds no toolkit.
set(looked_for_toolkit TRUE)
if(CMAKE_MINIMUM_REQUIRED_VERSION VERSION_GREATER_EQUAL 3.25)
  set(ended_at_tools_extension TRUE)
endif()
set(CUDAToolkit_FOUND FALSE)
