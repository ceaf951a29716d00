#pragma once
/// The Communicator implementations. In a build without NCCL, nccl_absent.cpp throws Error instead.
#include <string>

#include <gradtile/train/parallel/communicator.h>

namespace gradtile::cpu {
std::unique_ptr<Communicator> make_cpu_communicator(ProcessGroup& group);
}

namespace gradtile {
/// Loads NCCL; returns its version: "2.28.3".
std::string nccl_version();
}  // namespace gradtile

namespace gradtile::cuda {
std::unique_ptr<Communicator> make_nccl_communicator(const Context& ctx, ProcessGroup& group);
}
