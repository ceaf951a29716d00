// A build without MPI.
#include <gradtile/core/check.h>
#include <gradtile/parallel/mpi.h>

namespace gradtile::mpi {
namespace {

[[noreturn]] void refuse() {
    throw Error("gradtile was built without MPI");
}

}  // namespace

bool is_built_in() {
    return false;
}
World start() {
    refuse();
}
std::string broadcast(const std::string&) {
    refuse();
}

}  // namespace gradtile::mpi
