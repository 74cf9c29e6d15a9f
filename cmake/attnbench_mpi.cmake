# libattnbench_mpi.so beside the program: what it opens when mpirun or srun started it. Without MPI
# there is none, and dcp.transport mpi is refused.
find_package(MPI COMPONENTS CXX QUIET)
if(MPI_CXX_FOUND)
  add_library(attnbench_mpi MODULE ${CMAKE_SOURCE_DIR}/src/mpi/mpi_module.cpp)
  target_include_directories(attnbench_mpi PRIVATE ${CMAKE_SOURCE_DIR}/src)
  target_compile_definitions(attnbench_mpi PRIVATE OMPI_SKIP_MPICXX MPICH_SKIP_MPICXX)
  target_link_libraries(attnbench_mpi PRIVATE MPI::MPI_CXX)
  add_dependencies(attnbench attnbench_mpi)
  # Why not among all: a package would depend on MPI.
  install(TARGETS attnbench_mpi LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
    COMPONENT mpi EXCLUDE_FROM_ALL)
endif()
