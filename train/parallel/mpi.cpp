#include <gradtile/train/parallel/mpi.h>

#include <cstdlib>

#include <gradtile/core/check.h>
#include <gradtile/train/parallel/internal/mpi_check.h>

namespace gradtile::mpi {

bool is_built_in() {
    return true;
}

namespace {

/// Open MPI ends a process that finds no launcher it can talk to where there must be one, and says so at
/// length.
void require_launcher() {
#ifdef OPEN_MPI
    const auto is_set = [](const char* name) { return std::getenv(name) != nullptr; };
    check(!is_set("SLURM_STEP_NUM_TASKS") || is_set("PMIX_RANK") || is_set("OMPI_COMM_WORLD_SIZE"),
          "mpi: srun started this process without telling Open MPI; start it with srun --mpi=pmix or mpirun");
#endif
}

}  // namespace

World start() {
    int started = 0;
    MPI_Initialized(&started);
    if (!started) {
        require_launcher();
        int provided = 0;
        mpi_check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided), "start");
        MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
        std::atexit([] { MPI_Finalize(); });
    }
    World world{};
    MPI_Comm_rank(MPI_COMM_WORLD, &world.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &world.size);
    return world;
}

std::string broadcast(const std::string& text) {
    std::string copy = text;
    auto length = static_cast<unsigned long>(copy.size());
    mpi_check(MPI_Bcast(&length, 1, MPI_UNSIGNED_LONG, 0, MPI_COMM_WORLD), "broadcast");
    copy.resize(length);
    mpi_check(MPI_Bcast(copy.data(), static_cast<int>(length), MPI_BYTE, 0, MPI_COMM_WORLD), "broadcast");
    return copy;
}

void mpi_check(int status, const char* what) {
    if (status == MPI_SUCCESS) return;
    char message[MPI_MAX_ERROR_STRING];
    int length = 0;
    MPI_Error_string(status, message, &length);
    throw Error(concat("mpi: ", what, ": ", std::string(message, static_cast<std::size_t>(length))));
}

}  // namespace gradtile::mpi
