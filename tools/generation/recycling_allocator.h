#pragma once
/// An allocator for many short-lived tensors with the same few sizes.
#include <array>
#include <bit>
#include <memory>
#include <utility>
#include <vector>

#include <gradtile/core/allocator.h>

namespace gradtile {

/// Keeps released blocks up to 64 KiB, at most 64 blocks per size, and returns them again. Generation passes
/// allocate some hundred small tensors for each token; on a CPU, aligned_alloc() and free() take 5% of a
/// token's time.
class RecyclingAllocator final : public Allocator {
  public:
    explicit RecyclingAllocator(std::shared_ptr<Allocator> source) : source_(std::move(source)) {}
    ~RecyclingAllocator() override {
        for (std::size_t i = 0; i < kept_.size(); ++i)
            for (std::byte* const block : kept_[i]) source_->release(block, smallest << i);
    }
    RecyclingAllocator(const RecyclingAllocator&) = delete;
    RecyclingAllocator& operator=(const RecyclingAllocator&) = delete;

    std::byte* allocate(std::size_t bytes) override {
        if (bytes > largest) return source_->allocate(bytes);
        const std::size_t index = index_of(bytes);
        std::vector<std::byte*>& kept = kept_[index];
        if (kept.empty()) {
            kept.reserve(max_blocks);  // release() must not throw
            return source_->allocate(smallest << index);
        }
        std::byte* const block = kept.back();
        kept.pop_back();
        return block;
    }
    void release(std::byte* data, std::size_t bytes) noexcept override {
        if (bytes > largest) return source_->release(data, bytes);
        const std::size_t index = index_of(bytes);
        if (kept_[index].size() < max_blocks) {
            kept_[index].push_back(data);
        } else {
            source_->release(data, smallest << index);
        }
    }
    Device device() const override { return source_->device(); }

  private:
    static constexpr std::size_t smallest = 256, largest = std::size_t{64} << 10, max_blocks = 64;

    /// Sizes are rounded up to powers of two from `smallest` on; returns the power's index.
    static std::size_t index_of(std::size_t bytes) {
        return bytes <= smallest ? 0 : static_cast<std::size_t>(std::bit_width((bytes - 1) / smallest));
    }

    std::shared_ptr<Allocator> source_;
    std::array<std::vector<std::byte*>, 9> kept_;  // 256 B, 512 B, ... 64 KiB
};

}  // namespace gradtile
