#pragma once
/// The memory that a run may use when no budget is set.
#include <cstddef>

#include <gradtile/core/allocator.h>

namespace gradtile {

/// Returns the available memory in bytes. CPU: the memory that the kernel reports as available; control
/// groups and the limit on the address space may allow less. CUDA: the free memory minus a reserve for memory
/// that the memory plan does not count (kernels, library workspaces).
std::size_t available_memory(Device device);

/// Returns the bytes that a process has in addition to its planned tensors. CUDA: the context and all that
/// available_memory() reserves, as a constant.
std::size_t unplanned_memory(Device device);

/// Estimates what a CUDA context with a run's libraries takes of a GPU's memory, without NCCL, if
/// `page_locked` bytes of host memory are mapped into it.
std::size_t cuda_context_memory(std::size_t page_locked);

}  // namespace gradtile
