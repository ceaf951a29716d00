// The command line: help, exit codes, value limits, printed settings.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include <gradtile/core/text/json_value.h>
#include <gradtile/train/config/train_config.h>

#include <support/json.h>
#include <support/sanitized.h>

#include "program.h"

namespace gradtile::test {
namespace {

using testing::HasSubstr;

const std::vector<Arguments> commands = {{},
                                         {"train"},
                                         {"sample"},
                                         {"eval"},
                                         {"gradcheck"},
                                         {"inspect"},
                                         {"corpus"},
                                         {"tokenizer"},
                                         {"tokenizer", "train"},
                                         {"tokenize"},
                                         {"bench"},
                                         {"bench", "gemm"},
                                         {"bench", "train"},
                                         {"bench", "generate"},
                                         {"bench", "layers"},
                                         {"bench", "attention"},
                                         {"bench", "comm"},
                                         {"plan"},
                                         {"models"},
                                         {"doctor"},
                                         {"lab"},
                                         {"version"}};

TEST(Usage, HelpFitsIn80Columns) {
    for (const Arguments& command : commands) {
        const Outcome help = run(command + Arguments{"--help"});
        expect_success(help);
        std::istringstream lines(help.out);
        for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80u) << line;
        // `gradtile help COMMAND` prints the same text as `gradtile COMMAND --help`.
        EXPECT_EQ(run(Arguments{"help"} + command).out, help.out);
    }
    for (const std::string& preset : preset_names()) {
        std::istringstream lines(run({"train", "--preset", preset, "--help"}).out);
        for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80u) << line;
    }
}

TEST(Usage, HelpShowsTheDefaultsOfThePreset) {
    const std::string help = run({"train", "--preset", "gpt2-350m", "--help"}).out;
    for (const char* part : {"--layers INTEGER=24 ", "--width INTEGER=1024 ", "--steps INTEGER=600000 ",
                             "--out TEXT=runs/gpt2-350m"})
        EXPECT_THAT(help, HasSubstr(part));
    EXPECT_THAT(run({"train", "--help", "--preset", "demo"}).out, HasSubstr("--optimizer NAME=muon"));
    EXPECT_THAT(run({"train", "--help"}).out, HasSubstr("--layers INTEGER=4 "));
}

TEST(Usage, DepthIsThePresetOfItsName) {
    const auto config = [](const Arguments& arguments) {
        const Outcome outcome = run(Arguments{"train", "--print-config"} + arguments);
        expect_success(outcome);
        return outcome.out;
    };
    EXPECT_EQ(config({"--depth", "8"}), config({"--preset", "depth-8"}));
    EXPECT_EQ(config({"--depth", "8", "--preset", "depth-8"}), config({"--preset", "depth-8"}));
    EXPECT_THAT(config({"--depth", "8", "--steps", "3"}), HasSubstr("\"steps\": 3,"));
    EXPECT_THAT(run({"train", "--depth", "8", "--help"}).out, HasSubstr("--width INTEGER=512 "));
    expect_refused(run({"train", "--depth", "8", "--preset", "demo"}), {"--depth: 8", "--preset demo"});
}

TEST(Usage, EverySpellingPrintsTheVersion) {
    const Outcome version = run({"--version"});
    expect_success(version);
    EXPECT_THAT(version.out, testing::MatchesRegex("gradtile [0-9.]+\n"));
    EXPECT_EQ(run({"-V"}).out, version.out);
    EXPECT_EQ(run({"version"}).out, version.out);
}

TEST(Usage, UnknownCommandIsReportedInsteadOfHelp) {
    for (const Arguments& arguments : {Arguments{"trian", "--help"}, {"help", "trian"}, {"trian"}}) {
        const Outcome outcome = run(arguments);
        EXPECT_EQ(outcome.exit_code, 2);
        expect_refused(outcome, {"unknown command 'trian'", "did you mean 'train'?"});
    }
    EXPECT_THAT(run({"frobnicate"}).err, testing::Not(HasSubstr("did you mean")));
    EXPECT_THAT(run({"train", "--frobnicate"}).err, testing::Not(HasSubstr("did you mean")));
}

TEST(Usage, UsageErrorsExitWith2) {
    const TemporaryDirectory place;
    const std::string wrong_type = place.write("type.json", R"({"steps": "3"})");
    const std::string wrong_value = place.write("value.json", R"({"steps": 0})");
    const std::string stories = write_stories(place);
    const auto out = place / "run";
    const Arguments training = tiny_training(stories, out);
    for (const Arguments& arguments : {Arguments{"trian"},
                                       {"train", "--stepz", "3"},
                                       {"train", "--steps", "x"},
                                       {"train", "--steps"},
                                       {"train", "--optimizer", "adam"},
                                       {"train", "--preset", "dem"},
                                       {"sample"},
                                       {"sample", "x", "--tokens", "-1"},
                                       {"sample", "x", "--threads", "-1"},
                                       {"eval", "x", "--data", "y", "--batch", "0"},
                                       {"eval", "x"},
                                       {"gradcheck", "--op", "layernorm"},
                                       {"corpus"},
                                       {"tokenizer", "train"},
                                       {"tokenizer", "train", "--data", "x"},
                                       {"tokenize"},
                                       {"tokenize", "x", "--out", "y"},
                                       {"tokenize", "x", "--tokenizer", "y", "--out", "z", "--format", "x"},
                                       {"corpus", "--out", "x", "--score", "y"},
                                       {"corpus", "--out", "x", "--characters", "0"},
                                       {"plan", "--gpus", "0"},
                                       {"plan", "--model", "x"},
                                       {"plan", "--device", "cpu"},
                                       {"bench", "gemm", "--runs", "0"},
                                       {"bench", "attention", "--heads", "3", "--kv-heads", "2"},
                                       {"bench", "layers", "--filter", "nothing"},
                                       {"lab", "--length", "0"},
                                       {"train", "--resume", "x", "--lr", "1"},
                                       {"train", "--resume", "x", "--preset", "demo"},
                                       {"train", "--resume", "x", "--depth", "8"},
                                       {"train", "--depth", "3", "--data", "x"},
                                       {"train", "--depth", "8", "--preset", "demo", "--data", "x"},
                                       {"train", "--gpus", "1", "--processes", "1"},
                                       training + Arguments{"--heads", "3"},
                                       training + Arguments{"--stop-after", "-1"},
                                       training + Arguments{"--timeout", "nan"},
                                       training + Arguments{"--config", wrong_type},
                                       training + Arguments{"--out", ""},
                                       training + Arguments{"--config", ""},
                                       training + Arguments{"--resume", ""},
                                       training + Arguments{"--restarts", "-1"},
                                       Arguments{"train", "--config", wrong_value, "--data", stories}}) {
        const Outcome outcome = run(arguments);
        EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
        expect_refused(outcome, {});
    }
    EXPECT_FALSE(exists(out));
}

TEST(Usage, FlagsThatWouldHaveNoEffectExitWith2) {
    const TemporaryDirectory place;
    const std::string stories = write_stories(place), bin = (place / "t.bin").string();
    const Arguments training = tiny_training(stories, place / "run");
    const Arguments tokenize{"tokenize", stories, "--tokenizer", "bytes", "--out", bin};
    const std::vector<std::pair<Arguments, std::string>> cases = {
        {training + Arguments{"--rope-base", "500000"}, "rope-base: 500000.0 has no effect"},
        {training + Arguments{"--muon-lr", "0.02", "--memory"}, "muon-lr: 0.02 has no effect"},
        {training + Arguments{"--sample-tokens", "9", "--print-config"}, "sample-tokens: 9 has no effect"},
        {training + Arguments{"--lora-on", "mlp", "--processes", "2"}, "lora-on: \"mlp\" has no effect"},
        {{"plan", "--model", "gpt2-124m", "--lora-on", "mlp"}, "lora-on: \"mlp\" has no effect"},
        {{"bench", "train", "--lora-on", "mlp"}, "lora-on: \"mlp\" has no effect"},
        {{"bench", "generate", "--window-pattern", "2"}, "window-pattern: 2 has no effect"},
        {{"train", "--preset", "demo"}, "--data FILE"},
        {{"train", "--preset", "demo", "--restarts", "2"}, "--data FILE"},
        {{"corpus", "--out", bin, "--dialogues", "0"}, "--dialogues: 0"},
        {{"corpus", "--out", bin, "--dialogues", "3", "--characters", "5"}, "only one of them"},
        {{"corpus", "--score", stories, "--dialogues", "3"}, "--score: expected neither"},
        {{"eval", "x", "--task", "y", "--text-column", "z"}, "--task: expected none of"},
        {{"eval", "x", "--task", "y", "--token-type", "uint32"}, "--task: expected none of"},
        {{"sample", "x", "--stop", ""}, "--stop ''"},
        {{"chat", "x", "--stop", "a", ""}, "--stop ''"},
        {{"tokenizer", "train", "--data", stories, "--vocabulary", "100", "--out", bin}, "vocabulary: 100"},
        {tokenize + Arguments{"--val-fraction", "0.5"}, "val-out"},
        {tokenize + Arguments{"--val-fraction", "1", "--val-out", bin + ".bin"}, "val-fraction: 1"},
    };
    for (const auto& [arguments, part] : cases) {
        const Outcome outcome = run(arguments);
        EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
        expect_refused(outcome, {part});
    }
    EXPECT_FALSE(exists(place / "run"));
    EXPECT_FALSE(std::filesystem::exists(bin));
    // A preset may hold settings that a flag makes useless.
    expect_success(run({"train", "--preset", "gpt-oss-tiny", "--positions", "learned", "--window", "0",
                        "--optimizer", "lion", "--print-config"}));
}

TEST(Usage, FailedCommandsExitWith1) {
    const TemporaryDirectory place;
    const std::string none = (place / "none").string();
    for (const Arguments& arguments : {Arguments{"sample", none},
                                       {"inspect", none},
                                       {"eval", none, "--data", none},
                                       {"train", "--data", none, "--out", none},
                                       {"train", "--config", none},
                                       {"train", "--resume", none},
                                       {"corpus", "--out", none + "/x"},
                                       {"tokenizer", "train", "--data", none, "--out", none},
                                       {"tokenize", none, "--tokenizer", none, "--out", none},
                                       {"train", "--data", none, "--tokenizer", none, "--out", none},
                                       {"plan", "--fit", none},
                                       {"plan", "--config", none}}) {
        const Outcome outcome = run(arguments);
        EXPECT_EQ(outcome.exit_code, 1) << outcome.err;
        expect_refused(outcome, {});
    }
}

TEST(Usage, RefusesHugeValues) {
    const TemporaryDirectory place;
    const std::string stories = write_stories(place);
    const std::string none = (place / "none").string();
    const std::string huge = "9223372036854775807";
    const std::string config = place.write("huge.json", R"({"layers": 1000000000})");
    const Arguments training = tiny_training(stories, none);
    for (const Arguments& arguments :
         {training + Arguments{"--layers", "1000000000"},
          training + Arguments{"--batch", huge},
          training + Arguments{"--width", huge},
          training + Arguments{"--context", huge},
          training + Arguments{"--vocabulary", huge},
          training + Arguments{"--steps", huge},
          training + Arguments{"--stop-after", huge},
          training + Arguments{"--keep-last", huge},
          training + Arguments{"--batch", "1073741824", "--context", "16777216"},
          Arguments{"train", "--config", config, "--data", stories, "--out", none},
          {"train", "--resume", none, "--steps", huge},
          {"train", "--gpus", huge},
          {"sample", none, "--tokens", huge},
          {"sample", none, "--top-k", huge},
          {"eval", none, "--data", none, "--batch", huge},
          {"corpus", "--out", none, "--characters", huge},
          {"tokenizer", "train", "--data", stories, "--out", none, "--vocabulary", huge},
          {"plan", "--gpus", huge},
          {"plan", "--layers", "1000000000"},
          {"plan", "--gpu-memory", "inf"},
          {"bench", "gemm", "--runs", huge},
          {"bench", "train", "--layers", "1000000000"},
          {"bench", "attention", "--length", huge},
          {"bench", "attention", "--batch", "4096", "--heads", "4096", "--length", "1048576"},
          {"bench", "comm", "--bytes", huge},
          {"lab", "--length", huge},
          {"lab", "--head-dim", huge},
          {"lab", "--fast-memory", huge}})
        expect_refused(run(arguments), {});
    EXPECT_FALSE(std::filesystem::exists(none));
}

TEST(Usage, RefusesMoreTextsThanFitIntoMemory) {
    const TemporaryDirectory place;
    const std::string prompts = place.write("prompts.txt", "a\nb\nc\nd\ne\nf\ng\nh\ni\nj\nk\n");
    expect_refused(run({"sample", "run", "--prompts", prompts, "--num-samples", "1000000"}),
                   {"--num-samples: 1000000", "11 prompts", "at most 10000000"});
}

TEST(Usage, RefusesANegativeFrequency) {
    const TemporaryDirectory place;
    expect_refused(run({"tokenizer", "train", "--data", write_stories(place), "--out", place / "t.json",
                        "--min-frequency", "-1"}),
                   {"min-frequency: -1", "0 or more"});
}

/// Checks the limits just below the smallest one that is enough: with less, the loader or a library's own
/// initialization ends the process before main().
TEST(Usage, LittleMemoryIsAnErrorAndNotASignal) {
    if (sanitized) GTEST_SKIP() << "a sanitizer reserves more memory than the limits here";
    const auto run_within = [](int kilobytes) {
        return run({"version"},
                   {.prefix = {"bash", "-c", concat("ulimit -v ", kilobytes, "; exec \"$0\" \"$@\"")}});
    };
    constexpr int step = 32;
    int too_little = 0, enough = 1 << 20;
    while (enough - too_little > step) {
        const int middle = (too_little + enough) / 2;
        (run_within(middle).exit_code == 0 ? enough : too_little) = middle;
    }
    int refused = 0;
    for (int kilobytes = enough - step; kilobytes >= enough - 4 * step; kilobytes -= step) {
        const Outcome outcome = run_within(kilobytes);
        EXPECT_EQ(outcome.signal, 0) << kilobytes << " KB: " << outcome.err;
        if (outcome.exit_code == 1 && outcome.err == "gradtile: out of memory\n") ++refused;
    }
    EXPECT_GE(refused, 1);
}

TEST(Usage, RefusesARunWithoutADirectory) {
    const TemporaryDirectory place;
    const std::string stories = write_stories(place);
    expect_refused(run(tiny_training(stories, "")), {"--out ''", "expected a directory"});
}

TEST(Usage, RefusesEmptyPathsByTheirName) {
    const std::vector<std::pair<Arguments, std::string>> cases = {
        {{"sample", ""}, "model ''"},
        {{"inspect", ""}, "checkpoint ''"},
        {{"report", "run", "", "--out", "r.html"}, "runs ''"},
        {{"import", "", "--out", "run"}, "weights ''"},
        {{"export", "run", "--out", ""}, "--out ''"},
        {{"tokenize", "text", "--tokenizer", "", "--out", "t.bin"}, "--tokenizer ''"},
        {{"tokenize", "text", "--tokenizer", "t.json", "--out", ""}, "--out ''"},
        {{"tokenizer", "train", "--data", "text", "--out", ""}, "--out ''"},
        {{"sample", "run", "--prompts", ""}, "--prompts ''"},
        {{"sample", "run", "--prompt-file", ""}, "--prompt-file ''"},
        {{"plan", "--config", ""}, "--config ''"},
    };
    for (const auto& [arguments, name] : cases) {
        const Outcome outcome = run(arguments);
        expect_refused(outcome, {name + ": expected a path"});
        EXPECT_EQ(outcome.exit_code, 2) << name;
    }
}

TEST(Usage, TheLastOfRepeatedFlagsCounts) {
    const Arguments print{"train", "--preset", "gpt2-124m", "--print-config"};
    const auto expect_same = [&](const Arguments& repeated, const Arguments& last) {
        const Outcome outcome = run(print + repeated);
        expect_success(outcome);
        EXPECT_EQ(outcome.out, run(print + last).out);
    };
    expect_same({"--steps", "5", "--steps", "6"}, {"--steps", "6"});
    expect_same({"--zero-init", "--no-zero-init"}, {"--no-zero-init"});
    expect_same({"--no-zero-init", "--zero-init", "--zero-init"}, {"--zero-init"});
}

TEST(Usage, PrintConfigEqualsTheRunsConfigJson) {
    const TemporaryDirectory place;
    const auto out = place / "run";
    const Arguments training = tiny_training(write_stories(place), out);
    const Outcome printed = run(training + Arguments{"--print-config"});
    expect_success(printed);
    EXPECT_FALSE(exists(out));
    expect_success(run(training));
    EXPECT_EQ(printed.out, contents_of(out / "config.json"));
    EXPECT_EQ(run({"train", "--resume", out.string(), "--print-config"}).out, printed.out);
    const auto preset_config =
        nlohmann::json::parse(run({"train", "--preset", "gpt2-124m", "--print-config"}).out);
    EXPECT_EQ(preset_config, json_of(to_json(preset("gpt2-124m"))));
}

}  // namespace
}  // namespace gradtile::test
