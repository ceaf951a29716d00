#pragma once
/// The interface between gradtile and its MPI plug-in, libgradtile_mpi.so: the MPI functions that gradtile
/// needs, without MPI's types. Only the plug-in is linked with MPI, so programs also start on machines
/// without MPI. The plug-in includes no other gradtile header.

extern "C" {

struct GradtileMpi {
    /// gradtile's version, which must be equal in the plug-in and the program.
    const char* version;
    bool is_open_mpi;

    // Each function returns 0 or MPI's error code. Sizes and positions are in bytes. The processes are those
    // in MPI_COMM_WORLD.

    /// Initializes MPI and registers MPI_Finalize at exit, unless the program has initialized MPI already.
    int (*start)(int* rank, int* size);
    int (*barrier)();
    int (*broadcast)(void* data, int size, int root);
    /// Sends sent_sizes[r] bytes from sent_at[r] to each process r, and receives received_sizes[r] bytes from
    /// it at received_at[r].
    int (*all_to_all)(const void* sent, const int* sent_sizes, const int* sent_at, void* received,
                      const int* received_sizes, const int* received_at);
    /// Each process r contributes the sizes[r] bytes at `at[r]`; every process receives all bytes in place.
    int (*all_gather)(void* data, const int* sizes, const int* offsets);
    /// Starts to send `size` bytes to process `to` and to receive as many from process `from`. The memory
    /// belongs to MPI until finish_transfers() returns.
    int (*start_transfer)(const void* sent, int to, void* received, int from, int size);
    /// Returns when all transfers that were started are complete.
    int (*finish_transfers)();

    /// Writes MPI's message for an error code to `text`, a buffer of `capacity` bytes.
    void (*describe)(int status, char* text, int capacity);
};

/// This function is the plug-in's only exported symbol.
const GradtileMpi* gradtile_mpi();
}
