// What wrong settings and wrong data get: one line, an exit code that is not 0, nothing left behind.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include <gradtile/core/device.h>

#include <support/sanitized.h>

#include "program.h"

namespace gradtile::test {
namespace {

/// Little-endian integers as they stand in a token file.
template <class Id>
std::string bytes_of(const std::vector<Id>& ids) {
    return {reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(Id)};
}

/// An llm.c shard whose header promises `promised` tokens.
std::string shard(std::int32_t promised, const std::vector<std::uint16_t>& ids) {
    std::vector<std::int32_t> header(256);
    header[0] = 20240520;
    header[1] = 1;
    header[2] = promised;
    return bytes_of(header) + bytes_of(ids);
}

class BadInput : public testing::Test {
  protected:
    /// Refused, and no directory was made for the run.
    void refused(const Arguments& extra, const std::vector<std::string>& parts,
                 const std::string& data = {}) {
        const auto out = place_ / "run";
        expect_refused(run(tiny_training(data.empty() ? stories_ : data, out) + extra), parts);
        EXPECT_FALSE(exists(out));
    }
    void refused_data(const std::string& data, const std::vector<std::string>& parts,
                      const Arguments& extra = {}) {
        refused(extra, parts, data);
    }
    void refused_config(const std::string& json, const std::vector<std::string>& parts) {
        const std::string path = place_.write("config.json", json);
        refused({"--config", path}, std::vector{path} + parts);
    }

    TemporaryDirectory place_;
    std::string stories_ = write_stories(place_);
};

TEST_F(BadInput, NumbersThatAConfigFileCannotHold) {
    refused({"--clip", "inf"}, {"clip: inf", "expected a finite number"});
    refused({"--weight-decay", "nan"}, {"weight-decay: nan"});
    refused({"--norm-epsilon", "inf"}, {"norm-epsilon: inf"});
    refused({"--memory-budget", "17592186044416"}, {"memory-budget: 17592186044416"});
}

TEST_F(BadInput, PathsThatAreNotUtf8) {
    refused_data((place_ / "caf\xe9.txt").string(), {"data: ", "is not UTF-8"});
}

TEST_F(BadInput, DataThatCannotBeReadIsNamed) {
    refused_data((place_ / "missing.txt").string(), {"missing.txt", "No such file"});
    refused_data(place_.write("empty.txt", ""), {"empty.txt", "is empty; expected text"});
    refused_data(place_.path().string(), {place_.path().string(), "is a directory; expected a file"});
    const Outcome none = run({"train", "--out", (place_ / "run").string()});
    expect_refused(none, {"--data FILE"});
}

TEST_F(BadInput, TextShorterThanAContextIsRefused) {
    refused_data(place_.write("short.txt", "once upon"), {"short.txt", "context 16 needs at least 17"});
}

TEST_F(BadInput, InvalidUtf8IsRefusedByCharactersAndTakenByBytes) {
    std::string text(400, 'a');
    text[123] = '\xff';
    const std::string path = place_.write("latin.txt", text);
    refused_data(path, {"latin.txt", "invalid UTF-8 at byte offset 123", "--tokenizer bytes"});
    expect_success(run(tiny_training(path, place_ / "bytes") + Arguments{"--tokenizer", "bytes"}));
}

TEST_F(BadInput, UnknownNamesGetTheNearestKnownOne) {
    refused({"--stepz", "3"}, {"--stepz", "did you mean --steps?"});
    refused({"--preset", "dem"}, {"preset", "'dem'", "'demo'"});
    refused({"--optimizer", "adam"}, {"--optimizer", "'adam'", "adamw or muon"});
    refused({"--device", "gpu"}, {"--device", "'gpu'", "auto, cpu or cuda"});
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

TEST_F(BadInput, AValueOfTheWrongTypeIsToldWhatWasExpected) {
    refused({"--steps", "abc"}, {"--steps", "'abc'", "an integer"});
    refused({"--steps", "12x"}, {"--steps", "'12x'", "an integer"});
    refused({"--steps", ""}, {"--steps", "''", "an integer"});
    refused({"--steps", "99999999999999999999"}, {"--steps", "99999999999999999999", "out of range"});
    refused({"--lr", "fast"}, {"--lr", "'fast'", "a number"});
    refused({"--bias=7"}, {"--bias", "--no-bias"});
    refused({"--seed", "-1"}, {"--seed", "'-1'", "an integer, 0 or more"});
    expect_refused(run({"train", "--steps"}), {"--steps", "INTEGER", "gradtile train --help"});
    expect_refused(run({"sample"}), {"required", "gradtile sample --help"});
    expect_refused(run({"corpus", "--characters", "many", "--out", "x"}),
                   {"--characters", "'many'", "an integer"});
}

TEST_F(BadInput, SettingsOutOfRangeAreNamed) {
    refused({"--heads", "3"}, {"heads", "3", "16"});
    refused({"--steps", "0"}, {"steps: 0", "expected 1 to"});
    refused({"--dropout", "1.5"}, {"dropout", "1.5"});
    refused({"--lr", "nan"}, {"lr", "nan"});
    refused({"--micro-batch", "3"}, {"micro-batch: 3", "does not divide batch 4"});
    refused({"--threads", "-2"}, {"threads: -2", "expected 0"});
    refused({"--stop-after", "-1"}, {"--stop-after: -1"});
}

TEST_F(BadInput, AConfigFileIsReadStrictly) {
    refused_config(R"({"stepz": 3})", {"'stepz'", "'steps'"});
    refused_config(R"({"steps": "3"})", {"steps: \"3\" is a string", "an integer"});
    refused_config(R"({"bias": 1})", {"bias: 1 is a number", "true or false"});
    refused_config(R"({"data": ["a"]})", {"is an array", "a string"});
    refused_config(R"([1])", {"is an array", "an object of settings"});
    refused_config(R"({"steps": 3)", {"not JSON", "line 1"});
    refused_config("", {"not JSON"});
    refused_config(R"({"steps": 3, "lr": 0.1, "steps": 4})", {"'steps' is there twice"});
    refused_config(R"({"steps": )" + std::string(100'000, '[') + std::string(100'000, ']') + "}",
                   {"nested more than 64 levels deep"});
    refused_config(R"({"steps": ")" + std::string(100'000, 'x') + "\"}",
                   {"xxx...\" is a string", "an integer"});
    refused({"--config", (place_ / "none.json").string()}, {"none.json", "cannot be opened"});
    refused({"--config", place_.path().string()}, {"is a directory; expected a JSON file"});
}

TEST_F(BadInput, DamagedTokenFilesAreRefused) {
    const std::vector<std::uint16_t> ids(200, 7);
    refused_data(place_.write("odd.bin", bytes_of(ids) + "x"), {"odd.bin", "odd size"});
    refused_data(place_.write("cut.bin", shard(1000, ids)), {"cut.bin", "1000"});
    refused_data(place_.write("none.bin", ""), {"none.bin", "is empty"});
    std::vector<std::uint16_t> wild = ids;
    wild[150] = 200;
    refused_data(place_.write("wild.bin", shard(200, wild)), {"wild.bin", "200", "150"},
                 {"--vocabulary", "100"});
}

TEST_F(BadInput, TokenFilesThatWouldBeMisreadAreRefused) {
    const std::vector<std::uint16_t> ids(200, 7);
    std::string one_off = shard(200, ids);
    one_off[0] = static_cast<char>(one_off[0] + 1);
    refused_data(place_.write("off.bin", one_off), {"off.bin", "wrong magic 20240521", "expected 20240520"});
    const std::string wide = place_.write("wide.bin", bytes_of(std::vector<std::uint32_t>(200, 70)));
    refused_data(wide, {"wide.bin", "every second 16-bit number is 0", "--token-type uint32"});
    const Outcome outcome = run(tiny_training(wide, place_ / "wide") + Arguments{"--token-type", "uint32"});
    expect_success(outcome);
    EXPECT_THAT(outcome.out, testing::HasSubstr("wide.bin: headerless uint32, 200 tokens, largest id 70"));
    const Arguments eval = {"eval", (place_ / "wide").string(), "--data", wide};
    expect_refused(run(eval), {"wide.bin", "--token-type uint32"});
    expect_success(run(eval + Arguments{"--token-type", "uint32"}));
    refused({"--token-type", "int64"}, {"--token-type", "'int64'", "auto, uint16 or uint32"});
}

TEST_F(BadInput, WhatIsNoRegularFileIsRefusedAtOnce) {
    for (const char* const name : {"pipe.txt", "pipe.bin"}) {
        ASSERT_EQ(mkfifo((place_ / name).c_str(), 0600), 0);
        refused_data((place_ / name).string(), {name, "is not a regular file"});
    }
    refused_data("/dev/zero", {"/dev/zero", "is not a regular file"});
    std::filesystem::create_symlink("/dev/zero", place_ / "zero.bin");
    refused_data((place_ / "zero.bin").string(), {"zero.bin", "is not a regular file"});
    std::filesystem::create_directory(place_ / "directory.bin");
    refused_data((place_ / "directory.bin").string(), {"directory.bin", "is a directory"});
}

TEST_F(BadInput, ATokenFileThatIsCutShortStopsTheRunWithASave) {
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

/// Its largest id makes the vocabulary, so all of it is read: minutes, in a MiB of memory.
TEST_F(BadInput, ATokenFileOfATebibyteCanBeLeftWhileItIsSearched) {
    const std::string huge = place_.write("huge.bin", "1234");
    if (truncate(huge.c_str(), std::int64_t{1} << 40) != 0)
        GTEST_SKIP() << "no room for a sparse file of 1 TiB";
    ProcessOptions little_memory;
    if (!sanitized)  // a sanitizer reserves terabytes of addresses
        little_memory.through = {"sh", "-c", "ulimit -v 4000000; exec \"$0\" \"$@\""};
    Program searching(tiny_training(huge, place_ / "run"), little_memory);
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
    // With a known vocabulary nothing is searched.
    const Outcome known = run(tiny_training(huge, place_ / "run") +
                              Arguments{"--vocabulary", "65536", "--val-fraction", "0", "--steps", "2"});
    expect_success(known);
    EXPECT_THAT(known.out, testing::HasSubstr("headerless uint16, 549,755,813,888 tokens"));
}

TEST_F(BadInput, AdviceNamesOnlyFlagsThatTheCommandHas) {
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

TEST_F(BadInput, AnOutputDirectoryThatCannotBeWrittenIsNamed) {
    // Root may write anywhere, but nobody below a regular file.
    const std::string below_a_file = stories_ + "/run";
    expect_refused(run(tiny_training(stories_, below_a_file)), {below_a_file, "Not a directory"});
    expect_refused(run(tiny_training(stories_, "/proc/gradtile")), {"/proc/gradtile"});
    expect_refused(run({"corpus", "--out", below_a_file}), {below_a_file, "cannot be written"});
}

TEST_F(BadInput, ARunIsNeverOverwritten) {
    const auto out = place_ / "run";
    expect_success(run(tiny_training(stories_, out)));
    const std::string before = contents_of(out / "metrics.jsonl");
    expect_refused(run(tiny_training(stories_, out)), {out.string(), "already holds a run", "--resume"});
    EXPECT_EQ(contents_of(out / "metrics.jsonl"), before);
}

TEST_F(BadInput, ADirectoryInUseByAnotherProcessIsRefused) {
    const auto out = place_ / "run";
    Program other(tiny_training(stories_, out) + Arguments{"--steps", "100000000", "--quiet"});
    while (other.running() && contents_of(out / "metrics.jsonl").empty()) usleep(1000);
    ASSERT_TRUE(other.running()) << other.wait().err;
    expect_refused(run(tiny_training(stories_, out)), {out.string(), "in use by process"});
    expect_refused(run({"train", "--resume", out.string()}), {out.string(), "in use by process"});
    other.send(SIGTERM);
    EXPECT_EQ(other.wait().exit_code, 0);
}

TEST_F(BadInput, ResumeTakesOnlyWhatMayChange) {
    expect_refused(run({"train", "--resume", place_.path().string()}),
                   {place_.path().string(), "holds no run"});
    expect_refused(run({"train", "--resume", (place_ / "none").string()}), {"none", "is not a directory"});
    expect_refused(run({"train", "--resume", "x", "--lr", "1"}), {"--lr", "cannot change", "steps"});
    expect_refused(run({"train", "--resume", "x", "--preset", "demo"}), {"--resume", "--preset"});
}

TEST_F(BadInput, AGpuThatIsNotThereIsMissed) {
    if (cuda_device_count() > 0) GTEST_SKIP() << "this machine has a CUDA device";
    refused({"--device", "cuda"},
            {"device cuda", "use --device cpu"});  // and what is missing: the build's or the machine's
}

TEST_F(BadInput, ABatchBeyondTheBudgetIsRefusedWithTheLargestThatFits) {
    refused({"--memory-budget", "1", "--batch", "4096"},
            {"4096", "1.00 MiB", "largest micro-batch that fits is "});
    refused({"--memory-budget", "1", "--width", "512"}, {"1.00 MiB", "not even a micro-batch of 1 fits"});
}

TEST_F(BadInput, TrainingThatGoesNonFiniteStopsAndNamesTheTensor) {
    const auto out = place_ / "run";
    const Outcome outcome = run(tiny_training(stories_, out) +
                                Arguments{"--lr", "1e30", "--min-lr", "0", "--clip", "0", "--warmup", "0",
                                          "--steps", "100", "--max-bad-steps", "3", "--quiet"});
    EXPECT_EQ(outcome.signal, 0);
    EXPECT_EQ(outcome.exit_code, 1);
    const std::vector<std::string> lines = outcome.error_lines();
    ASSERT_EQ(lines.size(), 4u) << outcome.err;  // three refused updates, and the end
    for (std::size_t i = 0; i < 3; ++i) EXPECT_THAT(lines[i], testing::HasSubstr("update not applied"));
    EXPECT_THAT(lines[3],
                testing::AllOf(testing::HasSubstr("not finite 3 steps in a row"),
                               testing::HasSubstr("nothing was saved"),
                               testing::AnyOf(testing::HasSubstr(".weight"), testing::HasSubstr("loss"))));
}

TEST_F(BadInput, SamplingRefusesWhatItCannotDo) {
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
