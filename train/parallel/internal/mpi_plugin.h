#pragma once
/// The interface between gradtile and its MPI plug-in, libgradtile_mpi.so: the few functions of MPI that
/// gradtile needs, without MPI's types. The plug-in alone is linked with MPI, so programs start on machines
/// without one. It uses nothing of gradtile but this header.

extern "C" {

struct GradtileMpi {
    /// gradtile's version; the plug-in and the program must be of the same one.
    const char* version;
    bool is_open_mpi;

    // Each returns 0 or MPI's error code. Sizes and positions are in bytes; the processes are those of
    // MPI_COMM_WORLD.

    /// Initializes MPI, unless the program has done so, and arranges for MPI_Finalize at exit if it has not.
    int (*start)(int* rank, int* size);
    int (*barrier)();
    int (*broadcast)(void* data, int size, int root);
    /// Sends sizes[r] bytes from sent_at[r] to each process r and receives likewise.
    int (*all_to_all)(const void* sent, const int* sent_sizes, const int* sent_at, void* received,
                      const int* received_sizes, const int* received_at);
    /// Each process r contributes the sizes[r] bytes at `at[r]`; everybody receives all of them in place.
    int (*all_gather)(void* data, const int* sizes, const int* at);

    /// MPI's message for an error code, in `text`, which holds `capacity` bytes.
    void (*describe)(int status, char* text, int capacity);
};

/// The plug-in's one symbol.
const GradtileMpi* gradtile_mpi();
}
