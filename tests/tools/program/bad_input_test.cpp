// Wrong settings and wrong data give one error line, a non-zero exit code and no new files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include <gradtile/core/allocator.h>

#include <support/sanitized.h>

#include "program.h"

namespace gradtile::test {
namespace {

/// Returns integers as little-endian bytes, as in a token file.
template <class Id>
std::string bytes_of(const std::vector<Id>& ids) {
    return {reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(Id)};
}

/// An llm.c shard whose header announces `announced` tokens.
std::string shard(std::int32_t announced, const std::vector<std::uint16_t>& ids) {
    std::vector<std::int32_t> header(256);
    header[0] = 20240520;
    header[1] = 1;
    header[2] = announced;
    return bytes_of(header) + bytes_of(ids);
}

class BadInput : public testing::Test {
  protected:
    /// Expects that the program prints an error and creates no directory for the run.
    void expect_training_refused(const Arguments& extra, const std::vector<std::string>& parts,
                                 const std::string& data = {}) {
        const auto out = place_ / "run";
        expect_refused(run(tiny_training(data.empty() ? stories_ : data, out) + extra), parts);
        EXPECT_FALSE(exists(out));
    }
    void expect_data_refused(const std::string& data, const std::vector<std::string>& parts,
                             const Arguments& extra = {}) {
        expect_training_refused(extra, parts, data);
    }
    void expect_config_refused(const std::string& json, const std::vector<std::string>& parts) {
        const std::string path = place_.write("config.json", json);
        expect_training_refused({"--config", path}, std::vector{path} + parts);
    }

    TemporaryDirectory place_;
    std::string stories_ = write_stories(place_);
};

/// Otherwise the loss would be 0 or not a number.
TEST_F(BadInput, RefusesDataWhoseTargetsAreAllIgnored) {
    const Arguments ignored{"--ignore-token", "7"};
    const std::string all = place_.write("all.bin", bytes_of(std::vector<std::uint16_t>(400, 7)));
    expect_data_refused(all, {"all.bin: has no target to train on"},
                        ignored + Arguments{"--val-fraction", "0"});
    std::vector<std::uint16_t> ids(400, 7);
    for (std::size_t i = 0; i < 360; ++i) ids[i] = static_cast<std::uint16_t>(i % 5);
    const std::string end = place_.write("end.bin", bytes_of(ids));
    expect_data_refused(end, {"end.bin: has no target to validate on"},
                        ignored + Arguments{"--val-fraction", "0.09"});
    expect_training_refused(ignored + Arguments{"--val-data", all}, {"all.bin: has no target to validate on"},
                            end);
    const std::string trained = (place_ / "trained").string();
    expect_success(run(tiny_training(end, trained) + ignored + Arguments{"--val-fraction", "0.2"}));
    expect_refused(run({"eval", trained, "--data", all}), {"all.bin: has no target to validate on"});
}

TEST_F(BadInput, RefusesNumbersThatAConfigFileCannotHold) {
    expect_training_refused({"--clip", "inf"}, {"clip: inf", "expected a finite number"});
    expect_training_refused({"--weight-decay", "nan"}, {"weight-decay: nan"});
    expect_training_refused({"--norm-epsilon", "inf"}, {"norm-epsilon: inf"});
    expect_training_refused({"--memory-budget", "17592186044416"}, {"memory-budget: 17592186044416"});
    expect_training_refused({"--memory-budget", "16GB"},
                            {"memory-budget: 16GB; expected a size such as 16GiB or 900MiB"});
}

TEST_F(BadInput, RefusesPathsThatAreNotUtf8) {
    expect_data_refused((place_ / "caf\xe9.txt").string(), {"data: ", "is not UTF-8"});
}

TEST_F(BadInput, NamesUnreadableData) {
    expect_data_refused((place_ / "missing.txt").string(), {"missing.txt", "No such file"});
    expect_data_refused(place_.write("empty.txt", ""), {"empty.txt", "is empty; expected text"});
    std::filesystem::create_directory(place_ / "folder");
    expect_data_refused(place_ / "folder", {"folder: is a folder without files"});
    const Outcome none = run({"train", "--out", (place_ / "run").string()});
    expect_refused(none, {"--data FILE"});
}

TEST_F(BadInput, RefusesTextShorterThanAContext) {
    expect_data_refused(place_.write("short.txt", "once upon"),
                        {"short.txt", "context 16 needs at least 17"});
}

TEST_F(BadInput, CharactersRefuseInvalidUtf8AndBytesAcceptIt) {
    std::string text(400, 'a');
    text[123] = '\xff';
    const std::string path = place_.write("latin.txt", text);
    expect_data_refused(path, {"latin.txt", "invalid UTF-8 at byte offset 123", "--tokenizer bytes"});
    expect_success(run(tiny_training(path, place_ / "bytes") + Arguments{"--tokenizer", "bytes"}));
}

TEST_F(BadInput, SuggestsTheNearestKnownName) {
    expect_training_refused({"--stepz", "3"}, {"--stepz", "did you mean --steps?"});
    expect_training_refused({"--preset", "dem"}, {"preset", "'dem'", "'demo'"});
    expect_training_refused({"--optimizer", "adam"}, {"--optimizer", "'adam'", "adamw, lion or muon"});
    expect_training_refused({"--device", "gpu"}, {"--device", "'gpu'", "auto, cpu or cuda"});
    expect_refused(run({"trian"}), {"'trian'", "'train'"});
    expect_refused(run({"sample", "x", "--device", "gpu"}), {"--device", "'gpu'", "auto, cpu or cuda"});
    expect_refused(run({"sample", "x", "--top_k", "3"}), {"--top_k", "--top-k"});
    expect_refused(run({"gradcheck", "--op", "layernorm"}), {"--op", "'layernorm'", "'layer-norm'"});
    expect_refused(run({"gradcheck", "--dtype", "f32,int8"}),
                   {"--dtype", "cpu", "'int8'", "f64, f32, bf16 or f16"});
    expect_refused(run({"gradcheck", "--dtype", "bf16", "--op", "gelo"}),
                   {"--op", "'gelo'", "bfloat16", "'gelu'"});
    expect_refused(run({"train", "word"}), {"'word'", "train"});
}

TEST_F(BadInput, NamesTheExpectedTypeOfAValue) {
    expect_training_refused({"--steps", "abc"}, {"--steps", "'abc'", "an integer"});
    expect_training_refused({"--steps", "12x"}, {"--steps", "'12x'", "an integer"});
    expect_training_refused({"--steps", ""}, {"--steps", "''", "an integer"});
    expect_training_refused({"--steps", "99999999999999999999"},
                            {"--steps", "99999999999999999999", "out of range"});
    expect_training_refused({"--lr", "fast"}, {"--lr", "'fast'", "a number"});
    expect_training_refused({"--bias=7"}, {"--bias", "--no-bias"});
    expect_training_refused({"--seed", "-1"}, {"--seed", "'-1'", "an integer, 0 or more"});
    expect_refused(run({"train", "--steps"}), {"--steps", "INTEGER", "gradtile train --help"});
    expect_refused(run({"sample"}), {"required", "gradtile sample --help"});
    expect_refused(run({"corpus", "--characters", "many", "--out", "x"}),
                   {"--characters", "'many'", "an integer"});
}

TEST_F(BadInput, NamesSettingsOutOfRange) {
    expect_training_refused({"--heads", "3"}, {"heads", "3", "16"});
    expect_training_refused({"--steps", "0"}, {"steps: 0", "expected 1 to"});
    expect_training_refused({"--dropout", "1.5"}, {"dropout", "1.5"});
    expect_training_refused({"--attention-dropout", "1"}, {"attention-dropout: 1", "less than 1"});
    expect_training_refused({"--window", "-1"}, {"window: -1", "expected 0 to"});
    expect_training_refused({"--window-pattern", "20000"}, {"window-pattern: 20000", "expected 0 to"});
    expect_training_refused({"--softcap", "1e-30"}, {"softcap: 1e-30", "0 (none) or at least 1e-20"});
    expect_training_refused({"--positions", "alibo"}, {"'alibo'", "learned, rope or alibi"});
    expect_training_refused({"--lr", "nan"}, {"lr", "nan"});
    expect_training_refused({"--micro-batch", "3"}, {"micro-batch: 3", "does not divide batch 4"});
    expect_training_refused({"--threads", "-2"}, {"threads: -2", "expected 0"});
    expect_training_refused({"--stop-after", "-1"}, {"--stop-after: -1"});
}

TEST_F(BadInput, ConfigFileIsReadStrictly) {
    expect_config_refused(R"({"stepz": 3})", {"'stepz'", "'steps'"});
    expect_config_refused(R"({"steps": "3"})", {"steps: \"3\" is a string", "an integer"});
    expect_config_refused(R"({"bias": 1})", {"bias: 1 is a number", "true or false"});
    expect_config_refused(R"({"data": ["a"]})", {"is an array", "a string"});
    expect_config_refused(R"([1])", {"is an array", "an object of settings"});
    expect_config_refused(R"({"steps": 3)", {"not JSON", "column 12"});
    expect_config_refused("", {"not JSON"});
    expect_config_refused(R"({"steps": 3, "lr": 0.1, "steps": 4})", {"'steps' occurs twice"});
    expect_config_refused(R"({"steps": )" + std::string(100'000, '[') + std::string(100'000, ']') + "}",
                          {"nested more than 64 levels deep"});
    expect_config_refused(R"({"steps": ")" + std::string(100'000, 'x') + "\"}",
                          {"xxx...\" is a string", "an integer"});
    // The part before the NUL byte is a directory; looking for its tokenizer.json must end.
    expect_config_refused(nlohmann::json{{"tokenizer", place_.path().string() + '\0' + 'x'}}.dump(),
                          {"tokenizer: holds a NUL byte"});
    expect_config_refused(R"({"data": "a\u0000b"})", {"data: holds a NUL byte"});
    expect_training_refused({"--config", (place_ / "none.json").string()}, {"none.json", "cannot be opened"});
    expect_training_refused({"--config", place_.path().string()}, {"is a directory; expected a JSON file"});
}

TEST_F(BadInput, RefusesDamagedTokenFiles) {
    const std::vector<std::uint16_t> ids(200, 7);
    expect_data_refused(place_.write("odd.bin", bytes_of(ids) + "x"), {"odd.bin", "odd size"});
    expect_data_refused(place_.write("cut.bin", shard(1000, ids)), {"cut.bin", "1000"});
    expect_data_refused(place_.write("none.bin", ""), {"none.bin", "is empty"});
    std::vector<std::uint16_t> wild = ids;
    wild[150] = 200;
    expect_data_refused(place_.write("wild.bin", shard(200, wild)), {"wild.bin", "200", "150"},
                        {"--vocabulary", "100"});
}

TEST_F(BadInput, RefusesTokenFilesOfTheWrongType) {
    const std::vector<std::uint16_t> ids(200, 7);
    std::string one_off = shard(200, ids);
    one_off[0] = static_cast<char>(one_off[0] + 1);
    expect_data_refused(place_.write("off.bin", one_off),
                        {"off.bin", "wrong magic 20240521", "expected 20240520"});
    const std::string wide = place_.write("wide.bin", bytes_of(std::vector<std::uint32_t>(200, 70)));
    expect_data_refused(wide, {"wide.bin", "every second 16-bit number is 0", "--token-type uint32"});
    const Outcome outcome = run(tiny_training(wide, place_ / "wide") + Arguments{"--token-type", "uint32"});
    expect_success(outcome);
    EXPECT_THAT(outcome.out, testing::HasSubstr("wide.bin: headerless uint32, 200 tokens, largest id 70"));
    const Arguments eval = {"eval", (place_ / "wide").string(), "--data", wide};
    expect_refused(run(eval), {"wide.bin", "--token-type uint32"});
    expect_success(run(eval + Arguments{"--token-type", "uint32"}));
    expect_training_refused({"--token-type", "int64"}, {"--token-type", "'int64'", "auto, uint16 or uint32"});
}

TEST_F(BadInput, RefusesFilesThatAreNotRegular) {
    for (const char* const name : {"pipe.txt", "pipe.bin"}) {
        ASSERT_EQ(mkfifo((place_ / name).c_str(), 0600), 0);
        expect_data_refused((place_ / name).string(), {name, "is not a regular file"});
    }
    expect_data_refused("/dev/zero", {"/dev/zero", "is not a regular file"});
    std::filesystem::create_symlink("/dev/zero", place_ / "zero.bin");
    expect_data_refused((place_ / "zero.bin").string(), {"zero.bin", "is not a regular file"});
    std::filesystem::create_directory(place_ / "directory.bin");
    expect_data_refused((place_ / "directory.bin").string(), {"directory.bin", "is a directory"});
}

TEST_F(BadInput, TruncatingATokenFileStopsAndSavesTheRun) {
    const auto out = place_ / "run";
    const std::string data = place_.write("data.bin", shard(20'000, std::vector<std::uint16_t>(20'000, 7)));
    Program training(tiny_training(data, out) + Arguments{"--steps", "100000000", "--quiet"});
    while (training.running() && contents_of(out / "metrics.jsonl").empty()) usleep(1000);
    ASSERT_TRUE(training.running()) << training.wait().err;
    ASSERT_EQ(truncate(data.c_str(), 3000), 0);
    const Outcome outcome = training.wait();
    EXPECT_EQ(outcome.exit_code, 1);
    ASSERT_EQ(outcome.error_lines().size(), 1u) << outcome.err;
    EXPECT_THAT(outcome.err,
                testing::ContainsRegex("data.bin: ends at byte 3000; expected 41024 .it was changed "
                                       "while it was read.; stopped, step [0-9]+ is saved"));
    place_.write("data.bin", shard(20'000, std::vector<std::uint16_t>(20'000, 7)));
    expect_success(run(
        {"train", "--resume", out.string(), "--quiet", "--steps", std::to_string(steps_of(out).size() + 2)}));
}

/// Without --vocabulary the whole file is read for the largest id, which takes minutes and one MiB.
TEST_F(BadInput, ScanOfATebibyteTokenFileCanBeInterrupted) {
    const std::string huge = place_.write("huge.bin", "1234");
    if (truncate(huge.c_str(), std::int64_t{1} << 40) != 0)
        GTEST_SKIP() << "this file system cannot hold a sparse file of 1 TiB";
    ProcessOptions limited_memory;
    if (!sanitized)  // a sanitizer reserves terabytes of address space
        limited_memory.prefix = {"sh", "-c", "ulimit -v 4000000; exec \"$0\" \"$@\""};
    Program searching(tiny_training(huge, place_ / "run"), limited_memory);
    usleep(500'000);
    ASSERT_TRUE(searching.running()) << searching.wait().err;
    for (int tries = 0; tries < 200 && searching.running(); ++tries) {
        searching.send(SIGTERM);
        usleep(100'000);
    }
    ASSERT_FALSE(searching.running());
    const Outcome outcome = searching.wait();
    EXPECT_TRUE(outcome.signal == SIGTERM || outcome.exit_code == 128 + SIGTERM) << outcome.exit_code;
    EXPECT_FALSE(exists(place_ / "run"));
    // With --vocabulary the file is not searched.
    const Outcome known = run(tiny_training(huge, place_ / "run") +
                              Arguments{"--vocabulary", "65536", "--val-fraction", "0", "--steps", "2"});
    expect_success(known);
    EXPECT_THAT(known.out, testing::HasSubstr("headerless uint16, 549,755,813,888 tokens"));
}

TEST_F(BadInput, AdviceNamesOnlyFlagsOfTheCommand) {
    const auto out = place_ / "run";
    expect_success(run(tiny_training(stories_, out)));
    const std::string latin = place_.write("latin.txt", "caf\xe9");
    for (const Outcome& outcome :
         {run({"sample", out.string(), "--prompt", "caf\xe9"}), run({"eval", out.string(), "--data", latin}),
          run({"corpus", "--score", latin})}) {
        EXPECT_EQ(outcome.exit_code, 1);
        EXPECT_THAT(outcome.err, testing::Not(testing::HasSubstr("--"))) << outcome.err;
    }
}

TEST_F(BadInput, NamesAnUnwritableOutputDirectory) {
    // Even root cannot create a directory below a regular file.
    const std::string below_a_file = stories_ + "/run";
    expect_refused(run(tiny_training(stories_, below_a_file)), {below_a_file, "Not a directory"});
    expect_refused(run(tiny_training(stories_, "/proc/gradtile")), {"/proc/gradtile"});
    expect_refused(run({"corpus", "--out", below_a_file}), {below_a_file, "cannot create: Not a directory"});
}

TEST_F(BadInput, NeverOverwritesARun) {
    const auto out = place_ / "run";
    expect_success(run(tiny_training(stories_, out)));
    const std::string before = contents_of(out / "metrics.jsonl");
    expect_refused(run(tiny_training(stories_, out)), {out.string(), "already holds a run", "--resume"});
    EXPECT_EQ(contents_of(out / "metrics.jsonl"), before);
}

TEST_F(BadInput, RefusesADirectoryInUse) {
    const auto out = place_ / "run";
    Program other(tiny_training(stories_, out) + Arguments{"--steps", "100000000", "--quiet"});
    while (other.running() && contents_of(out / "metrics.jsonl").empty()) usleep(1000);
    ASSERT_TRUE(other.running()) << other.wait().err;
    expect_refused(run(tiny_training(stories_, out)), {out.string(), "in use by process"});
    expect_refused(run({"train", "--resume", out.string()}), {out.string(), "in use by process"});
    other.send(SIGTERM);
    EXPECT_EQ(other.wait().exit_code, 0);
}

TEST_F(BadInput, ResumeRefusesSettingsThatCannotChange) {
    expect_refused(run({"train", "--resume", place_.path().string()}),
                   {place_.path().string(), "holds no run"});
    expect_refused(run({"train", "--resume", (place_ / "none").string()}), {"none", "is not a directory"});
    expect_refused(run({"train", "--resume", "x", "--lr", "1"}), {"--lr", "cannot change", "steps"});
    expect_refused(run({"train", "--resume", "x", "--preset", "demo"}), {"--resume", "--preset"});
}

TEST_F(BadInput, ReportsAMissingGpu) {
    if (cuda_device_count() > 0) GTEST_SKIP() << "this machine has a CUDA device";
    expect_training_refused({"--device", "cuda"}, {"device cuda", "use --device cpu"});
}

TEST_F(BadInput, RefusalOfALargeBatchNamesTheLargestThatFits) {
    expect_training_refused({"--memory-budget", "1", "--batch", "4096", "--micro-batch", "4096"},
                            {"4096", "1.00 MiB", "largest micro-batch that fits is "});
    expect_training_refused({"--memory-budget", "1", "--width", "512"},
                            {"1.00 MiB", "not even a micro-batch of 1 fits"});
}

TEST_F(BadInput, NonFiniteTrainingStopsAndNamesTheTensor) {
    const auto out = place_ / "run";
    const Outcome outcome = run(tiny_training(stories_, out) +
                                Arguments{"--lr", "1e30", "--min-lr", "0", "--clip", "0", "--warmup", "0",
                                          "--steps", "100", "--max-bad-steps", "3", "--quiet"});
    EXPECT_EQ(outcome.signal, 0);
    EXPECT_EQ(outcome.exit_code, 1);
    const std::vector<std::string> lines = outcome.error_lines();
    ASSERT_EQ(lines.size(), 4u) << outcome.err;  // three rejected updates and the final error
    for (std::size_t i = 0; i < 3; ++i) EXPECT_THAT(lines[i], testing::HasSubstr("update not applied"));
    EXPECT_THAT(lines[3],
                testing::AllOf(testing::HasSubstr("not finite 3 steps in a row"),
                               testing::HasSubstr("nothing was saved"),
                               testing::AnyOf(testing::HasSubstr(".weight"), testing::HasSubstr("loss"))));
}

TEST_F(BadInput, ARunThatEndsWithALossThatIsNotFiniteFails) {
    const auto out = place_ / "run";
    const Arguments diverging{"--lr", "1e30",     "--schedule", "constant", "--clip",
                              "0",    "--warmup", "0",          "--quiet"};
    const auto expect_failure = [&](const Outcome& outcome, const char* line) {
        EXPECT_EQ(outcome.signal, 0);
        EXPECT_EQ(outcome.exit_code, 1);
        ASSERT_FALSE(outcome.error_lines().empty());
        EXPECT_EQ(outcome.error_lines().back(), line);
        EXPECT_THAT(outcome.out, testing::Not(testing::HasSubstr("nan")));
    };
    constexpr const char* both =
        "gradtile: after step 4: loss and val_loss are not finite; expected a lower --lr, from the start or "
        "with --init-from an earlier checkpoint";
    const Outcome ended = run(tiny_training(stories_, out) + diverging + Arguments{"--steps", "4"});
    expect_failure(ended, both);
    EXPECT_THAT(ended.out, testing::StartsWith("step: 4\ntokens: "));
    EXPECT_THAT(ended.out, testing::HasSubstr("step_00000004.h5"));
    const Outcome finished = run({"train", "--resume", out.string(), "--quiet"});
    expect_failure(finished, both);
    EXPECT_EQ(finished.error_lines().size(), 1u);
    EXPECT_THAT(finished.out, testing::StartsWith("the run is finished at step 4"));

    // The first update makes the weights useless, after a loss that is finite.
    const Outcome one = run(tiny_training(stories_, place_ / "one") + diverging + Arguments{"--steps", "1"});
    expect_failure(one,
                   "gradtile: after step 1: val_loss is not finite; expected a lower --lr, from the start or "
                   "with --init-from an earlier checkpoint");
    EXPECT_THAT(one.out, testing::StartsWith("step: 1\nloss: "));

    const Outcome restarted = run(tiny_training(stories_, place_ / "two") + diverging +
                                  Arguments{"--steps", "4", "--processes", "2", "--restarts", "1"});
    EXPECT_EQ(restarted.exit_code, 1);
    EXPECT_THAT(restarted.err, testing::HasSubstr(both));
}

TEST_F(BadInput, RefusesInvalidSamplingOptions) {
    const auto out = place_ / "run";
    expect_success(run(tiny_training(stories_, out)));
    const auto sampling = [&](const Arguments& extra) {
        return run(Arguments{"sample", out.string(), "--device", "cpu"} + extra);
    };
    expect_refused(sampling({"--prompt", "a€"}), {"prompt", "U+20AC", "byte offset 1"});
    expect_refused(sampling({"--prompt", "\xff"}), {"prompt", "invalid UTF-8"});
    expect_refused(sampling({"--temperature", "-1"}), {"--temperature: -1", "expected 0 to 1000000"});
    expect_refused(sampling({"--temperature", "nan"}), {"--temperature: nan", "expected 0 to 1000000"});
    expect_refused(sampling({"--top-p", "0"}), {"--top-p: 0", "more than 0, at most 1"});
    expect_refused(sampling({"--top-p", "1.5"}), {"--top-p: 1.5", "more than 0, at most 1"});
    expect_refused(sampling({"--top-k", "-3"}), {"--top-k: -3"});
    expect_refused(sampling({"--tokens", "-3"}), {"--tokens: -3"});
    expect_refused(run({"sample", (place_ / "none").string()}), {"none", "no such file"});
    expect_refused(run({"eval", out.string(), "--data", (place_ / "none").string()}),
                   {"none", "No such file"});
    expect_refused(run({"eval", out.string(), "--data", place_.write("x.txt", "é")}), {"x.txt", "U+00E9"});
}

}  // namespace
}  // namespace gradtile::test
