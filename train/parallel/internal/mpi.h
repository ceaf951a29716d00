#pragma once
/// Access to MPI through the plug-in libgradtile_mpi.so, which is loaded at the first call. Every function
/// throws Error with one line when the plug-in, or the MPI that it was built with, cannot be loaded.
#include <string>

#include <gradtile/train/parallel/internal/mpi_plugin.h>

namespace gradtile::mpi {

/// Whether the plug-in and its MPI can be loaded.
bool is_available();

struct World {
    int rank, size;
};
/// Starts MPI at the first call, and finalizes it when the program exits normally. A program that has started
/// MPI itself also finalizes it. Must be called from the main thread.
World start();

/// Returns rank 0's text in every process.
std::string broadcast(const std::string& text);

/// The plug-in's functions, for the Communicator.
const GradtileMpi& functions();
/// Throws Error with MPI's own message unless the status is 0.
void mpi_check(int status, const char* what);

}  // namespace gradtile::mpi
