#pragma once
/// Memory for what a GPU reads and writes only once a step.
#include <memory>

#include <gradtile/core/allocator.h>

namespace gradtile {

/// Returns an allocator of page-locked host memory whose tensors are on `device`, a GPU: its operators and
/// copies read and write this memory over the bus. Throws Error for the CPU.
std::shared_ptr<Allocator> offload_allocator(Device device);

}  // namespace gradtile
