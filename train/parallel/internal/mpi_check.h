#pragma once
/// MPI's C interface, and its errors as exceptions.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

namespace gradtile::mpi {

/// Throws Error with MPI's own message unless the status is MPI_SUCCESS.
void mpi_check(int status, const char* what);

}  // namespace gradtile::mpi
