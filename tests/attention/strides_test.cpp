// Inputs, outputs and gradients with any strides: results equal those with contiguous tensors bit for bit,
// and only the outputs are written.
#include <algorithm>
#include <span>

#include <gmock/gmock.h>

#include "attention_testing.h"

namespace gradtile::attention::test {
namespace {

enum class Layout {
    heads_first,   ///< [B, H, S, D] in memory, as PyTorch's SDPA takes them
    transposed,    ///< [B, H, D, S] in memory: rows are adjacent, elements in a row are not
    every_second,  ///< the last stride is 2
    wider_rows,    ///< sliced from wider rows, not aligned
};
constexpr Layout layouts[] = {Layout::heads_first, Layout::transposed, Layout::every_second,
                              Layout::wider_rows};

/// A [B, S, H, D] view with a given layout, and all the memory that contains it.
struct LaidOut {
    Tensor view, memory;
};
LaidOut empty_with_layout(const Context& ctx, const Shape& shape, DType dtype, Layout layout) {
    const std::int64_t b = shape[0], s = shape[1], h = shape[2], d = shape[3];
    switch (layout) {
        case Layout::heads_first: {
            const Tensor memory = empty(ctx, {b, h, s, d}, dtype);
            return {memory.transpose(1, 2), memory};
        }
        case Layout::transposed: {
            const Tensor memory = empty(ctx, {b, h, d, s}, dtype);
            return {memory.transpose(2, 3).transpose(1, 2), memory};
        }
        case Layout::every_second: {
            const Tensor memory = empty(ctx, {b, s, h, d, 2}, dtype);
            return {memory.select(4, 1), memory};
        }
        case Layout::wider_rows: {
            const Tensor memory = empty(ctx, {b, s, h, d + 3}, dtype);
            return {memory.slice(3, 1, d), memory};
        }
    }
    throw Error("unknown layout");
}

Tensor copy_with_layout(const Context& ctx, const Tensor& x, Layout layout) {
    const Tensor view = empty_with_layout(ctx, x.shape(), x.dtype(), layout).view;
    copy(ctx, view, x);
    return view;
}

/// The second problem has so few queries that the kernels for few queries compute it.
const Problem strided_problems[] = {{.queries = 45,
                                     .keys = 70,
                                     .d_qk = 24,
                                     .d_v = 40,
                                     .causal = true,
                                     .batch = 2,
                                     .heads = 4,
                                     .key_heads = 2},
                                    {.queries = 3,
                                     .keys = 600,
                                     .d_qk = 24,
                                     .d_v = 40,
                                     .causal = true,
                                     .batch = 2,
                                     .heads = 4,
                                     .key_heads = 2}};

/// Calls body(problem, dtype, options) for every problem, dtype and algorithm.
template <class Body>
void for_every_dtype_and_algorithm(std::span<const Problem> list, Body&& body) {
    for (const Problem& problem : list)
        for (const DType dtype : floating_dtypes)
            for (const Algorithm algorithm : algorithms) {
                SCOPED_TRACE(::testing::Message() << problem << ' ' << dtype << ' ' << algorithm);
                body(problem, dtype, problem.options(algorithm));
            }
}

TEST(AttentionStrides, InputsMayHaveAnyStrides) {
    const Context ctx(Device::cpu(), 2);
    for_every_dtype_and_algorithm(strided_problems, [&](const Problem& problem, DType dtype,
                                                        const Options& options) {
        const Inputs in = random_inputs(ctx, problem, dtype);
        const Result expected = run(ctx, in, options);
        for (const Layout layout : layouts) {
            SCOPED_TRACE(static_cast<int>(layout));
            const Inputs views{copy_with_layout(ctx, in.q, layout), copy_with_layout(ctx, in.k, layout),
                               copy_with_layout(ctx, in.v, layout), copy_with_layout(ctx, in.d_o, layout)};
            EXPECT_EQ(run(ctx, views, options), expected);
        }
    });
}

TEST(AttentionStrides, OutputsMayHaveAnyStridesAndNothingElseIsWritten) {
    const Context ctx(Device::cpu(), 2);
    for_every_dtype_and_algorithm(
        strided_problems, [&](const Problem& problem, DType dtype, const Options& options) {
            const Inputs in = random_inputs(ctx, problem, dtype);
            const Result expected = run(ctx, in, options);
            for (const Layout layout : layouts) {
                SCOPED_TRACE(static_cast<int>(layout));
                constexpr double untouched = 7;
                const auto output = [&](const Tensor& like) {
                    const LaidOut laid_out = empty_with_layout(ctx, like.shape(), dtype, layout);
                    fill(ctx, laid_out.memory, untouched);
                    return laid_out;
                };
                const LaidOut o = output(in.d_o), d_q = output(in.q), d_k = output(in.k), d_v = output(in.v);
                Saved saved;
                forward(ctx, in.q, in.k, in.v, options, saved, o.view);
                backward(ctx, in.d_o, options, saved, {.q = d_q.view, .k = d_k.view, .v = d_v.view});
                const auto expect_written = [&](const char* name, const LaidOut& laid_out,
                                                const std::vector<double>& values) {
                    EXPECT_EQ(to_host(ctx, laid_out.view), values) << name;
                    fill(ctx, laid_out.view, untouched);
                    const std::vector<double> memory = to_host(ctx, laid_out.memory);
                    EXPECT_EQ(std::ranges::count(memory, untouched), std::ssize(memory)) << name;
                };
                expect_written("dQ", d_q, expected.d_q);
                expect_written("dK", d_k, expected.d_k);
                expect_written("dV", d_v, expected.d_v);
                expect_written("O", o, expected.o);
            }
        });
}

TEST(AttentionStrides, ExpandedTensorsGiveTheSameResultsAsCopies) {
    const Context ctx(Device::cpu(), 2);
    for_every_dtype_and_algorithm(strided_problems, [&](const Problem& problem, DType dtype,
                                                        const Options& options) {
        const Inputs in = random_inputs(ctx, problem, dtype);
        // Cases: dO for the loss sum(O) (all ones), one K and V for the whole batch, one key repeated, one
        // column repeated.
        const Tensor ones = empty(ctx, {1, 1, 1, 1}, dtype);
        fill(ctx, ones, 1);
        const auto expect_same = [&](const char* what, const Inputs& repeated) {
            EXPECT_EQ(run(ctx, repeated, options), run(ctx, repeated.to(ctx, dtype), options)) << what;
        };
        const Shape &k_shape = in.k.shape(), &v_shape = in.v.shape();
        expect_same("d_o", {in.q, in.k, in.v, ones.expand(in.d_o.shape())});
        expect_same("batch of k and v",
                    {in.q, in.k.slice(0, 0, 1).expand(k_shape), in.v.slice(0, 0, 1).expand(v_shape), in.d_o});
        expect_same("keys",
                    {in.q, in.k.slice(1, 3, 1).expand(k_shape), in.v.slice(1, 3, 1).expand(v_shape), in.d_o});
        expect_same("columns", {in.q.slice(3, 0, 1).expand(in.q.shape()), in.k,
                                in.v.slice(3, 0, 1).expand(v_shape), in.d_o});
    });
}

TEST(AttentionStrides, SlicesOfAPackedQkvTensorGiveTheSameResults) {
    const Context ctx(Device::cpu(), 2);
    const Problem square{.queries = 65,
                         .keys = 65,
                         .d_qk = 32,
                         .d_v = 32,
                         .causal = true,
                         .batch = 2,
                         .heads = 3,
                         .key_heads = 3};
    for_every_dtype_and_algorithm({&square, 1}, [&](const Problem&, DType dtype, const Options& options) {
        const Inputs in = random_inputs(ctx, square, dtype);
        const Result expected = run(ctx, in, options);
        const Tensor packed = empty(ctx, {2, 65, 3, 3, 32}, dtype), gradient = empty_like(ctx, packed);
        copy(ctx, packed.select(2, 0), in.q);
        copy(ctx, packed.select(2, 1), in.k);
        copy(ctx, packed.select(2, 2), in.v);
        Saved saved;
        const Tensor o =
            forward(ctx, packed.select(2, 0), packed.select(2, 1), packed.select(2, 2), options, saved);
        backward(ctx, in.d_o, options, saved,
                 {.q = gradient.select(2, 0), .k = gradient.select(2, 1), .v = gradient.select(2, 2)});
        EXPECT_EQ(to_host(ctx, o), expected.o);
        EXPECT_EQ(to_host(ctx, gradient.select(2, 0)), expected.d_q);
        EXPECT_EQ(to_host(ctx, gradient.select(2, 1)), expected.d_k);
        EXPECT_EQ(to_host(ctx, gradient.select(2, 2)), expected.d_v);
    });
}

}  // namespace
}  // namespace gradtile::attention::test
