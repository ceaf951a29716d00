// `gradtile bench comm` output on the CPU. No speed is asserted.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "program.h"

namespace gradtile::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

const Arguments two_processes{"bench", "comm", "--processes", "2", "--runs", "1", "--bytes", "4096,100000"};

TEST(BenchComm, TimesEveryCollectiveAndSizeOnce) {
    const Outcome outcome = run(two_processes + Arguments{"--json", "--dtype", "f32,bf16"});
    expect_success(outcome);
    std::vector<std::string> timed, timed_in_bf16;
    for (const json& row : outcome.json_lines()) {
        const std::string what = row.at("what");
        const double bytes = row.at("bytes"), sent_per_ms = row.at("bus_gb_per_s").get<double>() * 1e6;
        (row.at("dtype") == "bfloat16" ? timed_in_bf16 : timed)
            .push_back(what + ' ' + row.at("bytes").dump());
        EXPECT_EQ(row.at("gpus"), 2);
        // Two processes run. Each process sends everything once in an all-reduce, and half in a
        // reduce-scatter or all-gather. JSON numbers have nine digits.
        const double sent_bytes = what == "reduce_scatter" || what == "all_gather" ? bytes / 2 : bytes;
        EXPECT_NEAR(sent_per_ms * row.at("ms").get<double>(), sent_bytes, 1e-7 * sent_bytes);
    }
    EXPECT_EQ(timed, (std::vector<std::string>{"all_reduce 4096", "all_reduce 100000", "reduce_scatter 4096",
                                               "reduce_scatter 100000", "all_gather 4096",
                                               "all_gather 100000", "broadcast 4096", "broadcast 100000"}));
    EXPECT_EQ(timed_in_bf16, timed);
}

TEST(BenchComm, PlanReadsItsJson) {
    const Outcome outcome =
        run({"bench", "comm", "--processes", "2", "--runs", "1", "--bytes", "4194304", "--json"});
    expect_success(outcome);
    const TemporaryDirectory place;
    const Outcome fit = run({"plan", "--fit", place.write("comm.jsonl", outcome.out)});
    expect_success(fit);
    for (const char* part : {"nvlink_bytes", "broadcast", "4 MiB"}) EXPECT_THAT(fit.out, HasSubstr(part));
}

TEST(BenchComm, PrintsATable) {
    const Outcome outcome = run(two_processes);
    expect_success(outcome);
    for (const char* part : {"2 processes on cpu", "float32", "bus GB/s", "reduce_scatter"})
        EXPECT_THAT(outcome.out, HasSubstr(part));
}

TEST(BenchCommErrors, AreOneLine) {
    const Arguments comm{"bench", "comm", "--device", "cpu"};
    expect_refused(run(comm), {"bench comm: 1 process", "--processes N"});
    expect_refused(run(comm + Arguments{"--bytes", "0"}), {"--bytes: 0", "expected 1"});
    expect_refused(run(comm + Arguments{"--bytes", "4,x"}), {"--bytes", "'x'"});
    expect_refused(run(comm + Arguments{"--runs", "0"}), {"--runs: 0"});
    expect_refused(run(comm + Arguments{"--gpus", "2"}), {"--gpus: ", "--device cpu"});
    expect_refused(run(comm + Arguments{"--processes", "0"}), {"--processes: 0"});
}

}  // namespace
}  // namespace gradtile::test
