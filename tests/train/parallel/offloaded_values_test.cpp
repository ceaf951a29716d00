// Weights in other memory than the device's (--offload weights). On the CPU both are memory, so that every
// step, its evaluations and its checkpoints can be compared with those of weights on the device.
#include <algorithm>
#include <map>

#include <gmock/gmock.h>

#include "forked_ranks.h"

#include <gradtile/core/tensor_ops.h>
#include <gradtile/train/checkpoint/checkpoint.h>
#include <gradtile/train/memory_request.h>
#include <gradtile/train/optimizers/global_norm.h>
#include <gradtile/train/replica.h>

#include <support/counted_memory.h>
#include <support/error_message.h>
#include <support/silent_pair.h>

namespace gradtile::test {
namespace {

TrainConfig small_run() {
    TrainConfig config;
    config.model = {.layers = 5, .heads = 2, .width = 64, .context = 16, .vocabulary = 101};
    config.batch = 4;
    config.micro_batch = 1;
    config.out.clear();
    return config;
}

/// A replica with its steps, without the Trainer, which refuses to offload on a CPU.
class TrainedReplica {
  public:
    TrainedReplica(const TrainConfig& config, const Communicator& communicator)
        : communicator_(communicator), replica_(ctx_, config, std::nullopt, communicator) {
        replica_.initialize(Seed{1});
    }
    /// Two micro-steps, whose tokens depend on the step and the process, clipping and the update. Then the
    /// losses of an evaluation and the values that a sample would read.
    void step(int number) {
        DataParallel& parallel = replica_.parallel;
        const ForwardHooks gather = parallel.overlap_gather_with_forward(ctx_);
        const auto seed = from_host(ctx_, DropoutKey::seed_words(1, number), {2});
        for (std::int64_t micro_step = 0; micro_step < 2; ++micro_step) {
            const Tensor batch = tokens(2 * number + static_cast<int>(micro_step));
            const BackwardHooks hooks =
                parallel.start_micro_step(ctx_, micro_step, 2, DropoutKey::from_seed_tensor(seed));
            Transformer::Saved saved;
            transformer().forward(ctx_, batch, batch, saved, {.gradient_scale = 0.5, .hooks = gather});
            transformer().backward(ctx_, std::move(saved), hooks);
        }
        replica_.model.parameters.zero_unwritten_gradients(ctx_);
        parallel.finish_gradients(ctx_);
        ClipOptions clipping{.max_norm = 0.5};
        if (parallel.is_sharded())
            clipping.add_other_parts = [&](const Tensor& squares) { parallel.sum(ctx_, squares); };
        const Clip clip = clip_global_norm(ctx_, parallel.gradients(), clipping);
        replica_.optimizer->step(ctx_, 1e-2, {.gradient_scale = clip.scale});
        seen_["norm"].push_back(item(ctx_, clip.norm));
        const ForwardHooks again = parallel.overlap_gather_with_forward(ctx_);
        add("evaluation", to_host(ctx_, transformer().evaluate(ctx_, tokens(99), tokens(99), {}, again)));
        parallel.gather_values(ctx_);
        for (const Parameter& parameter : replica_.model.parameters.parameters())
            add("sample", to_host(ctx_, parameter.value()));
        parallel.release_values();
    }
    /// Copies of a checkpoint's tensors; none except in process 0 if the replica is sharded.
    Checkpoint saved() {
        Checkpoint views, copies;
        replica_.save_into(views);
        for (const char* group : {"params", "master", "optimizer"})
            for (const auto& [name, x] : tensors_of(views, group))
                tensors_of(copies, group)[name] = cast(ctx_, x, x.dtype());
        return copies;
    }
    /// Everything that was computed, and the checkpoint's numbers.
    std::map<std::string, std::vector<double>> numbers() {
        std::map<std::string, std::vector<double>> all = seen_;
        Checkpoint checkpoint = saved();
        for (const char* group : {"params", "master", "optimizer"})
            for (const auto& [name, x] : tensors_of(checkpoint, group))
                all[concat(group, '/', name)] = to_host(ctx_, x);
        return all;
    }
    Replica& replica() { return replica_; }

  private:
    const Transformer& transformer() const { return replica_.model.transformer; }
    Tensor tokens(int number) const {
        std::vector<std::int32_t> ids;
        for (int i = 0; i < 16; ++i)
            ids.push_back((7 * i * i + 13 * number + 29 * communicator_.rank()) % 101);
        return from_host(ctx_, ids, {1, 16});
    }
    void add(const std::string& name, const std::vector<double>& values) {
        seen_[name].insert(seen_[name].end(), values.begin(), values.end());
    }

    const Context ctx_{Device::cpu(), 1};
    const Communicator& communicator_;
    Replica replica_;
    std::map<std::string, std::vector<double>> seen_;
};

/// The first name whose numbers differ; empty if there is none.
std::string first_difference(const TrainConfig& config, Offload kept, const Communicator& communicator) {
    std::map<std::string, std::vector<double>> numbers[2];
    for (const bool offloads : {false, true}) {
        TrainConfig of_run = config;
        of_run.offload = offloads ? kept | Offload::weights : kept;
        TrainedReplica run(of_run, communicator);
        for (int step = 1; step <= 3; ++step) run.step(step);
        numbers[offloads ? 1 : 0] = run.numbers();
    }
    if (numbers[0].size() != numbers[1].size()) return "the number of tensors";
    for (const auto& [name, values] : numbers[0])
        if (values != numbers[1][name]) return name;
    return {};
}

struct Alone {
    ProcessGroup group;
    std::unique_ptr<Communicator> communicator = make_communicator(Context(Device::cpu(), 1), group);
};

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
                EXPECT_EQ(first_difference(config, kept, *alone.communicator), "");
            }
}

TEST(OffloadedValues, TrainToTheBitWithTheOptionsOfModels) {
    const Alone alone;
    for (void (*const change)(TrainConfig&) : {+[](TrainConfig& c) { c.model.tied_head = false; },
                                               +[](TrainConfig& c) { c.model.vocabulary = 131; },
                                               +[](TrainConfig& c) {
                                                   c.model.x0_lambdas = true;
                                                   c.model.value_embeddings = true;
                                                   c.model.attention_gate = true;
                                                   c.model.embedding_norm = true;
                                               },
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
        EXPECT_EQ(first_difference(config, Offload::none, *alone.communicator), "");
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

void expect_success(ForkedRanks& ranks, int size) {
    const std::vector<Exit> exits = ranks.exits();
    for (std::size_t rank = 0; rank < static_cast<std::size_t>(size); ++rank)
        EXPECT_EQ(exits[rank].exit_code, 0) << "process " << rank << ": " << exits[rank].output;
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
                    const std::string difference = first_difference(config, Offload::none, *communicator);
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
