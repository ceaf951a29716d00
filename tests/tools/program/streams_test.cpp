// The program's standard streams: a full disk, a pipe without a reader, closed descriptors, and names with
// control characters.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include <gradtile/core/text/json_reader.h>

#include "program.h"

namespace gradtile::test {
namespace {

using testing::HasSubstr;

/// Runs the shell command `gradtile ARGUMENTS REDIRECTION`.
Outcome run_redirected(const Arguments& arguments, const std::string& redirection) {
    return run(arguments, {.prefix = {"sh", "-c", "exec \"$0\" \"$@\" " + redirection}});
}

/// Runs `gradtile ARGUMENTS | true` with SIGPIPE ignored, as in children of Python's subprocess and many
/// services. The exit code is the program's.
Outcome run_without_reader(const Arguments& arguments) {
    return run(arguments,
               {.prefix = {"bash", "-c",
                           "trap '' PIPE; { sleep 0.3; \"$0\" \"$@\"; } | true; exit ${PIPESTATUS[0]}"}});
}

class Streams : public testing::Test {
  protected:
    static void SetUpTestSuite() {
        place_ = new TemporaryDirectory;
        stories_ = new std::string(write_stories(*place_));
        expect_success(run(tiny_training(*stories_, trained_run())));
    }
    static void TearDownTestSuite() {
        delete place_;
        delete stories_;
    }
    static std::filesystem::path trained_run() { return *place_ / "run"; }

    /// Commands whose result is their output.
    static std::vector<Arguments> printing_commands() {
        const std::string trained = trained_run().string();
        return {{"--help"},
                {"train", "--help"},
                {"version"},
                {"sample", trained, "--tokens", "3"},
                {"inspect", trained},
                {"inspect", trained, "--json"},
                {"eval", trained, "--data", *stories_},
                {"corpus", "--characters", "10", "--out", (*place_ / "c.txt").string()},
                {"plan", "--gpus", "2"},
                {"gradcheck", "--op", "linear"},
                {"bench", "gemm", "--runs", "1", "--threads", "1", "--context", "8", "--batch", "1"},
                tiny_training(*stories_, *place_ / "none") + Arguments{"--memory"},
                tiny_training(*stories_, *place_ / "none") + Arguments{"--print-config"}};
    }

    static TemporaryDirectory* place_;
    static std::string* stories_;
};
TemporaryDirectory* Streams::place_ = nullptr;
std::string* Streams::stories_ = nullptr;

TEST_F(Streams, CommandFailsWhenItsResultCannotBeWritten) {
    for (const Arguments& arguments : printing_commands()) {
        const Outcome outcome = run_redirected(arguments, ">/dev/full");
        EXPECT_EQ(outcome.exit_code, 1) << arguments.front();
        EXPECT_EQ(outcome.err, "gradtile: standard output: No space left on device\n") << arguments.front();
    }
}

TEST_F(Streams, CommandEndsSilentlyWithoutAReader) {
    for (const Arguments& arguments : printing_commands()) {
        const Outcome outcome = run_without_reader(arguments);
        EXPECT_NE(outcome.exit_code, 0) << arguments.front();
        EXPECT_EQ(outcome.err, "") << arguments.front();
    }
}

TEST_F(Streams, CommandFailsWhenOutputIsClosed) {
    const Outcome outcome = run_redirected({"version"}, ">&-");
    EXPECT_EQ(outcome.exit_code, 1);
    EXPECT_EQ(outcome.err, "gradtile: standard output: Bad file descriptor\n");
}

TEST_F(Streams, TrainingContinuesWithoutOutput) {
    for (const char* redirection : {">/dev/full", ">&-", "<&- >&- 2>&-"}) {
        const auto out = *place_ / concat("silent", redirection == std::string(">&-"), redirection[0]);
        const Outcome outcome = run_redirected(tiny_training(*stories_, out), redirection);
        EXPECT_EQ(outcome.exit_code, 0) << redirection;
        EXPECT_EQ(outcome.err, "") << redirection;
        EXPECT_EQ(tensors_of(out), tensors_of(trained_run())) << redirection;
        std::filesystem::remove_all(out);
    }
    const auto out = *place_ / "unread";
    const Outcome outcome = run_without_reader(tiny_training(*stories_, out));
    EXPECT_EQ(outcome.exit_code, 0);
    EXPECT_EQ(outcome.err, "");
    EXPECT_EQ(tensors_of(out), tensors_of(trained_run()));
}

TEST_F(Streams, ClosedDescriptorsDoNotCorruptMetrics) {
    const auto out = *place_ / "closed";
    EXPECT_EQ(run_redirected(tiny_training(*stories_, out), "<&- >&- 2>&-").exit_code, 0);
    std::ifstream file(out / "metrics.jsonl");
    int lines = 0;
    for (std::string line; std::getline(file, line); ++lines)
        EXPECT_FALSE(parse_json_or_null(line).is_null()) << line;
    EXPECT_EQ(lines, 9);  // 8 steps and one checkpoint
}

TEST_F(Streams, EscapesNamesOfFilesAndFlags) {
    const std::string name = (*place_ / "x\x1b[31m\ny\xe2\x80\xae\xc2\x9b.h5").string();
    const std::string escaped = (*place_ / "x\\u001b[31m\\ny\\u202e\\u009b.h5").string();
    const auto refused = [&](const Arguments& arguments) { expect_refused(run(arguments), {escaped}); };
    refused({"inspect", name});
    refused({"sample", name});
    refused({"train", "--data", name, "--out", (*place_ / "none").string()});
    refused({"train", "--config", name});
    refused({"train", "--resume", name});
    expect_refused(run({"train", "--x\x1b[31m"}), {"--x\\u001b[31m"});

    std::filesystem::copy(trained_run() / "checkpoints" / "step_00000008.h5", name);
    const Outcome outcome = run({"inspect", name});
    expect_success(outcome);
    EXPECT_THAT(outcome.out, testing::StartsWith(escaped + ": sound, step 8"));
    std::filesystem::copy(name, *place_ / "caf\xe9.h5");
    const Outcome json = run({"inspect", (*place_ / "caf\xe9.h5").string(), "--json"});
    expect_success(json);
    EXPECT_EQ(nlohmann::json::parse(json.out).at("file"), (*place_ / "caf\\xe9.h5").string());
}

TEST_F(Streams, ShortensLongNames) {
    const Outcome outcome = run({"sample", std::string(100'000, 'x')});
    expect_refused(outcome, {"xxx ...[", "]... xxx", "File name too long"});
    EXPECT_LT(outcome.err.size(), 2100u);
}

}  // namespace
}  // namespace gradtile::test
