# What attnbench is built from; every one is a package of Debian 12 and Ubuntu 24.04
# (scripts/setup.sh installs them). Packages that are unpacked into build/deps count as installed.
list(PREPEND CMAKE_PREFIX_PATH ${CMAKE_BINARY_DIR}/deps/usr ${CMAKE_SOURCE_DIR}/build/deps/usr)
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(yaml-cpp REQUIRED)
find_package(Eigen3 REQUIRED NO_MODULE)
find_package(CLI11 REQUIRED)

# For a wheel, which brings no libraries of its own: nothing but the C library is needed where it is
# installed. Debian has no static libfmt, so its headers are compiled in.
option(ATTNBENCH_STATIC "Link everything but the C library into the program" OFF)
if(ATTNBENCH_STATIC)
  find_library(ATTNBENCH_YAML_CPP_ARCHIVE libyaml-cpp.a REQUIRED)
  get_target_property(yaml_cpp_configurations yaml-cpp IMPORTED_CONFIGURATIONS)
  set_target_properties(yaml-cpp PROPERTIES IMPORTED_LOCATION ${ATTNBENCH_YAML_CPP_ARCHIVE})
  foreach(configuration ${yaml_cpp_configurations})
    set_target_properties(yaml-cpp PROPERTIES
      IMPORTED_LOCATION_${configuration} ${ATTNBENCH_YAML_CPP_ARCHIVE})
  endforeach()
  set_property(TARGET fmt::fmt APPEND PROPERTY INTERFACE_COMPILE_DEFINITIONS FMT_HEADER_ONLY)
  add_link_options(-static-libstdc++ -static-libgcc -Wl,--as-needed)
endif()

# Why: the valijson package depends on Qt, Poco and Boost, which a header-only validator does not
# need; scripts/setup.sh therefore unpacks its headers into the build folder instead.
find_path(VALIJSON_INCLUDE_DIR valijson/validator.hpp)
if(NOT VALIJSON_INCLUDE_DIR)
  message(FATAL_ERROR "valijson/validator.hpp not found: run ./scripts/test or ./scripts/attnbench "
    "once (they fetch it), install libvalijson-dev, or say where: -DVALIJSON_INCLUDE_DIR=DIR")
endif()
add_library(valijson INTERFACE)
target_include_directories(valijson SYSTEM INTERFACE ${VALIJSON_INCLUDE_DIR})

if(ATTNBENCH_TESTS)
  find_path(DOCTEST_INCLUDE_DIR doctest/doctest.h REQUIRED)
endif()
