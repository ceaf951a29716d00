#pragma once
/// CPU memory that counts its bytes.
#include <algorithm>
#include <cstddef>
#include <memory>

#include <gradtile/core/allocator.h>

namespace gradtile::test {

/// Not for several threads at once.
class CountedMemory final : public Allocator {
  public:
    std::byte* allocate(std::size_t bytes) override {
        held += bytes;
        peak = std::max(peak, held);
        return system_->allocate(bytes);
    }
    void release(std::byte* data, std::size_t bytes) noexcept override {
        held -= bytes;
        system_->release(data, bytes);
    }
    Device device() const override { return Device::cpu(); }

    std::size_t held = 0;  ///< bytes that are allocated now
    std::size_t peak = 0;  ///< the most that were allocated at once

  private:
    std::shared_ptr<Allocator> system_ = system_allocator(Device::cpu());
};

}  // namespace gradtile::test
