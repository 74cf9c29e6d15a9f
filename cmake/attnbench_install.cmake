# cmake --install: the program and everything that it, its users and its documents name. What is
# installed works without the source tree: scenarios, Python package and examples are found beside the
# program (../share/attnbench).
include(GNUInstallDirs)
# Why: cpack would build all targets first, tests too.
set(CMAKE_SKIP_INSTALL_ALL_DEPENDENCY ON)
set(data_dir ${CMAKE_INSTALL_DATADIR}/attnbench)
install(TARGETS attnbench RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY ${CMAKE_SOURCE_DIR}/scenarios DESTINATION ${data_dir})
# The script that checks saved tensors.
install(PROGRAMS ${CMAKE_SOURCE_DIR}/scripts/second_opinion.py DESTINATION ${data_dir})
install(DIRECTORY ${CMAKE_SOURCE_DIR}/scripts/opinion DESTINATION ${data_dir}
  PATTERN __pycache__ EXCLUDE)
# What a plugin is made from, and plugins to start from.
install(FILES ${CMAKE_SOURCE_DIR}/src/plugin/attnbench_backend.h
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES ${CMAKE_SOURCE_DIR}/examples/plugin/naive_attention.cpp
  ${CMAKE_SOURCE_DIR}/examples/plugin/naive_attention.cu DESTINATION ${data_dir}/examples/plugin)
# Python kernels as backends: the package that is embedded, and adapters of public packages.
install(DIRECTORY ${CMAKE_SOURCE_DIR}/python DESTINATION ${data_dir} PATTERN __pycache__ EXCLUDE)

# The documents that --help refers to, with the README whose links go to them; the licence, and the
# notices of what is embedded in the program (attnbench_page.cmake).
install(FILES ${CMAKE_SOURCE_DIR}/README.md ${CMAKE_SOURCE_DIR}/CHANGELOG.md
  DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY ${CMAKE_SOURCE_DIR}/docs DESTINATION ${CMAKE_INSTALL_DOCDIR}
  FILES_MATCHING PATTERN "*.md" PATTERN results EXCLUDE)
install(FILES ${CMAKE_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} RENAME copyright)
install(FILES ${ATTNBENCH_D3_LICENCE} DESTINATION ${CMAKE_INSTALL_DOCDIR} RENAME copyright-d3)
if(ATTNBENCH_HAS_CUDNN)
  install(FILES ${CUDNN_FRONTEND_INCLUDE_DIR}/../share/doc/cudnn-frontend/copyright
    DESTINATION ${CMAKE_INSTALL_DOCDIR} RENAME copyright-cudnn-frontend OPTIONAL)
endif()

# The manual page and the completion scripts are what the program prints. Not in a wheel, whose folders
# no shell looks into.
if(NOT SKBUILD AND NOT CMAKE_CROSSCOMPILING)
  function(attnbench_install_output destination)
    install(CODE "
      set(target \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${destination}\")
      get_filename_component(folder \"\${target}\" DIRECTORY)
      file(MAKE_DIRECTORY \"\${folder}\")
      execute_process(COMMAND \"$<TARGET_FILE:attnbench>\" ${ARGN}
        OUTPUT_FILE \"\${target}\" RESULT_VARIABLE failed)
      if(failed)
        message(FATAL_ERROR \"attnbench ${ARGN} failed: \${failed}\")
      endif()")
  endfunction()
  attnbench_install_output(${CMAKE_INSTALL_MANDIR}/man1/attnbench.1 man)
  attnbench_install_output(
    ${CMAKE_INSTALL_DATADIR}/bash-completion/completions/attnbench completion bash)
  attnbench_install_output(
    ${CMAKE_INSTALL_DATADIR}/zsh/vendor-completions/_attnbench completion zsh)
  attnbench_install_output(
    ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d/attnbench.fish completion fish)
endif()

# cpack: the same as a Debian package; dpkg-shlibdeps names the libraries that it needs. With the CUDA
# toolkit it is called attnbench-cuda and takes the place of attnbench: the presets `package` and
# `package-cpu` build one of each.
set(ATTNBENCH_MAINTAINER "attnbench maintainers <maintainers@attnbench.invalid>" CACHE STRING
  "Name and address of whoever builds a package for others")
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_CONTACT "${ATTNBENCH_MAINTAINER}")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Referee for attention kernels: error and speed that can be believed")
set(CPACK_DEBIAN_PACKAGE_DESCRIPTION "Runs attention kernels on scenarios of real serving steps, compares
each with a float64 reference, and reports error and throughput; gates them in a CI.")
if(ATTNBENCH_HAS_TOOLKIT)
  set(CPACK_PACKAGE_NAME attnbench-cuda)
  set(CPACK_DEBIAN_PACKAGE_PROVIDES "attnbench (= ${PROJECT_VERSION})")
  set(CPACK_DEBIAN_PACKAGE_CONFLICTS attnbench)
  set(CPACK_DEBIAN_PACKAGE_REPLACES attnbench)
else()
  set(CPACK_PACKAGE_NAME attnbench)
  set(CPACK_DEBIAN_PACKAGE_CONFLICTS attnbench-cuda)
  set(CPACK_DEBIAN_PACKAGE_REPLACES attnbench-cuda)
endif()
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "python3-numpy")
include(CPack)
