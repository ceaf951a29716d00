#pragma once
/// The Communicator implementations. In a build without NCCL, nccl_absent.cpp throws Error instead.
#include <gradtile/train/parallel/communicator.h>

namespace gradtile::cpu {
std::unique_ptr<Communicator> make_mpi_communicator(ProcessGroup& group);
}

namespace gradtile::cuda {
std::unique_ptr<Communicator> make_nccl_communicator(const Context& ctx, ProcessGroup& group);
}
