#include <gradtile/train/parallel/data_parallel.h>

#include <gtest/gtest.h>

namespace gradtile::test {
namespace {

ParameterStore& store_of(ParameterStore& store, std::initializer_list<std::int64_t> lengths) {
    int number = 0;
    for (const std::int64_t length : lengths)
        store.add("p" + std::to_string(number++), {length}, Init::ones());
    return store;
}

/// Expects contiguous buckets from 0 to `elements`, with lengths divisible by `multiple`.
void expect_contiguous_cover(const std::vector<FlatRange>& buckets, std::int64_t elements,
                             std::int64_t multiple) {
    std::int64_t end = 0;
    for (const FlatRange& bucket : buckets) {
        EXPECT_EQ(bucket.begin, end);
        EXPECT_GT(bucket.length, 0);
        EXPECT_EQ(bucket.length % multiple, 0);
        end = bucket.end();
    }
    EXPECT_EQ(end, elements);
}

TEST(Buckets, CoverTheFlatBlocks) {
    ParameterStore store;
    store_of(store, {1, 64, 1000, 77, 5000, 3, 3, 3, 640});
    for (const std::int64_t parts : {1, 2, 3, 4, 7}) {
        const std::int64_t multiple = flat_multiple(static_cast<int>(parts));
        const std::int64_t elements = (store.flat_elements() + multiple - 1) / multiple * multiple;
        for (const std::int64_t min_elements : {1, 100, 1000, 1'000'000})
            expect_contiguous_cover(
                cut_into_buckets(store.parameters(), {0, elements}, min_elements, multiple), elements,
                multiple);
    }
}

TEST(Buckets, EndAtTheFirstBorderAfterTheMinimum) {
    ParameterStore store;
    store_of(store, {640, 640, 640, 640, 640});
    const std::vector<FlatRange> buckets =
        cut_into_buckets(store.parameters(), {0, store.flat_elements()}, 1280, 64);
    EXPECT_EQ(buckets, (std::vector<FlatRange>{{0, 1280}, {1280, 1280}, {2560, 640}}));
}

TEST(Buckets, LeaveALargeParameterWhole) {
    ParameterStore store;
    store_of(store, {6400, 64, 64});
    EXPECT_EQ(cut_into_buckets(store.parameters(), {0, store.flat_elements()}, 640, 64).front(),
              (FlatRange{0, 6400}));
}

TEST(DataParallel, SingleProcessExchangesNothing) {
    const Context ctx(Device::cpu(), 1);
    ParameterStore store;
    store_of(store, {100, 200});
    store.allocate(ctx, DType::f32);
    ProcessGroup group;
    const auto communicator = make_communicator(ctx, group);
    DataParallel parallel(ctx, store, *communicator, {.sharded = true});
    EXPECT_FALSE(parallel.is_sharded());
    EXPECT_FALSE(parallel.overlap_sums_with_backward(ctx).gradient_complete);
    EXPECT_FALSE(parallel.overlap_gather_with_forward(ctx).before_use);
    EXPECT_EQ(parallel.gradients().raw_data(), store.gradients().raw_data());
    parallel.finish_gradients(ctx);
    parallel.gather_values(ctx);
}

TEST(DataParallel, RefusesBlocksThatCannotBeSplitEqually) {
    const Context ctx(Device::cpu(), 1);
    ParameterStore store;
    store_of(store, {100});
    EXPECT_THROW(store.allocate(ctx, DType::f32, {.multiple = 65}), Error);
    store.allocate(ctx, DType::f32, {.multiple = 3 * 64});
    EXPECT_EQ(store.flat_elements(), 3 * 64);
}

}  // namespace
}  // namespace gradtile::test
