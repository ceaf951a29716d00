#pragma once
/// The little of MPI that is needed outside the Communicator, declared without its headers: mpi.cpp defines
/// it over the library, mpi_absent.cpp (a build without one) throws "built without MPI".
#include <string>

namespace gradtile::mpi {

/// Whether this build has MPI.
bool is_built_in();

struct World {
    int rank, size;
};
/// Starts MPI at the first call; it is ended at exit, if the program comes to an orderly one. Throws Error
/// when this build has no MPI. Called from the main thread.
World start();

/// Rank 0's text, in every process.
std::string broadcast(const std::string& text);

}  // namespace gradtile::mpi
