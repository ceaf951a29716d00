// Row ranges: the mask as two ranges of rows per key (Options::row_ranges).
#include <functional>
#include <memory>

#include <gmock/gmock.h>

#include <gradtile/attention/internal/attention_backend.h>
#include <gradtile/attention/row_ranges.h>

#include <support/error_message.h>
#include <support/sanitized.h>

#include "every_kernel.h"
#include "reference.h"

namespace gradtile::attention::test {
namespace {

using gradtile::test::message_of;
using testing::HasSubstr;

/// Masks and shapes that row ranges are combined with: several blocks in both directions, few queries,
/// divided keys, rows that see no key.
std::vector<Problem> problems() {
    std::vector<Problem> bases{
        {.queries = 70, .keys = 150, .d_qk = 16, .d_v = 24, .batch = 3, .heads = 4, .key_heads = 2},
        {.queries = 150, .keys = 70, .d_qk = 33, .d_v = 8, .causal = true, .heads = 2, .key_heads = 1},
        {.queries = 531, .keys = 603, .d_qk = 16, .d_v = 16, .window = {.left = 200, .right = 90}},
        {.queries = 275, .keys = 531, .d_qk = 16, .d_v = 16, .causal = true, .top_left = true},
        {.queries = 1, .keys = 40, .d_qk = 16, .d_v = 16},
        {.queries = 3, .keys = 2100, .d_qk = 24, .d_v = 40, .heads = 4, .key_heads = 2},
        {.queries = 40, .keys = 1, .d_qk = 16, .d_v = 16},
        {.queries = 90, .keys = 70, .d_qk = 16, .d_v = 16, .scale = -0.4}};
    if (!gradtile::test::sanitized)
        bases.push_back({.queries = 1100, .keys = 1200, .d_qk = 32, .d_v = 32, .causal = true});
    std::vector<Problem> problems;
    for (const Problem& base : bases)
        for (NamedProblem& p : row_range_problems(base)) problems.push_back(std::move(p.problem));
    return problems;
}

TEST(RowRanges, Float64IsTheDefinition) {
    const Context ctx(Device::cpu(), 2);
    for (const Problem& problem : problems()) {
        SCOPED_TRACE(::testing::Message() << problem);
        const Inputs single = random_inputs(ctx, problem, DType::f32), in = single.to(ctx, DType::f64);
        const Result naive32 = run(ctx, single, problem.options(Algorithm::naive));
        const Reference reference =
            float64_reference(ctx, problem, in, roundoff_of(DType::f64, ctx.device()));
        for (const Algorithm algorithm : packed_algorithms)
            expect_float64_accuracy(naive32, run(ctx, in, problem.options(algorithm)), reference);
    }
}

class RowRangesOfDType : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(RowRanges, RowRangesOfDType, testing::Values(DType::f32, DType::bf16, DType::f16),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST_P(RowRangesOfDType, EveryKernelIsAsAccurateAsNaive) {
    const Context ctx(Device::cpu(), 2);
    for (const Problem& problem : problems()) {
        SCOPED_TRACE(::testing::Message() << problem);
        const Inputs in = random_inputs(ctx, problem, GetParam());
        const Reference reference =
            float64_reference(ctx, problem, in, roundoff_of(GetParam(), ctx.device()));
        const Result naive = run(ctx, in, problem.options(Algorithm::naive));
        for_every_kernel_of_few_queries(GetParam(), [&] {
            expect_accurate(GetParam(), naive, run(ctx, in, problem.options()), reference);
        });
    }
}

TEST_P(RowRangesOfDType, ResultsDoNotDependOnTheNumberOfThreads) {
    const Context one(Device::cpu(), 1);
    for (const Problem& problem : problems()) {
        const Inputs in = random_inputs(one, problem, GetParam());
        for_every_kernel(GetParam(), [&] {
            EXPECT_EQ(run(Context(Device::cpu(), 3), in, problem.options()), run(one, in, problem.options()));
        });
    }
}

/// A dry run predicts a real run's memory to the byte.
TEST_P(RowRangesOfDType, ADryRunPredictsTheMemory) {
    const Context ctx(Device::cpu(), 2);
    for (const Problem& problem : problems()) {
        if (problem.queries * problem.keys > 50000) continue;
        SCOPED_TRACE(::testing::Message() << problem);
        for (const Algorithm algorithm : packed_algorithms) {
            const Inputs in = random_inputs(ctx, problem, GetParam());
            const Options options = in.with_tensors(problem.options(algorithm));
            const auto run_passes = [&](const Context& own) {
                Saved saved;
                const Tensor o = forward(own, in.q, in.k, in.v, options, saved);
                return backward(own, in.d_o, options, saved, in.d_lse).k;
            };
            const std::vector<double> expected = to_host(ctx, run_passes(ctx));
            const auto plan = Arena::for_planning(Device::cpu());
            run_passes(ctx.plan(plan));
            const auto arena = std::make_shared<Arena>(Device::cpu(), plan->peak_bytes());
            EXPECT_EQ(to_host(ctx, run_passes(ctx.with_allocator(arena))), expected);
            EXPECT_EQ(arena->peak_bytes(), plan->peak_bytes());
        }
    }
}

/// Two documents of 512 tokens: their block of K, V, Q and dO may hold NaN without effect on the other,
/// because kernels do not process blocks outside the ranges. Without this, kernels multiply NaN by 0. The
/// driver is called directly, since attention::forward() computes calls with NaN again, from copies.
TEST_P(RowRangesOfDType, BlocksOutsideTheRangesAreNotProcessed) {
    const Context ctx(Device::cpu(), 2);
    constexpr std::int32_t document = 512, tokens = 2 * document, dim = 64;
    std::vector<std::int32_t> ranges;
    for (std::int32_t j = 0; j < tokens; ++j) {
        const std::int32_t first = j / document * document;
        ranges.insert(ranges.end(), {first, first + document, 0, 0});
    }
    Options options{.row_ranges = from_host(ctx, ranges, {1, 1, tokens, 4})};
    const auto part = [&](const Tensor& x) { return to_host(ctx, x.slice(1, 0, document)); };
    for_every_kernel(GetParam(), [&] {
        std::array<std::vector<double>, 4> results[2];
        for (const bool has_nan : {false, true}) {
            Tensor in[4];
            std::uint64_t seed = 1;
            for (Tensor& x : in) {
                x = randn(ctx, {1, tokens, 1, dim}, GetParam(), Seed{seed++});
                if (has_nan) fill(ctx, x.slice(1, document, document), std::nan(""));
            }
            const Tensor lse = empty(ctx, {1, 1, tokens}, accumulator_of(GetParam()));
            const Saved saved{in[0], in[1], in[2], empty_like(ctx, in[0]), lse, empty_like(ctx, lse)};
            const Gradients into{empty_like(ctx, in[0]), empty_like(ctx, in[1]), empty_like(ctx, in[2])};
            const ResolvedOptions resolved = resolve(options, {}, in[0], in[1]);
            cpu::flash_forward(ctx, resolved, saved);
            cpu::flash_backward(ctx, resolved, saved, {in[3], {}}, into);
            results[has_nan] = {part(saved.o), part(into.q), part(into.k), part(into.v)};
        }
        EXPECT_EQ(results[1], results[0]);
    });
}

/// Ranges with any strides give the results of contiguous ranges.
TEST(RowRanges, StridesMayBeAnyExceptAlongTheLastAxis) {
    const Context ctx(Device::cpu(), 2);
    Problem problem{.queries = 70, .keys = 90, .d_qk = 16, .d_v = 16, .batch = 2, .heads = 4, .key_heads = 2};
    problem.row_ranges = {2, 4};
    Inputs in = random_inputs(ctx, problem, DType::f32);
    const Tensor ranges = in.row_ranges;
    const auto same_with = [&](const Tensor& view) {
        copy(ctx, view, ranges);
        const Result expected = run(ctx, in, problem.options());
        Inputs strided = in;
        strided.row_ranges = view;
        EXPECT_EQ(run(ctx, strided, problem.options()), expected) << view.strides();
    };
    same_with(zeros(ctx, {2, 4, 90, 3, 4}, DType::i32).select(3, 1));
    same_with(zeros(ctx, {90, 4, 2, 4}, DType::i32).transpose(0, 2));
    same_with(zeros(ctx, {2, 4, 95, 4}, DType::i32).slice(2, 3, 90));
    for (const Shape& shared :
         {Shape{1, 4, 90, 4}, Shape{2, 1, 90, 4}, Shape{1, 1, 90, 4}, Shape{1, 1, 1, 4}}) {
        Inputs once = in, repeated = in;
        Tensor x = ranges;
        for (int axis = 0; axis < 3; ++axis) x = x.slice(axis, 0, shared[axis]);
        once.row_ranges = x.expand({shared[0], shared[1], 90, 4});
        repeated.row_ranges = empty(ctx, ranges.shape(), DType::i32);
        copy(ctx, repeated.row_ranges, x.expand(ranges.shape()));
        EXPECT_EQ(run(ctx, once, problem.options()), run(ctx, repeated, problem.options())) << shared;
    }
}

/// Returns the error message from a call with these ranges.
std::string error_with(const Tensor& ranges, Algorithm algorithm = Algorithm::flash, bool is_packed = false) {
    const Context ctx(Device::cpu(), 1);
    const Tensor q = zeros(ctx, {2, 5, 4, 8}, DType::f32), k = zeros(ctx, {2, 7, 2, 8}, DType::f32);
    Options options{.algorithm = algorithm, .row_ranges = ranges};
    if (is_packed) options.cumulative_q = options.cumulative_k = zeros(ctx, {2}, DType::i32);
    const auto of = [&](const Tensor& x) { return is_packed ? x.select(0, 0) : x; };
    Saved saved;
    return message_of([&] { forward(ctx, of(q), of(k), of(k), options, saved); });
}

TEST(RowRanges, OtherShapesDtypesAndAlignmentsAreRefusedByName) {
    const Context ctx(Device::cpu(), 1);
    const auto of = [&](const Shape& shape) { return zeros(ctx, shape, DType::i32); };
    for (const Shape& shape : {Shape{3, 1, 7, 4}, Shape{2, 2, 7, 4}, Shape{1, 1, 5, 4}, Shape{1, 1, 7, 2},
                               Shape{1, 1, 1, 4}, Shape{1, 7, 4}, Shape{7, 4}})
        EXPECT_THAT(error_with(of(shape)), HasSubstr("row_ranges is ")) << shape;
    EXPECT_THAT(error_with(zeros(ctx, {1, 1, 7, 4}, DType::f32)),
                HasSubstr("expected int32 [2 or 1, 4 or 1, 7, 4]"));
    for (const Shape& shape : {Shape{1, 4, 7, 4}, Shape{2, 7, 4}})
        EXPECT_THAT(error_with(of(shape), Algorithm::flash, true),
                    HasSubstr("expected int32 [4 or 1, 7, 4]"));
    for (const Tensor& x : {of({1, 1, 4, 7}).transpose(2, 3), of({1, 1, 7, 5}).slice(3, 1, 4),
                            of({1, 1, 7, 8}).slice(3, 2, 4), of({1, 1, 7, 1}).expand({1, 1, 7, 4})})
        EXPECT_THAT(error_with(x), HasSubstr("aligned to 16 bytes")) << x.strides();
    for (const Algorithm algorithm : tiled_algorithms)
        EXPECT_THAT(error_with(of({1, 1, 7, 4}), algorithm),
                    HasSubstr(concat("row_ranges is set with algorithm ", algorithm)));
    EXPECT_EQ(error_with(of({1, 4, 7, 4})), error_with({}));
    EXPECT_EQ(error_with(of({4, 7, 4}), Algorithm::flash, true), error_with({}));
}

TEST(RowRanges, AnOutputMustNotShareTheirMemory) {
    const Context ctx(Device::cpu(), 1);
    const Tensor memory = zeros(ctx, {16}, DType::i32);
    const Tensor x = zeros(ctx, {1, 4, 1, 4}, DType::f32),
                 o = Tensor::from_blob(memory.raw_data(), {1, 4, 1, 4}, DType::f32),
                 ranges = Tensor::from_blob(memory.raw_data(), {1, 1, 4, 4}, DType::i32);
    Saved saved;
    EXPECT_THAT(message_of([&] { forward(ctx, x, x, x, {.row_ranges = ranges}, saved, o); }),
                HasSubstr("row_ranges"));
}

// ---- Well-known masks ----

/// Expects that the ranges contain a pair exactly if sees(row, key) says so.
void expect_mask(const Tensor& ranges, std::int64_t rows,
                 const std::function<bool(std::int64_t, std::int64_t)>& sees) {
    ASSERT_EQ(ranges.rank(), 4);
    ASSERT_EQ(ranges.dtype(), DType::i32);
    const std::vector<double> r = to_host(Context(Device::cpu()), ranges);
    for (std::int64_t j = 0; j < ranges.size(2); ++j)
        for (std::int64_t i = 0; i < rows; ++i) {
            const auto n = static_cast<std::size_t>(4 * j);
            const auto row = static_cast<double>(i);
            ASSERT_EQ((row >= r[n] && row < r[n + 1]) || (row >= r[n + 2] && row < r[n + 3]), sees(i, j))
                << "row " << i << ", key " << j;
        }
}

/// The part that a token belongs to, where parts of these lengths follow `first` other tokens; -1 before
/// them.
std::int64_t part_of(std::int64_t token, std::int64_t first, const std::vector<std::int64_t>& lengths) {
    std::int64_t part = -1;
    for (std::size_t n = 0; n < lengths.size() && token >= first; ++n) {
        part = static_cast<std::int64_t>(n);
        first += lengths[n];
        if (token < first) break;
    }
    return part;
}

TEST(Masks, AreTheirPlainDefinitions) {
    const Context ctx(Device::cpu(), 1);
    const std::vector<std::int64_t> lengths{5, 0, 1, 17, 9};
    expect_mask(masks::causal(ctx, 32), 32, [](auto i, auto j) { return j <= i; });
    expect_mask(masks::causal(ctx, 0), 0, [](auto, auto) { return false; });
    expect_mask(masks::documents(ctx, lengths), 32,
                [&](auto i, auto j) { return part_of(i, 0, lengths) == part_of(j, 0, lengths); });
    for (const std::int64_t prefix : {0, 1, 10, 32})
        expect_mask(masks::prefix(ctx, 32, prefix), 32, [&](auto i, auto j) { return j < prefix || j <= i; });
    for (const std::int64_t prompt : {0, 7})
        expect_mask(masks::shared_prompt(ctx, prompt, lengths), prompt + 32, [&](auto i, auto j) {
            return j <= i && (j < prompt || part_of(i, prompt, lengths) == part_of(j, prompt, lengths));
        });
    for (const Window& window : {Window{}, {3, 0}, {0, 0}, {-1, 2}, {4, -1}, {6, 9}, {100, 100}})
        for (const std::int64_t global : {0, 1, 6, 32})
            expect_mask(masks::sliding_window(ctx, 32, window, global), 32, [&](auto i, auto j) {
                return i < global || j < global ||
                       ((window.left < 0 || j >= i - window.left) &&
                        (window.right < 0 || j <= i + window.right));
            });
}

TEST(Masks, ANodeOfATreeSeesTheContextItsAncestorsAndItself) {
    const Context ctx(Device::cpu(), 1);
    const std::vector<std::int64_t> parents{-1, 0, 1, 1, 0, 4, 5, 4, -1, 8, -1};
    const auto sees = [&](std::int64_t node, std::int64_t other) {
        for (; node >= 0; node = parents[static_cast<std::size_t>(node)])
            if (node == other) return true;
        return false;
    };
    for (const std::int64_t context : {0, 5})
        expect_mask(masks::tree(ctx, context, parents), 11,
                    [&](auto i, auto j) { return j < context || sees(i, j - context); });
    for (const auto& [wrong, node] : {std::pair{std::vector<std::int64_t>{-1, 0, 0, 1}, 3},
                                      {{-1, -1, 0}, 2},
                                      {{0}, 0},
                                      {{-1, -2}, 1},
                                      {{-1, 1}, 1}}) {
        const std::vector<std::int64_t>& parents_of_nodes = wrong;
        EXPECT_THAT(message_of([&] { masks::tree(ctx, 0, parents_of_nodes); }),
                    HasSubstr(concat("node ", node, " has parent")));
    }
}

TEST(Masks, BlocksHaveAtMostTwoRunsOfRowsPerKeyBlock) {
    const Context ctx(Device::cpu(), 1);
    masks::Blocks blocks{.queries = 50, .keys = 22, .block_rows = 8, .block_keys = 5};  // 7 x 5 blocks
    for (const char c : std::string("10111"
                                    "00100"
                                    "11111"
                                    "01010"
                                    "10110"
                                    "01100"
                                    "11101"))
        blocks.visible.push_back(c == '1');
    const auto sees = [&](std::int64_t i, std::int64_t j) {
        return static_cast<bool>(blocks.visible[static_cast<std::size_t>(i / 8 * 5 + j / 5)]);
    };
    EXPECT_THAT(message_of([&] { masks::block_sparse(ctx, blocks); }),
                HasSubstr("4 runs of row blocks see key block 0; expected at most 2"));
    for (const std::size_t hidden : {0, 20, 34}) blocks.visible[hidden] = false;
    expect_mask(masks::block_sparse(ctx, blocks), 50, sees);
    blocks.visible.pop_back();
    EXPECT_THAT(message_of([&] { masks::block_sparse(ctx, blocks); }),
                HasSubstr("34 blocks; expected 7 x 5"));
}

TEST(Masks, OtherLengthsAreRefusedByName) {
    const Context ctx(Device::cpu(), 1);
    const std::vector<std::int64_t> negative{3, -1}, large{3, std::int64_t{1} << 31};
    EXPECT_THAT(message_of([&] { masks::causal(ctx, -1); }), HasSubstr("masks::causal: tokens -1"));
    EXPECT_THAT(message_of([&] { masks::documents(ctx, negative); }), HasSubstr("lengths[1] -1"));
    EXPECT_THAT(message_of([&] { masks::documents(ctx, large); }), HasSubstr("lengths[1] 2147483648"));
    EXPECT_THAT(message_of([&] { masks::shared_prompt(ctx, 3, negative); }), HasSubstr("answers[1] -1"));
    EXPECT_THAT(message_of([&] { masks::prefix(ctx, 3, 4); }), HasSubstr("prefix 4; expected 0 to 3"));
    EXPECT_THAT(message_of([&] { masks::sliding_window(ctx, 3, {-2, 0}, 0); }), HasSubstr("window {-2, 0}"));
    EXPECT_THAT(message_of([&] { masks::sliding_window(ctx, 3, {}, 4); }), HasSubstr("global 4"));
}

/// The same sequences, as documents in one sequence and packed.
TEST_P(RowRangesOfDType, DocumentsGiveTheResultsOfPackedSequences) {
    const Context ctx(Device::cpu(), 2);
    const std::vector<std::int64_t> lengths{130, 1, 64, 300};
    Problem problem{
        .queries = 495, .keys = 495, .d_qk = 32, .d_v = 32, .causal = true, .heads = 4, .key_heads = 2};
    Inputs in = random_inputs(ctx, problem, GetParam());
    in.row_ranges = masks::documents(ctx, lengths);
    const Result documents = run(ctx, in, problem.options());
    Inputs packed = in;
    packed.row_ranges = {};
    for (Tensor* x : {&packed.q, &packed.k, &packed.v, &packed.d_o}) *x = x->select(0, 0);
    Options options = problem.options();
    options.cumulative_q = options.cumulative_k =
        from_host(ctx, std::vector<std::int32_t>{0, 130, 131, 195, 495}, {5});
    const Result expected = run(ctx, packed, options);
    // Two computations, each within the dtype's error from the same numbers.
    const double unit = GetParam() == DType::f32 ? 0x1p-20 : GetParam() == DType::bf16 ? 0x1p-6 : 0x1p-9;
    for (const auto part : {&Result::o, &Result::d_q, &Result::d_k, &Result::d_v})
        EXPECT_LE(largest_difference(documents.*part, expected.*part),
                  8 * unit * (1 + *std::ranges::max_element(expected.*part)));
}

}  // namespace
}  // namespace gradtile::attention::test
