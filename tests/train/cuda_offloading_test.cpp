// Runs on the GPU that offload a part of what they need, beside runs that keep it.
#include <algorithm>

#include <gtest/gtest.h>

#include "checkpoint/checkpoint_test_support.h"
#include "cuda_trainer.h"

#include <gradtile/core/cuda_runtime.h>
#include <gradtile/train/config/step_shape.h>

namespace gradtile {
namespace {

using test::CudaTrainer;
using test::CudaTrainerSettings;
using test::state_of;
using test::TinyRun;

/// run_settings has every optimizer, every format of masters and moments, and every kind of document. The
/// weights and masters that a run keeps are compared through the checkpoints, because their format and place
/// differ.
TEST_P(CudaTrainerSettings, OffloadingGivesTheSameBits) {
    GetParam().change(run.config);
    run.config.model.layers = 4;  // the residuals of two of them leave
    const auto trained = [&](const Trainer& trainer) {
        std::vector<std::vector<double>> state;
        for (const StateTensor& part : trainer.optimizer().state())
            state.push_back(to_host(trainer.model().ctx, part.tensor));
        return state;
    };
    // Sums of several micro-steps that are not added inside products are rounded in another order.
    const bool has_micro_steps = std::ranges::any_of(
        StepShapes::of(run.config, 1).all(), [](const StepShape& shape) { return shape.micro_steps > 1; });
    for (const Offload offload :
         {Offload::optimizer, Offload::gradients, Offload::residuals, Offload::weights,
          Offload::optimizer | Offload::gradients | Offload::residuals | Offload::weights}) {
        SCOPED_TRACE(name_of(offload));
        const bool offloads_gradients = has_part(offload, Offload::gradients);
        if (offloads_gradients && run.config.adapters.rank > 0) continue;
        const bool differs = offloads_gradients && has_micro_steps;
        TrainConfig reference = run.config;
        if (differs) reference.offload = offload;
        reference.out = (run.directory / (differs ? "uninterrupted" : "kept")).string();
        std::filesystem::remove_all(reference.out);
        Trainer kept(reference, run.on_message);
        kept.run();
        TrainConfig offloaded = run.config;
        offloaded.offload = offload;
        offloaded.out = (run.directory / std::string(name_of(offload))).string();
        {
            Trainer first(offloaded, run.on_message);
            EXPECT_GT(first.memory_plan().host(), 0u);
            if (offload == Offload::optimizer) {
                // A save copies from where the optimizer's state is.
                EXPECT_EQ(
                    kept.memory_plan().total() - first.memory_plan().total(),
                    kept.memory_plan().snapshot + first.memory_plan().host() - kept.memory_plan().host());
            }
            first.run(/*stop_after=*/4);
            EXPECT_TRUE(first.replays_graph());
        }
        if (!differs) {  // continues on the device, and then offloaded again
            const JsonValue on_device = JsonValue::object({{"offload", "none"}});
            Trainer(offloaded.out, ResumeOptions{.changes = on_device}, run.on_message).run(/*stop_after=*/7);
        }
        const JsonValue again = JsonValue::object({{"offload", std::string(name_of(offload))}});
        Trainer last(offloaded.out, ResumeOptions{.changes = again}, run.on_message);
        last.run();
        EXPECT_EQ(trained(last), trained(kept));
        const Checkpoint a = load_checkpoint(offloaded.out), b = load_checkpoint(reference.out);
        for (const auto member : {&Checkpoint::params, &Checkpoint::master}) {
            ASSERT_EQ((a.*member).size(), (b.*member).size());
            for (const auto& [name, x] : a.*member)
                EXPECT_EQ(to_host(cpu, x), to_host(cpu, (b.*member).at(name))) << name;
        }
        EXPECT_EQ(TinyRun::losses(offloaded.out), TinyRun::losses(reference.out));
    }
    EXPECT_TRUE(run.messages.empty()) << run.messages.front();
}

/// A block's weights must not be used before they have come, nor be overwritten before they were read: wide
/// blocks of which few tokens are computed wait for the bus. Evaluations and samples lie between the steps.
TEST_F(CudaTrainer, OffloadedWeightsComeInTimeOverASlowBus) {
    run.config.model = {.layers = 6, .heads = 8, .width = 512, .context = 32};
    run.config.batch = 4;
    run.config.micro_batch = 1;
    run.config.steps = 6;
    run.config.eval_every = 2;
    run.config.sample_every = 2;
    const auto trained = [&](Offload offload, const char* name) {
        run.config.offload = offload;
        run.config.out = (run.directory / name).string();
        std::filesystem::remove_all(run.config.out);
        Trainer trainer(run.config, run.on_message);
        trainer.on_sample([](const LanguageModel& model) {
            double sum = 0;
            for (const Parameter& parameter : model.parameters.parameters())
                for (const double x : to_host(model.ctx, parameter.value())) sum += x;
            return concat(sum);
        });
        trainer.run();
        EXPECT_EQ(trainer.replays_graph(), run.config.cuda_graph);
    };
    // A save is announced once it is durable, which may be before or after the next step.
    const auto steps_and_samples = [&](const char* name) {
        std::vector<nlohmann::json> lines = TinyRun::metrics(run.directory / name);
        std::erase_if(lines,
                      [](const nlohmann::json& line) { return line.value("event", "") == "checkpoint"; });
        return lines;
    };
    for (const TrainDType dtype : {TrainDType::f32, TrainDType::bf16})
        for (const Recompute level : {Recompute::none, Recompute::block})
            for (const bool graph : {true, false}) {
                run.config.dtype = dtype;
                run.config.training = {.recompute = level, .deterministic = true};
                run.config.cuda_graph = graph;
                trained(Offload::none, "kept");
                trained(Offload::weights, "offloaded");
                const Checkpoint kept = load_checkpoint((run.directory / "kept").string()),
                                 offloaded = load_checkpoint((run.directory / "offloaded").string());
                for (const auto& [name, x] : kept.params)
                    EXPECT_EQ(to_host(cpu, offloaded.params.at(name)), to_host(cpu, x))
                        << name << ", " << name_of(dtype) << ", recompute " << name_of(level) << ", graph "
                        << graph;
                EXPECT_EQ(steps_and_samples("offloaded"), steps_and_samples("kept"));
            }
    EXPECT_TRUE(run.messages.empty()) << run.messages.front();
}

/// A narrow model with long rows, whose residuals take longer to cross the bus than its blocks to compute: a
/// use of memory before a copy has read or written it would change the results.
TEST_F(CudaTrainer, OffloadedResidualsReturnInTimeOverASlowBus) {
    run.config.model = {.layers = 6, .heads = 2, .width = 64, .context = 512};
    run.config.batch = 64;
    run.config.micro_batch = 32;
    run.config.steps = 5;
    run.config.eval_every = 2;
    run.config.out = "";
    for (const TrainDType dtype : {TrainDType::f32, TrainDType::bf16})
        for (const Recompute level : {Recompute::none, Recompute::activations, Recompute::block})
            for (const bool graph : {true, false}) {
                run.config.dtype = dtype;
                run.config.training.recompute = level;
                run.config.cuda_graph = graph;
                run.config.offload = Offload::none;
                Trainer kept(run.config, run.on_message);
                kept.run();
                run.config.offload = Offload::residuals;
                Trainer offloaded(run.config, run.on_message);
                offloaded.run();
                EXPECT_EQ(offloaded.replays_graph(), graph);
                EXPECT_EQ(state_of(offloaded), state_of(kept))
                    << name_of(dtype) << ", recompute " << name_of(level) << ", graph " << graph;
            }
    EXPECT_TRUE(run.messages.empty()) << run.messages.front();
}

/// The runtime allocates in pieces of 2 MiB. A block's matrices have 4 MB and its residuals 8 MB, so the
/// pieces cannot hide the difference.
TEST_F(CudaTrainer, OffloadingLeavesThePlannedBytesOfTheDevice) {
    run.config.model = {.layers = 6, .heads = 8, .width = 512, .context = 128};
    run.config.dtype = TrainDType::bf16;
    run.config.out = "";
    run.config.cuda_graph = false;  // no step runs
    struct Bytes {
        std::int64_t used, planned;
    };
    const auto bytes_with = [&](Offload offload) {
        run.config.offload = offload;
        const std::size_t before = cuda::device_memory(Device::cuda()).free_bytes;
        const Trainer trainer(run.config, run.on_message);
        return Bytes{static_cast<std::int64_t>(before - cuda::device_memory(Device::cuda()).free_bytes),
                     static_cast<std::int64_t>(trainer.memory_plan().total())};
    };
    for (const auto& [offload, name] : EnumNames<Offload>::names) bytes_with(offload);  // loads kernels
    const Bytes kept = bytes_with(Offload::none);
    for (const auto& [offload, name] : EnumNames<Offload>::names) {
        if (offload == Offload::none) continue;
        const Bytes offloaded = bytes_with(offload);
        EXPECT_LT(offloaded.planned, kept.planned) << name;
        // At most twelve blocks, the arena, the masters, two moments and slots of gradients and values, are
        // each rounded to the runtime's pieces.
        constexpr std::int64_t piece = std::int64_t{2} << 20;
        EXPECT_NEAR(static_cast<double>(kept.used - offloaded.used),
                    static_cast<double>(kept.planned - offloaded.planned), 12.0 * piece)
            << name;
    }
}

/// The sums lose half their bytes, and slots appear, whose blocks are rounded to the runtime's pieces.
TEST_F(CudaTrainer, GradientsInBfloat16LeaveThePlannedBytesOfTheDevice) {
    run.config.model = {.layers = 6, .heads = 8, .width = 512, .context = 128};
    run.config.dtype = TrainDType::bf16;
    run.config.out = "";
    run.config.cuda_graph = false;  // no step runs
    std::int64_t used[2], planned[2];
    for (const TrainDType gradients :
         {TrainDType::bf16, TrainDType::f32, TrainDType::bf16}) {  // the first loads kernels
        run.config.gradient_dtype = gradients;
        const std::size_t before = cuda::device_memory(Device::cuda()).free_bytes;
        const Trainer trainer(run.config, run.on_message);
        const auto i = static_cast<std::size_t>(gradients);
        used[i] = static_cast<std::int64_t>(before - cuda::device_memory(Device::cuda()).free_bytes);
        planned[i] = static_cast<std::int64_t>(trainer.memory_plan().total());
    }
    EXPECT_LT(planned[1], planned[0]);
    EXPECT_NEAR(static_cast<double>(used[0] - used[1]), static_cast<double>(planned[0] - planned[1]),
                8.0 * (std::int64_t{2} << 20));
}

}  // namespace
}  // namespace gradtile
