#include <gradtile/layers/documents.h>

#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/core/tensor_ops.h>

#include <support/error_message.h>
#include <support/on_cuda.h>

namespace gradtile {
namespace {

using test::message_of;
using testing::ElementsAre;
using testing::HasSubstr;
using Ids = std::vector<std::int32_t>;

Documents with_positions(const Context& ctx, const Ids& positions, std::int64_t rows) {
    return {.positions = from_host(ctx, positions, {rows, std::ssize(positions) / rows})};
}

/// Two rows: documents of 3, 1 and 6 tokens; then a prompt of 3 tokens with answers of 2, 3 and 1 tokens,
/// where each answer's first token has the position of the next one, and one token of padding.
const Ids some_positions{0, 1, 2, 0, 0, 1, 2, 3, 4, 5,  //
                         0, 1, 2, 3, 4, 3, 4, 5, 3, 0};

TEST(PreviousToken, IsTheNearestEarlierTokenWhosePositionIsOneLess) {
    const Context ctx(Device::cpu(), 2);
    const PreviousTokens previous(ctx, with_positions(ctx, some_positions, 2));
    EXPECT_THAT(to_host(ctx, previous.place), ElementsAre(-1, 0, 1, -1, -1, 4, 5, 6, 7, 8,  //
                                                          -1, 0, 1, 2, 3, 2, 5, 6, 2, -1));
    EXPECT_THAT(to_host(ctx, previous.sibling), ElementsAre(0, 0, 0, 0, 0, 0, 0, 0, 0, 0,  //
                                                            0, 0, 0, 5, 0, 8, 0, 0, 0, 0));
    EXPECT_FALSE(PreviousTokens(ctx, Documents{}).place.defined());
}

/// A prompt of one token: its copy before each answer has position 0, so no answer's first token has a
/// predecessor.
TEST(PreviousToken, AnswersToAPromptOfOneTokenBeginLikeDocuments) {
    const Context ctx(Device::cpu(), 1);
    const PreviousTokens previous(ctx, with_positions(ctx, {0, 1, 0, 1, 2}, 1));
    EXPECT_THAT(to_host(ctx, previous.place), ElementsAre(-1, 0, -1, 2, 3));
}

/// Rows of small integers, which all dtypes hold and whose sums have no rounding; heads are a view into wider
/// rows.
Tensor heads_in(const Context& ctx, std::int64_t rows, std::int64_t tokens, DType dtype, std::int64_t width) {
    std::vector<double> values(static_cast<std::size_t>(rows * tokens * 3 * 2 * width));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i * 7 % 13) - 6;
    return from_host(ctx, values, {rows, tokens, 3, 2 * width}, dtype).slice(3, width, width);
}

/// Forward by the table, and backward as its transposed, with documents and without.
TEST(PreviousRows, AreCopiedAndTheirGradientsSummed) {
    const Context ctx(Device::cpu(), 3);
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16})
        for (const bool has_documents : {false, true}) {
            SCOPED_TRACE(concat(dtype, has_documents ? " with documents" : ""));
            PreviousTokens previous;
            if (has_documents) previous = PreviousTokens(ctx, with_positions(ctx, some_positions, 2));
            const Tensor x = heads_in(ctx, 2, 10, dtype, 5);
            const auto xs = to_host(ctx, x), ys = to_host(ctx, previous_rows(ctx, x, previous)),
                       dxs = to_host(ctx, previous_rows_backward(ctx, x, previous));
            std::vector<double> expected(xs.size()), gradient(xs.size());
            constexpr std::size_t of_token = 15;
            for (std::size_t token = 0; token < 20; ++token) {
                const auto row = static_cast<double>(token / 10 * 10);
                const double place = has_documents ? to_host(ctx, previous.place)[token]
                                                   : static_cast<double>(token) - row - 1;
                const auto from = place < 0 ? token : static_cast<std::size_t>(row + place);
                for (std::size_t i = 0; i < of_token; ++i) {
                    expected[token * of_token + i] = xs[from * of_token + i];
                    gradient[from * of_token + i] += xs[token * of_token + i];
                }
            }
            EXPECT_EQ(ys, expected);
            EXPECT_EQ(dxs, gradient);
        }
}

/// Two texts in slots 2 and 0, token by token: what a step returns is what previous_rows() returns for the
/// whole text. A text that goes back to an earlier token finds what it left there.
TEST(PreviousRows, OfStepsAreThoseOfTheWholeText) {
    const Context ctx(Device::cpu(), 2);
    const std::int64_t tokens = 5, width = 4;
    const Tensor x = heads_in(ctx, 2, tokens, DType::f32, width);
    const Tensor wide = empty(ctx, {3, tokens + 1, 3, 2 * width}, DType::f32);
    fill(ctx, wide, 99.0);
    const Tensor cache = wide.slice(3, 0, width);
    const auto expected = previous_rows(ctx, x, {});
    const Tensor slots = from_host(ctx, Ids{2, 0}, {2});
    for (const std::int32_t t : {0, 1, 2, 3, 1, 2, 3, 4, 0}) {
        SCOPED_TRACE(t);
        const auto of_token = [&](const Tensor& all) {
            return cast(ctx, all.slice(1, t, 1).transpose(0, 1), DType::f64);
        };
        const Tensor now = cast(ctx, x.slice(1, t, 1).transpose(0, 1), DType::f32);
        const Tensor y = previous_rows_of_step(ctx, now, cache, from_host(ctx, Ids{t, t}, {2}), slots);
        EXPECT_EQ(to_host(ctx, y), to_host(ctx, of_token(expected)));
    }
    EXPECT_THAT(to_host(ctx, wide.slice(3, width, width)), testing::Each(99.0));
    EXPECT_THAT(to_host(ctx, cache.slice(0, 1, 1)), testing::Each(99.0));
}

/// 20 tokens, so that the tokens 15 and 16 have rows in different blocks.
TEST(PreviousRows, OfStepsWithACacheInBlocksAreThoseOfTheWholeText) {
    const Context ctx(Device::cpu(), 2);
    const std::int64_t tokens = 20;
    const Tensor x = heads_in(ctx, 2, tokens, DType::f32, 4), cache = empty(ctx, {6, 16, 3, 4}, DType::f32);
    fill(ctx, cache, 99.0);
    const auto expected = previous_rows(ctx, x, {});
    const Tensor slots = from_host(ctx, Ids{2, 0}, {2}),
                 table = from_host(ctx, Ids{5, 1, -1, -1, 4, 2}, {3, 2});
    for (std::int32_t t = 0; t < tokens; ++t) {
        const auto of_token = [&](const Tensor& all) { return all.slice(1, t, 1).transpose(0, 1); };
        const Tensor now = cast(ctx, of_token(x), DType::f32);
        const Tensor y = previous_rows_of_step(ctx, now, cache, from_host(ctx, Ids{t, t}, {2}), slots, table);
        EXPECT_EQ(to_host(ctx, y), to_host(ctx, of_token(expected))) << t;
    }
    for (const std::int64_t other : {0, 3})
        EXPECT_THAT(to_host(ctx, cache.slice(0, other, 1)), testing::Each(99.0));
    const auto error = [&](std::int32_t position, std::int32_t slot) {
        return message_of([&] {
            previous_rows_of_step(ctx, cast(ctx, x.slice(1, 0, 1).slice(0, 0, 1), DType::f32), cache,
                                  from_host(ctx, Ids{position}, {1}), from_host(ctx, Ids{slot}, {1}), table);
        });
    };
    EXPECT_EQ(error(30, 0), "no error");
    EXPECT_THAT(error(31, 0), HasSubstr("position 31 is outside 0 to 30"));
    EXPECT_THAT(error(3, 3), HasSubstr("slot 3 is outside 0 to 2"));
    EXPECT_THAT(error(3, 1), HasSubstr("text 0 has row 3 in block -1"));
}

TEST(PreviousToken, RefusesOperandsThatItDoesNotSupport) {
    const Context ctx(Device::cpu(), 1);
    const Tensor x = zeros(ctx, {2, 5, 3, 4}, DType::f32), row = zeros(ctx, {1, 2, 3, 4}, DType::f32),
                 cache = zeros(ctx, {2, 6, 3, 4}, DType::f32);
    EXPECT_THAT(message_of([&] {
                    previous_rows(ctx, zeros(ctx, {2, 5, 4}, DType::f32), {});
                }),
                HasSubstr("expected [B, T, H, D]"));
    const PreviousTokens other(ctx, with_positions(ctx, {0, 1, 2, 3}, 1));
    EXPECT_THAT(message_of([&] { previous_rows_backward(ctx, x, other); }),
                HasSubstr("expected contiguous int32 [B, T]"));
    const auto step = [&](const Tensor& in, const Ids& positions, const Ids& slots) {
        return message_of([&] {
            previous_rows_of_step(ctx, row, in, from_host(ctx, positions, {std::ssize(positions)}),
                                  from_host(ctx, slots, {std::ssize(slots)}));
        });
    };
    EXPECT_EQ(step(cache, {4, 0}, {1, 0}), "no error");
    EXPECT_THAT(step(cache, {5, 0}, {1, 0}), HasSubstr("position 5 is outside 0 to 4"));
    EXPECT_THAT(step(cache, {4, 0}, {2, 0}), HasSubstr("slot 2 is outside 0 to 1"));
    EXPECT_THAT(step(cache, {4}, {1, 0}), HasSubstr("expected contiguous int32 [R]"));
    EXPECT_THAT(step(cache.slice(3, 0, 3), {4, 0}, {1, 0}), HasSubstr("expected [slots, N + 1, H, D]"));
}

using OnCuda = test::OnCuda;

/// The same bits as the CPU: copies and sums of integers have no rounding.
TEST_F(OnCuda, PreviousTokensAndTheirRowsEqualTheCpus) {
    const Context cpu(Device::cpu(), 2), gpu = this->gpu();
    const auto on_gpu = [&](const Tensor& x) { return to_device(gpu, x); };
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16})
        for (const std::int64_t width : {5, 16, 64}) {
            SCOPED_TRACE(concat(dtype, " width ", width));
            const Documents documents = with_positions(cpu, some_positions, 2);
            const PreviousTokens right(cpu, documents),
                found(gpu, {.positions = on_gpu(documents.positions)});
            EXPECT_EQ(to_host(gpu, found.place), to_host(cpu, right.place));
            EXPECT_EQ(to_host(gpu, found.sibling), to_host(cpu, right.sibling));
            const Tensor wide = heads_in(cpu, 2, 10, dtype, 2 * width), copy = on_gpu(wide);
            const Tensor x = wide.slice(3, 0, width), y = copy.slice(3, 0, width);
            EXPECT_EQ(to_host(gpu, previous_rows(gpu, y, found)), to_host(cpu, previous_rows(cpu, x, right)));
            EXPECT_EQ(to_host(gpu, previous_rows_backward(gpu, y, found)),
                      to_host(cpu, previous_rows_backward(cpu, x, right)));
            EXPECT_EQ(to_host(gpu, previous_rows(gpu, y, {})), to_host(cpu, previous_rows(cpu, x, {})));
            const Tensor cache = heads_in(cpu, 12, 4, dtype, width), gpu_cache = on_gpu(cache);
            Ids slots(10), positions(10);
            std::iota(slots.rbegin(), slots.rend(), 1);
            for (std::size_t i = 0; i < positions.size(); ++i)
                positions[i] = static_cast<std::int32_t>(i % 3);
            const Tensor p = from_host(cpu, positions, {10}), s = from_host(cpu, slots, {10});
            EXPECT_EQ(
                to_host(gpu, previous_rows_of_step(gpu, y.slice(0, 0, 1), gpu_cache, on_gpu(p), on_gpu(s))),
                to_host(cpu, previous_rows_of_step(cpu, x.slice(0, 0, 1), cache, p, s)));
            EXPECT_EQ(to_host(gpu, gpu_cache), to_host(cpu, cache));
        }
}

/// Text 1 has no block for its new row.
TEST_F(OnCuda, PreviousRowsOfStepsInBlocksEqualTheCpus) {
    const Context cpu(Device::cpu(), 2), gpu = this->gpu();
    const Tensor x = heads_in(cpu, 1, 3, DType::f32, 5), cache = heads_in(cpu, 6, 16, DType::f32, 5),
                 gpu_cache = to_device(gpu, cache);
    const Ids slots{2, 1, 0}, positions{15, 15, 16}, table{5, 1, 0, -1, 4, 2};
    const auto on_gpu = [&](const Ids& ids, const Shape& shape) { return from_host(gpu, ids, shape); };
    const Tensor y = previous_rows_of_step(gpu, to_device(gpu, x), gpu_cache, on_gpu(positions, {3}),
                                           on_gpu(slots, {3}), on_gpu(table, {3, 2}));
    EXPECT_THAT(to_host(gpu, y.slice(1, 1, 1)), testing::Each(0.0));
    const auto of_texts = [&](const Context& ctx, const Tensor& all) {
        std::vector<double> values = to_host(ctx, all.slice(1, 0, 1)),
                            last = to_host(ctx, all.slice(1, 2, 1));
        values.insert(values.end(), last.begin(), last.end());
        return values;
    };
    const Tensor two = empty(cpu, {1, 2, 3, 5}, DType::f32);
    copy(cpu, two.slice(1, 0, 1), x.slice(1, 0, 1));
    copy(cpu, two.slice(1, 1, 1), x.slice(1, 2, 1));
    const Tensor expected =
        previous_rows_of_step(cpu, two, cache, from_host(cpu, Ids{15, 16}, {2}),
                              from_host(cpu, Ids{2, 0}, {2}), from_host(cpu, table, {3, 2}));
    EXPECT_EQ(of_texts(gpu, y), to_host(cpu, expected));
    EXPECT_EQ(to_host(gpu, gpu_cache), to_host(cpu, cache));
}

}  // namespace
}  // namespace gradtile
