# The CUDA toolkit, when there is one: its runtime is linked statically, everything else (driver,
# NVRTC, NVML) is found when the program runs. Without it the program runs on the CPU.
option(ATTNBENCH_CUDA "Use the CUDA toolkit when it is found" ON)
set(ATTNBENCH_HAS_TOOLKIT FALSE)
if(ATTNBENCH_CUDA)
  find_package(CUDAToolkit QUIET)
  if(TARGET CUDA::cudart_static)
    set(ATTNBENCH_HAS_TOOLKIT TRUE)
  endif()
endif()
# Folder toolkit/ of gpu needs the toolkit, no_toolkit.cpp stands in for it.
if(ATTNBENCH_HAS_TOOLKIT)
  set(ATTNBENCH_TOOLKIT_LIBRARY CUDA::cudart_static)
  set(ATTNBENCH_TOOLKIT_EXCLUDE "/no_toolkit\\.cpp$")
else()
  message(STATUS "CUDA toolkit not found or not wanted: no device but the CPU")
  set(ATTNBENCH_TOOLKIT_LIBRARY "")
  set(ATTNBENCH_TOOLKIT_EXCLUDE "/toolkit/")
endif()
