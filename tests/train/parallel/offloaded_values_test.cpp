// Weights in other memory than the device's (--offload weights). On the CPU both are memory, so that every
// step, its evaluations and its checkpoints can be compared with those of weights on the device.
#include <gmock/gmock.h>

#include "trained_replica.h"

#include <gradtile/train/memory_request.h>

#include <support/counted_memory.h>
#include <support/error_message.h>
#include <support/silent_pair.h>

namespace gradtile::test {
namespace {

/// The first name whose numbers differ; empty if there is none.
std::string difference_by_offload(const TrainConfig& config, Offload kept, const Communicator& communicator) {
    TrainConfig on_device = config, offloaded = config;
    on_device.offload = kept;
    offloaded.offload = kept | Offload::weights;
    return first_difference(on_device, offloaded, communicator);
}

TEST(OffloadedValues, TrainToTheBitAsValuesOnTheDevice) {
    const Alone alone;
    for (const OptimizerKind optimizer :
         {kind_of<AdamWSettings>, kind_of<LionSettings>, kind_of<MuonSettings>})
        for (const auto& [dtype, masters] : {std::pair{TrainDType::f32, MasterFormat::f32},
                                             {TrainDType::bf16, MasterFormat::f32},
                                             {TrainDType::bf16, MasterFormat::split}})
            for (const Offload kept :
                 {Offload::none, Offload::optimizer, Offload::optimizer | Offload::gradients}) {
                TrainConfig config = small_run();
                config.optimizer = optimizer;
                config.dtype = dtype;
                config.masters = masters;
                SCOPED_TRACE(
                    concat(name_of(dtype), " masters ", name_of(masters), " offload ", name_of(kept)));
                EXPECT_EQ(difference_by_offload(config, kept, *alone.communicator), "");
            }
}

TEST(OffloadedValues, TrainToTheBitWithTheOptionsOfModels) {
    const Alone alone;
    for (void (*const change)(TrainConfig&) :
         {+[](TrainConfig& c) { c.model.tied_head = false; },
          +[](TrainConfig& c) { c.model.vocabulary = 131; }, add_parameters,
          +[](TrainConfig& c) {
              c.training.recompute = Recompute::block;
              c.gradient_dtype = TrainDType::bf16;
          },
          +[](TrainConfig& c) {
              c.model.layers = 1;
              c.model.sinks = true;
          }}) {
        TrainConfig config = small_run();
        change(config);
        EXPECT_EQ(difference_by_offload(config, Offload::none, *alone.communicator), "");
    }
}

TEST(OffloadedValues, ResumeInEitherPlace) {
    const Alone alone;
    TrainConfig config = small_run(), offloaded = config;
    config.dtype = offloaded.dtype = TrainDType::bf16;
    offloaded.offload = Offload::weights;
    TrainedReplica uninterrupted(config, *alone.communicator);
    for (int step = 1; step <= 4; ++step) uninterrupted.step(step);
    TrainedReplica first(offloaded, *alone.communicator), second(config, *alone.communicator),
        third(offloaded, *alone.communicator);
    first.step(1);
    second.replica().restore(first.saved(), "first");
    for (int step = 2; step <= 3; ++step) second.step(step);
    third.replica().restore(second.saved(), "second");
    third.step(4);
    const auto got = third.numbers(), expected = uninterrupted.numbers();
    for (const auto& [name, values] : expected) {
        if (name.find('/') == std::string::npos) continue;  // of the run's own steps
        EXPECT_EQ(got.at(name), values) << name;
    }
}

/// In its own memory, each process of --zero 0 has all values, and of --zero 3 its shard's.
TEST(OffloadedValues, TrainToTheBitInSeveralProcesses) {
    for (const int size : {2, 3, 4})
        for (const std::int64_t zero : {0, 3})
            for (const OptimizerKind optimizer : {kind_of<AdamWSettings>, kind_of<MuonSettings>}) {
                ForkedRanks ranks(size, /*timeout=*/60.0);
                ranks.start_all([&](ProcessGroup& group) {
                    const auto communicator = make_communicator(Context(Device::cpu(), 1), group);
                    TrainConfig config = small_run();
                    config.batch = 2 * size;
                    config.zero = zero;
                    config.optimizer = optimizer;
                    config.dtype = TrainDType::bf16;
                    const std::string difference =
                        difference_by_offload(config, Offload::none, *communicator);
                    check(difference.empty(), difference, " differs in process ", group.rank());
                    group.leave();
                });
                SCOPED_TRACE(concat(size, " processes, zero ", zero));
                expect_success(ranks, size);
            }
}

/// A process that replaces a lost one receives the others' values.
TEST(OffloadedValues, AreShared) {
    ForkedRanks ranks(2, /*timeout=*/60.0);
    ranks.start_all([](ProcessGroup& group) {
        const auto communicator = make_communicator(Context(Device::cpu(), 1), group);
        TrainConfig config = small_run();
        config.offload = Offload::weights;
        TrainedReplica given(config, *communicator), expected(config, *communicator);
        given.replica().initialize(Seed{static_cast<std::uint64_t>(group.rank()) + 5});
        expected.replica().initialize(Seed{5});
        check((given.numbers() == expected.numbers()) == (group.rank() == 0), "the seeds do not differ");
        given.replica().share(0);
        check(given.numbers() == expected.numbers(), "process ", group.rank(), " has other values");
        group.leave();
    });
    expect_success(ranks, 2);
}

TEST(OffloadedValues, HaveThePlannedBytes) {
    const Alone alone;
    for (const TrainDType dtype : {TrainDType::f32, TrainDType::bf16})
        for (const bool tied : {true, false}) {
            TrainConfig config = small_run();
            config.model.layers = 12;
            config.model.tied_head = tied;
            config.dtype = dtype;
            config.offload = Offload::weights;
            const MemoryPlan plan =
                plan_memory(Context(Device::cpu(), 1), memory_request(config, Device::cpu()));
            config.offload = Offload::none;
            const MemoryPlan kept =
                plan_memory(Context(Device::cpu(), 1), memory_request(config, Device::cpu()));
            config.offload = Offload::weights;
            const auto memory = std::make_shared<CountedMemory>();
            const Context ctx = Context(Device::cpu(), 1).with_allocator(memory);
            const Replica replica(ctx, config, std::nullopt, *alone.communicator);
            const std::size_t host = replica.parallel.own_values().bytes();
            EXPECT_EQ(plan.host(), host);
            EXPECT_EQ(host, kept.values);
            EXPECT_EQ(replica.parallel.value_bytes(), plan.values);
            EXPECT_EQ(memory->held - replica.optimizer->state_bytes(),
                      plan.values + plan.host() + plan.masters + plan.gradients);
            EXPECT_EQ(kept.total() - plan.total(), kept.values - plan.values);
            // Two of twelve blocks have slots, and the embedding.
            EXPECT_LT(plan.values, kept.values / 3);
        }
}

TEST(OffloadedValues, NeedAllOrTheirShardInEachProcess) {
    const Context ctx(Device::cpu(), 1);
    ParameterStore store;
    store.add("p", {64}, Init::ones());
    store.allocate(ctx, DType::f32, {.value_block = false});
    for (const int zero : {1, 2})
        EXPECT_THAT(message_of([&] {
                        DataParallel(ctx, store, SilentPair(), {.zero = zero, .offloads_values = true});
                    }),
                    testing::HasSubstr(concat("data parallel: zero ", zero, " with offloaded values")));
}

}  // namespace
}  // namespace gradtile::test
