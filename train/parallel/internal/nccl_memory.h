#pragma once
/// NCCL's symmetric memory: every GPU on a host can address it, and an allocation has the same layout in each
/// process. Exchanges in such memory need no intermediate buffers and fewer multiprocessors.
#include <map>

#include <gradtile/core/allocator.h>
#include <gradtile/train/parallel/internal/nccl_connection.h>
#include <gradtile/train/parallel/process_group.h>

namespace gradtile::cuda {

/// Collective: every process allocates the same sizes in the same order, and allocate() waits for the others.
/// The group must outlive this object.
class NcclMemory final : public Allocator {
  public:
    NcclMemory(Device device, std::shared_ptr<const NcclConnection> connection, ProcessGroup& group);

    std::byte* allocate(std::size_t bytes) override;
    void release(std::byte* data, std::size_t bytes) noexcept override;
    Device device() const override { return device_; }

  private:
    Device device_;
    std::shared_ptr<const NcclConnection> connection_;
    ProcessGroup& group_;
    std::map<std::byte*, void*> windows_;
};

}  // namespace gradtile::cuda
