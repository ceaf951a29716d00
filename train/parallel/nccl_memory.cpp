#include <gradtile/train/parallel/internal/nccl_memory.h>

#include <gradtile/core/cuda_runtime.h>
#include <gradtile/core/internal/cuda_check.h>

namespace gradtile::cuda {

NcclMemory::NcclMemory(Device device, std::shared_ptr<const NcclConnection> connection, ProcessGroup& group)
    : device_(device), connection_(std::move(connection)), group_(group) {}

std::byte* NcclMemory::allocate(std::size_t bytes) {
    use_device(device_);
    // Names the sizes; NCCL itself would only report "unhandled cuda error".
    if (bytes > device_memory(device_).free_bytes) throw_out_of_memory(device_, bytes);
    void* data = nullptr;
    nccl_check(nccl().mem_alloc(&data, bytes), "symmetric memory");
    constexpr int symmetric = 1;  // NCCL_WIN_COLL_SYMMETRIC
    void* window = nullptr;
    const auto waiting = group_.waiting("the registration of memory");
    const ncclResult_t registered =
        nccl().comm_window_register(connection_->comm(), data, bytes, &window, symmetric);
    if (registered != ncclSuccess) (void)nccl().mem_free(data);
    nccl_check(registered, "registration of symmetric memory");
    auto* const block = static_cast<std::byte*>(data);
    windows_[block] = window;
    return block;
}

void NcclMemory::release(std::byte* data, std::size_t) noexcept {
    if (cudaSetDevice(device_.index()) != cudaSuccess) return;
    (void)cudaDeviceSynchronize();  // waits for the device, as cudaFree does
    const auto window = windows_.find(data);
    (void)nccl().comm_window_deregister(connection_->comm(), window->second);
    windows_.erase(window);
    (void)nccl().mem_free(data);
}

}  // namespace gradtile::cuda
