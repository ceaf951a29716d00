// libgradtile_mpi.so implements mpi_plugin.h with the MPI found when gradtile was built.
#include <gradtile/train/parallel/internal/mpi_plugin.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

namespace {

int start(int* rank, int* size) {
    int is_started = 0;
    if (const int status = MPI_Initialized(&is_started); status != MPI_SUCCESS) return status;
    if (!is_started) {
        int provided = 0;
        const int status = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided);
        if (status != MPI_SUCCESS) return status;
        MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
        std::atexit([] { MPI_Finalize(); });
    }
    MPI_Comm_rank(MPI_COMM_WORLD, rank);
    return MPI_Comm_size(MPI_COMM_WORLD, size);
}

int barrier() {
    return MPI_Barrier(MPI_COMM_WORLD);
}

int broadcast(void* data, int size, int root) {
    return MPI_Bcast(data, size, MPI_BYTE, root, MPI_COMM_WORLD);
}

int all_to_all(const void* sent, const int* sent_sizes, const int* sent_at, void* received,
               const int* received_sizes, const int* received_at) {
    return MPI_Alltoallv(sent, sent_sizes, sent_at, MPI_BYTE, received, received_sizes, received_at, MPI_BYTE,
                         MPI_COMM_WORLD);
}

int all_gather(void* data, const int* sizes, const int* offsets) {
    return MPI_Allgatherv(MPI_IN_PLACE, 0, MPI_BYTE, data, sizes, offsets, MPI_BYTE, MPI_COMM_WORLD);
}

std::vector<MPI_Request>& started_transfers() {
    static std::vector<MPI_Request> requests;
    return requests;
}

int start_transfer(const void* sent, int to, void* received, int from, int size) {
    constexpr int tag = 0;  // messages between two processes keep their order
    MPI_Request request = MPI_REQUEST_NULL;
    int status = MPI_Irecv(received, size, MPI_BYTE, from, tag, MPI_COMM_WORLD, &request);
    if (status != MPI_SUCCESS) return status;
    started_transfers().push_back(request);
    status = MPI_Isend(sent, size, MPI_BYTE, to, tag, MPI_COMM_WORLD, &request);
    if (status == MPI_SUCCESS) started_transfers().push_back(request);
    return status;
}

int finish_transfers() {
    std::vector<MPI_Request>& requests = started_transfers();
    const int status = MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE);
    requests.clear();
    return status;
}

void describe(int status, char* text, int capacity) {
    char message[MPI_MAX_ERROR_STRING] = "unknown error";
    int length = 0;
    MPI_Error_string(status, message, &length);
    std::snprintf(text, static_cast<std::size_t>(capacity), "%s", message);
}

#ifdef OPEN_MPI
constexpr bool is_open_mpi = true;
#else
constexpr bool is_open_mpi = false;
#endif

}  // namespace

const GradtileMpi* gradtile_mpi() {
    static const GradtileMpi functions{
        GRADTILE_VERSION, is_open_mpi, start,          barrier,          broadcast,
        all_to_all,       all_gather,  start_transfer, finish_transfers, describe,
    };
    return &functions;
}
