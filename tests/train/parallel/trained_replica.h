#pragma once
/// A replica with its steps, without the Trainer, which refuses to offload on a CPU. Tests compare everything
/// that it computes with another one's.
#include <algorithm>
#include <map>

#include <gtest/gtest.h>

#include "forked_ranks.h"

#include <gradtile/core/tensor_ops.h>
#include <gradtile/train/checkpoint/checkpoint.h>
#include <gradtile/train/optimizers/global_norm.h>
#include <gradtile/train/replica.h>

namespace gradtile::test {

inline TrainConfig small_run() {
    TrainConfig config;
    config.model = {.layers = 5, .heads = 2, .width = 64, .context = 16, .vocabulary = 101};
    config.batch = 4;
    config.micro_batch = 1;
    config.out.clear();
    return config;
}

/// Options with parameters outside a block's usual ones.
inline void add_parameters(TrainConfig& config) {
    config.model.x0_lambdas = true;
    config.model.value_embeddings = true;
    config.model.attention_gate = true;
    config.model.embedding_norm = true;
}

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
        for (const ParameterStore* store : {&replica_.model.parameters, &replica_.model.frozen})
            for (const Parameter& parameter : store->parameters())
                add("sample", to_host(ctx_, parameter.dequantized(ctx_)));
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

/// The first name whose numbers differ between two runs; empty if there is none.
inline std::string first_difference(const TrainConfig& one, const TrainConfig& other,
                                    const Communicator& communicator) {
    const auto numbers_of = [&](const TrainConfig& config) {
        TrainedReplica run(config, communicator);
        for (int step = 1; step <= 3; ++step) run.step(step);
        return run.numbers();
    };
    const auto expected = numbers_of(one), got = numbers_of(other);
    if (expected.size() != got.size()) return "the number of tensors";
    for (const auto& [name, values] : expected)
        if (!got.contains(name) || got.at(name) != values) return name;
    return {};
}

struct Alone {
    ProcessGroup group;
    std::unique_ptr<Communicator> communicator = make_communicator(Context(Device::cpu(), 1), group);
};

inline void expect_success(ForkedRanks& ranks, int size) {
    const std::vector<Exit> exits = ranks.exits();
    for (std::size_t rank = 0; rank < static_cast<std::size_t>(size); ++rank)
        EXPECT_EQ(exits[rank].exit_code, 0) << "process " << rank << ": " << exits[rank].output;
}

}  // namespace gradtile::test
