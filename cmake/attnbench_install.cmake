# cmake --install: the program, the scenarios that it finds by name, and the script that checks
# saved tensors.
include(GNUInstallDirs)
install(TARGETS attnbench RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY ${CMAKE_SOURCE_DIR}/scenarios DESTINATION ${CMAKE_INSTALL_DATADIR}/attnbench)
install(PROGRAMS ${CMAKE_SOURCE_DIR}/scripts/second_opinion.py
  DESTINATION ${CMAKE_INSTALL_DATADIR}/attnbench)
install(DIRECTORY ${CMAKE_SOURCE_DIR}/scripts/opinion
  DESTINATION ${CMAKE_INSTALL_DATADIR}/attnbench PATTERN __pycache__ EXCLUDE)
# What a plugin is made from, and plugins to start from.
install(FILES ${CMAKE_SOURCE_DIR}/src/plugin/attnbench_backend.h
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES ${CMAKE_SOURCE_DIR}/examples/plugin/naive_attention.cpp
  ${CMAKE_SOURCE_DIR}/examples/plugin/naive_attention.cu
  DESTINATION ${CMAKE_INSTALL_DATADIR}/attnbench/examples/plugin)
# Python kernels as backends: the package that is embedded, and adapters of public packages.
install(DIRECTORY ${CMAKE_SOURCE_DIR}/python
  DESTINATION ${CMAKE_INSTALL_DATADIR}/attnbench PATTERN __pycache__ EXCLUDE)
# The notice of what is embedded in the program (attnbench_page.cmake).
install(FILES ${ATTNBENCH_D3_LICENCE} DESTINATION ${CMAKE_INSTALL_DOCDIR} RENAME copyright-d3)

# cpack -G DEB: the same as a package. dpkg-shlibdeps names the libraries that it needs.
set(CPACK_PACKAGE_NAME attnbench)
set(CPACK_PACKAGE_CONTACT "attnbench maintainers")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Referee for attention kernels: error and speed that can be believed")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "python3-numpy")
include(CPack)
