#include <gradtile/core/internal/offload_stream.h>

#include <array>
#include <numeric>

#include <gtest/gtest.h>

#include <gradtile/core/tensor_ops.h>

#include <support/cuda_test.h>

namespace gradtile {
namespace {

std::vector<double> numbers(std::int64_t count) {
    std::vector<double> values(static_cast<std::size_t>(count));
    std::iota(values.begin(), values.end(), 1.0);
    return values;
}

/// Views of one buffer move together, and keep their strides and their offsets.
void expect_tensors_return_with_their_values(const Context& ctx) {
    const auto arena = std::make_shared<Arena>(ctx.device(), 4096);
    const Context inside = ctx.with_allocator(arena);
    const OffloadStream offload(ctx, 512);
    Tensor all = from_host(inside, numbers(24), {4, 6}, DType::f32);
    Tensor part = all.slice(1, 2, 3).transpose(0, 1);
    Tensor single = from_host(inside, numbers(5), {5}, DType::bf16);
    Tensor elsewhere = from_host(ctx, numbers(3), {3}, DType::f32), undefined;
    const std::byte* const elsewhere_data = elsewhere.raw_data();
    const std::array tensors{&all, &part, &single, &elsewhere, &undefined};
    const auto values = [&] {
        return std::array{to_host(ctx, all), to_host(ctx, part), to_host(ctx, single),
                          to_host(ctx, elsewhere)};
    };
    const auto before = values();
    std::array leaving{all, part, single};
    offload.start_leaving(inside, tensors);
    offload.join(inside);
    leaving = {};
    EXPECT_EQ(arena->bytes_in_use(), 0u);
    EXPECT_EQ(offload.host().bytes_in_use(), 512u);
    EXPECT_EQ(all.buffer(), part.buffer());
    EXPECT_EQ(values(), before);                            // operators read host memory, too
    const Tensor other = zeros(inside, {300}, DType::f32);  // where the tensors were
    offload.start_returning(inside, tensors);
    offload.join(inside);
    EXPECT_EQ(offload.host().bytes_in_use(), 0u);
    EXPECT_EQ(all.buffer(), part.buffer());
    EXPECT_EQ(all.buffer()->allocator(), arena);
    EXPECT_EQ(part.shape(), (Shape{3, 4}));
    EXPECT_EQ(values(), before);
    EXPECT_EQ(elsewhere.raw_data(), elsewhere_data);
    EXPECT_FALSE(undefined.defined());
}

TEST(OffloadStream, TensorsReturnWithTheirValues) {
    expect_tensors_return_with_their_values(Context(Device::cpu(), 1));
}
class CudaOffloadStream : public test::CudaTest {};
TEST_F(CudaOffloadStream, TensorsReturnWithTheirValues) {
    expect_tensors_return_with_their_values(gpu());
}

TEST(OffloadStream, MovesNothingInADryRunButTheMemory) {
    const auto arena = Arena::for_planning(Device::cuda());
    const Context dry = Context(Device::cpu(), 1).plan(arena);
    const OffloadStream stream(dry);
    Tensor x = empty(dry, {1000}, DType::f32);
    const std::array tensors{&x};
    Tensor leaving = x;
    stream.start_leaving(dry, tensors);
    stream.join(dry);
    leaving = {};
    EXPECT_EQ(arena->bytes_in_use(), 0u);
    EXPECT_EQ(stream.host().peak_bytes(), 4096u);
    stream.start_returning(dry, tensors);
    EXPECT_EQ(arena->peak_bytes(), 4096u);
    EXPECT_EQ(stream.host().bytes_in_use(), 0u);
}

}  // namespace
}  // namespace gradtile
