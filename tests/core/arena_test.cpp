#include <gradtile/core/allocator.h>

#include <cstdint>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/core/tensor_ops.h>

namespace gradtile {
namespace {

TEST(Arena, GivesAlignedBlocksThatDoNotOverlap) {
    Arena arena(Device::cpu(), 1 << 16);
    std::byte* first = arena.allocate(1);
    std::byte* second = arena.allocate(257);
    std::byte* third = arena.allocate(64);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first) % 64, 0u);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(second) % 64, 0u);
    EXPECT_GE(second, first + 1);
    EXPECT_GE(third, second + 257);
}

TEST(Arena, ReusesReleasedMemory) {
    Arena arena(Device::cpu(), 1 << 12);
    std::byte* first = arena.allocate(1 << 12);
    EXPECT_THROW(arena.allocate(1), Error);
    arena.release(first, 1 << 12);
    EXPECT_EQ(arena.bytes_in_use(), 0u);
    EXPECT_EQ(arena.allocate(1 << 12), first);
}

TEST(Arena, MergesNeighboursInAnyOrderOfRelease) {
    constexpr std::size_t part = 1024;
    std::vector<int> order{0, 1, 2, 3};
    do {
        Arena arena(Device::cpu(), 4 * part);
        std::vector<std::byte*> blocks;
        for (int i = 0; i < 4; ++i) blocks.push_back(arena.allocate(part));
        for (const int i : order) arena.release(blocks[static_cast<std::size_t>(i)], part);
        EXPECT_NO_THROW(arena.allocate(4 * part)) << "released in order " << testing::PrintToString(order);
    } while (std::next_permutation(order.begin(), order.end()));
}

TEST(Arena, RefusesABlockThatDoesNotFitAndNamesTheSizes) {
    Arena arena(Device::cpu(), 4096);
    std::byte* held = arena.allocate(1024);
    try {
        arena.allocate(3073);
        FAIL() << "3073 bytes fitted into 3072";
    } catch (const Error& error) {
        EXPECT_THAT(error.what(), testing::HasSubstr("3073"));
        EXPECT_THAT(error.what(), testing::HasSubstr("4096"));
    }
    EXPECT_NO_THROW(arena.allocate(3072)) << "a refusal changes nothing";
    arena.release(held, 1024);
}

TEST(Arena, RefusesSizesNearTheEndOfTheAddressSpace) {
    Arena arena(Device::cpu(), 4096);
    EXPECT_THROW(arena.allocate(SIZE_MAX), Error);
    EXPECT_THROW(arena.allocate(SIZE_MAX - 100), Error);
    EXPECT_THROW(Arena::for_planning(Device::cpu())->allocate(SIZE_MAX - 100), Error);
    EXPECT_THROW(Arena(Device::cpu(), SIZE_MAX), Error);
}

/// Imitates a training step: allocates and frees tensors in nested scopes.
void step(const Context& ctx) {
    const Tensor a = zeros(ctx, {1000}, DType::f32);
    Tensor kept;
    {
        const Tensor b = zeros(ctx, {5000}, DType::f64);
        kept = b.slice(0, 10, 20);  // the view keeps b's whole memory
    }
    const Tensor c = cast(ctx, a, DType::bf16);
    kept = Tensor();
    const Tensor d = zeros(ctx, {300, 7}, DType::f32);
    axpy(ctx, d, 1.0, d);
}

TEST(Arena, PlanningGivesExactlyThePeakOfTheRealRun) {
    const Context ctx(Device::cpu(), 2);
    const auto plan = Arena::for_planning(Device::cpu());
    step(ctx.plan(plan));
    EXPECT_EQ(plan->bytes_in_use(), 0u);
    const auto arena = std::make_shared<Arena>(Device::cpu(), plan->peak_bytes());
    for (int i = 0; i < 3; ++i) step(ctx.with_allocator(arena));  // every step fits exactly
    EXPECT_EQ(arena->peak_bytes(), plan->peak_bytes());
    EXPECT_EQ(arena->bytes_in_use(), 0u);
    const auto smaller = std::make_shared<Arena>(Device::cpu(), plan->peak_bytes() - 256);
    EXPECT_THROW(step(ctx.with_allocator(smaller)), Error);
    EXPECT_EQ(smaller->bytes_in_use(), 0u) << "an exception releases what the step held";
}

TEST(Buffer, OfZeroBytesAllocatesNothing) {
    const auto arena = std::make_shared<Arena>(Device::cpu(), 0);
    const Buffer nothing(arena, 0);
    EXPECT_EQ(nothing.data(), nullptr);
    EXPECT_THROW(Buffer(arena, 1), Error);
}

/// A host allocator with little memory.
class FewBytes final : public Allocator {
  public:
    explicit FewBytes(std::size_t bytes) : left_(bytes) {}
    std::byte* allocate(std::size_t bytes) override {
        if (bytes > left_) throw OutOfMemory("no more");
        left_ -= bytes;
        return system_allocator(Device::cpu())->allocate(bytes);
    }
    void release(std::byte* data, std::size_t bytes) noexcept override {
        left_ += bytes;
        system_allocator(Device::cpu())->release(data, bytes);
    }
    Device device() const override { return Device::cpu(); }
    std::size_t left() const { return left_; }

  private:
    std::size_t left_;
};

TEST(FallbackAllocator, ReturnsEachBlockToItsAllocator) {
    const auto preferred = std::make_shared<FewBytes>(1024), otherwise = std::make_shared<FewBytes>(4096);
    const auto both = with_fallback(preferred, otherwise);
    {
        const Buffer fits(both, 1024), does_not(both, 2048);
        EXPECT_EQ(preferred->left(), 0u);
        EXPECT_EQ(otherwise->left(), 2048u);
        EXPECT_THROW(Buffer(both, 4096), OutOfMemory);
    }
    EXPECT_EQ(preferred->left(), 1024u);
    EXPECT_EQ(otherwise->left(), 4096u);
}

TEST(SystemAllocator, RefusesMoreMemoryThanExists) {
    EXPECT_THROW(system_allocator(Device::cpu())->allocate(SIZE_MAX - 10), Error);
    EXPECT_THROW(system_allocator(Device::cpu())->allocate(PTRDIFF_MAX), Error);
}

}  // namespace
}  // namespace gradtile
