// Every tensor that a call reads or writes, in every odd layout: the results equal those with contiguous
// tensors, or the call fails with an error that names the tensor. If Options, Saved or Gradients gains a
// field, this file does not compile until the field has a line here.
#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>

#include <gradtile/attention/internal/attention_backend.h>

#include "devices.h"

namespace gradtile::attention::test {
namespace {

struct TensorField {
    std::string name;  ///< as in error messages
    Tensor* tensor;
};

std::vector<TensorField> tensors_of(Options& options) {
    static_assert(max_biases == 2);
    auto& [algorithm, scale, causal, window, top_left, deterministic, kernels, row_ranges, softcap,
           alibi_slopes, biases, batch_divisor, sink, dropout_p, dropout_key, cumulative_q, cumulative_k] =
        options;
    return {{"alibi_slopes", &alibi_slopes},
            {"bias", &biases[0]},
            {"bias", &biases[1]},
            {"sink", &sink},
            {"row_ranges", &row_ranges},
            {"cumulative_q", &cumulative_q},
            {"cumulative_k", &cumulative_k}};
}
std::vector<TensorField> tensors_of(Saved& saved) {
    auto& [q, k, v, o, lse, lse_remainder, row_max, row_sum] = saved;
    return {{"q", &q},
            {"k", &k},
            {"v", &v},
            {"o", &o},
            {"lse", &lse},
            {"lse_remainder", &lse_remainder},
            {"row_max", &row_max},
            {"row_sum", &row_sum}};
}
std::vector<TensorField> tensors_of(Gradients& gradients) {
    auto& [q, k, v, biases, sink] = gradients;
    return {{"gradient of q", &q},
            {"gradient of k", &k},
            {"gradient of v", &v},
            {"gradient of a bias", &biases[0]},
            {"gradient of a bias", &biases[1]},
            {"gradient of sink", &sink}};
}

enum class OddLayout : std::uint8_t {
    reversed_axes,  ///< the first axis is adjacent in memory: [B, S, H] viewed as [H, S, B], for example
    every_second,   ///< the last stride is 2
    wider_rows,     ///< sliced from wider rows, from their second element on
    backwards,      ///< all strides are negative
    backward_rows   ///< all strides but the last are negative
};
constexpr OddLayout odd_layouts[] = {OddLayout::reversed_axes, OddLayout::every_second, OddLayout::wider_rows,
                                     OddLayout::backwards, OddLayout::backward_rows};

/// A view with x's shape, and the memory around it, in which every number is number_around.
struct PlacedTensor {
    Tensor memory, view;
};
constexpr double number_around = 7;
PlacedTensor place_like(const Context& ctx, const Tensor& x, OddLayout layout) {
    const int rank = x.rank();
    Shape shape = x.shape();
    PlacedTensor placed;
    const auto allocate = [&](const Shape& full_shape) {
        placed.memory = empty(ctx, full_shape, x.dtype());
        fill(ctx, placed.memory, number_around);
        return placed.memory;
    };
    switch (layout) {
        case OddLayout::reversed_axes:
            for (int axis = 0; axis < rank / 2; ++axis) std::swap(shape[axis], shape[rank - 1 - axis]);
            placed.view = allocate(shape);
            for (int axis = 0; axis < rank / 2; ++axis)
                placed.view = placed.view.transpose(axis, rank - 1 - axis);
            return placed;
        case OddLayout::every_second:
            placed.view = allocate(Shape{x.elements(), 2}).select(1, 1).reshape(shape);
            return placed;
        case OddLayout::wider_rows:
            shape[rank - 1] += 3;
            placed.view = allocate(shape).slice(rank - 1, 1, x.size(-1));
            return placed;
        case OddLayout::backwards:
        case OddLayout::backward_rows: {
            Strides strides = allocate(shape).strides();
            std::int64_t first = 0;
            for (int axis = 0; axis < (layout == OddLayout::backwards ? rank : rank - 1); ++axis) {
                first += (shape[axis] - 1) * strides[axis];
                strides[axis] = -strides[axis];
            }
            placed.view =
                Tensor(placed.memory.buffer(),
                       placed.memory.raw_data() + first * static_cast<std::int64_t>(size_of(x.dtype())),
                       x.device(), x.dtype(), shape, strides);
            return placed;
        }
    }
    throw Error("unknown layout");
}
Tensor copy_in(const Context& ctx, const Tensor& x, OddLayout layout) {
    const Tensor view = place_like(ctx, x, layout).view;
    copy(ctx, view, x);
    return view;
}

/// A call's inputs.
struct FieldCall {
    Tensor q, k, v, d_o, d_lse;
    Options options = {};
};
std::vector<TensorField> tensors_of(FieldCall& call) {
    std::vector<TensorField> fields = tensors_of(call.options);
    fields.insert(
        fields.end(),
        {{"q", &call.q}, {"k", &call.k}, {"v", &call.v}, {"d_o", &call.d_o}, {"d_lse", &call.d_lse}});
    return fields;
}

using ResultList = std::vector<std::vector<double>>;

Gradients empty_gradients(const Context& ctx, const FieldCall& call) {
    Gradients into{.q = empty_like(ctx, call.q), .k = empty_like(ctx, call.k), .v = empty_like(ctx, call.v)};
    for (std::size_t n = 0; n < max_biases; ++n)
        if (call.options.biases[n].defined())
            into.biases[n] = empty(ctx, call.options.biases[n].shape(), call.options.biases[n].dtype());
    if (call.options.sink.defined()) into.sink = empty(ctx, call.options.sink.shape(), DType::f32);
    return into;
}
ResultList numbers_in(const Context& ctx, Gradients& gradients) {
    ResultList numbers;
    for (const TensorField& field : tensors_of(gradients))
        numbers.push_back(field.tensor->defined() ? to_host(ctx, *field.tensor) : std::vector<double>());
    return numbers;
}
ResultList run_backward(const Context& ctx, const FieldCall& call, const Saved& saved) {
    Gradients into = empty_gradients(ctx, call);
    backward(ctx, call.d_o, call.options, saved, into, call.d_lse);
    return numbers_in(ctx, into);
}
ResultList run_both(const Context& ctx, const FieldCall& call) {
    Saved saved;
    const Tensor o = forward(ctx, call.q, call.k, call.v, call.options, saved);
    ResultList numbers = run_backward(ctx, call, saved);
    numbers.push_back(to_host(ctx, o));
    numbers.push_back(to_host(ctx, saved.lse));
    return numbers;
}

/// At least the relative error of one rounding.
double unit_of(DType dtype) {
    return dtype == DType::f64    ? 0x1p-52
           : dtype == DType::f32  ? 0x1p-23
           : dtype == DType::bf16 ? 0x1p-8
                                  : 0x1p-11;
}

class TensorFields : public EveryDevice {
  protected:
    Tensor random(const Shape& shape, DType type, std::uint64_t seed) const {
        return randn(ctx(), shape, type, Seed{seed});
    }
    Tensor integers(const std::vector<double>& values) const {
        return from_host(ctx(), values, {std::ssize(values)}, DType::i32);
    }
    /// Several row and key blocks, heads that share keys, and every option that has a tensor.
    FieldCall padded_call() const {
        FieldCall call{.q = random({2, 37, 4, 24}, dtype(), 1),
                       .k = random({2, 70, 2, 24}, dtype(), 2),
                       .v = random({2, 70, 2, 40}, dtype(), 3),
                       .d_o = random({2, 37, 4, 40}, dtype(), 4),
                       .d_lse = random({2, 4, 37}, accumulator_of(dtype()), 5)};
        call.options = {.causal = true, .deterministic = true};
        call.options.alibi_slopes = random({4}, DType::f32, 6);
        call.options.biases = {random({2, 1, 37, 70}, DType::f32, 7), random({1, 4, 1, 70}, dtype(), 8)};
        call.options.sink = random({4}, DType::f32, 9);
        return call;
    }
    FieldCall packed_call() const {
        FieldCall call{.q = random({50, 4, 24}, dtype(), 1),
                       .k = random({90, 2, 24}, dtype(), 2),
                       .v = random({90, 2, 40}, dtype(), 3),
                       .d_o = random({50, 4, 40}, dtype(), 4),
                       .d_lse = random({4, 50}, accumulator_of(dtype()), 5)};
        call.options = {.causal = true, .deterministic = true};
        call.options.alibi_slopes = random({4}, DType::f32, 6);
        call.options.biases = {random({4, 90}, dtype(), 7), random({3, 1, 37, 59}, DType::f32, 8)};
        call.options.sink = random({4}, DType::f32, 9);
        call.options.cumulative_q = integers({0, 13, 13, 50});
        call.options.cumulative_k = integers({0, 20, 31, 90});
        return call;
    }
    /// Calls body(call) for every implementation that computes the call.
    void for_every_call(const std::function<void(FieldCall)>& body) const {
        const auto with_algorithm = [&](const FieldCall& call, const Tensor& row_ranges) {
            return [&body, call, row_ranges](Algorithm algorithm) {
                FieldCall own = call;
                own.options.algorithm = algorithm;
                if (algorithm == Algorithm::flash2 || algorithm == Algorithm::naive)
                    own.options.row_ranges = row_ranges;
                body(own);
            };
        };
        for_every_implementation(40,
                                 with_algorithm(padded_call(), random_row_ranges(ctx(), {2, 4, 70, 4}, 37)));
        SCOPED_TRACE("packed");
        for_every_packed_implementation(
            with_algorithm(packed_call(), random_row_ranges(ctx(), {1, 4, 90, 4}, 37).select(0, 0)));
    }
    /// On the CPU the results are equal. On a GPU another layout may choose another kernel, whose summation
    /// order differs: a few units in the last place, relative to the largest number. A NaN equals a NaN: with
    /// another saved Q or K, the saved LSE no longer bounds P.
    void expect_same(const ResultList& numbers, const ResultList& expected) const {
        ASSERT_EQ(numbers.size(), expected.size());
        const double unit = unit_of(dtype());
        for (std::size_t n = 0; n < numbers.size(); ++n) {
            if (ctx().device().is_cpu()) {
                ASSERT_EQ(numbers[n], expected[n]) << "result " << n;
                continue;
            }
            ASSERT_EQ(numbers[n].size(), expected[n].size());
            double largest = 0;
            for (const double x : expected[n])
                if (std::isfinite(x)) largest = std::max(largest, std::abs(x));
            for (std::size_t i = 0; i < numbers[n].size(); ++i) {
                const double difference = std::abs(numbers[n][i] - expected[n][i]);
                ASSERT_TRUE(numbers[n][i] == expected[n][i] || difference <= 16 * unit * largest ||
                            (std::isnan(numbers[n][i]) && std::isnan(expected[n][i])))
                    << "result " << n << ", " << i << ": " << numbers[n][i] << ", expected "
                    << expected[n][i];
            }
        }
    }
    /// Runs `changed`, whose results must be `expected`, or whose error must name the field.
    void expect_same_or_refused(const TensorField& field, OddLayout layout, const ResultList& expected,
                                const std::function<ResultList()>& changed) const {
        SCOPED_TRACE(::testing::Message() << field.name << ", layout " << static_cast<int>(layout));
        ResultList numbers;
        try {
            numbers = changed();
        } catch (const Error& error) {
            EXPECT_THAT(error.what(), ::testing::HasSubstr(field.name));
            return;
        }
        expect_same(numbers, expected);
    }
};
INSTANTIATE_TEST_SUITE_P(Devices, TensorFields, ::testing::ValuesIn(devices_and_dtypes()), name_of_place);

TEST_P(TensorFields, InputsMayHaveAnyLayoutOrAreRefusedByName) {
    for_every_call([&](FieldCall call) {
        const ResultList expected = run_both(ctx(), call);
        for (const TensorField& field : tensors_of(call)) {
            if (!field.tensor->defined()) continue;
            const Tensor original = *field.tensor;
            for (const OddLayout layout : odd_layouts) {
                *field.tensor = copy_in(ctx(), original, layout);
                expect_same_or_refused(field, layout, expected, [&] { return run_both(ctx(), call); });
            }
            *field.tensor = original;
        }
    });
}

TEST_P(TensorFields, SavedTensorsMayHaveAnyLayout) {
    for_every_call([&](const FieldCall& call) {
        Saved saved;
        forward(ctx(), call.q, call.k, call.v, call.options, saved);
        const ResultList expected = run_backward(ctx(), call, saved);
        for (const TensorField& field : tensors_of(saved)) {
            if (!field.tensor->defined()) continue;
            const Tensor original = *field.tensor;
            for (const OddLayout layout : odd_layouts) {
                *field.tensor = copy_in(ctx(), original, layout);
                expect_same_or_refused(field, layout, expected,
                                       [&] { return run_backward(ctx(), call, saved); });
            }
            *field.tensor = original;
        }
    });
}

TEST_P(TensorFields, OutputsMayHaveAnyLayoutAndNothingElseIsWritten) {
    for_every_call([&](const FieldCall& call) {
        Saved saved;
        const Tensor o = forward(ctx(), call.q, call.k, call.v, call.options, saved);
        const ResultList expected = run_backward(ctx(), call, saved);
        const auto expect_written = [&](const PlacedTensor& placed, const Tensor& values) {
            expect_same({to_host(ctx(), placed.view)}, {to_host(ctx(), values)});
            fill(ctx(), placed.view, number_around);
            EXPECT_THAT(to_host(ctx(), placed.memory), ::testing::Each(number_around));
        };
        for (const OddLayout layout : odd_layouts) {
            SCOPED_TRACE(::testing::Message() << "o, layout " << static_cast<int>(layout));
            const PlacedTensor placed = place_like(ctx(), o, layout);
            Saved other;
            forward(ctx(), call.q, call.k, call.v, call.options, other, placed.view);
            expect_written(placed, o);
        }
        Gradients into = empty_gradients(ctx(), call);
        for (const TensorField& field : tensors_of(into)) {
            if (!field.tensor->defined()) continue;
            const Tensor original = *field.tensor;
            for (const OddLayout layout : odd_layouts) {
                const PlacedTensor placed = place_like(ctx(), original, layout);
                *field.tensor = placed.view;
                expect_same_or_refused(field, layout, expected, [&] {
                    backward(ctx(), call.d_o, call.options, saved, into, call.d_lse);
                    return numbers_in(ctx(), into);
                });
                const Tensor written =
                    from_host(ctx(), to_host(ctx(), placed.view), original.shape(), original.dtype());
                expect_written(placed, written);
            }
            *field.tensor = original;
        }
    });
}

/// A view with x's shape that repeats its first element.
Tensor first_repeated(const Tensor& x) {
    Tensor first = x;
    for (int axis = 0; axis < x.rank(); ++axis) first = first.slice(axis, 0, 1);
    return first.expand(x.shape());
}

TEST_P(TensorFields, InputsAndSavedTensorsMayRepeatTheirElementsOrAreRefusedByName) {
    for_every_call([&](FieldCall call) {
        const auto expect_read = [&](const TensorField& field, const std::function<ResultList()>& compute) {
            if (!field.tensor->defined()) return;
            const Tensor original = *field.tensor, view = first_repeated(original);
            const Tensor dense = empty(ctx(), view.shape(), view.dtype());
            copy(ctx(), dense, view);
            *field.tensor = dense;
            const ResultList expected = compute();
            *field.tensor = view;
            SCOPED_TRACE("repeated");
            expect_same_or_refused(field, {}, expected, compute);
            *field.tensor = original;
        };
        for (const TensorField& field : tensors_of(call))
            expect_read(field, [&] { return run_both(ctx(), call); });
        Saved saved;
        forward(ctx(), call.q, call.k, call.v, call.options, saved);
        for (const TensorField& field : tensors_of(saved))
            expect_read(field, [&] { return run_backward(ctx(), call, saved); });
    });
}

TEST_P(TensorFields, OutputsThatRepeatTheirElementsAreRefusedByName) {
    using ::testing::HasSubstr;
    for_every_call([&](const FieldCall& call) {
        Saved saved;
        const Tensor o = forward(ctx(), call.q, call.k, call.v, call.options, saved);
        Saved other;
        EXPECT_THAT(gradtile::test::message_of([&] {
                        forward(ctx(), call.q, call.k, call.v, call.options, other, first_repeated(o));
                    }),
                    HasSubstr("attention: o "));
        Gradients into = empty_gradients(ctx(), call);
        for (const TensorField& field : tensors_of(into)) {
            if (!field.tensor->defined()) continue;
            const Tensor original = *field.tensor;
            *field.tensor = first_repeated(original);
            EXPECT_THAT(gradtile::test::message_of(
                            [&] { backward(ctx(), call.d_o, call.options, saved, into, call.d_lse); }),
                        HasSubstr(field.name));
            *field.tensor = original;
        }
    });
}

TEST_P(TensorFields, KeysOfOneBatchServeEveryBatchAndTheirGradientsAreSums) {
    for_every_call([&](FieldCall call) {
        if (call.options.cumulative_q.defined()) return;
        const auto repeat = [&](const Tensor& x) { return x.expand({2, x.size(1), x.size(2), x.size(3)}); };
        call.k = call.k.slice(0, 0, 1);
        call.v = call.v.slice(0, 0, 1);
        FieldCall repeated = call;
        repeated.k = repeat(call.k);
        repeated.v = repeat(call.v);
        ResultList numbers = run_both(ctx(), call), expected = run_both(ctx(), repeated);
        const double unit = unit_of(dtype()), sum_unit = unit_of(accumulator_of(dtype()));
        for (const std::size_t gradient : {1u, 2u}) {  // k's and v's
            const std::vector<double>& parts = expected[gradient];
            const std::size_t count = numbers[gradient].size();
            ASSERT_EQ(parts.size(), 2 * count);
            for (std::size_t i = 0; i < count; ++i) {
                const double a = parts[i], b = parts[count + i];
                // A sum is rounded twice, the second time perhaps to a subnormal float16 number.
                const double bound = unit * std::abs(a + b) + sum_unit * (std::abs(a) + std::abs(b)) +
                                     (dtype() == DType::f16 ? 0x1p-25 : 0);
                ASSERT_LE(std::abs(numbers[gradient][i] - (a + b)), bound) << gradient << ", " << i;
            }
            numbers[gradient].clear();
            expected[gradient].clear();
        }
        expect_same(numbers, expected);
    });
}

/// One batch, or one packed sequence, as a separate call.
FieldCall part_of(const Context& ctx, const FieldCall& call, std::int64_t batch) {
    FieldCall part = call;
    Options& options = part.options;
    options.alibi_slopes = call.options.alibi_slopes.select(0, batch);
    if (!options.cumulative_q.defined()) {
        for (Tensor* x : {&part.q, &part.k, &part.v, &part.d_o, &part.d_lse, &options.biases[0]})
            *x = x->slice(0, batch, 1);
        if (options.row_ranges.defined()) options.row_ranges = options.row_ranges.slice(0, batch, 1);
        return part;
    }
    const std::vector<double> rows = to_host(ctx, options.cumulative_q),
                              keys = to_host(ctx, options.cumulative_k);
    const auto range_of = [&](const std::vector<double>& offsets, Tensor& x, int axis) {
        const auto begin = static_cast<std::int64_t>(offsets[static_cast<std::size_t>(batch)]),
                   end = static_cast<std::int64_t>(offsets[static_cast<std::size_t>(batch + 1)]);
        x = x.slice(axis, begin, end - begin);
        return static_cast<double>(end - begin);
    };
    range_of(keys, part.v, 0);
    range_of(keys, options.biases[0], 1);
    options.biases[1] = options.biases[1].slice(0, batch, 1);
    if (options.row_ranges.defined()) range_of(keys, options.row_ranges, 1);
    const double key_count = range_of(keys, part.k, 0), row_count = range_of(rows, part.q, 0);
    range_of(rows, part.d_o, 0);
    range_of(rows, part.d_lse, 1);
    options.cumulative_q = from_host(ctx, std::vector<double>{0, row_count}, {2}, DType::i32);
    options.cumulative_k = from_host(ctx, std::vector<double>{0, key_count}, {2}, DType::i32);
    return part;
}

TEST_P(TensorFields, SlopesMayDifferBetweenBatchesAndPackedSequences) {
    for_every_call([&](FieldCall call) {
        const bool is_packed = call.options.cumulative_q.defined();
        const std::int64_t batches = is_packed ? 3 : 2;
        call.options.alibi_slopes = random({batches, 4}, DType::f32, 10);
        // Compared for each batch: O, LSE, and the gradients of q, k and v.
        Saved saved;
        forward(ctx(), call.q, call.k, call.v, call.options, saved);
        Gradients into = empty_gradients(ctx(), call);
        backward(ctx(), call.d_o, call.options, saved, into, call.d_lse);
        for (std::int64_t batch = 0; batch < batches; ++batch) {
            SCOPED_TRACE(batch);
            const FieldCall part = part_of(ctx(), call, batch);
            if (part.q.elements() == 0) continue;
            Saved part_saved;
            const Tensor o = forward(ctx(), part.q, part.k, part.v, part.options, part_saved);
            Gradients part_into = empty_gradients(ctx(), part);
            backward(ctx(), part.d_o, part.options, part_saved, part_into, part.d_lse);
            FieldCall all = call;  // the whole call's results replace its inputs
            all.q = into.q, all.k = into.k, all.v = into.v, all.d_o = saved.o, all.d_lse = saved.lse;
            const FieldCall found = part_of(ctx(), all, batch);
            expect_same({to_host(ctx(), found.q), to_host(ctx(), found.k), to_host(ctx(), found.v),
                         to_host(ctx(), found.d_o), to_host(ctx(), found.d_lse)},
                        {to_host(ctx(), part_into.q), to_host(ctx(), part_into.k),
                         to_host(ctx(), part_into.v), to_host(ctx(), o), to_host(ctx(), part_saved.lse)});
        }
    });
}

TEST_P(TensorFields, AGradientOfABroadcastBiasThatIsNotBroadcastIsRefused) {
    FieldCall call = padded_call();
    const Tensor row = random({1, 1, 1, 70}, DType::f32, 11);
    call.options.biases[0] = row.expand({2, 4, 37, 70});
    Saved saved;
    forward(ctx(), call.q, call.k, call.v, call.options, saved);
    const Gradients into = empty_gradients(ctx(), call);
    EXPECT_THAT(gradtile::test::message_of([&] { backward(ctx(), call.d_o, call.options, saved, into); }),
                ::testing::HasSubstr("gradient of a bias"));
    const Gradients allocated = backward(ctx(), call.d_o, call.options, saved);
    EXPECT_EQ(allocated.biases[0].stride(0), 0);
}

}  // namespace
}  // namespace gradtile::attention::test
