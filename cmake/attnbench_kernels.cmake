# Embeds the files under kernels/ in attnbench_jit, as text that NVRTC compiles at run time. Included
# by the build it adds the rule; run as a script (cmake -P) it writes the source file.
if(NOT CMAKE_SCRIPT_MODE_FILE)
  file(GLOB_RECURSE kernel_files CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/kernels/*.h
    ${CMAKE_SOURCE_DIR}/kernels/*.cuh)
  set(embedded ${CMAKE_BINARY_DIR}/generated/embedded_kernels.cpp)
  add_custom_command(OUTPUT ${embedded}
    COMMAND ${CMAKE_COMMAND} -DSOURCE_DIR=${CMAKE_SOURCE_DIR} -DOUTPUT=${embedded}
      "-DFILES=${kernel_files}" -P ${CMAKE_CURRENT_LIST_FILE}
    DEPENDS ${kernel_files} ${CMAKE_CURRENT_LIST_FILE}
    VERBATIM)
  target_sources(attnbench_jit PRIVATE ${embedded})
  return()
endif()

set(arrays "")
set(entries "")
foreach(file ${FILES})
  file(RELATIVE_PATH path ${SOURCE_DIR} ${file})
  # Why in hexadecimal first: reading as text would lose semicolons and brackets to CMake's lists.
  file(READ ${file} content HEX)
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${content}")
  string(MAKE_C_IDENTIFIER ${path} name)
  string(APPEND arrays "const unsigned char ${name}[] = {${bytes}0};\n")
  string(APPEND entries "      {\"${path}\", text_of(${name})},\n")
endforeach()
file(WRITE ${OUTPUT} "// Generated from kernels/ by the build.
#include \"jit/kernel_files.h\"

namespace attnbench {
namespace {

${arrays}
const char* text_of(const unsigned char* bytes) { return reinterpret_cast<const char*>(bytes); }

}  // namespace

const KernelFiles& embedded_kernel_files() {
  static const KernelFiles files = {
${entries}  };
  return files;
}

}  // namespace attnbench
")
