#include <gradtile/train/parallel/data_parallel.h>

#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/core/side_stream.h>
#include <gradtile/core/tensor_ops.h>
#include <gradtile/train/memory_request.h>
#include <gradtile/train/replica.h>

#include <support/counted_memory.h>
#include <support/error_message.h>
#include <support/silent_pair.h>

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
    DataParallel parallel(ctx, store, *communicator, {.zero = 2});
    EXPECT_FALSE(parallel.is_sharded());
    EXPECT_FALSE(parallel.start_micro_step(ctx, 0, 1).gradient_complete);
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

/// A store without a gradient block, and passes over it that write a known number to each gradient.
struct SlottedStore {
    SlottedStore(std::initializer_list<std::int64_t> lengths, std::int64_t multiple, std::int64_t bucket) {
        store_of(store, lengths);
        store.allocate(ctx, DType::f32, {.multiple = multiple, .gradient_block = false});
        buckets = cut_into_buckets(store.parameters(), {0, store.flat_elements()}, bucket, multiple);
        expected.assign(static_cast<std::size_t>(store.flat_elements()), 0.0);
        slots = std::make_unique<GradientSlots>(
            ctx, store, buckets, &side, [this](std::size_t i, const Context&, const Tensor& gradients) {
                EXPECT_EQ(gradients.elements(), buckets[i].length);
                EXPECT_TRUE(exchanged.emplace(i, to_host(ctx, gradients)).second)
                    << "bucket " << i << " twice";
            });
    }
    /// The first parameter has a contribution at the beginning and one at the end, as a tied embedding has.
    /// The others are complete in reverse order, but `late` is exchanged with its neighbour.
    void run_pass(double number, std::size_t late = 0, std::size_t attention_every = 2) {
        exchanged.clear();
        const auto all = store.parameters();
        const BackwardHooks hooks = slots->start_pass(ctx, true);
        const auto write = [&](const Parameter& parameter, double value) {
            const GradientTarget target = parameter.begin_gradient_write();
            fill(ctx, target.grad, target.accumulates() ? 2 * value : value);
            for (std::int64_t i = 0; i < parameter.shape().elements(); ++i)
                expected[static_cast<std::size_t>(parameter.offset() + i)] =
                    target.accumulates() ? 2 * value : value;
        };
        write(all[0], number);
        std::vector<std::size_t> order;
        for (std::size_t i = all.size(); i-- > 1;) order.push_back(i);
        if (late > 0) std::swap(order[late - 1], order[late]);
        for (std::size_t i = 0; i < order.size(); ++i) {
            write(all[order[i]], number + static_cast<double>(order[i]));
            hooks.gradient_complete(all[order[i]]);
            EXPECT_FALSE(all[order[i]].grad().defined());
            if (i % attention_every == 0) hooks.before_attention();
        }
        write(all[0], number);
        hooks.gradient_complete(all[0]);
    }
    void expect_exchanged() const {
        for (std::size_t i = 0; i < buckets.size(); ++i) {
            const auto found = exchanged.find(i);
            ASSERT_NE(found, exchanged.end()) << "bucket " << i;
            const auto begin = expected.begin() + buckets[i].begin;
            EXPECT_EQ(found->second, std::vector<double>(begin, begin + buckets[i].length)) << "bucket " << i;
        }
    }

    const Context ctx{Device::cpu(), 1};
    const SideStream side{Device::cpu()};
    ParameterStore store;
    std::vector<FlatRange> buckets;
    std::vector<double> expected;
    std::map<std::size_t, std::vector<double>> exchanged;
    std::unique_ptr<GradientSlots> slots;
};

/// Borders cut parameters, short parameters lie between two borders, and parameters leave gaps. A slot that
/// is used again holds other gradients where a bucket has gaps.
TEST(GradientSlots, ExchangeTheGradientsThatABlockWouldHold) {
    for (const std::int64_t multiple : {64, 128, 256, 448})
        for (const std::int64_t bucket : {64, 200, 1000, 100'000}) {
            SlottedStore s({130, 64, 1000, 7, 5000, 3, 70, 3, 640, 1, 2000}, multiple, bucket);
            std::vector<std::size_t> bytes;
            for (const std::size_t late : {0, 0, 3}) {
                s.run_pass(1.0 + static_cast<double>(late), late);
                s.expect_exchanged();
                bytes.push_back(s.slots->bytes());
            }
            EXPECT_EQ(bytes[0], bytes[1]) << "a pass allocated what the first one did not";
            s.slots->finish();
        }
}

TEST(GradientSlots, HoldAFewBucketsOfManyEqualLayers) {
    SlottedStore s({640, 640, 640, 640, 640, 640, 640, 640, 640, 640, 640, 640, 640, 640, 640, 640}, 64, 640);
    s.run_pass(1.0, 0, 1);
    s.expect_exchanged();
    // The first parameter's, which is complete last, and another one.
    EXPECT_EQ(s.slots->bytes(), 2 * 640 * sizeof(float));
}

/// In the second pass there is a short slot for the first bucket, so another choice would leave none for the
/// last one: the long slot would hold the second bucket.
TEST(GradientSlots, AllocateNothingAfterTheFirstPass) {
    SlottedStore s({640, 64, 64}, 64, 64);
    const auto all = s.store.parameters();
    for (int pass = 0; pass < 2; ++pass) {
        s.exchanged.clear();
        const BackwardHooks hooks = s.slots->start_pass(s.ctx, true);
        all[2].begin_gradient_write();
        all[1].begin_gradient_write();
        hooks.gradient_complete(all[2]);
        hooks.before_attention();
        all[0].begin_gradient_write();
        hooks.gradient_complete(all[1]);
        hooks.gradient_complete(all[0]);
        EXPECT_EQ(s.exchanged.size(), 3u);
        EXPECT_EQ(s.slots->bytes(), (640 + 64) * sizeof(float)) << "pass " << pass + 1;
    }
}

TEST(GradientSlots, ExchangeZerosForAGradientWithoutContributions) {
    SlottedStore s({640, 640}, 64, 64);
    for (int pass = 0; pass < 2; ++pass) {
        s.exchanged.clear();
        const BackwardHooks hooks = s.slots->start_pass(s.ctx, pass == 0);
        fill(s.ctx, s.store.parameters()[0].begin_gradient_write().grad, 3.0);
        hooks.gradient_complete(s.store.parameters()[0]);
        hooks.before_attention();
        hooks.gradient_complete(s.store.parameters()[1]);
        EXPECT_THAT(s.exchanged.at(0), testing::Each(3.0));
        EXPECT_THAT(s.exchanged.at(1), testing::Each(0.0));
    }
}

TEST(GradientSlots, RefuseContributionsOutsideAPassAndAnIncompletePass) {
    SlottedStore s({640, 640}, 64, 64);
    s.store.reset_gradients();
    EXPECT_THAT(message_of([&] { s.store.parameters()[0].begin_gradient_write(); }),
                testing::HasSubstr("the gradient of p0 outside a pass"));
    const BackwardHooks hooks = s.slots->start_pass(s.ctx, true);
    hooks.gradient_complete(s.store.parameters()[1]);
    EXPECT_THAT(message_of([&] { s.slots->finish(); }), testing::HasSubstr("were not reported as complete"));
}

/// The bytes that a replica holds after two micro-steps. SilentPair exchanges nothing.
struct ReplicaBytes {
    std::size_t allocated = 0, gradients = 0;

    ReplicaBytes(const TrainConfig& config) {
        const auto memory = std::make_shared<test::CountedMemory>();
        const Context ctx = Context(Device::cpu(), 1).with_allocator(memory);
        const SilentPair pair;
        Replica replica(ctx, config, std::nullopt, pair);
        const Context arena = ctx.with_allocator(system_allocator(Device::cpu()));
        replica.initialize(Seed{1});
        const Tensor tokens = zeros(arena, {1, config.model.context}, DType::i32);
        for (std::int64_t micro_step = 0; micro_step < 2; ++micro_step) {
            const BackwardHooks hooks = replica.parallel.start_micro_step(arena, micro_step, 2);
            Transformer::Saved saved;
            replica.model.transformer.forward(arena, tokens, tokens, saved);
            replica.model.transformer.backward(arena, saved, hooks);
        }
        replica.parallel.finish_gradients(arena);
        allocated = memory->held;
        gradients = replica.parallel.gradient_bytes();
    }
};

TEST(DataParallel, AllocatesTheGradientsThatTheMemoryPlanHas) {
    TrainConfig config;
    config.model = {.layers = 6, .heads = 2, .width = 64, .context = 16, .vocabulary = 101};
    config.batch = 4;
    config.micro_batch = 1;
    for (const bool tied : {true, false})
        for (const TrainDType dtype : {TrainDType::f32, TrainDType::bf16}) {
            config.model.tied_head = tied;
            config.dtype = dtype;
            const auto plan_of = [&](std::int64_t zero) {
                config.zero = zero;
                return plan_memory(Context(Device::cpu(), 1), memory_request(config, Device::cpu(), 2));
            };
            const MemoryPlan one = plan_of(1), two = plan_of(2);
            config.zero = 1;
            const ReplicaBytes bytes_of_one(config);
            config.zero = 2;
            const ReplicaBytes bytes_of_two(config);
            EXPECT_EQ(bytes_of_one.gradients, one.gradients);
            EXPECT_EQ(bytes_of_two.gradients, two.gradients);
            EXPECT_EQ(bytes_of_one.allocated - bytes_of_two.allocated, one.total() - two.total());
            // Half of the gradients are this process's shard; buckets have at least a 16th.
            EXPECT_LT(two.gradients, one.gradients * 2 / 3);
        }
}

}  // namespace
}  // namespace gradtile::test
