// The table of mpi_module.h over the MPI that this library was built with. Counts of MPI are of
// 32 bits, so large messages are counted in larger units.
#include "mpi/mpi_module.h"

#include <mpi.h>

#include <climits>
#include <map>
#include <string>

namespace {

constexpr std::size_t kUnits[] = {std::size_t{1} << 20, 4096, 64, 1};

struct State {
  std::map<int, MPI_Comm> groups;
  std::map<std::size_t, MPI_Datatype> units;
  MPI_Request request = MPI_REQUEST_NULL;
  std::string error;
};

State& state() {
  static State the_state;
  return the_state;
}

int said(int code) {
  if (code == MPI_SUCCESS) return 0;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  state().error.assign(text, static_cast<std::size_t>(length));
  return 1;
}

struct Extent {
  MPI_Datatype unit;
  int count = 0;
};

/// `bytes` as a number of units that MPI can count.
int extent_of(std::size_t bytes, Extent& extent) {
  for (const std::size_t unit : kUnits) {
    if (bytes % unit != 0 || bytes / unit > INT_MAX) continue;
    MPI_Datatype& type = state().units.try_emplace(unit, MPI_DATATYPE_NULL).first->second;
    if (type == MPI_DATATYPE_NULL) {
      if (said(MPI_Type_contiguous(static_cast<int>(unit), MPI_BYTE, &type)) != 0) return 1;
      if (said(MPI_Type_commit(&type)) != 0) return 1;
    }
    extent = {type, static_cast<int>(bytes / unit)};
    return 0;
  }
  state().error = "a message of " + std::to_string(bytes) + " bytes is too large";
  return 1;
}

int init(int* rank, int* size) {
  if (said(MPI_Init(nullptr, nullptr)) != 0) return 1;
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  if (said(MPI_Comm_rank(MPI_COMM_WORLD, rank)) != 0) return 1;
  return said(MPI_Comm_size(MPI_COMM_WORLD, size));
}

int finish() { return said(MPI_Finalize()); }

int make_group(int size) {
  if (state().groups.count(size) != 0) return 0;
  MPI_Group world = MPI_GROUP_NULL;
  MPI_Group first = MPI_GROUP_NULL;
  int range[1][3] = {{0, size - 1, 1}};
  MPI_Comm comm = MPI_COMM_NULL;
  const bool made = said(MPI_Comm_group(MPI_COMM_WORLD, &world)) == 0 &&
                    said(MPI_Group_range_incl(world, 1, range, &first)) == 0 &&
                    said(MPI_Comm_create_group(MPI_COMM_WORLD, first, size, &comm)) == 0;
  if (first != MPI_GROUP_NULL) MPI_Group_free(&first);
  if (world != MPI_GROUP_NULL) MPI_Group_free(&world);
  if (!made) return 1;
  MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  state().groups[size] = comm;
  return 0;
}

int start_all_gather(int size, const void* send, void* receive, std::size_t bytes) {
  Extent part;
  if (extent_of(bytes, part) != 0) return 1;
  return said(MPI_Iallgather(send, part.count, part.unit, receive, part.count, part.unit,
                             state().groups.at(size), &state().request));
}

int start_all_to_all(int size, const void* send, void* receive, std::size_t bytes) {
  Extent part;
  if (extent_of(bytes, part) != 0) return 1;
  return said(MPI_Ialltoall(send, part.count, part.unit, receive, part.count, part.unit,
                            state().groups.at(size), &state().request));
}

int start_broadcast(int size, void* data, std::size_t bytes) {
  Extent all;
  if (extent_of(bytes, all) != 0) return 1;
  return said(MPI_Ibcast(data, all.count, all.unit, 0, state().groups.at(size), &state().request));
}

int start_send(int size, int to, const void* data, std::size_t bytes) {
  Extent all;
  if (extent_of(bytes, all) != 0) return 1;
  return said(
      MPI_Isend(data, all.count, all.unit, to, 0, state().groups.at(size), &state().request));
}

int start_receive(int size, int from, void* data, std::size_t bytes) {
  Extent all;
  if (extent_of(bytes, all) != 0) return 1;
  return said(
      MPI_Irecv(data, all.count, all.unit, from, 0, state().groups.at(size), &state().request));
}

int test(int* done) { return said(MPI_Test(&state().request, done, MPI_STATUS_IGNORE)); }

const char* last_error() { return state().error.c_str(); }

constexpr AttnbenchMpi kTable = {ATTNBENCH_MPI_VERSION,
                                 init,
                                 finish,
                                 make_group,
                                 start_all_gather,
                                 start_all_to_all,
                                 start_broadcast,
                                 start_send,
                                 start_receive,
                                 test,
                                 last_error};

}  // namespace

extern "C" const AttnbenchMpi* attnbench_mpi() { return &kTable; }
