# cmake --install: the program, the scenarios that it finds by name, and the script that checks
# saved tensors.
include(GNUInstallDirs)
install(TARGETS attnbench RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY ${CMAKE_SOURCE_DIR}/scenarios DESTINATION ${CMAKE_INSTALL_DATADIR}/attnbench)
install(PROGRAMS ${CMAKE_SOURCE_DIR}/scripts/second_opinion.py
  DESTINATION ${CMAKE_INSTALL_DATADIR}/attnbench)
install(DIRECTORY ${CMAKE_SOURCE_DIR}/scripts/opinion
  DESTINATION ${CMAKE_INSTALL_DATADIR}/attnbench PATTERN __pycache__ EXCLUDE)
