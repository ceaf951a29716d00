#include <gradtile/tools/generation/recycling_allocator.h>

#include <cstdint>
#include <map>

#include <gtest/gtest.h>

namespace gradtile {
namespace {

/// Counts the blocks that it has given out, with their sizes.
class CountingAllocator final : public Allocator {
  public:
    std::byte* allocate(std::size_t bytes) override {
        ++calls;
        std::byte* const data = system_->allocate(bytes);
        held[data] = bytes;
        return data;
    }
    void release(std::byte* data, std::size_t bytes) noexcept override {
        EXPECT_EQ(held.at(data), bytes) << "released with another size";
        held.erase(data);
        system_->release(data, bytes);
    }
    Device device() const override { return Device::cpu(); }

    std::map<std::byte*, std::size_t> held;
    int calls = 0;

  private:
    std::shared_ptr<Allocator> system_ = system_allocator(Device::cpu());
};

TEST(RecyclingAllocator, ReturnsReleasedBlocksThatAreLargeEnough) {
    const auto source = std::make_shared<CountingAllocator>();
    {
        RecyclingAllocator recycling(source);
        for (const std::size_t bytes : {1, 255, 256, 257, 512, 513, 4096, 65535, 65536}) {
            std::byte* const first = recycling.allocate(bytes);
            EXPECT_GE(source->held.at(first), bytes);
            EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first) % 64, 0u);
            recycling.release(first, bytes);
            EXPECT_EQ(recycling.allocate(bytes), first);
            std::byte* const second = recycling.allocate(bytes);
            EXPECT_NE(second, first);
            recycling.release(first, bytes);
            recycling.release(second, bytes);
        }
        const int calls = source->calls;
        recycling.release(recycling.allocate(300), 300);
        EXPECT_EQ(source->calls, calls);
    }
    EXPECT_TRUE(source->held.empty()) << "the destructor releases all";
}

TEST(RecyclingAllocator, KeepsNoLargeBlocksAndNotMoreThan64OfASize) {
    const auto source = std::make_shared<CountingAllocator>();
    RecyclingAllocator recycling(source);
    constexpr std::size_t large = (64u << 10) + 1;
    recycling.release(recycling.allocate(large), large);
    EXPECT_TRUE(source->held.empty());
    std::vector<std::byte*> blocks;
    for (int i = 0; i < 100; ++i) blocks.push_back(recycling.allocate(1000));
    for (std::byte* const block : blocks) recycling.release(block, 1000);
    EXPECT_EQ(source->held.size(), 64u);
}

}  // namespace
}  // namespace gradtile
