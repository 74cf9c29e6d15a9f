add_library(attnbench_flags INTERFACE)
target_include_directories(attnbench_flags INTERFACE ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR})
target_link_libraries(attnbench_flags INTERFACE Threads::Threads)
# Why -ffp-contract=off: quantised bytes and seeded inputs must be the same on every machine, so
# the compiler may not turn a*b+c into one rounding. Fast code asks for FMA explicitly (Eigen does).
target_compile_options(attnbench_flags INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -ffp-contract=off)
if(ATTNBENCH_NATIVE)
  target_compile_options(attnbench_flags INTERFACE -march=native)
endif()

if(ATTNBENCH_TESTS)
  file(WRITE ${CMAKE_BINARY_DIR}/doctest_main.cpp
    "#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN\n#include <doctest/doctest.h>\n")
  add_library(attnbench_doctest STATIC ${CMAKE_BINARY_DIR}/doctest_main.cpp)
  target_include_directories(attnbench_doctest SYSTEM PUBLIC ${DOCTEST_INCLUDE_DIR})
endif()

# Headers that nearly every source includes, parsed once for each set of flags. Not with a compiler
# cache, which precompiled headers make useless.
if(CMAKE_CXX_COMPILER_LAUNCHER)
  set(ATTNBENCH_PRECOMPILE_DEFAULT OFF)
else()
  set(ATTNBENCH_PRECOMPILE_DEFAULT ON)
endif()
option(ATTNBENCH_PRECOMPILE "Precompile common headers" ${ATTNBENCH_PRECOMPILE_DEFAULT})
set(ATTNBENCH_COMMON_HEADERS <algorithm> <array> <cmath> <cstdint> <filesystem> <functional> <map>
  <memory> <optional> <span> <string> <string_view> <utility> <vector> <fmt/format.h>)

# Several sources compiled as one: headers are parsed once for all of them. For builds from scratch;
# who edits one file waits for its neighbours too.
option(ATTNBENCH_UNITY "Compile the sources of a module in groups" OFF)

# Sources that tests/mutation replaces: each has a compile command and an object of its own.
foreach(list mutants gate_mutants)
  set(file ${CMAKE_SOURCE_DIR}/tests/mutation/${list}.json)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
  file(STRINGS ${file} lines REGEX "\"file\": \"[^\"]+\"")
  foreach(line ${lines})
    string(REGEX REPLACE ".*\"file\": \"([^\"]+)\".*" "\\1" source "${line}")
    set_source_files_properties(${CMAKE_SOURCE_DIR}/${source} PROPERTIES
      SKIP_UNITY_BUILD_INCLUSION ON)
  endforeach()
endforeach()

# attnbench_unity(<target>): in groups, where that is wanted.
function(attnbench_unity target)
  if(ATTNBENCH_UNITY)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 8)
  endif()
endfunction()

# attnbench_precompile(<target> <of> [FLAGS flags...] [HEADERS headers...])
# Gives the target the precompiled headers called <of>, which the first call makes.
function(attnbench_precompile target of)
  cmake_parse_arguments(ARG "" "" "FLAGS;HEADERS" ${ARGN})
  if(NOT ATTNBENCH_PRECOMPILE)
    return()
  endif()
  set(holder attnbench_headers_${of})
  if(NOT TARGET ${holder})
    file(WRITE ${CMAKE_BINARY_DIR}/${holder}.cpp "")
    add_library(${holder} OBJECT ${CMAKE_BINARY_DIR}/${holder}.cpp)
    target_link_libraries(${holder} PRIVATE attnbench_flags fmt::fmt)
    target_include_directories(${holder} SYSTEM PRIVATE ${DOCTEST_INCLUDE_DIR})
    target_compile_options(${holder} PRIVATE ${ARG_FLAGS})
    target_precompile_headers(${holder} PRIVATE ${ATTNBENCH_COMMON_HEADERS} ${ARG_HEADERS})
  endif()
  target_precompile_headers(${target} REUSE_FROM ${holder})
endfunction()

# attnbench_module(<name> [LIGHT] [JSON] [SEPARATE] [SEPARATE_TESTS] [DIR dir] [EXCLUDE regex]
#   [LINK modules...] [PRIVATE_LINK libraries...] [PARALLEL_TESTS pattern])
# Library attnbench_<name> from dir/**/*.cpp and test program test_<name> from dir/**/*_test.cpp.
# LIGHT: nothing in it is worth the compile time of -O3. JSON: many of its sources read or write JSON.
# SEPARATE: never in groups, because sources have the same local names; SEPARATE_TESTS: so have its
# tests. PARALLEL_TESTS: test cases that take all cores, for minutes; they are a test of their own,
# <name>.parallel, which runs alone and first.
function(attnbench_module name)
  cmake_parse_arguments(ARG "LIGHT;JSON;SEPARATE;SEPARATE_TESTS" "DIR;EXCLUDE;PARALLEL_TESTS" "LINK;PRIVATE_LINK" ${ARGN})
  if(NOT ARG_DIR)
    set(ARG_DIR src/${name})
  endif()
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${ARG_DIR}/*.cpp)
  if(ARG_EXCLUDE)
    list(FILTER sources EXCLUDE REGEX "${ARG_EXCLUDE}")
  endif()
  set(tests ${sources})
  list(FILTER sources EXCLUDE REGEX "_test\\.cpp$")
  list(FILTER tests INCLUDE REGEX "_test\\.cpp$")
  set(public attnbench_flags)
  foreach(dependency ${ARG_LINK})
    if(dependency MATCHES "::")
      list(APPEND public ${dependency})
    else()
      list(APPEND public attnbench_${dependency})
    endif()
  endforeach()
  if(sources)
    add_library(attnbench_${name} STATIC ${sources})
    target_link_libraries(attnbench_${name} PUBLIC ${public} PRIVATE ${ARG_PRIVATE_LINK})
    if(NOT ARG_SEPARATE)
      attnbench_unity(attnbench_${name})
    endif()
    if(ARG_LIGHT)
      target_compile_options(attnbench_${name} PRIVATE -O1)
      attnbench_precompile(attnbench_${name} light FLAGS -O1 HEADERS <nlohmann/json.hpp>)
    elseif(ARG_JSON)
      attnbench_precompile(attnbench_${name} json HEADERS <nlohmann/json.hpp>)
    else()
      attnbench_precompile(attnbench_${name} common)
    endif()
  else()
    add_library(attnbench_${name} INTERFACE)
    target_link_libraries(attnbench_${name} INTERFACE ${public})
  endif()
  if(ATTNBENCH_TESTS AND tests)
    add_executable(test_${name} ${tests})
    if(NOT ARG_SEPARATE_TESTS)
      attnbench_unity(test_${name})
    endif()
    target_link_libraries(test_${name} PRIVATE attnbench_${name} attnbench_doctest ${ARG_PRIVATE_LINK})
    # Why: tests are compiled often and run once; what they test keeps its optimisation.
    target_compile_options(test_${name} PRIVATE -O1)
    attnbench_precompile(test_${name} tests FLAGS -O1 HEADERS <doctest/doctest.h>)
    target_compile_definitions(test_${name} PRIVATE ATTNBENCH_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
    if(ARG_PARALLEL_TESTS)
      add_test(NAME ${name} COMMAND test_${name} "--test-case-exclude=${ARG_PARALLEL_TESTS}")
      add_test(NAME ${name}.parallel COMMAND test_${name} "--test-case=${ARG_PARALLEL_TESTS}")
      cmake_host_system_information(RESULT cores QUERY NUMBER_OF_LOGICAL_CORES)
      set_tests_properties(${name}.parallel PROPERTIES LABELS unit COST 400 PROCESSORS ${cores})
    else()
      add_test(NAME ${name} COMMAND test_${name})
    endif()
    set_tests_properties(${name} PROPERTIES LABELS unit)
  endif()
endfunction()
