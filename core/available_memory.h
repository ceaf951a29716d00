#pragma once
/// The memory that a run may use when no budget is set.
#include <cstddef>

#include <gradtile/core/allocator.h>

namespace gradtile {

/// Returns the available memory in bytes. CPU: the memory that the kernel reports as available, or the unused
/// part of the control group's limit if that is less. CUDA: the free memory minus a reserve for memory that
/// the memory plan does not count (kernels, library workspaces, the step's graph).
std::size_t available_memory(Device device);

/// Returns how many bytes of a limit on a process's memory a plan may use. CUDA: the limit minus the memory
/// of the context and of all that available_memory() reserves. Throws Error for a limit that has no more.
std::size_t planned_part(Device device, std::size_t limit);

}  // namespace gradtile
