// Buckets, and the memory that they share: GradientSlots and ValueSlots.
#include <map>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/core/cuda/step_graph.h>
#include <gradtile/core/side_stream.h>
#include <gradtile/core/tensor_ops.h>
#include <gradtile/train/parallel/data_parallel.h>
#include <gradtile/train/parallel/internal/value_slots.h>

#include <support/counted_memory.h>
#include <support/cuda_test.h>
#include <support/error_message.h>

namespace gradtile::test {
namespace {

ParameterStore& store_of(ParameterStore& store, std::initializer_list<std::int64_t> lengths) {
    int number = 0;
    for (const std::int64_t length : lengths)
        store.add("p" + std::to_string(number++), {length}, Init::ones());
    return store;
}

/// Expects contiguous buckets from 0 to the end of the flat blocks, which cut no parameter.
void expect_contiguous_cover(const ParameterStore& store, const std::vector<FlatRange>& buckets) {
    std::set<std::int64_t> borders = {store.flat_elements()};
    for (const Parameter& parameter : store.parameters()) borders.insert(parameter.offset());
    std::int64_t end = 0;
    for (const FlatRange& bucket : buckets) {
        EXPECT_EQ(bucket.begin, end);
        EXPECT_GT(bucket.length, 0);
        EXPECT_TRUE(borders.contains(bucket.end()));
        end = bucket.end();
    }
    EXPECT_EQ(end, store.flat_elements());
}

TEST(Buckets, CoverTheFlatBlocks) {
    ParameterStore store;
    store_of(store, {1, 64, 1000, 77, 5000, 3, 3, 3, 640});
    for (const std::int64_t min_elements : {1, 100, 1000, 1'000'000})
        expect_contiguous_cover(
            store, cut_into_buckets(store.parameters(), {0, store.flat_elements()}, {min_elements}));
}

TEST(Buckets, EndAtTheFirstBorderAfterTheMinimum) {
    ParameterStore store;
    store_of(store, {640, 640, 640, 640, 640});
    const std::vector<FlatRange> buckets =
        cut_into_buckets(store.parameters(), {0, store.flat_elements()}, {1280});
    EXPECT_EQ(buckets, (std::vector<FlatRange>{{0, 1280}, {1280, 1280}, {2560, 640}}));
}

TEST(Buckets, LeaveALargeParameterWhole) {
    ParameterStore store;
    store_of(store, {6400, 64, 64});
    EXPECT_EQ(cut_into_buckets(store.parameters(), {0, store.flat_elements()}, {640}).front(),
              (FlatRange{0, 6400}));
}

/// A store without a gradient block, and passes over it that write a known number to each gradient.
struct SlottedStore {
    SlottedStore(std::initializer_list<std::int64_t> lengths, std::int64_t bucket) {
        store_of(store, lengths);
        store.allocate(ctx, DType::f32, {.gradient_block = false});
        buckets = cut_into_buckets(store.parameters(), {0, store.flat_elements()}, {bucket});
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

/// Parameters leave gaps. A slot that is used again holds other gradients where a bucket has gaps.
TEST(GradientSlots, ExchangeTheGradientsThatABlockWouldHold) {
    for (const std::int64_t bucket : {64, 200, 1000, 100'000}) {
        SlottedStore s({130, 64, 1000, 7, 5000, 3, 70, 3, 640, 1, 2000}, bucket);
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
    SlottedStore s({640, 640, 640, 640, 640, 640, 640, 640, 640, 640, 640, 640, 640, 640, 640, 640}, 640);
    s.run_pass(1.0, 0, 1);
    s.expect_exchanged();
    // The first parameter's, which is complete last, and another one.
    EXPECT_EQ(s.slots->bytes(), 2 * 640 * sizeof(float));
}

/// In the second pass there is a short slot for the first bucket, so another choice would leave none for the
/// last one: the long slot would hold the second bucket.
TEST(GradientSlots, AllocateNothingAfterTheFirstPass) {
    SlottedStore s({640, 64, 64}, 64);
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
    SlottedStore s({640, 640}, 64);
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
    SlottedStore s({640, 640}, 64);
    s.store.reset_gradients();
    EXPECT_THAT(message_of([&] { s.store.parameters()[0].begin_gradient_write(); }),
                testing::HasSubstr("the gradient of p0 outside a pass"));
    const BackwardHooks hooks = s.slots->start_pass(s.ctx, true);
    hooks.gradient_complete(s.store.parameters()[1]);
    EXPECT_THAT(message_of([&] { s.slots->finish(); }), testing::HasSubstr("were not reported as complete"));
}

/// A store without a value block, whose stages are the embeddings, four blocks, and a norm with a head. The
/// value of element i is i. Counts the gathers.
struct StagedStore {
    explicit StagedStore(bool tied, DType dtype = DType::f32) {
        const Parameter embedding = store.add("embedding", {10, 100}, Init::ones());
        store.add("positions", {70}, Init::ones());
        for (int i = 0; i < 4; ++i) {
            store.begin_stage();
            store.add(concat("matrix", i), {20, 16}, Init::ones());
            store.add(concat("bias", i), {20}, Init::ones());
        }
        store.begin_stage();
        store.add("norm", {64}, Init::ones());
        if (tied) {
            store.read_again(embedding);
        } else {
            store.add("head", {10, 100}, Init::ones(), 16);
        }
        store.allocate(ctx, dtype, {.value_block = false});
        buckets = cut_into_buckets(store.parameters(), {0, store.flat_elements()},
                                   {.min_elements = 384, .end_with_stages = true});
        slots = std::make_unique<ValueSlots>(ctx, store.parameters(), dtype, buckets, &side,
                                             [this](std::size_t i, const Context&, const Tensor& values) {
                                                 EXPECT_EQ(values.elements(), buckets[i].length);
                                                 for (std::int64_t k = 0; k < values.elements(); ++k)
                                                     values.data<float>()[k] =
                                                         static_cast<float>(buckets[i].begin + k);
                                                 ++gathers[i];
                                             });
    }
    /// Expects that the parameters that the stage reads have their values.
    void expect_values(std::size_t stage) const {
        for (const Parameter& parameter : store.parameters()) {
            if (parameter.first_stage() != stage && parameter.last_stage() != stage) continue;
            SCOPED_TRACE(parameter.name());
            const std::vector<double> values = to_host(ctx, parameter.padded_value());
            for (std::size_t k = 0; k < values.size(); ++k)
                ASSERT_EQ(values[k], static_cast<double>(parameter.offset()) + static_cast<double>(k));
        }
    }
    void run_forward() {
        for (std::size_t stage = 0; stage <= last; ++stage) {
            slots->before_stage(ctx, stage, stage < last ? std::optional(stage + 1) : std::nullopt);
            expect_values(stage);
        }
    }
    void run_backward() {
        for (std::size_t stage = last; stage > 0; --stage) {
            slots->before_stage(ctx, stage, stage > 1 ? std::optional(stage - 1) : std::nullopt);
            expect_values(stage);
        }
    }

    static constexpr std::size_t last = 5;
    const Context ctx{Device::cpu(), 1};
    const SideStream side{Device::cpu()};
    ParameterStore store;
    std::vector<FlatRange> buckets;
    std::map<std::size_t, int> gathers;
    std::unique_ptr<ValueSlots> slots;
};

/// Buckets: embedding (1024), positions (128), four blocks (384), and norm with head (64 + 1600) or norm
/// (64).
TEST(ValueSlots, HoldWhatAStageReads) {
    for (const bool tied : {false, true}) {
        StagedStore s(tied);
        ASSERT_EQ(s.buckets.size(), 7u);
        for (int step = 1; step <= 2; ++step) {
            for (int micro_step = 0; micro_step < 2; ++micro_step) {
                s.run_forward();
                s.run_backward();
            }
            s.slots->forget();
            for (const Parameter& parameter : s.store.parameters())
                EXPECT_THAT(message_of([&] { parameter.value(); }),
                            testing::HasSubstr("has no value; no stage of a pass reads it now"));
            // Values that are still in their slot are not gathered again. A backward pass begins with the
            // head and the last blocks in their slots, and the second forward pass with the first block. A
            // tied embedding keeps its slot during the whole step.
            const std::vector<int> expected =
                tied ? std::vector{1, 2, 3, 4, 4, 2, 2} : std::vector{2, 2, 3, 4, 2, 2, 2};
            for (std::size_t i = 0; i < expected.size(); ++i)
                EXPECT_EQ(s.gathers.at(i), step * expected[i]) << "bucket " << i << ", tied " << tied;
        }
    }
}

/// The untied embedding and head take turns in one slot with a block. No slot is used by two stages that
/// follow each other.
TEST(ValueSlots, TakeTurnsInAFewSlots) {
    const std::size_t untied = StagedStore(false).slots->bytes(), tied = StagedStore(true).slots->bytes();
    EXPECT_EQ(untied, (1664 + 384 + 384) * sizeof(float));
    EXPECT_EQ(tied, (1024 + 384 + 384) * sizeof(float));
}

TEST(ValueSlots, AllocateWhatADryRunCounts) {
    const Context dry = Context(Device::cpu(), 1).plan(Arena::for_planning(Device::cpu()));
    const StagedStore s(false);
    EXPECT_EQ(ValueSlots(dry, s.store.parameters(), s.store.dtype(), s.buckets, nullptr, {}).bytes(),
              s.slots->bytes());
}

class ValueSlotsOnAGpu : public CudaTest {};

/// Each step first changes what is gathered. Without its wait, a stage would read a value of the step before,
/// and a gather that does not wait for a slot's readers would change what they read.
TEST_F(ValueSlotsOnAGpu, HoldWhatAStageReadsInACapturedGraph) {
    constexpr std::int64_t elements = 1 << 21;
    constexpr std::size_t last = 5;
    const SideStream side(gpu().device());
    ParameterStore store;
    for (std::size_t stage = 0; stage <= last; ++stage) {
        if (stage > 0) store.begin_stage();
        store.add(concat("p", stage), {elements}, Init::ones());
    }
    store.allocate(gpu(), DType::bf16, {.gradients = false, .value_block = false});
    const Shape all{store.flat_elements()};
    const auto buckets = cut_into_buckets(store.parameters(), {0, all[0]}, {1, true});
    const Tensor source = zeros(gpu(), all, DType::bf16), eight = zeros(gpu(), all, DType::bf16);
    fill(gpu(), eight, 8.0);
    for (const Parameter& parameter : store.parameters())
        fill(gpu(), source.slice(0, parameter.offset(), elements),
             static_cast<double>(parameter.first_stage()));
    ValueSlots slots(gpu(), store.parameters(), store.dtype(), buckets, &side,
                     [&](std::size_t i, const Context& exchange, const Tensor& values) {
                         copy(exchange, values, source.slice(0, buckets[i].begin, buckets[i].length));
                     });
    EXPECT_EQ(slots.bytes(), 2 * elements * size_of(DType::bf16));
    const Tensor forward = poisoned(all, DType::f32), backward = poisoned(all, DType::f32);
    const auto read = [&](std::size_t stage, const Tensor& into) {
        const Parameter& parameter = store.parameters()[stage];
        copy(gpu(), into.slice(0, parameter.offset(), elements), parameter.value());
    };
    const auto step = [&] {
        slots.forget();
        axpy(gpu(), source, 1.0, eight);
        for (std::size_t stage = 0; stage <= last; ++stage) {
            slots.before_stage(gpu(), stage, stage < last ? std::optional(stage + 1) : std::nullopt);
            read(stage, forward);
        }
        for (std::size_t stage = last + 1; stage-- > 0;) {
            slots.before_stage(gpu(), stage, stage > 0 ? std::optional(stage - 1) : std::nullopt);
            read(stage, backward);
        }
    };
    step();
    StepGraph graph;
    graph.capture(gpu(), step);
    for (int replay = 0; replay < 3; ++replay) {
        graph.replay(gpu());
        const std::vector<double> expected = to_host(gpu(), source);
        EXPECT_EQ(expected.front(), 8.0 * (replay + 2));
        EXPECT_TRUE(to_host(gpu(), forward) == expected) << "replay " << replay;
        EXPECT_TRUE(to_host(gpu(), backward) == expected) << "replay " << replay;
    }
}

TEST(ValueSlots, NeedAStoreWithoutAValueBlock) {
    const Context ctx(Device::cpu(), 1);
    ParameterStore store;
    store_of(store, {64});
    const Parameter& parameter = store.parameters()[0];
    EXPECT_THAT(message_of([&] { parameter.set_value({}); }), testing::HasSubstr("parameter p0: set_value"));
    store.allocate(ctx, DType::f32);
    EXPECT_THAT(message_of([&] { parameter.set_value(zeros(ctx, {64}, DType::f32)); }),
                testing::HasSubstr("parameter p0: set_value"));
    EXPECT_TRUE(parameter.value().defined());
    EXPECT_THAT(message_of([&] { store.begin_stage(); }),
                testing::HasSubstr("after the store was allocated"));
    ParameterStore without;
    store_of(without, {64});
    without.allocate(ctx, DType::f32, {.value_block = false});
    EXPECT_THAT(message_of([&] { without.parameters()[0].set_value(zeros(ctx, {63}, DType::f32)); }),
                testing::HasSubstr("expected flat float32"));
}

}  // namespace
}  // namespace gradtile::test
