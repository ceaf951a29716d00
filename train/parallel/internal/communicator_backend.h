#pragma once
/// The engines behind communicator.h. Without the library one is in a small file that throws.
#include <gradtile/train/parallel/communicator.h>

namespace gradtile::cpu {
std::unique_ptr<Communicator> make_mpi_communicator(ProcessGroup& group);
}

namespace gradtile::cuda {
std::unique_ptr<Communicator> make_nccl_communicator(const Context& ctx, ProcessGroup& group);
}
