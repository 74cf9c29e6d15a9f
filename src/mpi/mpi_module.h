/* What attnbench needs of MPI, as a table of functions that a shared library of its own exports
 * (mpi_module.cpp). The program opens that library when it was started by mpirun or srun, so that
 * it starts on machines without MPI. In C, because the two are linked apart. */
#ifndef ATTNBENCH_MPI_MODULE_H_
#define ATTNBENCH_MPI_MODULE_H_

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ATTNBENCH_MPI_VERSION 1

/* Every function but last_error() returns 0, or another number after an error. A group is that of
 * the first `size` processes. start_*() begin one operation, whose buffers stay as they are until
 * test() says that it is done; there is one operation at a time. Calls of one thread only. */
struct AttnbenchMpi {
  int version;
  int (*init)(int* rank, int* size);
  int (*finish)(void);
  /* By the processes of the group, before the group's first operation; again does no harm. */
  int (*make_group)(int size);
  /* Sends [bytes], receives [size, bytes]. */
  int (*start_all_gather)(int size, const void* send, void* receive, size_t bytes);
  /* Sends and receives [size, bytes]. */
  int (*start_all_to_all)(int size, const void* send, void* receive, size_t bytes);
  /* From process 0 to all. */
  int (*start_broadcast)(int size, void* data, size_t bytes);
  int (*start_send)(int size, int to, const void* data, size_t bytes);
  int (*start_receive)(int size, int from, void* data, size_t bytes);
  int (*test)(int* done);
  const char* (*last_error)(void);
};

/* The one symbol of the library: attnbench_mpi. */
typedef const struct AttnbenchMpi* (*AttnbenchMpiTable)(void);

#ifdef __cplusplus
}
#endif

#endif
