#pragma once
/// The CUDA runtime calls that core needs on the host, declared without CUDA headers. cuda_runtime.cpp
/// implements them; in a build without the toolkit, absent.cpp throws "built without CUDA".
#include <cstddef>
#include <memory>
#include <string>

#include <gradtile/core/allocator.h>

namespace gradtile::cuda {

class GemmState;

/// Throws Error for an operator that this build does not implement on CUDA. The message says "built without
/// CUDA" in a build without the CUDA toolkit, and otherwise that the operator has no kernel.
[[noreturn]] void operator_absent();

std::byte* device_malloc(Device device, std::size_t bytes);
/// Throws device_malloc's OutOfMemory error.
[[noreturn]] void throw_out_of_memory(Device device, std::size_t bytes);
void device_free(Device device, std::byte* data) noexcept;
/// Allocates host memory that the device can read and write directly.
std::byte* page_locked_malloc(Device device, std::size_t bytes);
void page_locked_free(Device device, std::byte* data) noexcept;
enum class StreamPriority { normal, high };
std::shared_ptr<void> make_stream(Device device, StreamPriority priority = StreamPriority::normal);
/// Returns the state that all matrix products on one stream share (gemm_state.h); allocates their workspace.
std::shared_ptr<GemmState> make_gemm_state(Device device);
/// Waits for the work enqueued on a stream. Throws Error if that work failed.
void synchronize(Device device, void* stream);
/// Copies bytes between host and device memory in stream order.
void copy_bytes(std::byte* destination, const std::byte* source, std::size_t bytes, Device device,
                void* stream);

struct DeviceMemory {
    std::size_t free_bytes, total_bytes;
};
DeviceMemory device_memory(Device device);

struct DeviceProperties {
    std::string name;  ///< "NVIDIA H200"
    int major, minor;  ///< compute capability
    int multiprocessors;
    double clock_hz;  ///< the highest clock rate
};
DeviceProperties device_properties(Device device);

}  // namespace gradtile::cuda
