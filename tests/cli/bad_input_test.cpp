// What wrong settings and wrong data get: one line, an exit code that is not 0, nothing left behind.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <fstream>

#include <gradtile/core/device.h>

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
    refused({"--stepz", "3"}, {"--stepz", "nearest", "--steps"});
    refused({"--preset", "dem"}, {"preset", "'dem'", "'demo'"});
    refused({"--optimizer", "adam"}, {"--optimizer", "'adam'", "adamw or muon"});
    refused({"--device", "gpu"}, {"--device", "'gpu'", "auto, cpu or cuda"});
    expect_refused(run({"trian"}), {"'trian'", "'train'"});
    expect_refused(run({"sample", "x", "--device", "gpu"}), {"--device", "'gpu'", "auto, cpu or cuda"});
    expect_refused(run({"sample", "x", "--top_k", "3"}), {"--top_k", "--top-k"});
    expect_refused(run({"gradcheck", "--op", "layernorm"}), {"--op", "'layernorm'", "'layer-norm'"});
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
    refused({"--steps", "0"}, {"steps: 0", "at least 1"});
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
    expect_refused(sampling({"--temperature", "-1"}), {"--temperature: -1", "0 or more"});
    expect_refused(sampling({"--temperature", "nan"}), {"--temperature: nan", "0 or more"});
    expect_refused(sampling({"--top-p", "0"}), {"--top-p: 0", "0 < p <= 1"});
    expect_refused(sampling({"--top-p", "1.5"}), {"--top-p: 1.5", "0 < p <= 1"});
    expect_refused(sampling({"--top-k", "-3"}), {"--top-k: -3"});
    expect_refused(sampling({"--tokens", "-3"}), {"--tokens: -3"});
    expect_refused(run({"sample", (place_ / "none").string()}), {"none", "no such file"});
    expect_refused(run({"eval", out.string(), "--data", (place_ / "none").string()}),
                   {"none", "No such file"});
    expect_refused(run({"eval", out.string(), "--data", place_.write("x.txt", "é")}), {"x.txt", "U+00E9"});
}

}  // namespace
}  // namespace gradtile::test
