# ATTNBENCH_SANITIZE=address|thread: the whole program and its tests under a sanitizer, every report
# an error. CMakePresets.json has a preset for each; scripts/test --sanitize uses them.
set(ATTNBENCH_SANITIZE "" CACHE STRING "Sanitizers: empty, address (with undefined) or thread")
if(ATTNBENCH_SANITIZE STREQUAL "")
  return()
elseif(ATTNBENCH_SANITIZE STREQUAL "address")
  set(sanitizers address,undefined,float-cast-overflow)
elseif(ATTNBENCH_SANITIZE STREQUAL "thread")
  set(sanitizers thread)
else()
  message(FATAL_ERROR "ATTNBENCH_SANITIZE: expected address or thread, found "
    "'${ATTNBENCH_SANITIZE}'")
endif()
# GCC's warning about uninitialised values is wrong about instrumented code of the standard library.
# Why no NDEBUG and the assertions: the libraries' own bounds checks find what stays inside of an
# allocation.
add_compile_options(-O1 -g1 -fno-omit-frame-pointer -fsanitize=${sanitizers}
  -fno-sanitize-recover=all -Wno-maybe-uninitialized -D_GLIBCXX_ASSERTIONS)
add_link_options(-fsanitize=${sanitizers})
