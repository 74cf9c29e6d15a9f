# attnbench_plugin(<target>): a library for --plugin, in plugins/ of the build folder. Of this
# repository it sees the folder of the public header.
function(attnbench_plugin target)
  target_include_directories(${target} PRIVATE ${CMAKE_SOURCE_DIR}/src/plugin)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Wshadow -Wconversion)
  set_target_properties(${target} PROPERTIES
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/plugins CXX_STANDARD 17)
endfunction()
