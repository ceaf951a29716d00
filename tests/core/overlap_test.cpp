// Which views share memory, against every element's addresses.
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/core/internal/overlap.h>
#include <gradtile/core/philox.h>

#include <support/error_message.h>

namespace gradtile {
namespace {

using test::message_of;
using testing::HasSubstr;

void add_bytes(std::set<const std::byte*>& bytes, const Tensor& x, int axis, const std::byte* address) {
    if (axis == x.rank()) {
        for (std::size_t i = 0; i < size_of(x.dtype()); ++i) bytes.insert(address + i);
        return;
    }
    for (std::int64_t i = 0; i < x.size(axis); ++i)
        add_bytes(bytes, x, axis + 1,
                  address + i * x.stride(axis) * static_cast<std::int64_t>(size_of(x.dtype())));
}
std::set<const std::byte*> bytes_of(const Tensor& x) {
    std::set<const std::byte*> bytes;
    add_bytes(bytes, x, 0, x.raw_data());
    return bytes;
}
bool share_a_byte(const Tensor& a, const Tensor& b) {
    const auto a_bytes = bytes_of(a), b_bytes = bytes_of(b);
    return std::ranges::any_of(a_bytes, [&](const std::byte* byte) { return b_bytes.contains(byte); });
}

/// Draws small numbers.
class Draws {
  public:
    std::int64_t below(std::int64_t n) {
        const Philox::Counter words = Philox::draw({next_++, 0, 0, 0}, philox_key(7));
        return static_cast<std::int64_t>(words[0]) % n;
    }

  private:
    std::uint32_t next_ = 0;
};

/// A view with random lengths, strides (which may be 0 or overlap) and dtype.
Tensor random_view(Draws& draws, std::byte* memory, std::int64_t bytes) {
    constexpr DType dtypes[] = {DType::f64, DType::f32, DType::bf16, DType::i32};
    const DType dtype = dtypes[draws.below(4)];
    const auto size = static_cast<std::int64_t>(size_of(dtype));
    for (;;) {
        std::vector<std::int64_t> lengths, strides;
        std::int64_t last = 0;
        for (std::int64_t axis = draws.below(4); axis > 0; --axis) {
            lengths.push_back(draws.below(5));
            strides.push_back(draws.below(12));
            last += (lengths.back() - 1) * strides.back();
        }
        const std::int64_t room = bytes / size - std::max<std::int64_t>(last, 0);
        if (room <= 0) continue;
        return Tensor(nullptr, memory + draws.below(room) * size, Device::cpu(), dtype,
                      Shape(std::span<const std::int64_t>(lengths)),
                      Strides(std::span<const std::int64_t>(strides)));
    }
}

TEST(Overlap, EqualsTheComparisonOfAllBytes) {
    alignas(8) std::byte memory[512];
    Draws draws;
    int shared = 0, separate = 0;
    for (int i = 0; i < 20'000; ++i) {
        const Tensor a = random_view(draws, memory, 512), b = random_view(draws, memory, 512);
        const bool expected = share_a_byte(a, b);
        ASSERT_EQ(overlap(a, b), expected)
            << a << " at " << a.raw_data() - memory << " strides " << a.strides() << ", " << b << " at "
            << b.raw_data() - memory << " strides " << b.strides();
        ASSERT_EQ(overlap(b, a), expected);
        (expected ? shared : separate) += 1;
    }
    EXPECT_GT(shared, 1000);
    EXPECT_GT(separate, 1000);
}

TEST(Overlap, InterleavedViewsOfLargeTensorsAreSeparate) {
    // The memory is never accessed.
    std::byte* const memory = reinterpret_cast<std::byte*>(std::uintptr_t{1} << 40);
    const Tensor packed(nullptr, memory, Device::cpu(), DType::f32, {64, 2048, 36, 128},
                        contiguous_strides({64, 2048, 36, 128}));
    const Tensor q = packed.slice(2, 0, 32), k = packed.slice(2, 32, 2), v = packed.slice(2, 34, 2);
    for (const auto& [a, b] : {std::pair{q, k}, {k, v}, {q.transpose(1, 2), v.transpose(2, 3)}})
        EXPECT_FALSE(overlap(a, b)) << a << b;
    EXPECT_TRUE(overlap(packed.slice(2, 0, 33), k.transpose(0, 1)));
    const Tensor even = packed.reshape({64, 2048, 36, 64, 2}).select(4, 0),
                 odd = packed.reshape({64, 2048, 36, 64, 2}).select(4, 1);
    EXPECT_FALSE(overlap(even, odd.transpose(0, 3)));
}

TEST(CheckSharing, NamesBothOperandsAndAllowsOnlyWhatTheOperatorAllows) {
    const Context cpu(Device::cpu(), 1);
    const Tensor x = zeros(cpu, {4, 4}, DType::f32), none;
    const auto check_with = [&](const Context& ctx, const Tensor& other, Sharing allowed) {
        return message_of([&] { check_sharing(ctx, "op", {"y", x}, {{"x", other}}, allowed); });
    };
    for (const Sharing allowed : {Sharing::none, Sharing::same_view}) {
        EXPECT_EQ(check_with(cpu, zeros(cpu, {4, 4}, DType::f32), allowed), "no error");
        EXPECT_EQ(check_with(cpu, none, allowed), "no error");
        EXPECT_THAT(check_with(cpu, x.transpose(0, 1), allowed),
                    HasSubstr("op: y [4, 4] float32 on cpu shares memory with x [4, 4] float32 on cpu"));
        EXPECT_THAT(check_with(cpu, x.slice(0, 0, 2), allowed), HasSubstr("shares memory"));
    }
    EXPECT_THAT(check_with(cpu, x, Sharing::none), HasSubstr("expected separate memory"));
    EXPECT_EQ(check_with(cpu, x, Sharing::same_view), "no error");
    const Context dry = cpu.plan(Arena::for_planning(Device::cpu()));
    EXPECT_EQ(check_with(dry, x, Sharing::none), "no error");
}

}  // namespace
}  // namespace gradtile
