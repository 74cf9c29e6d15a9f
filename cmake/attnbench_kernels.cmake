# Embeds the files under kernels/ in attnbench_jit, as text that NVRTC compiles at run time.
file(GLOB_RECURSE kernel_files CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/kernels/*.h
  ${CMAKE_SOURCE_DIR}/kernels/*.cuh)
attnbench_embed(attnbench_jit embedded_kernel_files HEADER jit/compiler.h
  FILES ${kernel_files})
