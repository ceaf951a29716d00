// The program reads hostile and honest JSON although memory is short: it succeeds, or ends with one line and
// an exit code. GRADTILE_TEST_ROUNDS sets how many allocations fail in each command, one in each round.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include <support/sanitized.h>
#include "program.h"

namespace gradtile::test {
namespace {

std::string hostile_json() {
    std::string text = "[";
    while (text.size() < 4'300'000) text += "{},";
    return text + "{}]";
}

void expect_ended_in_order(const Outcome& outcome, const Outcome& meant, const std::string& when) {
    ASSERT_EQ(outcome.signal, 0) << when << ": " << outcome.err;
    if (outcome.exit_code == 0) {
        EXPECT_EQ(outcome.out, meant.out) << when;  // the failure was absorbed
        return;
    }
    EXPECT_EQ(outcome.error_lines().size(), 1u) << when << ": " << outcome.err;
    EXPECT_THAT(outcome.err, testing::StartsWith("gradtile: ")) << when;
}

class LowMemory : public testing::Test {
  protected:
    LowMemory() {
        stories_ = write_stories(place_);
        std::ofstream(hostile_) << hostile_json();
        expect_success(run(tiny_training(stories_, out_) + Arguments{"--quiet"}));
        std::ofstream(place_ / "prompts.jsonl") << R"({"prompt":"a","x":[1,{"y":[]}]})"
                                                   "\n[[1],[2]]\n";
        std::ofstream(place_ / "tokenizer.json")
            << R"({"model":{"vocab":{"a":0,"b":1,"ab":2},"merges":[["a","b"],[[],{"a":1}]]}})";
    }
    std::vector<Arguments> commands() const {
        return {
            {"inspect", out_.string(), "--json"},
            {"tokenize", stories_, "--tokenizer", hostile_, "--format", "nanogpt", "--out", place_ / "o.bin"},
            {"tokenize", stories_, "--tokenizer", place_ / "tokenizer.json", "--format", "nanogpt", "--out",
             place_ / "o.bin"},
            {"train", "--config", hostile_, "--print-config"},
            {"report", out_.string(), "--out", place_ / "r.html"},
            {"sample", out_.string(), "--prompts", place_ / "prompts.jsonl"}};
    }

    const TemporaryDirectory place_;
    const std::filesystem::path out_ = place_ / "run";
    const std::string hostile_ = place_ / "hostile.json";
    std::string stories_;
};

TEST_F(LowMemory, AFailedAllocationIsOneLineAndAnExitCode) {
    if (sanitized) GTEST_SKIP() << "a sanitizer has an operator new of its own";
    const char* const asked = std::getenv("GRADTILE_TEST_ROUNDS");
    const std::int64_t rounds = asked ? std::atoll(asked) : 12;
    const std::string calls_file = place_ / "calls";
    const auto run_failing = [&](const Arguments& arguments, const std::string& failing) {
        return run(arguments, {.environment = {{"LD_PRELOAD", GRADTILE_FAILING_NEW_MODULE},
                                               {"GRADTILE_FAILING_NEW", failing},
                                               {"GRADTILE_NEW_CALLS", calls_file}}});
    };
    const auto calls_of = [&](const Arguments& arguments) {
        remove(std::filesystem::path(calls_file));
        run_failing(arguments, "once:0");
        return std::stoll(contents_of(calls_file));
    };
    // Each command first declares all flags, which makes thousands of allocations.
    const std::int64_t declaring = calls_of({"version"});
    ASSERT_GT(declaring, 100);
    for (const Arguments& arguments : commands()) {
        const Outcome meant = run(arguments);
        const std::int64_t calls = calls_of(arguments);
        ASSERT_GT(calls, declaring);
        const std::int64_t step = std::max<std::int64_t>(1, (calls - declaring) / rounds);
        for (std::int64_t call = declaring; call <= calls; call += step)
            for (const char* const how : {"once:", "from:"}) {
                const std::string failing = concat(how, call);
                expect_ended_in_order(run_failing(arguments, failing), meant,
                                      concat(arguments[0], ", ", failing, " of ", calls));
                if (HasFatalFailure()) return;
            }
    }
    expect_ended_in_order(run_failing({"version"}, concat("from:", declaring / 2)), {}, "declaring flags");
}

TEST_F(LowMemory, ASmallAddressSpaceIsOneLineAndAnExitCode) {
    if (sanitized) GTEST_SKIP() << "a sanitizer reserves terabytes of address space";
    const auto run_limited = [](const Arguments& arguments, std::int64_t kibibytes) {
        return run(arguments,
                   {.prefix = {"/bin/sh", "-c", concat("ulimit -v ", kibibytes, "; exec \"$@\""), "sh"}});
    };
    int tried = 0;
    for (std::int64_t mebibytes = 100; mebibytes <= 400; mebibytes += 20) {
        // With less memory, the program's libraries cannot be loaded.
        if (run_limited({"version"}, mebibytes << 10).exit_code != 0) continue;
        ++tried;
        for (const Arguments& arguments : commands())
            if (arguments[0] == "tokenize" || arguments[0] == "train")
                expect_ended_in_order(run_limited(arguments, mebibytes << 10), run(arguments),
                                      concat(arguments[0], " in ", mebibytes, " MiB"));
    }
    EXPECT_GT(tried, 3);
}

}  // namespace
}  // namespace gradtile::test
