// `gradtile bench` output, at very small sizes. No speed is asserted.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include <gradtile/core/allocator.h>
#include <gradtile/core/cpu/cpu_features.h>

#include "program.h"

namespace gradtile::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

/// Flags for a single timing of a model whose step takes well under a millisecond.
Arguments tiny(const std::string& what) {
    return {"bench",   what, "--device",  "cpu", "--threads", "1", "--runs",       "1", "--width", "16",
            "--heads", "2",  "--context", "16",  "--batch",   "2", "--vocabulary", "65"};
}

/// The rows that a run with --json prints.
std::vector<json> rows_of(const Arguments& arguments, const ProcessOptions& options = {}) {
    const Outcome outcome = run(arguments + Arguments{"--json"}, options);
    expect_success(outcome);
    return outcome.json_lines();
}

void expect_table(const Arguments& arguments, const std::vector<std::string>& parts,
                  const ProcessOptions& options = {}) {
    const Outcome outcome = run(arguments, options);
    expect_success(outcome);
    for (const std::string& part : parts) EXPECT_THAT(outcome.out, HasSubstr(part));
}

TEST(Bench, GemmAndLayersHaveRowsForEveryDtype) {
    for (const char* command : {"gemm", "layers"}) {
        std::map<std::string, int> rows_of_dtype;
        for (const json& row : rows_of(tiny(command) + Arguments{"--dtype", "bf16,f32"}))
            ++rows_of_dtype[row.at("dtype")];
        EXPECT_GT(rows_of_dtype["bfloat16"], 3) << command;
        EXPECT_EQ(rows_of_dtype["bfloat16"], rows_of_dtype["float32"]) << command;
        expect_refused(run({"bench", command, "--dtype", "bf16,int8"}), {"'int8'", "f32"});
    }
}

TEST(Bench, GemmAndLayersHaveRowsForEveryBatch) {
    for (const char* command : {"gemm", "layers"}) {
        const auto rows_of_batches = [&](const char* batches) {
            return rows_of(tiny(command) + Arguments{"--batch", batches}).size();
        };
        EXPECT_EQ(rows_of_batches("2,4"), 2 * rows_of_batches("2")) << command;
        EXPECT_EQ(rows_of_batches("2,4,2"), 3 * rows_of_batches("4")) << command;
    }
}

TEST(Bench, GemmListsEveryProductAndTheCeiling) {
    const Arguments gemm = tiny("gemm") + Arguments{"--layers", "3"};
    expect_table(gemm, {"2 x 16 tokens", "float32 on cpu", "of ceiling", "2048 x 2048 x 2048",
                        "forward + gelu", "data grad + gelu", "weight gradient", "all products"});
    double flops = 0;
    for (const json& row : rows_of(gemm)) {
        EXPECT_GT(row.at("us").get<double>(), 0);
        EXPECT_GT(row.at("of_ceiling").get<double>(), 0);
        if (row.at("product") == "ceiling" || row.at("product") == "step") continue;
        flops += row.at("tflops").get<double>() * row.at("us").get<double>() * row.at("count").get<double>();
    }
    // The step has 3 products (forward and two gradients) with 32 rows for each weight: 12 C^2 weights in
    // each of 3 blocks, and 65 C in the head.
    EXPECT_NEAR(flops, 6e-6 * 32 * (3 * 12 * 16 * 16 + 65 * 16), 1e-6 * flops);
    expect_table(tiny("gemm") + Arguments{"--preset", "llama-tiny", "--kv-heads", "1", "--dtype", "bf16"},
                 {"llama-tiny", "bfloat16", "gate_up", "down"});
    expect_table(gemm + Arguments{"--paddings"}, {"head 66", "head 80", "head in chunks"});
}

TEST(Bench, LayersComparesOperatorsWithACopy) {
    for (const char* dtype : {"f32", "bf16"})
        expect_table(
            tiny("layers") + Arguments{"--dtype", dtype},
            {"of copy", "copy ", "100%", "layer_norm backward_add", "rms_norm of heads", "gelu-tanh forward",
             "swiglu backward", "residual, dropout", "embedding backward, natural text", "rope",
             "cross_entropy gradients", "sum_losses", "column sums 48"});
    const std::vector<json> rows = rows_of(tiny("layers") + Arguments{"--filter", "rope"});
    ASSERT_EQ(rows.size(), 4u);
    EXPECT_EQ(rows[0].at("operator"), "copy");
    EXPECT_EQ(rows[1].at("operator"), "rope");
    EXPECT_EQ(rows[2].at("operator"), "qk-norm and rope forward");
    EXPECT_EQ(rows[3].at("operator"), "qk-norm and rope backward");
    // q and k for 32 tokens, width 16, are read and written; backward also reads their gradients.
    const double bytes = 1e-6 * 2 * 32 * 16 * 4;
    EXPECT_DOUBLE_EQ(rows[1].at("mb").get<double>(), 2 * bytes);
    EXPECT_DOUBLE_EQ(rows[2].at("mb").get<double>(), 2 * bytes);
    EXPECT_DOUBLE_EQ(rows[3].at("mb").get<double>(), 3 * bytes);
}

TEST(Bench, ExplainSaysHowTheCpuDividesTheKeysOfFewQueries) {
    const auto explained = [](const char* queries) {
        const Outcome outcome = run({"bench", "attention", "--device", "cpu", "--heads", "1", "--queries",
                                     queries, "--length", "4096", "--explain"});
        expect_success(outcome);
        return outcome.out;
    };
    EXPECT_THAT(explained("1"), HasSubstr("keys in 16 parts of 256"));
    EXPECT_THAT(explained("64"), HasSubstr("keys in 8 parts of 512"));
    EXPECT_THAT(explained("65"), Not(HasSubstr("parts")));
}
TEST(Bench, ExplainSaysThatTheHeadsOfAGroupShareATask) {
    const Outcome outcome = run({"bench", "attention", "--device", "cpu", "--heads", "8", "--kv-heads", "2",
                                 "--queries", "3", "--length", "4096", "--explain"});
    expect_success(outcome);
    if (cpu_has_avx2_fma() || cpu_has_neon()) {
        EXPECT_THAT(outcome.out, HasSubstr("12 rows of 4 heads together, 32 tasks"));
    }
}

TEST(Bench, TrainPrintsARowForEveryBatchDtypeAndRecomputation) {
    const Arguments train = tiny("train") + Arguments{"--layers", "1"};
    const std::vector<json> rows = rows_of(
        train + Arguments{"--batch", "2,4", "--dtype", "f32,bf16", "--recompute", "none,activations,block"});
    ASSERT_EQ(rows.size(), 12u);
    EXPECT_EQ(rows[0].at("batch"), 2);
    EXPECT_EQ(rows[0].at("recompute"), "none");
    EXPECT_EQ(rows[4].at("recompute"), "activations");
    EXPECT_EQ(rows[3].at("dtype"), "bf16");
    EXPECT_EQ(rows[6].at("batch"), 4);
    for (const json& row : rows) {
        // Both numbers have nine digits.
        const double tokens =
            1e-3 * row.at("tokens_per_s").get<double>() * row.at("ms_per_step").get<double>();
        EXPECT_NEAR(tokens, row.at("batch").get<double>() * 16, 1e-8 * tokens);
        EXPECT_GT(row.at("total_mib").get<double>(), row.at("activations_mib").get<double>());
    }
    expect_table(train + Arguments{"--breakdown", "--cpu-time"},
                 {"ms/step", "tokens/s", "MFU", "of ceiling", "threads 1", "attention backward",
                  "head and loss", "optimizer", "sum"});
    expect_table(train + Arguments{"--preset", "llama-tiny", "--kv-heads", "1", "--breakdown"},
                 {"2 heads over 1", "swiglu backward", "rope"});
    expect_table(train + Arguments{"--batch", "4", "--micro-batch", "2", "--optimizer", "muon"},
                 {"tokens/s"});
}

TEST(Bench, TrainMemoryPrintsNoTimes) {
    const std::vector<json> rows = rows_of({"bench", "train", "--device", "cpu", "--memory", "--preset",
                                            "gpt2-124m", "--batch", "1,64", "--recompute", "block"});
    ASSERT_EQ(rows.size(), 2u);
    EXPECT_EQ(rows[0].at("shape"),
              "12 layers x 768, 12 heads, MLP 3072, context 1024, vocabulary 50257, 124.4M parameters");
    EXPECT_LT(rows[0].at("activations_mib"), rows[1].at("activations_mib"));
    EXPECT_FALSE(rows[0].contains("ms_per_step"));
    EXPECT_EQ(rows[0].at("offload"), "none");
    EXPECT_EQ(rows[0].at("host_mib"), 0);
    const std::vector<json> accumulated =
        rows_of({"bench", "train", "--device", "cpu", "--memory", "--preset", "llama-0.5b", "--batch", "64",
                 "--micro-batch", "32"});
    ASSERT_EQ(accumulated.size(), 1u);
    EXPECT_EQ(accumulated[0].at("micro_batch"), 32);
    EXPECT_EQ(
        accumulated[0].at("shape"),
        "24 layers x 896, 14 heads over 2, MLP 4864, context 1024, vocabulary 151936, 494.0M parameters");
}

TEST(Bench, TrainChoosesWhatFitsAMemoryBudget) {
    const Arguments memory{"bench",    "train",     "--device", "cpu", "--memory",
                           "--preset", "gpt2-124m", "--batch",  "8"};
    const double budget = 3072;
    EXPECT_GT(rows_of(memory).at(0).at("total_mib").get<double>(), budget);
    const json fitted = rows_of(memory + Arguments{"--memory-budget", "3GiB"}).at(0);
    EXPECT_LE(fitted.at("total_mib").get<double>(), budget);
    EXPECT_LT(fitted.at("micro_batch").get<int>(), 8);
    expect_table({"bench",    "train", "--device",        "cpu",  "--threads", "1", "--runs",    "1",
                  "--layers", "3",     "--width",         "128",  "--heads",   "2", "--context", "64",
                  "--batch",  "32",    "--memory-budget", "20MiB"},
                 {"threads 1; chosen are recompute activations", "micro-batch"});
    expect_refused(run(memory + Arguments{"--offload", "none,residuals"}),
                   {"offload: \"residuals\" on cpu", "expected none"});
}

TEST(Bench, TrainTimesAdapters) {
    const Arguments step{"bench",   "train", "--device",  "cpu", "--threads", "1",
                         "--runs",  "1",     "--layers",  "3",   "--width",   "128",
                         "--heads", "2",     "--context", "64",  "--batch",   "2"};
    const Arguments lora = step + Arguments{"--lora-rank", "2"};
    const double all = rows_of(step).at(0).at("total_mib").get<double>();
    const double adapters = rows_of(lora).at(0).at("total_mib").get<double>();
    const double quantized =
        rows_of(lora + Arguments{"--frozen-dtype", "nf4"}).at(0).at("total_mib").get<double>();
    EXPECT_LT(adapters, all);
    EXPECT_LT(quantized, adapters);
    expect_refused(run(lora + Arguments{"--breakdown"}), {"--breakdown: with lora-rank"});
}

TEST(Bench, GenerateTimesThePromptAndTheTokensAfterIt) {
    Arguments generate = tiny("generate");
    std::erase(generate, "--batch");
    generate.erase(std::ranges::find(generate, "--vocabulary") - 1);  // --batch's value
    generate = generate + Arguments{"--layers", "2"};
    const std::vector<json> rows = rows_of(generate + Arguments{"--texts", "1,3", "--dtype", "f32,bf16"});
    ASSERT_EQ(rows.size(), 4u);
    EXPECT_EQ(rows[1].at("dtype"), "bf16");
    EXPECT_EQ(rows[2].at("texts"), 3);
    for (const json& row : rows) {
        EXPECT_EQ(row.at("prompt_tokens"), 8);
        EXPECT_EQ(row.at("tokens"), 8);
        const double texts =
            1e-3 * row.at("tokens_per_s").get<double>() * row.at("ms_per_token").get<double>();
        EXPECT_NEAR(texts, row.at("texts").get<double>(), 1e-8 * texts);
        EXPECT_GT(row.at("read_gb_per_s").get<double>(), 0);
    }
    const std::vector<json> chosen =
        rows_of(generate + Arguments{"--prompt-tokens", "1", "--tokens", "15", "--preset", "llama-tiny"});
    EXPECT_EQ(chosen.at(0).at("prompt_tokens"), 1);
    EXPECT_EQ(chosen.at(0).at("tokens"), 15);
    expect_table(generate, {"prefill tokens/s", "ms/token", "of read"});
}

TEST(Bench, AttentionTimesTheGivenShape) {
    const Arguments shape{"bench",   "attention", "--device",   "cpu", "--threads", "1",  "--runs",     "1",
                          "--heads", "4",         "--kv-heads", "2",   "--length",  "32", "--head-dim", "16"};
    const std::vector<json> rows = rows_of(shape);
    ASSERT_EQ(rows.size(), 2u);
    EXPECT_EQ(rows[0].at("pass"), "forward");
    EXPECT_EQ(rows[1].at("pass"), "backward");
    EXPECT_EQ(rows[1].at("kv_heads"), 2);
    const double forward = rows[0].at("tflops").get<double>() * rows[0].at("ms").get<double>();
    EXPECT_NEAR(forward, 1e-9 * 2 * 4 * 32 * 32 * 16, 1e-8 * forward);  // half of 4 B H S^2 D
    EXPECT_GT(rows[1].at("scratch_mb"), 1e-6 * 4 * 32 * 4);             // at least D, one float per row
    EXPECT_GT(rows[0].at("of_read"), 0);
    expect_table(shape + Arguments{"--no-causal", "--pass", "backward", "--dtype", "bf16"},
                 {"ceiling", "full", "backward"});
    const std::vector<json> with_options = rows_of(
        shape + Arguments{"--softcap", "30", "--alibi", "--bias", "hqk", "--sink", "--dropout", "0.1"});
    ASSERT_EQ(with_options.size(), 2u);
    for (const char* algorithm : {"flash2", "naive", "memory_efficient", "flash1"})
        EXPECT_EQ(rows_of(shape + Arguments{"--algorithm", algorithm})[0].at("algorithm"), algorithm);
    EXPECT_EQ(rows_of(shape + Arguments{"--algorithm", "flash"})[0].at("algorithm"), "flash2");
}

TEST(Bench, AttentionTimesAMaskBesideTheCallWithoutIt) {
    for (const char* const mask : {"documents", "prefix", "shared-prompt", "window"}) {
        const std::vector<json> rows =
            rows_of({"bench", "attention", "--device", "cpu", "--threads", "1", "--runs", "1", "--heads", "1",
                     "--length", "300", "--head-dim", "16", "--mask", mask});
        ASSERT_EQ(rows.size(), 4u) << mask;
        EXPECT_EQ(rows[0].at("mask"), "full");
        EXPECT_EQ(rows[2].at("mask"), mask);
    }
    expect_refused(run({"bench", "attention", "--mask", "diagonal"}),
                   {"--mask: diagonal", "documents", "prefix", "shared-prompt", "window"});
    expect_refused(run({"bench", "attention", "--mask", "prefix", "--queries", "1"}),
                   {"--mask", "--queries"});
}

TEST(Bench, AttentionTimesEveryLengthWithEveryNumberOfQueries) {
    const std::vector<json> rows =
        rows_of({"bench", "attention", "--device", "cpu", "--threads", "1", "--runs", "1", "--heads", "1",
                 "--queries", "1,3", "--length", "600,32", "--pass", "forward", "--cpu-time"});
    ASSERT_EQ(rows.size(), 4u);
    EXPECT_EQ(rows[1].at("queries"), 3);
    EXPECT_EQ(rows[1].at("length"), 600);
    EXPECT_EQ(rows[2].at("queries"), 1);
    EXPECT_EQ(rows[2].at("length"), 32);
    expect_refused(run({"bench", "attention", "--queries", "1,0"}),
                   {"--queries: 0", "expected 1 to 1048576"});
    expect_refused(run({"bench", "attention", "--length", "8,,9"}), {"--length: ''", "an integer"});
    expect_refused(run({"bench", "attention", "--length", ""}), {"--length"});
    expect_refused(run({"bench", "attention", "--device", "cpu", "--threads", "2", "--cpu-time"}),
                   {"--cpu-time", "--threads 1"});
}

TEST(Bench, AttentionIsComparedWithAnAnchorsTimes) {
    const TemporaryDirectory directory;
    const std::string path = directory.path() / "anchor.txt";
    const auto write = [&](const std::string& text) { directory.write("anchor.txt", text); };
    const Arguments anchored{"bench", "attention", "--device", "cpu",      "--threads",
                             "1",     "--runs",    "1",        "--anchor", path};
    write("2,3,16,8,1 | first 1000 2000 | second 10 20\n1,2,8,16,0 | first 3000 4000 | second 30 40\n");
    const std::vector<json> rows = rows_of(anchored);
    ASSERT_EQ(rows.size(), 4u);
    const double first[] = {1000, 2000, 3000, 4000};
    for (std::size_t i = 0; i < rows.size(); ++i) {
        const double ms = rows[i].at("ms");
        EXPECT_EQ(rows[i].at("pass"), i % 2 == 0 ? "forward" : "backward");
        EXPECT_EQ(rows[i].at("mask"), i < 2 ? "causal" : "full");
        EXPECT_EQ(rows[i].at("heads"), i < 2 ? 3 : 2);
        EXPECT_NEAR(rows[i].at("first").get<double>() * ms / first[i], 1, 1e-3);
        EXPECT_NEAR(rows[i].at("second").get<double>() * ms / first[i], 0.01, 1e-5);
    }
    expect_table(anchored, {"first", "forward over first: ", "backward over second: ", "geometric mean"});
    expect_refused(run(anchored + Arguments{"--heads", "2"}), {"--anchor", "shapes"});
    expect_refused(run(anchored + Arguments{"--tune"}), {"--tune", "--anchor"});
    for (const char* line :
         {"2,3,16,8,2 | a 1 2", "2,3,16,8,1", "2,3,16,8,1 | a 1", "2,3,16,8,1 a 1 2", "0,3,16,8,1 | a 1 2",
          "2,3,16,257,1 | a 1 2", "2,3,16,8,1 | a 0 2", "2,3,16,8,1 | a 1 x", "2;3;16;8;1 | a 1 2",
          "9999999999999999999,3,16,8,1 | a 1 2", "Traceback"}) {
        write(line);
        expect_refused(run(anchored), {path + ":1: '", line, "FORWARD_MS"});
    }
    write("1,1,8,8,1 | a 1 2\n1,1,8,8,1 | b 1 2\n");
    expect_refused(run(anchored), {path + ":2: ", "implementations"});
    write("");
    expect_refused(run(anchored), {path, "is empty"});
    expect_refused(run({"bench", "attention", "--anchor", path + "x"}), {path + "x", "cannot be read"});
}

TEST(Bench, KernelsOfGpusAreRefusedWithoutOne) {
    if (cuda_device_count() > 0) {
        const ProcessOptions with_gpu{.without_gpu = false};
        EXPECT_EQ(rows_of({"bench", "few-rows"}, with_gpu).size(), 10u * 5 - 6);
        EXPECT_EQ(rows_of({"bench", "decode", "--mib", "1,3", "--kv-heads", "32,4", "--head-dim", "64",
                           "--tokens", "1,16", "--block-tokens", "0"},
                          with_gpu)
                      .size(),
                  8u);
        EXPECT_EQ(rows_of({"bench", "decode", "--texts", "2", "--keys", "100", "--kv-heads", "8",
                           "--head-dim", "128", "--tokens", "4", "--window", "50"},
                          with_gpu)
                      .size(),
                  1u);
        EXPECT_GT(rows_of({"bench", "muon", "--layers", "1", "--width", "128"}, with_gpu).size(), 30u);
    }
    for (const char* command : {"decode", "few-rows", "muon"})
        expect_refused(run({"bench", command}), {"cuda", "--device cpu"});
    expect_refused(run({"bench", "few-rows", "--rows", "9"}), {"--rows: 9", "1 to 8"});
    expect_refused(run({"bench", "decode", "--tokens", "17"}), {"--tokens: 17", "1 to 16"});
    expect_refused(run({"bench", "decode", "--kv-heads", "5"}), {"--kv-heads: 5", "32 heads"});
    expect_refused(run({"bench", "decode", "--block-tokens", "24"}), {"--block-tokens: 24", "power of two"});
}

TEST(Bench, TuningAttentionNeedsAGpuAndTheAlgorithmWithCandidates) {
    const Arguments tune{"bench", "attention", "--tune", "--batch", "2", "--heads", "4", "--length", "300"};
    expect_refused(run(tune + Arguments{"--explain"}), {"--tune", "--explain"});
    expect_refused(run(tune + Arguments{"--cpu-time", "--threads", "1"}), {"--tune", "--cpu-time"});
    expect_refused(run(tune + Arguments{"--algorithm", "flash1"}),
                   {"--tune", "--algorithm flash1", "flash2"});
    expect_refused(run(tune + Arguments{"--device", "cpu"}),
                   {"--tune", "the device is cpu", "--device cuda"});
    if (cuda_device_count() == 0) {
        expect_refused(run(tune), {"--tune", "the device is cpu", "--device cuda"});
        return;
    }
    const ProcessOptions with_gpu{.without_gpu = false};
    const Arguments on_gpu = tune + Arguments{"--device", "cuda", "--runs", "1"};
    for (const char* dtype : {"bf16", "f32"}) {
        const std::vector<json> rows = rows_of(on_gpu + Arguments{"--dtype", dtype}, with_gpu);
        int policies = 0;
        for (const json& row : rows) {
            policies += row.at("choice") == "policy" ? 1 : 0;
            EXPECT_EQ(row.at("length"), 300);
            EXPECT_GT(row.at("ms"), 0);
            EXPECT_LE(row.at("of_bound"), 1);
        }
        EXPECT_EQ(policies, 2) << "one of each pass";
    }
    expect_table(on_gpu, {"2 x 4 heads over 4, 300 x 300", "policy", "forward", "backward"}, with_gpu);
    expect_table({"bench", "attention", "--tune", "--device", "cuda", "--runs", "1", "--batch", "1",
                  "--heads", "2", "--queries", "1", "--length", "2000", "--pass", "forward"},
                 {"few queries", "splits"}, with_gpu);
}

TEST(Bench, ErrorsAreOneLine) {
    expect_refused(run({"bench", "gmm"}), {"'gmm'", "'gemm'"});
    expect_refused(run({"bench", "gemm", "--preset", "gpt"}), {"preset: 'gpt'", "known:"});
    expect_refused(run({"bench", "gemm", "--batch", "0"}), {"batch: 0", "expected 1 to"});
    expect_refused(run({"bench", "layers", "--heads", "3"}), {"heads", "3"});
    expect_refused(run({"bench", "layers", "--filter", "softmax"}), {"--filter: 'softmax'", "norm"});
    expect_refused(run({"bench", "layers", "--runs", "0"}), {"--runs: 0", "expected 1"});
    expect_refused(run({"bench", "train", "--batch", "4,x"}), {"--batch", "'x'", "an integer"});
    expect_refused(run({"bench", "train", "--batch", "4,0"}), {"batch: 0", "expected 1 to"});
    expect_refused(run({"bench", "train", "--dtype", "f16"}), {"--dtype", "'f16'", "f32 or bf16"});
    expect_refused(run({"bench", "generate", "--texts", "1,0"}), {"--texts: 0", "expected 1 to 4096"});
    expect_refused(run({"bench", "generate", "--context", "16", "--prompt-tokens", "16"}),
                   {"--prompt-tokens: 16", "expected 0 to 15"});
    expect_refused(run({"bench", "generate", "--context", "16", "--prompt-tokens", "10", "--tokens", "7"}),
                   {"--tokens: 7", "expected 0 to 6"});
    expect_refused(run({"bench", "generate", "--layers", "1000000000"}), {"layers"});
    expect_refused(run({"bench", "train", "--preset", "gpt2-124m", "--batch", "1000000"}),
                   {"micro-batch 1000000", "the largest micro-batch that fits"});
    expect_refused(run({"bench", "gemm", "--preset", "gpt2-774m", "--batch", "1000000"}),
                   {"bench gemm: needs", "MiB", "--batch"});
    expect_refused(run({"bench", "train", "--device", "cpu", "--no-cuda-graph"}),
                   {"--cuda-graph: needs a GPU"});
    expect_refused(run({"bench", "train", "--device", "cpu", "--threads", "2", "--cpu-time"}),
                   {"--threads 1"});
    expect_refused(run({"bench", "attention", "--length", "0"}), {"--length: 0", "expected 1"});
    expect_refused(run({"bench", "attention", "--heads", "4", "--kv-heads", "3"}),
                   {"--kv-heads: 3", "4 heads"});
    expect_refused(run({"bench", "attention", "--softcap", "-1"}), {"--softcap: -1", "0 to 1e+20"});
    expect_refused(run({"bench", "attention", "--dropout", "1"}), {"--dropout: 1", "less than 1"});
    expect_refused(run({"bench", "attention", "--bias", "qh"}), {"--bias: qh", "expected letters of bhqk"});
    expect_refused(run({"bench", "attention", "--algorithm", "flash3"}),
                   {"--algorithm: 'flash3'", "flash2, naive, memory_efficient or flash1"});
    if (cuda_device_count() > 0) return;
    for (const char* what : {"attention", "gemm", "layers", "train"})
        expect_refused(run({"bench", what, "--device", "cuda"}), {"device cuda", "use --device cpu"});
}

TEST(Bench, OfCheckpointsLeavesNoFiles) {
    const TemporaryDirectory place;
    const std::vector<json> rows = rows_of({"bench", "checkpoint", "--preset", "shakespeare-char-cpu",
                                            "--runs", "1", "--directory", place.path().string()});
    ASSERT_EQ(rows.size(), 1u);
    for (const char* key : {"gigabytes", "memcpy_s", "blocked_s", "plain_write_s", "durable_s", "read_s"})
        EXPECT_GT(rows[0].at(key).get<double>(), 0.0) << key;
    EXPECT_TRUE(std::filesystem::is_empty(place.path()));
    expect_refused(run({"bench", "checkpoint", "--preset", "gpt5"}), {"gpt5"});
}

TEST(Bench, WithoutACommandListsItsCommands) {
    const Outcome outcome = run({"bench"});
    EXPECT_EQ(outcome.exit_code, 2);
    for (const char* part :
         {"gradtile bench", "attention", "checkpoint", "comm", "gemm", "generate", "layers", "train"})
        EXPECT_THAT(outcome.out, HasSubstr(part));
    for (const char* what : {"attention", "checkpoint", "comm", "gemm", "generate", "layers", "train"})
        EXPECT_THAT(run({"bench", what, "--help"}).out, HasSubstr(concat("gradtile bench ", what)));
}

}  // namespace
}  // namespace gradtile::test
