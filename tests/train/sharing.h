#pragma once
/// For the rows of sharing_test.cpp: tensors that share memory, and what an operator does with them.
#include <memory>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/core/random.h>
#include <gradtile/core/tensor_ops.h>

#include <support/error_message.h>

namespace gradtile::test::sharing {

inline Tensor numbers(const Context& ctx, const Shape& shape, DType dtype = DType::f32) {
    return randn(ctx, shape, dtype, Seed{3});
}
/// x's memory as another dtype of the same size.
inline Tensor as_i32(const Tensor& x, const Shape& shape) {
    return Tensor(x.buffer(), x.raw_data(), x.device(), DType::i32, shape, contiguous_strides(shape));
}
template <class Call>
void expect_refused(Call&& call) {
    EXPECT_THAT(message_of(call), testing::HasSubstr("shares memory with"));
}
/// Expects that `call` with y = x writes to x what it writes to another tensor. call(y, x) must write y.
template <class Call>
void expect_same_in_place(const Context& ctx, const Tensor& x, Call&& call) {
    const Tensor y = cast(ctx, x, x.dtype());
    call(y, cast(ctx, x, x.dtype()));
    call(x, x);
    EXPECT_EQ(to_host(ctx, x), to_host(ctx, y));
}

/// Two views [3, 4] into one memory that overlap without being equal.
struct Shifted {
    Tensor first, second;
};
inline Shifted shifted(const Context& ctx) {
    const Tensor memory = numbers(ctx, {4, 4});
    return {memory.slice(0, 0, 3), memory.slice(0, 1, 3)};
}

// Rows of attention's operators.
void test_attention_forward(const Context& ctx);
void test_attention_backward(const Context& ctx);
void test_merge(const Context& ctx);
void test_shift(const Context& ctx);
void test_ring_backward(const Context& ctx);
void test_decode(const Context& ctx);
void test_partitioned_forward(const Context& ctx);

}  // namespace gradtile::test::sharing
