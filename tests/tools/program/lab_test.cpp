// `gradtile lab` output. Counts are tested in tests/tools/lab/lab_test.cpp.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "program.h"

namespace gradtile::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

const Arguments small_lab{"lab", "--length", "96", "--head-dim", "16", "--fast-memory", "8192"};

json lab_json(const Arguments& arguments) {
    const Outcome outcome = run(arguments + Arguments{"--json"});
    expect_success(outcome);
    return json::parse(outcome.out);
}

TEST(LabCommand, PrintsEveryAlgorithmSoftmaxAndVerdict) {
    const json all = lab_json(small_lab);
    EXPECT_EQ(all.at("length"), 96);
    EXPECT_EQ(all.at("head_dim"), 16);
    EXPECT_EQ(all.at("fast_memory"), 8192);
    std::vector<std::string> passes;
    for (const json& row : all.at("algorithms")) {
        passes.push_back(row.at("name").get<std::string>() + ' ' + row.at("pass").get<std::string>());
        for (const char* key : {"loads", "stores", "slow_bytes", "peak_bytes", "peak_fast_bytes",
                                "formula_bytes", "flops", "block_rows", "block_keys", "error"})
            EXPECT_GT(row.at(key).get<double>(), 0) << key;
        EXPECT_EQ(row.at("slow_bytes"), 4 * (row.at("loads").get<int>() + row.at("stores").get<int>()));
        EXPECT_GE(row.at("ms").get<double>(), 0);
        const bool is_flash = row.at("name").get<std::string>().starts_with("flash");
        EXPECT_DOUBLE_EQ(row.at("formula_bytes"),
                         4 * (is_flash ? 96.0 * 96 * 16 * 16 / (8192 / 4) : 96.0 * 16 + 96 * 96));
    }
    EXPECT_THAT(passes, testing::ElementsAre("naive forward", "naive backward", "memory_efficient forward",
                                             "memory_efficient backward", "flash1 forward", "flash1 backward",
                                             "flash2 forward", "flash2 backward"));
    std::vector<std::string> softmax;
    for (const json& row : all.at("softmax")) softmax.push_back(row.at("name"));
    EXPECT_THAT(softmax,
                testing::ElementsAre("naive", "safe", "online", "online_statistics", "unfused", "fused"));
    EXPECT_GE(all.at("verdicts").size(), 7u);
    for (const char* key : {"copy_bytes_per_s", "product_flops_per_s", "standard_ms", "flash2_ms"})
        EXPECT_GT(all.at("machine").at(key).get<double>(), 0) << key;

    const Outcome table = run(small_lab);
    expect_success(table);
    for (const char* part :
         {"N = 96, d = 16", "M = 8192 bytes", "memory_efficient", "flash2", "rows x keys",
          "online_statistics", "holds: ", "six transfers", "roofline of this machine", "FLOP/byte"})
        EXPECT_THAT(table.out, HasSubstr(part));
}

/// The num_splits rule: few heads leave a GPU idle unless the keys are split; many heads need no splits.
TEST(LabCommand, ShowsHowAGpuSplitsTheKeysOfOneQuery) {
    EXPECT_TRUE(lab_json(small_lab).at("key_splits").empty());  // 96 keys
    const json splits = lab_json({"lab", "--length", "512", "--head-dim", "40"}).at("key_splits");
    ASSERT_EQ(splits.size(), 6u);
    for (const json& row : splits) {
        EXPECT_GE(row.at("occupancy"), row.at("occupancy_of_one"));
        EXPECT_LE(row.at("occupancy").get<double>(), 1);
        EXPECT_GE(row.at("splits").get<int>(), 1);
    }
    EXPECT_GT(splits.front().at("splits").get<int>(), 1);
    EXPECT_EQ(splits.back().at("splits").get<int>(), 1);
    EXPECT_LT(splits.front().at("occupancy_of_one").get<double>(), 0.01);
}

TEST(LabCommand, SweepsFitPowerLaws) {
    const auto slopes_of = [](const json& sweep, const std::string& name, const char* key) {
        for (const json& row : sweep.at("algorithms"))
            if (row.at("name") == name && row.at("pass") == "forward") return row.at(key).get<double>();
        throw std::runtime_error("no " + name);
    };
    const json by_length =
        lab_json({"lab", "--sweep", "length", "--length", "512", "--head-dim", "8", "--fast-memory", "8192"});
    EXPECT_EQ(by_length.at("sweep"), "length");
    EXPECT_EQ(by_length.at("values"), json({32, 64, 128, 256, 512}));
    EXPECT_GT(slopes_of(by_length, "naive", "peak_bytes_slope"), 1.7);
    EXPECT_NEAR(slopes_of(by_length, "flash2", "peak_bytes_slope"), 1, 1e-9);
    const json by_memory = lab_json(
        {"lab", "--sweep", "fast-memory", "--length", "256", "--head-dim", "16", "--fast-memory", "32768"});
    EXPECT_LT(slopes_of(by_memory, "flash2", "slow_bytes_slope"), -0.5);
    EXPECT_NEAR(slopes_of(by_memory, "flash2", "peak_bytes_slope"), 0, 1e-9);

    const Outcome table = run({"lab", "--sweep", "head-dim", "--length", "64", "--head-dim", "64"});
    expect_success(table);
    for (const char* part : {"sweep of head-dim", "slope", "  16  ", "peak", "flash1"})
        EXPECT_THAT(table.out, HasSubstr(part));
}

TEST(LabCommand, DrawsASweep) {
    const TemporaryDirectory place;
    const std::string picture = (place / "sweep.svg").string();
    expect_success(run({"lab", "--sweep", "fast-memory", "--length", "64", "--head-dim", "8", "--fast-memory",
                        "16384", "--svg", picture}));
    const std::string svg = contents_of(picture);
    EXPECT_TRUE(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
    std::size_t curves = 0;
    for (std::size_t position = svg.find("<path "); position != std::string::npos;
         position = svg.find("<path ", position + 1))
        ++curves;
    EXPECT_EQ(curves, 8u);
    for (const char* part : {">fast-memory<", ">16384<", "flash2 backward", "stroke-dasharray"})
        EXPECT_THAT(svg, HasSubstr(part));
    EXPECT_THAT(svg, testing::Not(HasSubstr("nan")));
    const Outcome failed = run({"lab", "--sweep", "length", "--length", "64", "--head-dim", "8", "--svg",
                                (place / "none" / "x.svg").string()});
    EXPECT_EQ(failed.exit_code, 1);
    EXPECT_THAT(failed.err, HasSubstr("none/x.svg"));
}

TEST(LabCommand, RefusesWrongFlagsByName) {
    const auto refused = [](const Arguments& flags, const std::vector<std::string>& parts) {
        const Outcome outcome = run(Arguments{"lab"} + flags);
        EXPECT_EQ(outcome.exit_code, 2);
        expect_refused(outcome, parts);
    };
    refused({"--length", "0"}, {"--length: 0", "expected 1 to 16384"});
    refused({"--head-dim", "257"}, {"--head-dim: 257", "expected 1 to 256"});
    refused({"--fast-memory", "100"}, {"--fast-memory: 100", "expected at least", "--head-dim 64"});
    refused({"--sweep", "batch"}, {"--sweep: 'batch'", "length, fast-memory or head-dim"});
    refused({"--sweep", "length", "--length", "1"}, {"--sweep length", "fewer than two points"});
    refused({"--svg", "x.svg"}, {"--svg: a picture needs --sweep"});
    refused({"extra"}, {"extra"});
}

}  // namespace
}  // namespace gradtile::test
