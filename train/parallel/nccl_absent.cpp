// The NCCL functions in a build without NCCL.
#include <gradtile/core/check.h>
#include <gradtile/train/parallel/internal/communicator_backend.h>

namespace gradtile {

namespace {
[[noreturn]] void nccl_absent() {
    throw Error(
        "nccl: this gradtile was built without NCCL, which several GPUs need; install it (libnccl-dev) and "
        "build again");
}
}  // namespace

std::string nccl_version() {
    nccl_absent();
}

std::unique_ptr<Communicator> cuda::make_nccl_communicator(const Context&, ProcessGroup&) {
    nccl_absent();
}

}  // namespace gradtile
