# Header attnbench_version.h with the version and the git commit. The commit is read when building,
# not when configuring, and the header is rewritten only when it changed. Included by the build it
# adds the target; run as a script (cmake -P) it writes the header.
if(NOT CMAKE_SCRIPT_MODE_FILE)
  set(ATTNBENCH_GENERATED_DIR ${CMAKE_BINARY_DIR}/generated)
  add_custom_target(attnbench_version
    COMMAND ${CMAKE_COMMAND} -DSOURCE_DIR=${CMAKE_SOURCE_DIR} -DVERSION=${PROJECT_VERSION}
      -DOUTPUT=${ATTNBENCH_GENERATED_DIR}/attnbench_version.h
      -P ${CMAKE_CURRENT_LIST_FILE}
    BYPRODUCTS ${ATTNBENCH_GENERATED_DIR}/attnbench_version.h
    VERBATIM)
  return()
endif()

# Why the comparison: an unpacked archive may lie inside the repository of something else.
set(commit unknown)
find_program(GIT git)
if(GIT)
  execute_process(COMMAND ${GIT} rev-parse --show-toplevel WORKING_DIRECTORY ${SOURCE_DIR}
    OUTPUT_VARIABLE top OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  file(REAL_PATH "${SOURCE_DIR}" source)
  if(top STREQUAL source)
    execute_process(COMMAND ${GIT} describe --always --dirty --abbrev=12 --exclude=*
      WORKING_DIRECTORY ${SOURCE_DIR} OUTPUT_VARIABLE described RESULT_VARIABLE failed
      OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    if(NOT failed)
      set(commit ${described})
    endif()
  endif()
endif()

set(text "#pragma once\n#define ATTNBENCH_VERSION \"${VERSION}\"\n#define ATTNBENCH_GIT \"${commit}\"\n")
set(old "")
if(EXISTS ${OUTPUT})
  file(READ ${OUTPUT} old)
endif()
if(NOT text STREQUAL old)
  file(WRITE ${OUTPUT} "${text}")
endif()
