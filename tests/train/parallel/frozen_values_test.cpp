// Frozen weights that other processes (--zero 3) or the host (--offload weights) keep between passes train
// as those do that a process has whole.
#include <gmock/gmock.h>

#include "trained_replica.h"

#include <gradtile/train/configured_optimizer.h>
#include <gradtile/train/memory_request.h>
#include <gradtile/train/parallel/internal/frozen_values.h>

#include <support/counted_memory.h>
#include <support/error_message.h>
#include <support/silent_pair.h>

namespace gradtile::test {
namespace {

TrainConfig adapted_run() {
    TrainConfig config = small_run();
    config.adapters.rank = 4;
    return config;
}

TrainConfig with_offload(TrainConfig config) {
    config.offload = config.offload | Offload::weights;
    return config;
}

TrainConfig at_level(TrainConfig config, std::int64_t zero) {
    config.zero = zero;
    return config;
}

TEST(FrozenValues, TrainToTheBitWhenTheHostHasThem) {
    const Alone alone;
    for (const WeightFormat format : {WeightFormat::same, WeightFormat::nf4, WeightFormat::int8})
        for (const auto& [dtype, masters, offload] :
             {std::tuple{TrainDType::f32, MasterFormat::f32, Offload::none},
              {TrainDType::bf16, MasterFormat::f32, Offload::optimizer},
              {TrainDType::bf16, MasterFormat::split, Offload::none}}) {
            TrainConfig config = adapted_run();
            config.adapters.frozen_format = format;
            config.dtype = dtype;
            config.masters = masters;
            config.offload = offload;
            SCOPED_TRACE(concat(name_of(format), ' ', name_of(dtype), " masters ", name_of(masters)));
            EXPECT_EQ(first_difference(config, with_offload(config), *alone.communicator), "");
        }
}

TEST(FrozenValues, TrainToTheBitWithTheOptionsOfModels) {
    const Alone alone;
    for (void (*const change)(TrainConfig&) :
         {+[](TrainConfig& c) { c.model.tied_head = false; }, add_parameters,
          +[](TrainConfig& c) {
              c.training.recompute = Recompute::block;
              c.adapters.frozen_format = WeightFormat::nf4;
          },
          +[](TrainConfig& c) {
              c.model.layers = 1;
              c.model.vocabulary = 131;
              c.adapters.on = "mlp";
          }}) {
        TrainConfig config = adapted_run();
        change(config);
        EXPECT_EQ(first_difference(config, with_offload(config), *alone.communicator), "");
    }
}

/// The adapters of --zero 3 are divided as those of --zero 2.
TEST(FrozenValues, TrainToTheBitWhenProcessesHaveParts) {
    for (const int size : {2, 3, 4})
        for (const WeightFormat format : {WeightFormat::same, WeightFormat::nf4, WeightFormat::int8}) {
            ForkedRanks ranks(size, /*timeout=*/60.0);
            ranks.start_all([&](ProcessGroup& group) {
                const auto communicator = make_communicator(Context(Device::cpu(), 1), group);
                TrainConfig config = adapted_run();
                config.batch = 2 * size;
                config.dtype = TrainDType::bf16;
                config.optimizer = size == 3 ? kind_of<MuonSettings> : kind_of<AdamWSettings>;
                config.adapters.frozen_format = format;
                const TrainConfig whole = at_level(config, 2), parts = at_level(config, 3);
                for (const auto& [one, other, what] :
                     {std::tuple{whole, parts, "--zero 3"},
                      {whole, with_offload(parts), "--zero 3 --offload weights"},
                      {at_level(config, 0), with_offload(at_level(config, 0)), "--offload weights"}}) {
                    const std::string difference = first_difference(one, other, *communicator);
                    check(difference.empty(), what, ": ", difference, " differs in process ", group.rank());
                }
                group.leave();
            });
            SCOPED_TRACE(concat(size, " processes, ", name_of(format)));
            expect_success(ranks, size);
        }
}

/// A checkpoint of parts is restored whole, and the other way round.
TEST(FrozenValues, ResumeAtEitherLevel) {
    for (const WeightFormat format : {WeightFormat::same, WeightFormat::nf4}) {
        ForkedRanks ranks(3, /*timeout=*/60.0);
        ranks.start_all([&](ProcessGroup& group) {
            const auto communicator = make_communicator(Context(Device::cpu(), 1), group);
            TrainConfig config = adapted_run();
            config.batch = 6;
            config.dtype = TrainDType::bf16;
            config.adapters.frozen_format = format;
            TrainedReplica uninterrupted(at_level(config, 2), *communicator);
            for (int step = 1; step <= 4; ++step) uninterrupted.step(step);
            TrainedReplica first(at_level(config, 3), *communicator),
                second(at_level(config, 2), *communicator), third(at_level(config, 3), *communicator);
            first.step(1);
            second.replica().restore(first.saved(), "first");
            for (int step = 2; step <= 3; ++step) second.step(step);
            third.step(9);  // leaves the values of other weights in the slots
            third.replica().restore(second.saved(), "second");
            third.step(4);
            const auto got = third.numbers(), expected = uninterrupted.numbers();
            for (const auto& [name, values] : expected) {
                if (name.find('/') == std::string::npos) continue;  // of the run's own steps
                check(got.at(name) == values, name, " differs in process ", group.rank());
            }
            group.leave();
        });
        SCOPED_TRACE(name_of(format));
        expect_success(ranks, 3);
    }
}

/// A process that replaces a lost one receives the others' values.
TEST(FrozenValues, AreShared) {
    ForkedRanks ranks(2, /*timeout=*/60.0);
    ranks.start_all([](ProcessGroup& group) {
        const auto communicator = make_communicator(Context(Device::cpu(), 1), group);
        TrainConfig config = with_offload(adapted_run());
        config.adapters.frozen_format = WeightFormat::int8;
        TrainedReplica given(config, *communicator), expected(config, *communicator);
        given.replica().initialize(Seed{static_cast<std::uint64_t>(group.rank()) + 5});
        given.step(1);  // leaves values in the slots
        given.replica().initialize(Seed{static_cast<std::uint64_t>(group.rank()) + 5});
        expected.replica().initialize(Seed{5});
        given.replica().share(0);
        given.step(1);
        given.replica().share(0);
        expected.step(1);
        const auto got = given.saved().params, right = expected.saved().params;
        const Context ctx(Device::cpu(), 1);
        for (const auto& [name, x] : right)
            if (name.find(".lora_") == std::string::npos)
                check(to_host(ctx, x) == to_host(ctx, got.at(name)), name, " differs in process ",
                      group.rank());
        group.leave();
    });
    expect_success(ranks, 2);
}

/// Bytes of a replica, without the optimizer's state, of which another process may have more.
struct AllocatedBytes {
    std::size_t all = 0, values = 0, at_rest = 0, to_sample = 0, planned_to_sample = 0;

    AllocatedBytes(const TrainConfig& config, const Communicator& communicator) {
        const auto memory = std::make_shared<CountedMemory>();
        const Context ctx = Context(Device::cpu(), 1).with_allocator(memory);
        Replica replica(ctx, config, std::nullopt, communicator);
        const Context arena = ctx.with_allocator(system_allocator(Device::cpu()));
        replica.initialize(Seed{1});
        const Tensor tokens = zeros(arena, {1, config.model.context}, DType::i32);
        for (int step = 0; step < 2; ++step) {
            const ForwardHooks gather = replica.parallel.overlap_gather_with_forward(arena);
            const BackwardHooks hooks = replica.parallel.start_micro_step(arena, 0, 1);
            Transformer::Saved saved;
            replica.model.transformer.forward(arena, tokens, tokens, saved, {.hooks = gather});
            replica.model.transformer.backward(arena, std::move(saved), hooks);
            replica.parallel.finish_gradients(arena);
        }
        all = memory->held - replica.optimizer->state_bytes();
        const FrozenValues* const frozen = replica.parallel.frozen();
        if (frozen == nullptr) return;
        values = frozen->slot_bytes();
        at_rest = frozen->bytes_at_rest();
        to_sample = replica.parallel.bytes_to_gather_values();
        planned_to_sample =
            FrozenValues::plan(ctx.plan(Arena::for_planning(Device::cpu())), replica.model.frozen,
                               communicator.size(), data_parallel_options(config))
                .whole;
    }
};

TEST(FrozenValues, HaveThePlannedBytes) {
    const Alone alone;
    const SilentPair pair;  // its second process has the largest part
    for (const WeightFormat format : {WeightFormat::same, WeightFormat::nf4})
        for (const TrainDType dtype : {TrainDType::f32, TrainDType::bf16})
            for (const Communicator* const processes :
                 std::array<const Communicator*, 2>{alone.communicator.get(), &pair}) {
                TrainConfig config = adapted_run();
                config.model.layers = 12;
                config.dtype = dtype;
                config.adapters.frozen_format = format;
                const std::int64_t ranks = processes->size();
                SCOPED_TRACE(concat(name_of(format), ' ', name_of(dtype), ", ", ranks, " processes"));
                const auto plan_of = [&](const TrainConfig& of) {
                    return plan_memory(Context(Device::cpu(), 1), memory_request(of, Device::cpu(), ranks));
                };
                const auto planned = [](const MemoryPlan& plan) {
                    return plan.values + plan.offloaded_values + plan.masters + plan.gradients;
                };
                const TrainConfig whole = at_level(config, ranks > 1 ? 2 : 0),
                                  moved = ranks > 1 ? at_level(config, 3) : with_offload(whole);
                const MemoryPlan kept = plan_of(whole), plan = plan_of(moved);
                const AllocatedBytes of_whole(whole, *processes), of_moved(moved, *processes);
                EXPECT_EQ(
                    static_cast<std::int64_t>(of_moved.all) - static_cast<std::int64_t>(of_whole.all),
                    static_cast<std::int64_t>(planned(plan)) - static_cast<std::int64_t>(planned(kept)));
                EXPECT_EQ(plan.masters, kept.masters);
                EXPECT_EQ(plan.gradients, kept.gradients);
                EXPECT_EQ(plan.optimizer, kept.optimizer);
                EXPECT_EQ(plan.host(), ranks > 1 ? 0 : of_moved.at_rest);
                // Two of twelve blocks have slots, and the embedding; with two processes half are at rest.
                EXPECT_LT(plan.values, kept.values * (ranks > 1 ? 9 : 6) / 10);
                TrainConfig sampling = moved;
                sampling.sample_every = 5;
                EXPECT_GE(plan_of(sampling).activations, of_moved.to_sample);
                EXPECT_EQ(of_moved.planned_to_sample, of_moved.to_sample);
            }
}

/// Process 1 of 2, which counts the gathered elements.
class CountingPair final : public Communicator {
  public:
    CountingPair() : Communicator(1, 2) {}
    mutable std::int64_t gathered = 0;

  private:
    void do_all_reduce(const Context&, const Tensor&) const override {}
    void do_reduce_scatter(const Context&, const Tensor&, const Tensor&) const override {}
    void do_all_gather(const Context&, const Tensor&, const Tensor& full) const override {
        gathered += full.elements();
    }
    void do_broadcast(const Context&, const Tensor& x, int) const override { gathered += x.elements(); }
    void do_barrier(const Context&) const override {}
    std::unique_ptr<attention::Ring> make_ring(const Context&, int) const override {
        return std::make_unique<SilentRing>();
    }
};

/// A base of a model with as many elements in the embeddings as in a block, whose adapters no pass gathers.
struct CountedPasses {
    explicit CountedPasses(TrainConfig config = adapted_run())
        : replica(ctx, at_level(std::move(config), 3), std::nullopt, communicator) {
        replica.initialize(Seed{1});
    }
    std::int64_t count(const std::function<void(const StageHook&)>& pass) {
        const std::int64_t before = communicator.gathered;
        pass([&](std::size_t stage, std::optional<std::size_t> next) {
            replica.parallel.frozen()->before_stage(ctx, stage, next);
        });
        return communicator.gathered - before;
    }
    std::int64_t forward() {
        return count([&](const StageHook& hook) {
            for (std::size_t stage = 0; stage < last; ++stage) hook(stage, stage + 1);
            hook(last, std::nullopt);
        });
    }
    std::int64_t backward() {
        return count([&](const StageHook& hook) {
            for (std::size_t stage = last; stage > 1; --stage) hook(stage, stage - 1);
            hook(1, std::nullopt);
        });
    }

    static constexpr std::size_t last = 6;
    const Context ctx{Device::cpu(), 1};
    CountingPair communicator;
    Replica replica;
};

/// Nothing changes frozen weights, so the next step reads what the last one left in the slots.
TEST(FrozenValues, AreNotGatheredAgainAfterAnUpdate) {
    CountedPasses passes;
    const std::int64_t all = passes.replica.model.frozen.flat_elements();
    EXPECT_EQ(passes.forward(), all);
    passes.backward();
    const auto step = [&] {
        passes.replica.parallel.overlap_gather_with_forward(passes.ctx);
        const std::int64_t forward = passes.forward();
        return std::pair{forward, passes.backward()};
    };
    const auto second = step();
    EXPECT_LT(second.first, all) << "the first stages are in their slots";
    EXPECT_LT(second.second, all) << "the last stages are in their slots";
    EXPECT_EQ(step(), second);
}

/// A captured step gathers what its slots did not hold when it was captured.
TEST(FrozenValues, AreHeldAgainAfterOtherPasses) {
    for (const WeightFormat format : {WeightFormat::same, WeightFormat::nf4}) {
        TrainConfig config = adapted_run();
        config.adapters.frozen_format = format;
        CountedPasses passes(config);
        DataParallel& parallel = passes.replica.parallel;
        passes.forward();
        passes.backward();
        const DataParallel::HeldSlots held = parallel.held_frozen();
        const std::int64_t step = passes.forward() + passes.backward();
        const auto hold = [&] { parallel.hold_frozen(passes.ctx, held); };
        EXPECT_EQ(passes.count([&](const StageHook&) { hold(); }), 0) << "no other pass";
        EXPECT_EQ(parallel.held_frozen(), held);
        for (const bool sample : {false, true}) {
            passes.forward();
            if (sample) {
                parallel.gather_values(passes.ctx);
                parallel.release_values();
            }
            EXPECT_NE(parallel.held_frozen(), held);
            EXPECT_GT(passes.count([&](const StageHook&) { hold(); }), 0);
            EXPECT_EQ(parallel.held_frozen(), held);
            EXPECT_EQ(passes.forward() + passes.backward(), step);
        }
        parallel.forget_frozen();
        for (const auto& slots : parallel.held_frozen())
            EXPECT_THAT(slots, testing::Each(testing::Eq(std::nullopt)));
    }
}

/// A dry run, in which the memory of a step is counted, gathers nothing.
TEST(FrozenValues, AreGatheredAfterADryRun) {
    CountedPasses passes;
    FrozenValues& frozen = *passes.replica.parallel.frozen();
    const Context dry = passes.ctx.plan(Arena::for_planning(Device::cpu()));
    for (std::size_t stage = 0; stage < CountedPasses::last; ++stage)
        frozen.before_stage(dry, stage, stage + 1);
    EXPECT_EQ(passes.communicator.gathered, 0);
    const std::int64_t all = passes.replica.model.frozen.flat_elements();
    EXPECT_EQ(passes.forward(), all);
}

TEST(FrozenValues, NeedTheirStore) {
    const Context ctx(Device::cpu(), 1);
    ParameterStore store;
    store.add("p", {64}, Init::ones());
    store.allocate(ctx, DType::f32);
    EXPECT_THAT(message_of([&] { DataParallel(ctx, store, SilentPair(), {.shards_frozen = true}); }),
                testing::HasSubstr("data parallel: slots for frozen values; expected their store"));
}

}  // namespace
}  // namespace gradtile::test
