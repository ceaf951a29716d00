// Attention over disjoint key sets, merged into the results over all keys.
#include <gradtile/attention/attention.h>

#include <gmock/gmock.h>

#include "devices.h"

namespace gradtile::attention::test {
namespace {

using gradtile::test::message_of;
using ::testing::HasSubstr;

class Merge : public EveryDevice {
  protected:
    Tensor random(const Shape& shape, std::uint64_t seed) const {
        return randn(ctx(), shape, dtype(), Seed{seed});
    }
    /// One rounding for each part's O (the parts' weights add up to 1), one for the result, and the float32
    /// sums.
    double error() const {
        const double unit = dtype() == DType::f64    ? 0x1p-53
                            : dtype() == DType::f32  ? 0x1p-24
                            : dtype() == DType::bf16 ? 0x1p-9
                                                     : 0x1p-12;
        return dtype() == DType::f64 || dtype() == DType::f32 ? 64 * unit : 4 * unit;
    }
    void expect_near(const Tensor& x, const Tensor& expected, double error) const {
        const std::vector<double> values = to_host(ctx(), x), wanted = to_host(ctx(), expected);
        double largest = 1;
        for (const double e : wanted)
            if (std::isfinite(e)) largest = std::max(largest, std::abs(e));
        ASSERT_EQ(values.size(), wanted.size());
        for (std::size_t i = 0; i < values.size(); ++i)
            ASSERT_TRUE(values[i] == wanted[i] || std::abs(values[i] - wanted[i]) <= error * largest)
                << i << ": " << values[i] << ", expected " << wanted[i];
    }
};
INSTANTIATE_TEST_SUITE_P(Devices, Merge, ::testing::ValuesIn(devices_and_dtypes()), name_of_place);

/// In the whole call's mask, row i sees keys up to i; the second part has keys that the first rows do not
/// see.
TEST_P(Merge, GivesTheResultsOfAllKeys) {
    const std::int64_t first = 30, keys = 70;
    const Tensor q = random({2, 50, 4, 24}, 1), k = random({2, keys, 2, 24}, 2),
                 v = random({2, keys, 2, 40}, 3);
    const auto part = [&](std::int64_t begin, std::int64_t end, std::int64_t offset) {
        Saved saved;
        // In the part with keys from `begin` on, row i sees keys up to i - begin; windows begin at 0.
        Options options{.top_left = true};
        options.window.right = 0;
        const Tensor rows = q.slice(1, offset, 50 - offset);
        const Tensor o = forward(ctx(), rows, k.slice(1, begin, end - begin), v.slice(1, begin, end - begin),
                                 options, saved);
        return PartialResult{o, saved.lse};
    };
    const PartialResult all = part(0, keys, 0), low = part(0, first, 0), high_rows = part(first, keys, first);
    // The rows before `first` see no key in the second part.
    PartialResult high{empty_like(ctx(), low.o), empty_like(ctx(), low.lse)};
    fill(ctx(), high.o, std::numeric_limits<double>::quiet_NaN());
    fill(ctx(), high.lse, -infinity);
    copy(ctx(), high.o.slice(1, first, 50 - first), high_rows.o);
    copy(ctx(), high.lse.slice(2, first, 50 - first), high_rows.lse);

    for (const bool swapped : {false, true}) {
        const PartialResult merged = swapped ? merge(ctx(), high, low) : merge(ctx(), low, high);
        expect_near(merged.o, all.o, error());
        expect_near(merged.lse, all.lse, dtype() == DType::f64 ? 0x1p-46 : 0x1p-18);
    }
    merge(ctx(), low, low, high);  // in place
    expect_near(low.o, all.o, error());
}

TEST_P(Merge, RowsWithoutKeysInBothPartsAreZero) {
    const PartialResult none{empty(ctx(), {3, 2, 8}, dtype()), empty(ctx(), {2, 3}, accumulator_of(dtype()))};
    fill(ctx(), none.o, std::numeric_limits<double>::quiet_NaN());
    fill(ctx(), none.lse, -infinity);
    const PartialResult merged = merge(ctx(), none, none);
    EXPECT_THAT(to_host(ctx(), merged.o), ::testing::Each(0.0));
    EXPECT_THAT(to_host(ctx(), merged.lse), ::testing::Each(-infinity));
}

/// Also if the other part has no keys.
TEST_P(Merge, ANaNInAnLseReachesTheResult) {
    const PartialResult none{random({3, 2, 8}, 1), empty(ctx(), {2, 3}, accumulator_of(dtype()))},
        part{random({3, 2, 8}, 2), empty_like(ctx(), none.lse)};
    fill(ctx(), none.lse, -infinity);
    fill(ctx(), part.lse, std::numeric_limits<double>::quiet_NaN());
    for (const PartialResult& merged : {merge(ctx(), none, part), merge(ctx(), part, none)})
        for (const Tensor& x : {merged.o, merged.lse})
            EXPECT_THAT(to_host(ctx(), x), ::testing::Each(::testing::IsNan()));
}

TEST_P(Merge, LayoutsDoNotMatter) {
    const PartialResult a{random({2, 5, 3, 8}, 1),
                          cast(ctx(), random({2, 3, 5}, 2), accumulator_of(dtype()))},
        b{random({2, 5, 3, 8}, 3), cast(ctx(), random({2, 3, 5}, 4), accumulator_of(dtype()))};
    const PartialResult expected = merge(ctx(), a, b);
    const auto transposed = [&](const Tensor& x, int axis) {
        Shape shape = x.shape();
        std::swap(shape[axis], shape[axis + 1]);
        const Tensor view = empty(ctx(), shape, x.dtype()).transpose(axis, axis + 1);
        copy(ctx(), view, x);
        return view;
    };
    const PartialResult odd_a{transposed(a.o, 2), transposed(a.lse, 1)},
        odd_b{transposed(b.o, 1), transposed(b.lse, 0)}, into{transposed(a.o, 2), transposed(a.lse, 1)};
    merge(ctx(), into, odd_a, odd_b);
    EXPECT_EQ(to_host(ctx(), into.o), to_host(ctx(), expected.o));
    EXPECT_EQ(to_host(ctx(), into.lse), to_host(ctx(), expected.lse));
}

TEST_P(Merge, RefusesOtherShapesAndSharedMemory) {
    const PartialResult a{random({2, 5, 3, 8}, 1), empty(ctx(), {2, 3, 5}, accumulator_of(dtype()))};
    const auto refusal = [&](const PartialResult& b) { return message_of([&] { merge(ctx(), a, b); }); };
    EXPECT_THAT(refusal({random({2, 5, 3, 9}, 1), a.lse}), HasSubstr("merge: o of b"));
    EXPECT_THAT(refusal({a.o, empty(ctx(), {2, 5, 3}, accumulator_of(dtype()))}),
                HasSubstr("merge: lse of b"));
    EXPECT_THAT(refusal({a.o, {}}), HasSubstr("merge: lse of b"));
    const Tensor memory = random({4, 5, 3, 8}, 2);
    const PartialResult b{memory.slice(0, 0, 2), empty_like(ctx(), a.lse)},
        into{memory.slice(0, 1, 2), empty_like(ctx(), a.lse)};
    EXPECT_THAT(message_of([&] { merge(ctx(), into, a, b); }), HasSubstr("merge: o"));
    const PartialResult repeated{memory.slice(0, 0, 1).expand({2, 5, 3, 8}), empty_like(ctx(), a.lse)};
    EXPECT_THAT(message_of([&] { merge(ctx(), repeated, a, a); }), HasSubstr("merge: o"));
}

}  // namespace
}  // namespace gradtile::attention::test
