#pragma once
/// How much memory a run may take when no budget was given.
#include <cstddef>

#include <gradtile/core/device.h>

namespace gradtile {

/// CPU: what the kernel counts as available, or what is left of the control group's limit where that is less.
/// CUDA: what is free, less what a run takes besides its plan (kernels, library workspaces, the step's
/// graph).
std::size_t available_memory(Device device);

}  // namespace gradtile
