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
# Why: g++ collects garbage whenever its heap has grown by a third, which takes a tenth of its time. Up to
# 400 MB are no matter.
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  target_compile_options(attnbench_flags INTERFACE
    --param=ggc-min-heapsize=400000 --param=ggc-min-expand=100)
endif()

if(ATTNBENCH_TESTS)
  file(WRITE ${CMAKE_BINARY_DIR}/doctest_main.cpp
    "#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN\n#include <doctest/doctest.h>\n")
  add_library(attnbench_doctest STATIC ${CMAKE_BINARY_DIR}/doctest_main.cpp)
  target_include_directories(attnbench_doctest SYSTEM PUBLIC ${DOCTEST_INCLUDE_DIR})
  # Builds what scripts/test does not by default.
  add_custom_target(slow_tests)
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

# Sources that tests/mutation replaces. They come first in their modules and so share groups: for a
# mutant the others of its group are compiled as well, each by itself.
set(ATTNBENCH_MUTATED "")
foreach(list mutants gate_mutants)
  set(file ${CMAKE_SOURCE_DIR}/tests/mutation/${list}.json)
  if(NOT EXISTS ${file})
    continue()  # a source distribution has no tests
  endif()
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
  file(STRINGS ${file} lines REGEX "\"file\": \"[^\"]+\"")
  foreach(line ${lines})
    string(REGEX REPLACE ".*\"file\": \"([^\"]+)\".*" "\\1" source "${line}")
    list(APPEND ATTNBENCH_MUTATED ${CMAKE_SOURCE_DIR}/${source})
  endforeach()
endforeach()
list(REMOVE_DUPLICATES ATTNBENCH_MUTATED)

# attnbench_unity(<target> <most>): in groups of at most that many sources, of about the same size, where
# that is wanted. What is added to the target later, a generated file or two, goes with them.
function(attnbench_unity target most)
  if(ATTNBENCH_UNITY)
    get_target_property(sources ${target} SOURCES)
    list(LENGTH sources count)
    math(EXPR groups "(${count} + ${most} - 1) / ${most}")
    math(EXPR batch "(${count} + ${groups} - 1) / ${groups} + 1")
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${batch})
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

# attnbench_optimise(<target> <level>): LIGHT, MEDIUM or FULL, the build type's own, and the precompiled
# headers for it: each level has its own, as g++ would take the level of whoever made them. The target's
# objects are added to the global property ATTNBENCH_OBJECTS_<level>.
function(attnbench_optimise target level)
  set_property(GLOBAL APPEND PROPERTY ATTNBENCH_OBJECTS_${level} $<TARGET_OBJECTS:${target}>)
  if(level STREQUAL LIGHT)
    # Why not -O1: it takes a third longer to compile, and -O0, which inlines nothing, as long as -Og.
    target_compile_options(${target} PRIVATE -Og)
    attnbench_precompile(${target} light FLAGS -Og HEADERS <nlohmann/json.hpp>)
  elseif(level STREQUAL MEDIUM)
    target_compile_options(${target} PRIVATE -O1)
    attnbench_precompile(${target} medium FLAGS -O1)
  else()
    attnbench_precompile(${target} common)
  endif()
endfunction()

# attnbench_test_program(<target> libraries... [OPTIMISED level]): a program of doctest cases. Why -O0: tests
# are compiled often and run once; what they test keeps its optimisation, but for inline functions of
# headers, of which the linker takes the tests' own. OPTIMISED: -Og or -O1, for tests whose own work, or
# that of such functions, takes longer than the compiler saves.
function(attnbench_test_program target)
  cmake_parse_arguments(ARG "" "OPTIMISED" "" ${ARGN})
  target_link_libraries(${target} PRIVATE ${ARG_UNPARSED_ARGUMENTS} attnbench_doctest)
  target_compile_definitions(${target} PRIVATE ATTNBENCH_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  set(flags -DDOCTEST_CONFIG_SUPER_FAST_ASSERTS)  # function calls, which are quicker to compile
  set(holder tests)
  if(ARG_OPTIMISED)
    list(APPEND flags ${ARG_OPTIMISED})
    string(REPLACE "-" "" level ${ARG_OPTIMISED})
    set(holder tests_${level})
  elseif(ATTNBENCH_SANITIZE STREQUAL "")
    list(APPEND flags -O0)
  endif()
  target_compile_options(${target} PRIVATE ${flags})
  attnbench_precompile(${target} ${holder} FLAGS ${flags} HEADERS <doctest/doctest.h>)
endfunction()

# attnbench_module(<name> [LIGHT|MEDIUM] [HOT regex] [DIR dir] [EXCLUDE regex]
#   [LINK modules...] [PRIVATE_LINK libraries...] [LONG_SUITE suite] [THOROUGH setting]
#   [SLOW_TESTS regex] [OPTIMISED_TESTS])
# Library attnbench_<name> from dir/**/*.cpp and test program test_<name> from dir/**/*_test.cpp.
# LIGHT: nothing in it is worth the compile time of -O3, nor of -O1, but for the sources that match HOT.
# MEDIUM: -O1, for what runs around every launch or over whole files but computes little. Sources are
# compiled in groups, so a name in an unnamed namespace may stand for one thing only in a module; a test
# that needs such a name for itself has a namespace of its own, attnbench::<file>. LONG_SUITE: doctest's
# name for test cases that take long; they are a test of their own, <name>.<suite>, which runs first.
# THOROUGH: the environment in which they do what they otherwise leave out, for minutes on all cores; that
# is the test <name>.thorough, which runs alone, and whose label scripts/test does not select by default.
# SLOW_TESTS: tests that take long to compile or to run; they are a program of their own,
# test_<name>_slow, with the label thorough, which only the target slow_tests builds, at -O1.
# OPTIMISED_TESTS: -Og, see attnbench_test_program.
function(attnbench_module name)
  cmake_parse_arguments(ARG "LIGHT;MEDIUM;OPTIMISED_TESTS" "DIR;EXCLUDE;HOT;SLOW_TESTS;LONG_SUITE;THOROUGH" "LINK;PRIVATE_LINK" ${ARGN})
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
  set(slow_tests "")
  if(ARG_SLOW_TESTS)
    set(slow_tests ${tests})
    list(FILTER slow_tests INCLUDE REGEX "${ARG_SLOW_TESTS}")
    list(FILTER tests EXCLUDE REGEX "${ARG_SLOW_TESTS}")
  endif()
  set(level FULL)
  if(ARG_LIGHT)
    set(level LIGHT)
  elseif(ARG_MEDIUM)
    set(level MEDIUM)
  endif()
  set(public attnbench_flags)
  foreach(dependency ${ARG_LINK})
    if(dependency MATCHES "::")
      list(APPEND public ${dependency})
    else()
      list(APPEND public attnbench_${dependency})
    endif()
  endforeach()
  if(sources)
    set(rest ${sources})
    list(REMOVE_ITEM rest ${ATTNBENCH_MUTATED})
    set(mutated ${sources})
    list(REMOVE_ITEM mutated ${rest} "")
    set(sources ${mutated} ${rest})
    set(hot "")
    if(ARG_HOT)
      set(hot ${sources})
      list(FILTER hot INCLUDE REGEX "${ARG_HOT}")
      list(FILTER sources EXCLUDE REGEX "${ARG_HOT}")
    endif()
    add_library(attnbench_${name} STATIC ${sources})
    target_link_libraries(attnbench_${name} PUBLIC ${public} PRIVATE ${ARG_PRIVATE_LINK})
    attnbench_unity(attnbench_${name} 20)
    attnbench_optimise(attnbench_${name} ${level})
    if(hot)
      add_library(attnbench_${name}_hot OBJECT ${hot})
      target_link_libraries(attnbench_${name}_hot PRIVATE ${public} ${ARG_PRIVATE_LINK})
      attnbench_unity(attnbench_${name}_hot 20)
      attnbench_optimise(attnbench_${name}_hot FULL)
      target_sources(attnbench_${name} PRIVATE $<TARGET_OBJECTS:attnbench_${name}_hot>)
    endif()
  else()
    add_library(attnbench_${name} INTERFACE)
    target_link_libraries(attnbench_${name} INTERFACE ${public})
  endif()
  if(ATTNBENCH_TESTS AND tests)
    set(optimised "")
    if(ARG_OPTIMISED_TESTS)
      set(optimised OPTIMISED -Og)
    endif()
    add_executable(test_${name} ${tests})
    attnbench_unity(test_${name} 20)
    attnbench_test_program(test_${name} attnbench_${name} ${ARG_PRIVATE_LINK} ${optimised})
    set(entries ${name})
    if(ARG_LONG_SUITE)
      add_test(NAME ${name} COMMAND test_${name} "--test-suite-exclude=${ARG_LONG_SUITE}")
      add_test(NAME ${name}.${ARG_LONG_SUITE} COMMAND test_${name} "--test-suite=${ARG_LONG_SUITE}")
      cmake_host_system_information(RESULT cores QUERY NUMBER_OF_LOGICAL_CORES)
      set_tests_properties(${name}.${ARG_LONG_SUITE} PROPERTIES COST 400)
      list(APPEND entries ${name}.${ARG_LONG_SUITE})
    else()
      add_test(NAME ${name} COMMAND test_${name})
    endif()
    set_tests_properties(${entries} PROPERTIES LABELS unit)
    if(slow_tests)
      add_executable(test_${name}_slow EXCLUDE_FROM_ALL ${slow_tests})
      attnbench_test_program(test_${name}_slow attnbench_${name} ${ARG_PRIVATE_LINK} OPTIMISED -O1)
      add_dependencies(slow_tests test_${name}_slow)
      add_test(NAME ${name}.slow COMMAND test_${name}_slow)
      set_tests_properties(${name}.slow PROPERTIES LABELS "unit;thorough" COST 100 TIMEOUT 2400)
      list(APPEND entries ${name}.slow)
    endif()
    if(ARG_THOROUGH)
      add_test(NAME ${name}.thorough COMMAND test_${name} "--test-suite=${ARG_LONG_SUITE}")
      set_tests_properties(${name}.thorough PROPERTIES LABELS thorough ENVIRONMENT ${ARG_THOROUGH}
        TIMEOUT 2400 PROCESSORS ${cores})
      list(APPEND entries ${name}.thorough)
    endif()
    # A suite that is called by another name would be selected by nothing.
    set_tests_properties(${entries} PROPERTIES FAIL_REGULAR_EXPRESSION "test cases: +0 \\|")
  endif()
endfunction()
