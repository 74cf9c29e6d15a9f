# Embeds the files of the report page in attnbench_report, and with them D3, which draws its plots:
# d3.min.js and its licence, both of the package node-d3.
set(d3_hints ${CMAKE_BINARY_DIR}/deps/usr ${CMAKE_SOURCE_DIR}/build/deps/usr /usr)
find_file(ATTNBENCH_D3 d3.min.js PATHS ${d3_hints} PATH_SUFFIXES share/nodejs/d3/dist
  NO_DEFAULT_PATH)
find_file(ATTNBENCH_D3_LICENCE copyright PATHS ${d3_hints} PATH_SUFFIXES share/doc/node-d3
  NO_DEFAULT_PATH)
if(NOT ATTNBENCH_D3 OR NOT ATTNBENCH_D3_LICENCE)
  message(FATAL_ERROR "d3.min.js or its copyright not found: run ./scripts/test or "
    "./scripts/attnbench once (they fetch them), install node-d3, or say where: "
    "-DATTNBENCH_D3=FILE -DATTNBENCH_D3_LICENCE=FILE")
endif()
file(GLOB page_files CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/report/page/*)
attnbench_embed(attnbench_report embedded_page_files HEADER report/page.h
  FILES ${page_files} OTHERS ${ATTNBENCH_D3} ${ATTNBENCH_D3_LICENCE})
