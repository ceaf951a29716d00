// `gradtile plan` output. tests/tools/plan/cost_model_test.cpp tests the predicted times.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "program.h"

namespace gradtile::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

Arguments gpt2_plan(int gpus, int micro_batch) {
    return {"plan",
            "--model",
            "gpt2-124m",
            "--dtype",
            "bf16",
            "--gpus",
            std::to_string(gpus),
            "--micro-batch",
            std::to_string(micro_batch),
            "--batch",
            std::to_string(gpus * micro_batch)};
}

json plan_of(const Arguments& arguments) {
    const Outcome outcome = run(arguments + Arguments{"--json"});
    expect_success(outcome);
    return json::parse(outcome.out);
}

/// Host memory without the copy of a checkpoint.
double offloaded_bytes(const json& plan) {
    const json& memory = plan.at("memory");
    return memory.at("host_bytes").get<double>() - memory.at("host_checkpoint_bytes").get<double>();
}

TEST(Plan, PrintsMemoryTimeAndBytesForEveryGpuCount) {
    const Outcome outcome = run(gpt2_plan(16, 8));
    expect_success(outcome);
    for (const char* part :
         {"128 sequences of 1024 tokens per step; 16 GPUs with 1 x 8; bf16, zero 0",
          "memory for 124439808 parameters", "activations", "fits into 139 GiB", "tokens/s", "scaling",
          "assumed 45 GB/s per GPU", "only up to 4 GPUs of one node were measured"})
        EXPECT_THAT(outcome.out, HasSubstr(part));
}

/// With the window, a token sees at most 128 of 1024 keys. With the pattern, every second layer has no
/// window: its tokens see 512.5 keys on average.
TEST(Plan, WindowsTakeLessTime) {
    const auto ms = [](const Arguments& more) {
        return plan_of(gpt2_plan(1, 8) + more).at("predictions")[0].at("ms_per_step").get<double>();
    };
    const double full = ms({}), half = ms({"--window", "128", "--window-pattern", "2"}),
                 all = ms({"--window", "128"});
    EXPECT_LT(half, full);
    EXPECT_NEAR(half, (full + all) / 2, 1e-6 * full);
}

TEST(Plan, RowsHaveTheirBatchAndTheBytesOfARing) {
    const json plan = plan_of(gpt2_plan(24, 8));
    std::vector<int> counts;
    for (const json& row : plan.at("predictions")) {
        const double n = row.at("gpus");
        counts.push_back(row.at("gpus"));
        EXPECT_EQ(row.at("batch"), 8 * n);
        const double gradients = plan.at("memory").at("gradients_bytes");
        EXPECT_NEAR(row.at("wire_bytes").get<double>(), 2 * (n - 1) / n * gradients, 1e-6 * gradients);
        EXPECT_EQ(row.at("network_bytes").get<double>() > 0, n > 8);
        EXPECT_NEAR(row.at("tokens_per_s").get<double>(),
                    n * 8 * 1024 / row.at("ms_per_step").get<double>() * 1e3, 1e-6 * 1e7 * n);
        EXPECT_LE(row.at("efficiency"), 1.0);
    }
    EXPECT_EQ(counts, (std::vector<int>{1, 2, 4, 8, 16, 24}));
    EXPECT_EQ(plan.at("predictions")[0].at("efficiency"), 1.0);
    EXPECT_EQ(plan.at("predictions").back().at("memory_bytes"), plan.at("memory").at("total_bytes"));
    EXPECT_GT(plan.at("memory").at("used_bytes"), plan.at("memory").at("total_bytes"));
}

/// Shards have equal sizes, in multiples of 64 elements, so each of the 4 shards may be up to 64 elements
/// larger than a quarter. Without shards, the 47 rows of 768 elements that pad the vocabulary have no
/// moments; in shards they have moments.
TEST(Plan, ZeroShardsMastersAndOptimizerState) {
    const json full = plan_of(gpt2_plan(4, 8));
    const json shared = plan_of(gpt2_plan(4, 8) + Arguments{"--zero", "1"});
    for (const auto& [key, element, padding] :
         {std::tuple{"masters_bytes", 4, 0}, {"optimizer_bytes", 8, 47 * 768}}) {
        const auto bytes = [key = key](const json& plan) {
            return plan.at("memory").at(key).get<std::int64_t>();
        };
        EXPECT_GE(4 * bytes(shared), bytes(full)) << key;
        EXPECT_LT(4 * bytes(shared), bytes(full) + (4 * 64 + padding) * element) << key;
    }
    EXPECT_LT(shared.at("memory").at("total_bytes"), full.at("memory").at("total_bytes"));
    EXPECT_LT(shared.at("predictions").back().at("wire_bytes"),
              full.at("predictions").back().at("wire_bytes"));
}

TEST(Plan, CountsAnOffloadedOptimizerAsHostMemory) {
    const json plan = plan_of(gpt2_plan(1, 8) + Arguments{"--offload", "optimizer"});
    const json kept = plan_of(gpt2_plan(1, 8)).at("memory"), offloaded = plan.at("memory");
    const double crossing = kept.at("masters_bytes").get<double>() + kept.at("optimizer_bytes").get<double>();
    EXPECT_NEAR(plan.at("predictions")[0].at("update_ms").get<double>(), 1e3 * crossing / 50e9,
                1e-3 * 1e3 * crossing / 50e9);
    const auto bytes = [](const json& memory, const char* what) {
        return memory.at(what).get<std::int64_t>();
    };
    const std::int64_t copy = bytes(kept, "checkpoint_bytes"),
                       state = bytes(kept, "masters_bytes") + bytes(kept, "optimizer_bytes");
    EXPECT_EQ(bytes(kept, "host_checkpoint_bytes"), copy);
    EXPECT_EQ(bytes(kept, "host_bytes"), copy);
    EXPECT_EQ(bytes(offloaded, "checkpoint_bytes"), 0);
    EXPECT_EQ(bytes(offloaded, "host_bytes"), state + copy);
    EXPECT_EQ(bytes(offloaded, "total_bytes"), bytes(kept, "total_bytes") - state - copy);
}

/// A graph has 110 kB for a layer in a micro-step. The products that are timed before it have the embedding's
/// gradient, with a padded vocabulary.
TEST(Plan, CountsTheCudaGraphOrTheTimedProducts) {
    const Arguments many = {"plan", "--model", "gpt2-124m", "--dtype", "bf16", "--batch", "480"};
    const auto bytes = [&](const Arguments& more) {
        return plan_of(many + more).at("memory").at("graph_bytes").get<std::int64_t>();
    };
    const std::int64_t timed = 4 * 50304 * 768;
    EXPECT_EQ(bytes({"--micro-batch", "4"}), 120 * 12 * 110'000);
    EXPECT_EQ(bytes({"--micro-batch", "4", "--no-cuda-graph"}), timed);
    EXPECT_EQ(bytes({"--micro-batch", "8"}), timed);
    EXPECT_EQ(bytes({"--micro-batch", "1"}), timed) << "480 micro-steps are not captured";
    EXPECT_THAT(run(many + Arguments{"--micro-batch", "4"}).out, HasSubstr("CUDA graph "));
    EXPECT_THAT(run(many + Arguments{"--micro-batch", "8"}).out, HasSubstr("timed products "));
}

/// Without parts, process 0 gathers the state of all in its host memory. The 47 rows of 768 elements that pad
/// the vocabulary have moments only in the largest part.
TEST(Plan, CountsTheCopiesOfACheckpointInParts) {
    const Arguments sharded = gpt2_plan(4, 8) + Arguments{"--zero", "1"};
    const json gathered = plan_of(sharded).at("memory"),
               parts = plan_of(sharded + Arguments{"--checkpoint-parts"}).at("memory");
    const auto bytes = [](const json& memory, const char* what) { return memory.at(what).get<double>(); };
    EXPECT_EQ(bytes(gathered, "checkpoint_bytes"), 0);
    EXPECT_EQ(bytes(parts, "checkpoint_bytes"), bytes(parts, "host_checkpoint_bytes"));
    EXPECT_NEAR(4 * bytes(parts, "checkpoint_bytes"), bytes(gathered, "host_checkpoint_bytes"),
                47 * 768 * 8 + 4 * 64 * 14);
    EXPECT_EQ(bytes(parts, "total_bytes") - bytes(gathered, "total_bytes"), bytes(parts, "checkpoint_bytes"));
}

/// Ten of twelve blocks' residuals cross the bus, once in each direction and slower than a block computes.
TEST(Plan, CountsOffloadedResidualsAsHostMemoryAndTime) {
    const json kept = plan_of(gpt2_plan(1, 8)),
               plan = plan_of(gpt2_plan(1, 8) + Arguments{"--offload", "residuals"});
    const json& memory = plan.at("memory");
    const double residuals = offloaded_bytes(plan);
    EXPECT_GE(residuals, 10.0 * 16 * 8 * 1024 * 768 * 2);
    EXPECT_EQ(kept.at("memory").at("total_bytes").get<std::int64_t>() -
                  memory.at("total_bytes").get<std::int64_t>(),
              kept.at("memory").at("activations_bytes").get<std::int64_t>() -
                  memory.at("activations_bytes").get<std::int64_t>());
    const auto compute_ms = [](const json& of) {
        return of.at("predictions")[0].at("compute_ms").get<double>();
    };
    EXPECT_GT(compute_ms(plan), compute_ms(kept));
    EXPECT_GE(compute_ms(plan), 1e3 * 2 * residuals / 50e9);
    EXPECT_LE(compute_ms(plan), 1e3 * 2 * residuals / 50e9 + compute_ms(kept));
}

TEST(Plan, CountsOffloadedGradientsAsHostMemory) {
    const json plan = plan_of(gpt2_plan(1, 8) + Arguments{"--offload", "gradients"}),
               kept = plan_of(gpt2_plan(1, 8));
    const double sums = kept.at("memory").at("gradients_bytes").get<double>();
    EXPECT_EQ(offloaded_bytes(plan), sums);
    // What stays are a tied embedding, 31% of the model, and at most four slots of 1/16 and a matrix (2%).
    EXPECT_LT(plan.at("memory").at("gradients_bytes").get<double>(), (0.31 + 4 * (1.0 / 16 + 0.02)) * sums);
    const auto ms = [](const json& of, const char* part) {
        return of.at("predictions")[0].at(part).get<double>();
    };
    const double crossing = 1e3 * sums / 50e9;
    EXPECT_NEAR(ms(plan, "compute_ms") - ms(kept, "compute_ms"), crossing, 1e-6 * crossing);
    EXPECT_NEAR(ms(plan, "update_ms"), 2 * crossing, 1e-6 * crossing);
}

TEST(Plan, CountsGradientsInBfloat16AsHalfTheBytes) {
    const Arguments offloaded = gpt2_plan(1, 8) + Arguments{"--offload", "gradients"};
    const json f32 = plan_of(offloaded), bf16 = plan_of(offloaded + Arguments{"--gradient-dtype", "bf16"});
    const auto bytes = [](const json& of, const char* name) {
        return of.at("memory").at(name).get<double>();
    };
    EXPECT_EQ(2 * offloaded_bytes(bf16), offloaded_bytes(f32));
    EXPECT_EQ(bytes(bf16, "gradients_bytes"), bytes(f32, "gradients_bytes"));
    const double update_ms = f32.at("predictions")[0].at("update_ms").get<double>();
    EXPECT_NEAR(2 * bf16.at("predictions")[0].at("update_ms").get<double>(), update_ms, 1e-6 * update_ms);
}

/// Both passes bring the weights while blocks compute, and the update sends them once.
TEST(Plan, CountsOffloadedWeightsAsHostMemory) {
    const json plan = plan_of(gpt2_plan(1, 8) + Arguments{"--offload", "weights"}),
               kept = plan_of(gpt2_plan(1, 8));
    const double weights = kept.at("memory").at("parameters_bytes").get<double>();
    EXPECT_EQ(offloaded_bytes(plan), weights);
    EXPECT_LT(plan.at("memory").at("parameters_bytes").get<double>(), weights / 2);
    const auto ms = [](const json& of, const char* part) {
        return of.at("predictions")[0].at(part).get<double>();
    };
    const double crossing = 1e3 * weights / 50e9;
    EXPECT_GE(ms(plan, "compute_ms"), ms(kept, "compute_ms"));
    EXPECT_LE(ms(plan, "compute_ms"), ms(kept, "compute_ms") + 2 * crossing);
    EXPECT_NEAR(ms(plan, "update_ms"), crossing, 1e-6 * crossing);
}

Arguments lora_plan(int gpus) {
    return gpt2_plan(gpus, 8) + Arguments{"--lora-rank", "8"};
}

/// Adapters have gradients, masters and moments; the frozen weights have their bytes, in 4 or 8 bits and a
/// scale for each 64 elements in the blocks. Products of frozen weights have no weight gradient, a third.
TEST(Plan, CountsAdaptersAndFrozenWeights) {
    const json full = plan_of(gpt2_plan(1, 8)), lora = plan_of(lora_plan(1)),
               nf4 = plan_of(lora_plan(1) + Arguments{"--frozen-dtype", "nf4"});
    const auto bytes = [](const json& plan, const char* what) {
        return plan.at("memory").at(what).get<double>();
    };
    // Rank 8 on matrices of 768 x 2304, 768 x 768, 768 x 3072 and 3072 x 768, in 12 layers, and padding.
    const double adapters = 12 * 8 * (3072 + 1536 + 3840 + 3840.0);
    EXPECT_NEAR(bytes(lora, "gradients_bytes"), 4 * adapters, 1e-3 * 4 * adapters);
    EXPECT_NEAR(bytes(lora, "masters_bytes"), 4 * adapters, 1e-3 * 4 * adapters);
    EXPECT_NEAR(bytes(lora, "optimizer_bytes"), 8 * adapters, 1e-3 * 8 * adapters);
    EXPECT_NEAR(bytes(lora, "parameters_bytes"), bytes(full, "parameters_bytes") + 2 * adapters, 2e5);
    const double matrices = 12 * 12 * 768.0 * 768.0;
    EXPECT_NEAR(bytes(lora, "parameters_bytes") - bytes(nf4, "parameters_bytes"), 1.5 * matrices,
                0.1 * matrices);
    const auto ms = [](const json& plan, const char* part) {
        return plan.at("predictions")[0].at(part).get<double>();
    };
    EXPECT_LT(ms(lora, "compute_ms"), 0.85 * ms(full, "compute_ms"));
    EXPECT_GT(ms(lora, "compute_ms"), 2.0 / 3 * ms(full, "compute_ms"));
    EXPECT_GT(ms(nf4, "compute_ms"), ms(lora, "compute_ms"));
    EXPECT_LT(ms(lora, "update_ms"), 0.02 * ms(full, "update_ms"));
}

/// Processes exchange the adapters' gradients. ZeRO-3 also gathers the frozen blocks in each pass.
TEST(Plan, SeveralGpusShareAdaptersAndFrozenWeights) {
    const auto of = [](const Arguments& more) { return plan_of(lora_plan(4) + more); };
    const json two = of({"--zero", "2"}), three = of({"--zero", "3"}),
               quantized = of({"--zero", "3", "--frozen-dtype", "nf4"});
    const auto wire = [](const json& plan) {
        return plan.at("predictions").back().at("wire_bytes").get<double>();
    };
    // Reduced in float32 and gathered in bfloat16, 3/4 each.
    const double adapters = 12 * 8 * (3072 + 1536 + 3840 + 3840.0);
    EXPECT_NEAR(wire(two), 0.75 * (4 + 2) * adapters, 0.01 * 6 * adapters);
    // Both embeddings, the norms and 12 blocks forward, and 11 blocks backward.
    const double blocks = 2 * 12 * 12 * 768.0 * 768.0, embeddings = 2 * (50304 + 1024) * 768.0;
    EXPECT_NEAR(wire(three) - wire(two), 0.75 * (embeddings + blocks * 23 / 12), 0.01 * blocks);
    EXPECT_NEAR(wire(three) - wire(quantized), 0.75 * 0.75 * blocks * 23 / 12, 0.1 * blocks);
    const auto parameters = [](const json& plan) {
        return plan.at("memory").at("parameters_bytes").get<double>();
    };
    EXPECT_LT(parameters(three), 0.75 * parameters(two));
    EXPECT_LT(parameters(quantized), parameters(three));
}

TEST(Plan, CountsOffloadedFrozenWeightsAsHostMemory) {
    const json kept = plan_of(lora_plan(1)), plan = plan_of(lora_plan(1) + Arguments{"--offload", "weights"});
    EXPECT_NEAR(offloaded_bytes(plan), kept.at("memory").at("parameters_bytes").get<double>(), 5e6);
    EXPECT_LT(plan.at("memory").at("parameters_bytes"), kept.at("memory").at("parameters_bytes"));
    const auto ms = [](const json& of, const char* part) {
        return of.at("predictions")[0].at(part).get<double>();
    };
    EXPECT_GE(ms(plan, "compute_ms"), ms(kept, "compute_ms"));
    EXPECT_EQ(ms(plan, "update_ms"), ms(kept, "update_ms"));
}

/// A budget chooses no frozen-dtype, so each format has a row unless one was given.
TEST(Plan, SaysHowAdaptersFitInEachFormat) {
    const Arguments small = lora_plan(1) + Arguments{"--gpu-memory", "1.5"};
    const json ways = plan_of(small).at("ways_to_fit");
    ASSERT_EQ(ways.size(), 3U);
    std::vector<std::string> formats;
    for (const json& way : ways) formats.push_back(way.at("frozen_dtype"));
    EXPECT_THAT(formats, testing::UnorderedElementsAre("same", "nf4", "int8"));
    EXPECT_THAT(run(small).out, testing::ContainsRegex("zero +frozen +GiB each"));
    const json given = plan_of(small + Arguments{"--frozen-dtype", "nf4"}).at("ways_to_fit");
    ASSERT_EQ(given.size(), 1U);
    EXPECT_EQ(given[0].at("frozen_dtype"), "nf4");
    EXPECT_THAT(run(gpt2_plan(1, 8)).out, testing::Not(HasSubstr("frozen")));
}

TEST(Plan, PrintsTheLargestMicroBatchThatFits) {
    const json plan = plan_of(gpt2_plan(2, 64) + Arguments{"--gpu-memory", "8"});
    EXPECT_FALSE(plan.at("fits"));
    const int largest = plan.at("largest_micro_batch");
    EXPECT_GT(largest, 0);
    EXPECT_TRUE(plan_of(gpt2_plan(2, largest) + Arguments{"--gpu-memory", "8"}).at("fits"));
    EXPECT_FALSE(plan_of(gpt2_plan(2, largest + 1) + Arguments{"--gpu-memory", "8"}).at("fits"));
    EXPECT_THAT(run(gpt2_plan(2, 64) + Arguments{"--gpu-memory", "8"}).out,
                HasSubstr(concat("does not fit into 8 GiB: the largest micro-batch that fits is ", largest)));
}

TEST(Plan, SaysWhatAMemoryBudgetChoosesForEachZeroLevel) {
    const Arguments small = gpt2_plan(2, 64) + Arguments{"--gpu-memory", "8"};
    const json ways = plan_of(small).at("ways_to_fit");
    ASSERT_GE(ways.size(), 3U);
    for (std::size_t zero = 0; zero < ways.size(); ++zero) {
        EXPECT_EQ(ways[zero].at("zero"), zero);
        const json& prediction = ways[zero].at("prediction");
        EXPECT_LE(prediction.at("memory_bytes"), (8LL << 30) - (768LL << 20)) << "768 MiB are for CUDA";
        EXPECT_EQ(prediction.at("gpus"), 2);
        EXPECT_THAT(ways[zero].at("chosen").get<std::string>(), HasSubstr("recompute"));
    }
    const json given = plan_of(small + Arguments{"--zero", "1"}).at("ways_to_fit");
    ASSERT_EQ(given.size(), 1U);
    EXPECT_EQ(given[0], ways[1]);
    EXPECT_EQ(plan_of(gpt2_plan(1, 8)).at("ways_to_fit")[0].at("chosen"), "");
    EXPECT_THAT(run(small).out, HasSubstr("what --memory-budget 8GiB chooses for 2 GPUs"));
}

TEST(Plan, SaysTheSmallestNeedIfNothingFits) {
    const json ways = plan_of(gpt2_plan(1, 8) + Arguments{"--gpu-memory", "1.25"}).at("ways_to_fit");
    ASSERT_EQ(ways.size(), 1U);
    EXPECT_TRUE(ways[0].at("prediction").is_null());
    EXPECT_THAT(ways[0].at("chosen").get<std::string>(), HasSubstr("smallest need"));
}

TEST(Plan, AgreesWithTheMemoryPlanOfTraining) {
    const TemporaryDirectory place;
    const Arguments training =
        tiny_training(write_stories(place), place / "run") + Arguments{"--vocabulary", "100"};
    const Outcome trained = run(training + Arguments{"--memory", "--device", "cpu"});
    expect_success(trained);
    // The gradients do not depend on the device, so both tables have the same line for them.
    const std::size_t begin = trained.out.find("  gradients"), end = trained.out.find('\n', begin);
    ASSERT_NE(begin, std::string::npos);
    Arguments plan{"plan"};
    const std::string model_flags[] = {"--layers",  "--heads", "--width",
                                       "--context", "--batch", "--vocabulary"};
    for (std::size_t i = 0; i + 1 < training.size(); ++i)
        if (std::find(std::begin(model_flags), std::end(model_flags), training[i]) != std::end(model_flags))
            plan = plan + Arguments{training[i], training[i + 1]};
    EXPECT_THAT(run(plan).out, HasSubstr(trained.out.substr(begin, end - begin)));
}

TEST(Plan, GivenConstantsOverrideFittedOnes) {
    const auto ms = [](const json& plan) {
        return plan.at("predictions").back().at("ms_per_step").get<double>();
    };
    const Arguments nodes = gpt2_plan(32, 4);
    const double baseline = ms(plan_of(nodes));
    EXPECT_GT(ms(plan_of(nodes + Arguments{"--network-bandwidth", "1"})), baseline);
    EXPECT_GT(ms(plan_of(nodes + Arguments{"--network-latency", "1000"})), baseline);
    EXPECT_GT(ms(plan_of(nodes + Arguments{"--nvlink-bandwidth", "10"})), baseline);
    EXPECT_THAT(run(nodes + Arguments{"--network-bandwidth", "25"}).out,
                HasSubstr("between nodes: your bandwidth"));
}

TEST(Plan, SameBatchIsDividedByFewerGpus) {
    const json plan = plan_of(gpt2_plan(4, 8) + Arguments{"--same-batch"});
    for (const json& row : plan.at("predictions")) EXPECT_EQ(row.at("batch"), 32);
    EXPECT_GT(plan.at("predictions")[0].at("ms_per_step"), plan.at("predictions")[2].at("ms_per_step"));
}

TEST(Plan, FitPrintsConstantsAndDeviations) {
    const TemporaryDirectory place;
    const std::string path =
        place.write("measured.jsonl", R"({"what":"all_reduce","gpus":4,"bytes":1000000000,"ms":10})"
                                      "\n"
                                      R"({"what":"all_reduce","gpus":4,"bytes":10000000,"ms":0.2})");
    const Outcome outcome = run({"plan", "--fit", path});
    expect_success(outcome);
    for (const char* part : {"nvlink_bytes", "nvlink_latency", "contention", "all_reduce", "off by %"})
        EXPECT_THAT(outcome.out, HasSubstr(part));
    // Two measurements determine two constants: 6 l + 1.5e9 / b = 10 ms, 6 l + 1.5e7 / b = 0.2 ms.
    const Outcome rows = run({"plan", "--fit", path, "--json"});
    expect_success(rows);
    for (const json& row : rows.json_lines()) {
        if (row.value("constant", "") == "nvlink_bytes") {
            EXPECT_NEAR(row.at("value").get<double>(), (1.5 - 0.015) / 9.8 * 1e3, 1e-3);
        }
        if (row.contains("deviation_percent")) {
            EXPECT_NEAR(row.at("deviation_percent").get<double>(), 0, 1e-6);
        }
    }
    const Outcome planned = run(gpt2_plan(4, 8) + Arguments{"--measurements", path});
    expect_success(planned);
    EXPECT_THAT(planned.out, HasSubstr("fitted to your measurements"));
}

/// A process keeps a quarter of the sums, the tied embedding's slot (31% of the model), and at most four
/// slots of 1/16 and a matrix of a block (2%).
TEST(Plan, ZeroTwoShardsGradients) {
    const json one = plan_of(gpt2_plan(4, 8) + Arguments{"--zero", "1"});
    const json two = plan_of(gpt2_plan(4, 8) + Arguments{"--zero", "2"});
    const auto gradients = [](const json& plan) {
        return plan.at("memory").at("gradients_bytes").get<double>();
    };
    const double all = gradients(one) / 1.25;  // the process's own gradients, and a quarter of the sums
    EXPECT_LT(gradients(two), (0.25 + 0.31 + 4 * (1.0 / 16 + 0.02)) * all);
    EXPECT_GT(gradients(two), 0.25 * all);
    EXPECT_EQ(two.at("memory").at("optimizer_bytes"), one.at("memory").at("optimizer_bytes"));
    EXPECT_EQ(two.at("predictions").back().at("wire_bytes"), one.at("predictions").back().at("wire_bytes"));
}

/// A process keeps a quarter of the weights, and slots for the tied embedding (31% of the model) and two
/// blocks (6% each). Blocks are gathered forward and, but for the last one, backward.
TEST(Plan, ZeroThreeShardsWeights) {
    const json two = plan_of(gpt2_plan(4, 8) + Arguments{"--zero", "2"});
    const json three = plan_of(gpt2_plan(4, 8) + Arguments{"--zero", "3"});
    const auto bytes = [](const json& plan, const char* what) {
        return plan.at("memory").at(what).get<double>();
    };
    EXPECT_NEAR(bytes(three, "parameters_bytes") / bytes(two, "parameters_bytes"), 0.25 + 0.31 + 2 * 0.057,
                0.01);
    for (const char* same : {"gradients_bytes", "optimizer_bytes", "activations_bytes"})
        EXPECT_EQ(bytes(three, same), bytes(two, same));
    const auto wire = [](const json& plan) {
        return plan.at("predictions").back().at("wire_bytes").get<double>();
    };
    EXPECT_NEAR(wire(three) / wire(two), (6 + 2 * 11 * 0.057) / 6, 0.005);
}

TEST(Plan, ErrorsAreOneLine) {
    expect_refused(run({"plan", "--model", "gpt2-123m"}), {"'gpt2-123m'", "'gpt2-124m'"});
    expect_refused(run({"plan", "--gpus", "0"}), {"--gpus: 0", "expected 1"});
    expect_refused(run({"plan", "--gpus", "9999999"}), {"--gpus: 9999999", "1000000"});
    expect_refused(run({"plan", "--gpus", "12"}), {"gpus: 12", "nodes of 8", "--gpus-per-node"});
    expect_refused(run({"plan", "--gpus-per-node", "0"}), {"--gpus-per-node: 0"});
    expect_refused(run({"plan", "--gpus", "8"}), {"batch: 12", "8 processes"});
    expect_refused(run({"plan", "--gpus", "4", "--micro-batch", "2"}), {"micro-batch: 2", "3 sequences"});
    expect_refused(run({"plan", "--zero", "4"}), {"zero: 4", "0 to 3"});
    expect_refused(run({"plan", "--gpu-memory", "0"}), {"--gpu-memory: 0"});
    expect_refused(run({"plan", "--network-bandwidth", "-1"}), {"--network-bandwidth: -1"});
    expect_refused(run({"plan", "--network-latency", "x"}), {"--network-latency", "'x'", "a number"});
    expect_refused(run({"plan", "--nvlink-bandwidth", "inf"}), {"--nvlink-bandwidth"});
    expect_refused(run({"plan", "--fit", "absent.jsonl"}), {"absent.jsonl", "cannot be opened"});
    expect_refused(run({"plan", "--lr", "1"}), {"--lr"});
    expect_refused(run({"plan", "--batch", "1000000000000000000"}), {"1000000000000000000", "expected 1 to"});
}

TEST(Plan, ModelsThatItCannotPredictAreRefused) {
    const TemporaryDirectory place;
    const auto plan = [&](const char* config) {
        return run({"plan", "--config", place.write("config.json", config)});
    };
    expect_refused(plan(R"({"preset": "gpt2-124m", "context-parallel": 2})"),
                   {"context-parallel: 2; the cost model has no ring attention"});
    expect_refused(plan(R"({"preset": "gpt2-124m", "prefix": true})"),
                   {"prefix: true; the cost model has causal attention only"});
}

/// Run directories whose losses follow a law: four depths with three step counts each.
Arguments write_runs(const TemporaryDirectory& place) {
    Arguments runs;
    for (const int layers : {2, 4, 8, 16})
        for (const int steps : {100, 200, 400}) {
            const double weights = 12.0 * 64 * 64 * layers, tokens = 8.0 * 128 * steps;
            const double loss = 1.5 + 30 / std::pow(weights, 0.4) + 40 / std::pow(tokens, 0.5);
            const std::string name = std::to_string(layers) + "-" + std::to_string(steps);
            std::filesystem::create_directory(place / name);
            const json config{{"layers", layers}, {"width", 64},    {"context", 128},
                              {"batch", 8},       {"steps", steps}, {"vocabulary", 65}};
            const json line{{"step", steps}, {"loss", 2.0}, {"val_loss", loss}, {"tokens", tokens}};
            place.write(name + "/config.json", config.dump());
            place.write(name + "/metrics.jsonl", line.dump() + "\n");
            runs.push_back((place / name).string());
        }
    return runs;
}

TEST(Plan, LossOfALargerRunFollowsFromTheSmallerOnes) {
    const TemporaryDirectory place;
    const Arguments runs = write_runs(place);
    const Arguments larger{"plan",    "--layers", "32",      "--width", "64",     "--context", "128",
                           "--batch", "8",        "--steps", "800",     "--json", "--loss"};
    const Outcome outcome = run(larger + runs);
    expect_success(outcome);
    const std::vector<json> rows = outcome.json_lines();
    ASSERT_EQ(rows.size(), runs.size() + 1);
    const json& last = rows.back();
    EXPECT_EQ(last.at("run"), "predicted");
    EXPECT_NEAR(last.at("weights").get<double>(), 12e-6 * 64 * 64 * 32, 1e-9);
    EXPECT_NEAR(last.at("tokens").get<double>(), 8e-6 * 128 * 800, 1e-9);
    const double loss = 1.5 + 30 / std::pow(12.0 * 64 * 64 * 32, 0.4) + 40 / std::pow(8.0 * 128 * 800, 0.5);
    EXPECT_NEAR(last.at("predicted").get<double>(), loss, 1e-4);
    EXPECT_LT(last.at("error").get<double>(), 1e-3);
}

/// config.json keeps the first --steps of a run that --resume continued with more.
TEST(Plan, ARunThatWasTrainedFurtherCountsWithAllItsTokens) {
    const TemporaryDirectory place;
    const Arguments runs = write_runs(place);
    const std::string metrics = contents_of(place / "16-400" / "metrics.jsonl");
    place.write("16-400/config.json",
                R"({"layers":16,"width":64,"context":128,"batch":8,"steps":50,"vocabulary":65})");
    place.write("16-400/metrics.jsonl", R"({"step":50,"loss":3,"val_loss":3,"tokens":51200})"
                                        "\n" +
                                            metrics);
    const Outcome outcome = run(Arguments{"plan", "--layers", "32", "--width", "64", "--context", "128",
                                          "--batch", "8", "--steps", "800", "--json", "--loss"} +
                                runs);
    expect_success(outcome);
    const json row = outcome.json_lines().at(runs.size() - 1);
    EXPECT_NEAR(row.at("tokens").get<double>(), 8e-6 * 128 * 400, 1e-9);
    EXPECT_NEAR(row.at("predicted").get<double>(), json::parse(metrics).at("val_loss").get<double>(), 1e-4);
}

TEST(Plan, RunsThatCannotBeComparedAreRefused) {
    const TemporaryDirectory place;
    const Arguments runs = write_runs(place), loss{"plan", "--loss"};
    expect_refused(run(loss + Arguments(runs.begin(), runs.begin() + 5)), {"5 runs", "at least 6"});
    expect_refused(run(loss + Arguments(runs.begin(), runs.begin() + 6)), {"2 sizes", "at least 3"});
    expect_refused(run({"plan", "--time-budget", "5m", "--loss", runs[0]}), {"--time-budget"});
    expect_refused(run({"plan", "--model", "speedrun-cpu", "--loss", runs[0]}),
                   {"time-budget", "expected steps"});
    expect_refused(run({"plan", "--fit", "x", "--loss", runs[0]}), {"--fit and --loss"});
    place.write("4-100/metrics.jsonl", R"({"step":99,"loss":2,"val_loss":2,"tokens":101376})"
                                       "\n");
    expect_refused(run(loss + runs), {"4-100", "no validation loss after its last step"});
    place.write("4-100/config.json", R"({"layers":4,"width":64,"steps":99,"vocabulary":66})");
    expect_refused(run(loss + runs), {"4-100", "vocabulary: 66", "expected 65"});
    place.write("4-100/config.json", R"({"layers":4,"width":4611686018427387904,"vocabulary":65})");
    expect_refused(run(loss + runs), {"4-100", "width: 4611686018427387904"});
}

}  // namespace
}  // namespace gradtile::test
