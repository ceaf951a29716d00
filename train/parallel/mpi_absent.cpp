// The MPI side of a build without MPI.
#include <gradtile/core/check.h>
#include <gradtile/train/parallel/internal/communicator_backend.h>
#include <gradtile/train/parallel/mpi.h>

namespace gradtile {
namespace mpi {

bool is_built_in() {
    return false;
}

World start() {
    throw Error(
        "mpi: this gradtile was built without MPI, which several processes on the CPU need; install "
        "libopenmpi-dev and build again");
}

std::string broadcast(const std::string&) {
    start();
    return {};
}

}  // namespace mpi

std::unique_ptr<Communicator> cpu::make_mpi_communicator(ProcessGroup&) {
    mpi::start();
    return nullptr;
}

}  // namespace gradtile
