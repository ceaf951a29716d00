// Complete runs on the GPU.
#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <support/cuda_test.h>
#include <support/error_message.h>
#include <support/json.h>
#include "checkpoint/checkpoint_test_support.h"
#include "cuda_trainer.h"

#include <gradtile/core/cuda_runtime.h>
#include <gradtile/core/gemm/gemm_algorithms.h>
#include <gradtile/tools/evaluation/evaluate.h>
#include <gradtile/tools/generation/sampler.h>
#include <gradtile/train/checkpoint/snapshot_writer.h>
#include <gradtile/train/config/step_shape.h>
#include <gradtile/train/data/dataset.h>

namespace gradtile {
namespace {

using nlohmann::json;
using test::CudaTrainer;
using test::CudaTrainerSettings;
using test::message_of;
using test::state_of;
using test::TinyRun;
using testing::HasSubstr;

TEST_F(CudaTrainer, LearnsAndWritesAllFilesOfItsDirectory) {
    for (const TrainDType dtype : {TrainDType::f32, TrainDType::bf16}) {
        run.config.dtype = dtype;
        run.config.steps = 60;
        run.config.out = (run.directory / std::string(name_of(dtype))).string();
        Trainer trainer(run.config, run.on_message);
        std::vector<StepReport> reports;
        trainer.on_step([&](const StepReport& report) { reports.push_back(report); });
        const RunSummary summary = trainer.run();
        EXPECT_TRUE(summary.saved);
        EXPECT_TRUE(trainer.replays_graph());
        ASSERT_EQ(reports.size(), 60u);
        EXPECT_LT(reports.back().loss, 0.6 * reports.front().loss);
        EXPECT_TRUE(run.messages.empty()) << run.messages.front();

        // A saved model gives the same results on both devices.
        const auto on_gpu = load_model(run.config.out, {.device = Device::cuda()});
        const auto on_cpu = load_model(run.config.out);
        EXPECT_EQ(to_host(on_gpu->ctx, on_gpu->parameters.values()),
                  to_host(on_cpu->ctx, on_cpu->parameters.values()));
        const TokenSequence tokens = load_tokens({.data = run.config.data}, on_cpu->tokenizer).tokens;
        const double ours = evaluate(*on_gpu, tokens).loss, theirs = evaluate(*on_cpu, tokens).loss;
        // Sums are float32 with some thousand terms. bfloat16 values are rounded to 8 bits, about 16 times
        // between embedding and logits.
        const double relative = dtype == TrainDType::bf16 ? 16 * 0x1p-9 : 1e3 * 0x1p-24;
        EXPECT_NEAR(ours, theirs, relative * theirs);
        EXPECT_EQ(sample(*on_gpu, {.prompt = "the", .tokens = 30, .seed = 2}).size(), 33u);
        if (dtype == TrainDType::bf16) continue;  // rounds too much for equal tokens
        const std::string cached = sample(*on_gpu, {.prompt = "the", .tokens = 60, .temperature = 0.0});
        EXPECT_EQ(cached,
                  sample(*on_gpu, {.prompt = "the", .tokens = 60, .temperature = 0.0, .use_cache = false}));
    }
}

/// The frozen weights take part in no update, exchange or snapshot of gradients, and a step is one graph.
TEST_F(CudaTrainer, AdaptersAreTrainedResumedAndMergedAsOnTheCpu) {
    run.config.steps = 60;
    const std::string base = Trainer(run.config, run.on_message).run().checkpoint.string();
    run.config.init_from = base;
    run.config.adapters.rank = 4;
    run.config.steps = 20;
    run.config.lr = 1e-2;
    const auto out = [&](const std::string& name) { return (run.directory / name).string(); };
    const std::pair<TrainDType, WeightFormat> cases[] = {{TrainDType::f32, WeightFormat::same},
                                                         {TrainDType::bf16, WeightFormat::same},
                                                         {TrainDType::f32, WeightFormat::int8},
                                                         {TrainDType::bf16, WeightFormat::nf4}};
    for (const auto& [dtype, format] : cases) {
        const std::string suffix = concat(name_of(dtype), '-', name_of(format));
        run.config.dtype = dtype;
        run.config.adapters.frozen_format = format;
        run.config.device = DeviceChoice::cpu;
        run.config.out = out("cpu-" + suffix);
        const std::vector<StepReport> on_cpu = reports_of(run.config);
        run.config.device = DeviceChoice::cuda;
        run.config.out = out("whole-" + suffix);
        Trainer full(run.config, run.on_message);
        full.run();
        EXPECT_TRUE(full.replays_graph());
        run.config.out = out("parts-" + suffix);
        { Trainer(run.config, run.on_message).run(/*stop_after=*/11); }
        Trainer second(run.config.out, ResumeOptions{}, run.on_message);
        second.run();
        EXPECT_EQ(state_of(second), state_of(full));
        const std::vector<json> losses = TinyRun::losses(run.config.out);
        ASSERT_EQ(losses.size(), on_cpu.size());
        // As for whole models: sums with some thousand terms, and 16 bfloat16 roundings.
        const double relative = dtype == TrainDType::bf16 ? 16 * 0x1p-9 : 1e3 * 0x1p-24;
        for (std::size_t i = 0; i < losses.size(); ++i)
            EXPECT_NEAR(losses[i]["loss"].get<double>(), on_cpu[i].loss, relative * on_cpu[i].loss) << i;
        const auto merged = load_model(run.config.out, {.device = Device::cuda()});
        EXPECT_EQ(sample(*merged, {.prompt = "the", .tokens = 30, .seed = 2}).size(), 33u);
    }
    EXPECT_TRUE(run.messages.empty()) << run.messages.front();
}

INSTANTIATE_TEST_SUITE_P(Settings, CudaTrainerSettings, testing::ValuesIn(test::run_settings),
                         [](const auto& info) { return info.param.name; });

TEST_P(CudaTrainerSettings, ResumedRunEqualsUninterruptedRunToTheBit) {
    run.config.steps = 20;
    GetParam().change(run.config);
    TrainConfig uninterrupted_config = run.config;
    uninterrupted_config.out = (run.directory / "uninterrupted").string();
    Trainer uninterrupted(uninterrupted_config, run.on_message);
    uninterrupted.run();
    { Trainer(run.config, run.on_message).run(/*stop_after=*/11); }
    Trainer second(run.config.out, ResumeOptions{}, run.on_message);
    EXPECT_EQ(second.step(), 11);
    second.run();
    EXPECT_EQ(state_of(second), state_of(uninterrupted));
    EXPECT_EQ(TinyRun::losses(run.config.out), TinyRun::losses(uninterrupted_config.out));
    EXPECT_TRUE(run.messages.empty()) << run.messages.front();
}

/// A resumed run is equal to the bit without config.training.deterministic, too, if nothing is added in a
/// varying order. Only attention's dQ is added in a varying order, and only when a row sees more than two key
/// blocks. In these runs a row sees one block.
TEST_P(CudaTrainerSettings, ResumedRunsUseTheirCheckpointsMatrixAlgorithms) {
    run.config.training.deterministic = false;
    run.config.steps = 20;
    run.config.eval_every = run.config.save_every = 11;
    GetParam().change(run.config);
    // Algorithms of a later shape would be timed again.
    run.config.batch_warmup = std::min<std::int64_t>(run.config.batch_warmup, 8);
    std::vector<std::vector<double>> uninterrupted;
    std::vector<GemmAlgorithm> algorithms;
    {
        Trainer trainer(run.config, run.on_message);
        trainer.run();
        uninterrupted = state_of(trainer);
        algorithms = gemm_algorithms(trainer.model().ctx);
        EXPECT_GT(algorithms.size(), 5u);
    }
    const std::vector<json> losses = TinyRun::losses(run.config.out);
    const std::filesystem::path out = run.config.out;
    run.remove_saves_after(11);
    Trainer resumed(out, ResumeOptions{}, run.on_message);
    ASSERT_EQ(resumed.step(), 11);
    EXPECT_EQ(gemm_algorithms(resumed.model().ctx), algorithms);
    resumed.run();
    EXPECT_EQ(gemm_algorithms(resumed.model().ctx), algorithms);
    EXPECT_EQ(state_of(resumed), uninterrupted);
    EXPECT_EQ(TinyRun::losses(out), losses);
    EXPECT_TRUE(run.messages.empty()) << run.messages.front();
}

/// Another GPU's algorithms are reported and timed again, and so are numbers that cuBLASLt does not propose
/// as an algorithm.
TEST_F(CudaTrainer, MatrixAlgorithmsOfAnotherGpuDoNotStopARun) {
    run.config.steps = 8;
    { Trainer(run.config, run.on_message).run(/*stop_after=*/5); }
    const std::filesystem::path path = std::filesystem::path(run.config.out) / "checkpoints/step_00000005.h5";
    const Checkpoint sound = read_checkpoint(path);
    Checkpoint elsewhere = sound, no_algorithms = sound;
    const json saved = test::json_of(sound.meta["matrix_algorithms"]);
    json other_gpu_entries = saved, invalid_entries = saved;
    for (json& entry : other_gpu_entries) entry["problem"][2] = 78;  // multiprocessors
    for (json& entry : invalid_entries)
        for (json& number : entry["algorithm"]) number = number.get<std::uint64_t>() ^ 0x5a5a5a5a5a5a5a5a;
    elsewhere.meta.set("matrix_algorithms", test::json_value(other_gpu_entries));
    no_algorithms.meta.set("matrix_algorithms", test::json_value(invalid_entries));
    for (const bool other_gpu : {true, false}) {
        run.remove_saves_after(5);
        write_checkpoint(path, other_gpu ? elsewhere : no_algorithms);
        run.messages.clear();
        Trainer resumed(run.config.out, ResumeOptions{}, run.on_message);
        ASSERT_EQ(resumed.step(), 5);
        const RunSummary summary = resumed.run();
        EXPECT_EQ(summary.step, 8);
        EXPECT_EQ(summary.bad_steps, 0);
        EXPECT_TRUE(resumed.replays_graph());
        EXPECT_THAT(run.messages,
                    testing::ElementsAre(HasSubstr(other_gpu ? "another GPU" : "cuBLASLt does not propose")));
    }
}

/// Compares weights, metrics and dropout; evaluations between steps use the graph's arena.
TEST_P(CudaTrainerSettings, ReplayedGraphEqualsEagerToTheBit) {
    run.config.steps = 14;  // a shape that begins at step 12 is captured in step 13
    GetParam().change(run.config);
    run.config.out = "";
    run.config.cuda_graph = false;
    Trainer eager(run.config, run.on_message);
    eager.run();
    EXPECT_FALSE(eager.replays_graph());
    run.config.cuda_graph = true;
    Trainer replayed(run.config, run.on_message);
    replayed.run();
    EXPECT_TRUE(replayed.replays_graph());
    EXPECT_EQ(state_of(replayed), state_of(eager));
    EXPECT_TRUE(run.messages.empty()) << run.messages.front();
}

TEST_F(CudaTrainer, ManyMicroStepsAreOneGraph) {
    run.config.out = "";
    run.config.steps = 4;
    run.config.batch = 40;
    run.config.micro_batch = 1;
    Trainer replayed(run.config, run.on_message);
    replayed.run();
    EXPECT_TRUE(replayed.replays_graph());
    run.config.cuda_graph = false;
    Trainer eager(run.config, run.on_message);
    eager.run();
    EXPECT_EQ(state_of(replayed), state_of(eager));
    EXPECT_TRUE(run.messages.empty()) << run.messages.front();
}

/// The first step has loaded all kernels; the second one is captured. The plan has one constant for all
/// models, which were measured to take 75 to 96% of it, and other drivers may differ.
TEST_F(CudaTrainer, AGraphTakesAboutThePlannedMemory) {
    run.config.out = "";
    run.config.steps = 4;
    run.config.dtype = TrainDType::bf16;
    run.config.model.layers = 8;
    run.config.batch = 64;
    run.config.micro_batch = 1;
    for (const TrainDType gradients : {TrainDType::f32, TrainDType::bf16}) {
        run.config.gradient_dtype = gradients;
        std::vector<std::size_t> free_bytes;
        Trainer trainer(run.config, run.on_message);
        trainer.on_step(
            [&](const StepReport&) { free_bytes.push_back(cuda::device_memory(Device::cuda()).free_bytes); });
        trainer.run();
        EXPECT_TRUE(trainer.replays_graph());
        const double taken = static_cast<double>(free_bytes.front()) - static_cast<double>(free_bytes.back());
        const auto planned = static_cast<double>(trainer.memory_plan().graph);
        EXPECT_LE(taken, 2 * planned) << name_of(gradients);
        EXPECT_GE(taken, planned / 2) << name_of(gradients);
    }
}

TEST_F(CudaTrainer, AStepWhoseGraphWouldBeTooLargeRunsKernelByKernel) {
    run.config.out = "";
    run.config.steps = 3;
    run.config.dtype = run.config.gradient_dtype = TrainDType::bf16;
    run.config.batch = 400;
    run.config.micro_batch = 1;
    Trainer trainer(run.config, run.on_message);
    EXPECT_EQ(trainer.memory_plan().graph, 0u);
    trainer.run();
    EXPECT_FALSE(trainer.replays_graph());
    EXPECT_THAT(run.messages, testing::ElementsAre(HasSubstr(
                                  "the step is not replayed as a CUDA graph: 400 micro-steps of 2 layers "
                                  "would take about 267 MiB of the GPU's memory; expected at most 256 MiB")));
}

TEST_F(CudaTrainer, RecomputingGivesTheSameBits) {
    const ModelConfig gpt2 = run.config.model;
    ModelConfig llama = as_llama(gpt2);
    llama.kv_heads = 1;
    llama.qk_norm = true;
    for (ModelConfig model : {gpt2, llama})
        for (const TrainDType dtype : {TrainDType::f32, TrainDType::bf16}) {
            model.sinks = true;
            run.config.model = model;
            run.config.training = {.dropout = 0.1, .attention_dropout = 0.1, .deterministic = true};
            run.config.out = "";
            run.config.dtype = dtype;
            std::vector<std::vector<double>> kept;
            for (const Recompute level : {Recompute::none, Recompute::activations, Recompute::block}) {
                run.config.training.recompute = level;
                Trainer trainer(run.config, run.on_message);
                trainer.run();
                if (level == Recompute::none) kept = state_of(trainer);
                EXPECT_EQ(state_of(trainer), kept) << name_of(dtype) << ", recompute " << name_of(level);
            }
        }
}

/// The first step differs only by rounding: some thousand roundings between input and loss. In later steps
/// Adam amplifies the difference, as in Trainer.MicroBatchesGiveTheGradientOfTheWholeBatch.
void expect_close(const std::vector<StepReport>& a, const std::vector<StepReport>& b) {
    const double bound = 1e3 * std::numeric_limits<float>::epsilon();
    ASSERT_EQ(a.size(), b.size());
    for (std::size_t i = 0; i < a.size(); ++i) {
        EXPECT_NEAR(a[i].loss, b[i].loss, (i == 0 ? 1 : 100) * bound * b[i].loss) << "step " << i + 1;
        EXPECT_EQ(a[i].lr, b[i].lr);
    }
    EXPECT_NEAR(a[0].grad_norm, b[0].grad_norm, bound * b[0].grad_norm);
}

/// One process has no shards.
TEST_F(CudaTrainer, OneProcessTrainsWithEveryZeroLevel) {
    std::vector<double> plain;
    for (const std::int64_t zero : {0, 1, 2, 3}) {
        run.config.zero = zero;
        run.config.out = (run.directory / concat("zero", zero)).string();
        Trainer trainer(run.config, run.on_message);
        trainer.run();
        EXPECT_TRUE(trainer.replays_graph());
        const std::vector<double> values = to_host(trainer.model().ctx, trainer.model().parameters.values());
        if (zero == 0) plain = values;
        EXPECT_EQ(values, plain) << "zero " << zero;
    }
}

TEST_F(CudaTrainer, TrainsLikeTheCpuWithDropout) {
    for (const double dropout : {0.0, 0.2}) {
        run.config.out = "";
        run.config.training.dropout = dropout;
        run.config.device = DeviceChoice::cuda;
        const std::vector<StepReport> ours = reports_of(run.config);
        run.config.device = DeviceChoice::cpu;
        expect_close(ours, reports_of(run.config));
    }
}

TEST_F(CudaTrainer, ARunMovesBetweenDevices) {
    run.config.steps = 10;
    run.config.training.dropout = 0.1;
    TrainConfig uninterrupted = run.config;
    uninterrupted.out = "";
    uninterrupted.device = DeviceChoice::cpu;
    const std::vector<StepReport> expected = reports_of(uninterrupted);
    for (const auto& [first, second] : {std::pair{DeviceChoice::cpu, DeviceChoice::cuda},
                                        std::pair{DeviceChoice::cuda, DeviceChoice::cpu}}) {
        run.config.device = first;
        run.config.out = (run.directory / std::string(name_of(first))).string();
        std::vector<StepReport> reports;
        const auto on_message = [&](const StepReport& report) { reports.push_back(report); };
        {
            Trainer trainer(run.config, run.on_message);
            trainer.on_step(on_message);
            trainer.run(/*stop_after=*/5);
        }
        Trainer resumed(run.config.out,
                        ResumeOptions{.changes = JsonValue::object({{"device", name_of(second)}})},
                        run.on_message);
        EXPECT_EQ(resumed.step(), 5);
        EXPECT_EQ(resumed.model().ctx.device().is_cuda(), second == DeviceChoice::cuda);
        resumed.on_step(on_message);
        resumed.run();
        expect_close(reports, expected);
    }
    EXPECT_TRUE(run.messages.empty()) << run.messages.front();
}

/// Step 1 runs eagerly, step 2 is captured, step 3 has the bad weight.
TEST_F(CudaTrainer, ABadStepChangesNeitherWeightsNorOptimizerAndNamesTheParameter) {
    for (const bool cuda_graph : {false, true}) {
        run.config.out = "";
        run.config.steps = 6;
        run.config.eval_every = 0;
        run.config.cuda_graph = cuda_graph;
        run.messages.clear();
        Trainer trainer(run.config, run.on_message);
        const Context& ctx = trainer.model().ctx;
        const Tensor weight = trainer.model().parameters.find("ln_f.weight").value();
        const Tensor healthy = empty_like(gpu(), weight);
        std::vector<std::vector<double>> before;
        std::vector<StepReport> reports;
        trainer.on_step([&](const StepReport& report) {
            reports.push_back(report);
            if (report.step == 2) {
                copy(ctx, healthy, weight);
                fill(ctx, weight.slice(0, 3, 1), std::numeric_limits<double>::infinity());
                before = state_of(trainer);
            } else if (report.step == 3) {
                EXPECT_EQ(state_of(trainer), before);
                copy(ctx, weight, healthy);
            }
        });
        const RunSummary summary = trainer.run();
        EXPECT_EQ(summary.bad_steps, 1);
        ASSERT_EQ(reports.size(), 6u);
        EXPECT_EQ(reports[2].not_finite, "wte.weight");
        for (const std::size_t good : {0, 1, 3, 4, 5}) EXPECT_EQ(reports[good].not_finite, "") << good;
        ASSERT_EQ(run.messages.size(), 1u);
        EXPECT_THAT(run.messages.front(), HasSubstr("update not applied"));
    }
}

TEST_F(CudaTrainer, RefusesABatchThatDoesNotFitNamingTheLargest) {
    run.config.batch = run.config.micro_batch = 4096;
    run.config.memory_budget = "16";
    EXPECT_EQ(message_of([&] { Trainer(run.config, run.on_message); }),
              "memory-budget: 16; expected more than 768 MiB, which CUDA and its libraries take");
    run.config.memory_budget = "784";
    EXPECT_THAT(message_of([&] { Trainer(run.config, run.on_message); }),
                HasSubstr("the largest micro-batch that fits is"));
    // A batch for which the GPU's memory is too small.
    run.config.memory_budget.clear();
    run.config.batch = run.config.micro_batch = std::int64_t{1} << 24;
    EXPECT_THAT(message_of([&] { Trainer(run.config, run.on_message); }),
                HasSubstr("the largest micro-batch that fits is"));
}

TEST_F(CudaTrainer, SavesTheStateBeforeLaterWorkOfTheStream) {
    const test::TemporaryDirectory place;
    SnapshotWriter writer(CheckpointDirectory(place.path(), {.keep_last = 100}), gpu());
    Checkpoint host = test::generated_checkpoint(cpu, 7, 300);
    Checkpoint live = host;
    for (NamedTensors* tensors : {&live.params, &live.master, &live.optimizer})
        for (auto& [name, x] : *tensors) x = to_device(gpu(), x);
    writer.reserve(live);
    for (std::int64_t step = 1; step <= 10; ++step) {
        live.step = step;
        for (const NamedTensors* tensors : {&live.params, &live.master, &live.optimizer})
            for (const auto& [name, x] : *tensors) fill(gpu(), x, static_cast<double>(step));
        writer.save(live);
        for (const auto& [name, x] : live.params) fill(gpu(), x, -1.0);
    }
    writer.wait();
    const auto reports = writer.poll();
    ASSERT_EQ(reports.size(), 10u);
    for (const SaveReport& report : reports) {
        EXPECT_TRUE(report.saved) << report.message;
        const Checkpoint found = read_checkpoint(report.path);
        for (const NamedTensors* tensors : {&found.params, &found.master, &found.optimizer})
            for (const auto& [name, x] : *tensors)
                EXPECT_THAT(to_host(cpu, x), testing::Each(static_cast<double>(report.step))) << name;
    }
    // A state in which every element has another value.
    for (const auto& [name, x] : host.params) copy(gpu(), live.params.at(name), to_device(gpu(), x));
    for (const auto& [name, x] : host.master) copy(gpu(), live.master.at(name), to_device(gpu(), x));
    for (const auto& [name, x] : host.optimizer) copy(gpu(), live.optimizer.at(name), to_device(gpu(), x));
    live.step = host.step = 11;
    writer.save(live);
    writer.wait();
    test::expect_same(read_checkpoint(writer.directory().path_of(11)), host);
}

}  // namespace
}  // namespace gradtile
