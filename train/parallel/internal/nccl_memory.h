#pragma once
/// Memory that NCCL's kernels and the copy engines reach from every GPU of a host, at the same place of a
/// block in each: exchanges there need no buffers in between and fewer multiprocessors ("symmetric memory" in
/// NCCL's documentation).
#include <map>

#include <gradtile/core/allocator.h>
#include <gradtile/train/parallel/internal/nccl.h>
#include <gradtile/train/parallel/process_group.h>

namespace gradtile::cuda {

/// Every process allocates the same sizes in the same order; a call waits for the others. The group must
/// outlive it.
class NcclMemory final : public Allocator {
  public:
    NcclMemory(Device device, std::shared_ptr<ncclComm> comm, ProcessGroup& group);

    std::byte* allocate(std::size_t bytes) override;
    void release(std::byte* data, std::size_t bytes) noexcept override;
    Device device() const override { return device_; }

  private:
    Device device_;
    std::shared_ptr<ncclComm> comm_;
    ProcessGroup& group_;
    std::map<std::byte*, void*> windows_;
};

}  // namespace gradtile::cuda
