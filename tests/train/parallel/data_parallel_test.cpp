#include <gradtile/train/parallel/data_parallel.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/core/tensor_ops.h>
#include <gradtile/train/memory_request.h>
#include <gradtile/train/optimizers/internal/moment_rounding.h>
#include <gradtile/train/parallel/internal/rounded_sum.h>
#include <gradtile/train/replica.h>

#include <support/counted_memory.h>
#include <support/cuda_test.h>
#include <support/error_message.h>
#include <support/silent_pair.h>

namespace gradtile::test {
namespace {

TEST(DataParallel, SingleProcessExchangesNothing) {
    const Context ctx(Device::cpu(), 1);
    ParameterStore store;
    store.add("a", {100}, Init::ones());
    store.add("b", {200}, Init::ones());
    store.allocate(ctx, DType::f32);
    ProcessGroup group;
    const auto communicator = make_communicator(ctx, group);
    DataParallel parallel(ctx, store, *communicator, {.zero = 3});
    EXPECT_FALSE(parallel.is_sharded());
    EXPECT_FALSE(parallel.start_micro_step(ctx, 0, 1).gradient_complete);
    EXPECT_FALSE(parallel.start_micro_step(ctx, 0, 1).before_stage);
    EXPECT_FALSE(parallel.overlap_gather_with_forward(ctx).before_stage);
    EXPECT_FALSE(parallel.own_values().defined());
    EXPECT_EQ(parallel.value_bytes(), store.values().bytes());
    EXPECT_EQ(parallel.gradients().raw_data(), store.gradients().raw_data());
    parallel.finish_gradients(ctx);
    parallel.gather_values(ctx);
    parallel.release_values();
    EXPECT_EQ(store.parameters()[0].value().raw_data(), store.values().raw_data());
}

/// The bytes that a replica holds after two micro-steps, without the optimizer's state, of which another
/// process may have more. SilentPair exchanges nothing.
struct ReplicaBytes {
    std::size_t allocated = 0, gradients = 0, values = 0;

    ReplicaBytes(const TrainConfig& config, const Communicator& communicator = SilentPair()) {
        const auto memory = std::make_shared<test::CountedMemory>();
        const Context ctx = Context(Device::cpu(), 1).with_allocator(memory);
        Replica replica(ctx, config, std::nullopt, communicator);
        const Context arena = ctx.with_allocator(system_allocator(Device::cpu()));
        replica.initialize(Seed{1});
        const Tensor tokens = zeros(arena, {1, config.model.context}, DType::i32);
        const ForwardHooks gather = replica.parallel.overlap_gather_with_forward(arena);
        for (std::int64_t micro_step = 0; micro_step < 2; ++micro_step) {
            const BackwardHooks hooks =
                replica.parallel.start_micro_step(arena, micro_step, 2, DropoutKey::from_step(1, 1));
            Transformer::Saved saved;
            replica.model.transformer.forward(arena, tokens, tokens, saved, {.hooks = gather});
            replica.model.transformer.backward(arena, saved, hooks);
        }
        replica.parallel.finish_gradients(arena);
        allocated = memory->held - replica.optimizer->state_bytes();
        gradients = replica.parallel.gradient_bytes();
        values = replica.parallel.value_bytes();
    }
};

TEST(DataParallel, AllocatesTheGradientsAndValuesThatTheMemoryPlanHas) {
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
            const MemoryPlan one = plan_of(1), two = plan_of(2), three = plan_of(3);
            config.zero = 1;
            const ReplicaBytes bytes_of_one(config);
            config.zero = 2;
            const ReplicaBytes bytes_of_two(config);
            EXPECT_EQ(bytes_of_one.gradients, one.gradients);
            EXPECT_EQ(bytes_of_two.gradients, two.gradients);
            const auto planned = [](const MemoryPlan& plan) {
                return plan.values + plan.masters + plan.gradients;
            };
            EXPECT_EQ(bytes_of_one.allocated - bytes_of_two.allocated, planned(one) - planned(two));
            // Half of the gradients are this process's shard; buckets have at least a 16th.
            EXPECT_LT(two.gradients, one.gradients * 2 / 3);
            config.zero = 3;
            const ReplicaBytes bytes_of_three(config);
            EXPECT_EQ(bytes_of_three.gradients, three.gradients);
            EXPECT_EQ(bytes_of_three.values, three.values);
            EXPECT_EQ(bytes_of_two.allocated - bytes_of_three.allocated, planned(two) - planned(three));
            // Half of the values are this process's shard. Two of six blocks have slots.
            EXPECT_LT(three.values, one.values * 9 / 10);
        }
}

/// At every level backward passes write to slots, and the sums have 2 bytes an element instead of 4.
TEST(DataParallel, AllocatesThePlannedGradientsInBfloat16) {
    TrainConfig config;
    config.model = {.layers = 6, .heads = 2, .width = 64, .context = 16, .vocabulary = 101};
    config.batch = 4;
    config.micro_batch = 1;
    config.out.clear();
    ProcessGroup group;
    const auto alone = make_communicator(Context(Device::cpu(), 1), group);
    const SilentPair pair;
    for (const TrainDType dtype : {TrainDType::f32, TrainDType::bf16})
        for (const std::int64_t zero : {0, 1, 2, 3})
            for (const Communicator* processes : std::array<const Communicator*, 2>{alone.get(), &pair}) {
                SCOPED_TRACE(concat(name_of(dtype), ", zero ", zero, ", ", processes->size(), " processes"));
                config.dtype = dtype;
                config.zero = zero;
                const auto plan_of = [&](TrainDType gradients) {
                    config.gradient_dtype = gradients;
                    return plan_memory(Context(Device::cpu(), 1),
                                       memory_request(config, Device::cpu(), processes->size()));
                };
                const MemoryPlan in_f32 = plan_of(TrainDType::f32);
                const ReplicaBytes bytes_in_f32(config, *processes);
                const MemoryPlan in_bf16 = plan_of(TrainDType::bf16);
                const ReplicaBytes bytes_in_bf16(config, *processes);
                EXPECT_EQ(bytes_in_bf16.gradients, in_bf16.gradients);
                const auto planned = [](const MemoryPlan& plan) {
                    return plan.values + plan.masters + plan.gradients;
                };
                EXPECT_EQ(bytes_in_f32.allocated - bytes_in_bf16.allocated,
                          planned(in_f32) - planned(in_bf16));
                EXPECT_LT(in_bf16.gradients, in_f32.gradients);
            }
}

/// A process also has memory for the piece of a shard that it sends.
TEST(DataParallel, AllocatesTheCopiesOfShardsThatTheMemoryPlanHas) {
    TrainConfig config;
    config.model = {.layers = 3, .heads = 2, .width = 64, .context = 16, .vocabulary = 101};
    config.batch = 4;
    config.micro_batch = 1;
    for (const OptimizerKind optimizer : {kind_of<AdamWSettings>, kind_of<MuonSettings>})
        for (const TrainDType dtype : {TrainDType::f32, TrainDType::bf16})
            for (const MomentFormat moments : {MomentFormat::f32, MomentFormat::int8})
                for (config.zero = 1; config.zero <= 3; ++config.zero) {
                    config.optimizer = optimizer;
                    config.dtype = dtype;
                    config.moment_dtype = moments;
                    const auto plan_of = [&](std::int64_t copies) {
                        config.shard_copies = copies;
                        return plan_memory(Context(Device::cpu(), 1),
                                           memory_request(config, Device::cpu(), 2));
                    };
                    const MemoryPlan without = plan_of(0), with = plan_of(1);
                    EXPECT_EQ(without.shard_copies, 0U);
                    EXPECT_EQ(with.total() - without.total(), with.shard_copies);
                    config.shard_copies = 0;
                    const ReplicaBytes bytes_without(config);
                    config.shard_copies = 1;
                    const ReplicaBytes bytes_with(config);
                    EXPECT_EQ(bytes_with.allocated - bytes_without.allocated,
                              with.shard_copies + with.shard_copies / 3);
                }
}

/// Returns the bytes of the tensors that a checkpoint copies or gathers.
std::size_t saved_bytes(const Checkpoint& checkpoint) {
    std::size_t bytes = 0;
    for (const NamedTensors* tensors : {&checkpoint.params, &checkpoint.master, &checkpoint.optimizer})
        for (const auto& [name, x] : *tensors) bytes += x.bytes();
    return bytes;
}

/// A process saves all, its part, or as process 0 of a run without parts the shards of all. The plan also has
/// the padding of parameters, at most 64 elements with value, master and two moments each.
TEST(DataParallel, SavesTheBytesThatTheMemoryPlanHas) {
    TrainConfig config;
    config.model = {.layers = 6, .heads = 2, .width = 64, .context = 16, .vocabulary = 128};
    config.batch = 4;
    config.micro_batch = 1;
    ProcessGroup group;
    const auto alone = make_communicator(Context(Device::cpu(), 1), group);
    const SilentPair pair;
    const Context ctx(Device::cpu(), 1);
    const auto expect_planned = [&](const Communicator& processes) {
        SCOPED_TRACE(concat(processes.size(), " processes, zero ", config.zero, ", parts ",
                            config.checkpoint_parts, ", ", name_of(config.dtype)));
        Replica replica(ctx, config, std::nullopt, processes);
        Checkpoint checkpoint;
        if (processes.size() == 1) {
            replica.save_into(checkpoint);
        } else if (config.checkpoint_parts) {
            replica.save_part_into(checkpoint);
        } else {
            replica.reserve_host_memory(checkpoint);
        }
        const std::size_t saved = saved_bytes(checkpoint),
                          planned = plan_memory(ctx, memory_request(config, Device::cpu(), processes.size()))
                                        .snapshot,
                          parameters = replica.model.parameters.parameters().size();
        EXPECT_GE(planned + 4, saved);  // the count of updates
        EXPECT_LE(planned, saved + parameters * 64 * (4 + 4 + 8));
    };
    for (const TrainDType dtype : {TrainDType::f32, TrainDType::bf16}) {
        config.dtype = dtype;
        config.zero = 0;
        expect_planned(*alone);
        for (config.zero = 1; config.zero <= 3; ++config.zero)
            for (const bool parts : {false, true}) {
                config.checkpoint_parts = parts;
                expect_planned(pair);
            }
        config.checkpoint_parts = false;
    }
}

/// Returns a small model's gradients in a single process, after several micro-steps. All tokens of micro-step
/// i are tokens_of_micro_steps[i].
std::vector<double> gradients_after(const std::vector<int>& tokens_of_micro_steps,
                                    const DataParallelOptions& options) {
    const Context ctx(Device::cpu(), 1);
    ParameterStore store;
    const Transformer transformer({.layers = 3, .heads = 2, .width = 64, .context = 16, .vocabulary = 101},
                                  store);
    store.allocate(ctx, DType::f32, {.gradient_block = !options.has_slots(1)});
    store.initialize(ctx, Seed{1});
    ProcessGroup group;
    const auto communicator = make_communicator(ctx, group);
    DataParallel parallel(ctx, store, *communicator, options);
    for (std::size_t i = 0; i < tokens_of_micro_steps.size(); ++i) {
        const Tensor tokens = zeros(ctx, {2, 16}, DType::i32);
        fill(ctx, tokens, tokens_of_micro_steps[i]);
        const BackwardHooks hooks =
            parallel.start_micro_step(ctx, static_cast<std::int64_t>(i), std::ssize(tokens_of_micro_steps),
                                      DropoutKey::from_step(/*run_seed=*/5, /*step=*/9));
        Transformer::Saved saved;
        transformer.forward(ctx, tokens, tokens, saved);
        transformer.backward(ctx, std::move(saved), hooks);
    }
    store.zero_unwritten_gradients(ctx);
    parallel.finish_gradients(ctx);
    EXPECT_EQ(parallel.own_ranges(), (std::vector<FlatRange>{{0, store.flat_elements()}}));
    return to_host(ctx, parallel.gradients());
}

TEST(DataParallel, SumsInOtherMemoryAreThoseOfAGradientBlock) {
    const auto memory = std::make_shared<test::CountedMemory>();
    const DataParallelOptions offloaded{.offloads_sums = true, .host_allocator = memory};
    EXPECT_EQ(gradients_after({3}, offloaded), gradients_after({3}, {}));
    EXPECT_GT(memory->peak, 0U);
    // A gradient block adds inside the products, in another order.
    const std::vector<double> kept = gradients_after({3, 10, 17}, offloaded),
                              block = gradients_after({3, 10, 17}, {});
    ASSERT_EQ(kept.size(), block.size());
    double largest = 0;
    for (const double g : block) largest = std::max(largest, std::abs(g));
    for (std::size_t i = 0; i < block.size(); ++i) EXPECT_NEAR(kept[i], block[i], 1e-6 * largest) << i;
}

/// The first micro-step's gradients are rounded to nearest. Each later one's are added to the sum in float32,
/// which is rounded with the draws of the step and the micro-step.
TEST(DataParallel, SumsInBfloat16AreRoundedOnceInEachMicroStep) {
    const DataParallelOptions in_bfloat16{.bfloat16_sums = true}, in_slots{.offloads_sums = true};
    const std::vector<int> tokens{3, 10, 17};
    std::vector<double> expected;
    for (std::size_t k = 0; k < tokens.size(); ++k) {
        const std::vector<double> gradients = gradients_after({tokens[k]}, in_slots);
        if (k == 0) expected.assign(gradients.size(), 0.0);
        const DropoutKey key = DropoutKey::from_step(5, 9).at(sum_rounding).at(k);
        const MomentDraws draws{.key = dropout_draws("test", 0.0, key, Device::cpu()).key()};
        for (std::size_t i = 0; i < gradients.size(); ++i) {
            const auto element = static_cast<std::int64_t>(i);
            const float sum = static_cast<float>(expected[i]) + static_cast<float>(gradients[i]);
            const std::uint32_t word = draws.draw(element)[i % MomentDraws::elements];
            expected[i] =
                static_cast<float>(k == 0 ? bfloat16(sum) : rounded_stochastically(sum, word & 0xffffu));
        }
        EXPECT_EQ(gradients_after({tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(k) + 1},
                                  in_bfloat16),
                  expected)
            << k + 1 << " micro-steps";
    }
}

TEST(DataParallel, SumsInBfloat16NeedASeedTensorForASecondMicroStep) {
    const Context ctx(Device::cpu(), 1);
    ParameterStore store;
    store.add("a", {100}, Init::ones());
    store.allocate(ctx, DType::f32, {.gradient_block = false});
    ProcessGroup group;
    const auto communicator = make_communicator(ctx, group);
    DataParallel parallel(ctx, store, *communicator, {.bfloat16_sums = true});
    parallel.start_micro_step(ctx, 0, 2);
    EXPECT_THAT(message_of([&] { parallel.start_micro_step(ctx, 1, 2); }),
                testing::HasSubstr("data parallel: micro-step 1 without the step's key"));
}

}  // namespace
}  // namespace gradtile::test
