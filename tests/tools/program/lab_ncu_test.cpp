// `gradtile lab --ncu`. The CSV texts below are made by hand, in the forms that Nsight Compute prints; no GPU
// measured these numbers.
#include <fstream>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "program.h"

namespace gradtile::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

/// --page raw: a units row, then one row per launch. The profiled program printed the first line.
const std::string raw_page = R"csv(operator        ms
==PROF== Connected to process 7 (gradtile)
"ID","Process ID","Kernel Name","Device","dram__bytes_read.sum","dram__bytes_write.sum","lts__t_bytes.sum"
"","","","","Mbyte","Kbyte","byte"
"0","7","void gradtile::attention::cuda::<unnamed>::forward_kernel<Policy<64>, true>(Parameters, ""x"")","0","1.5","500","4,000,000"
"1","7","void gradtile::attention::cuda::<unnamed>::forward_kernel<Policy<64>, true>(Parameters, ""x"")","0","2.5","1,500","6,000,000"
"2","7","void cutlass::gemm<int>(int)","0","10","0","1"

"3","7","prepare_backward_kernel","0","1","0","1,000,000"
"4","7","backward_kernel","0","2","1000","3,000,000"
==PROF== Disconnected
)csv";

class LabNcu : public testing::Test {
  protected:
    Outcome compare(const std::string& csv, const Arguments& more = {}) const {
        std::ofstream(path_, std::ios::binary) << csv;
        return run(
            Arguments{"lab", "--length", "96", "--head-dim", "16", "--fast-memory", "8192", "--ncu", path_} +
            more);
    }
    json json_of_comparison(const std::string& csv, const Arguments& more = {}) const {
        const Outcome outcome = compare(csv, more + Arguments{"--json"});
        expect_success(outcome);
        return json::parse(outcome.out);
    }
    TemporaryDirectory place_;
    const std::string path_ = (place_ / "kernels.csv").string();
};

TEST_F(LabNcu, ReadsLaunchesAndUnitsOfTheRawPage) {
    const json all = json_of_comparison(raw_page);
    ASSERT_EQ(all.at("kernels").size(), 4u);
    const json& forward = all.at("kernels").at(0);
    EXPECT_EQ(forward.at("kernel"), "forward_kernel");
    EXPECT_EQ(forward.at("algorithm"), "flash2");
    EXPECT_EQ(forward.at("pass"), "forward");
    EXPECT_EQ(forward.at("launches"), 2);
    EXPECT_EQ(forward.at("dram_read_bytes"), 2e6);
    EXPECT_EQ(forward.at("dram_write_bytes"), 1e6);
    EXPECT_EQ(forward.at("l2_bytes"), 5e6);
    EXPECT_EQ(all.at("kernels").at(1).at("kernel"), "void cutlass::gemm<int>(int)");
    EXPECT_EQ(all.at("kernels").at(1).at("pass"), "");
}

TEST_F(LabNcu, PutsTheMeasuredBytesOfAPassBesideTheCountedOnes) {
    const json all = json_of_comparison(raw_page, {"--heads", "3"});
    const Outcome counted =
        run({"lab", "--length", "96", "--head-dim", "16", "--fast-memory", "8192", "--json"});
    expect_success(counted);
    ASSERT_EQ(all.at("passes").size(), 2u);
    const json counts = json::parse(counted.out);
    for (const json& row : counts.at("algorithms")) {
        if (row.at("name") != "flash2") continue;
        const bool is_forward = row.at("pass") == "forward";
        const json& pass = all.at("passes").at(is_forward ? 0 : 1);
        EXPECT_EQ(pass.at("pass"), row.at("pass"));
        EXPECT_EQ(pass.at("counted_bytes"), 3 * row.at("slow_bytes").get<double>());
        EXPECT_EQ(pass.at("dram_bytes"), is_forward ? 3e6 : 4e6);
        EXPECT_EQ(pass.at("l2_bytes"), is_forward ? 5e6 : 4e6);
        EXPECT_EQ(pass.at("once_bytes"), 3 * 4 * 96 * 16 * (is_forward ? 4 : 8));
    }
    const Outcome table = compare(raw_page);
    expect_success(table);
    for (const char* part : {"forward_kernel", "prepare_backward_kernel", "DRAM MB", "counted MB"})
        EXPECT_THAT(table.out, HasSubstr(part));
}

/// Every algorithm's backward pass uses row_statistics_kernel, except 16-bit flash2, which has its own
/// kernel.
TEST_F(LabNcu, ComparesEveryAlgorithmWithItsOwnKernels) {
    const std::string head =
        "\"ID\",\"Kernel "
        "Name\",\"dram__bytes_read.sum\",\"dram__bytes_write.sum\"\n\"\",\"\",\"byte\",\"byte\"\n";
    const auto dram_of_passes = [&](const std::string& kernels) {
        std::string csv = head;
        std::istringstream lines(kernels);
        int id = 0;
        for (std::string kernel, bytes; lines >> kernel >> bytes; ++id)
            csv += '"' + std::to_string(id) + "\",\"" + kernel + "\",\"" + bytes + "\",\"0\"\n";
        json result;
        const json all = json_of_comparison(csv);
        for (const json& pass : all.at("passes"))
            result[pass.at("algorithm").get<std::string>() + ' ' + pass.at("pass").get<std::string>()] =
                pass.at("dram_bytes");
        return result;
    };
    EXPECT_EQ(
        dram_of_passes("memory_efficient_forward_kernel 1 flash1_forward_kernel 2 flash1_backward_kernel 10 "
                       "sum_parts_kernel 20 row_statistics_kernel 100"),
        (json{{"memory_efficient forward", 1.0}, {"flash1 forward", 2.0}, {"flash1 backward", 130.0}}));
    EXPECT_EQ(
        dram_of_passes("backward_kernel 1 memory_efficient_backward_kernel 2 row_statistics_kernel 100"),
        (json{{"flash2 backward", 101.0}, {"memory_efficient backward", 102.0}}));
    EXPECT_EQ(
        dram_of_passes("backward_kernel 1 prepare_backward_kernel 10 memory_efficient_backward_kernel 2 "
                       "row_statistics_kernel 100"),
        (json{{"flash2 backward", 11.0}, {"memory_efficient backward", 102.0}}));
}

TEST_F(LabNcu, ReadsOneRowForEachMetric) {
    const std::string head =
        "\"ID\",\"Kernel Name\",\"Section Name\",\"Metric Name\",\"Metric Unit\",\"Metric Value\"\r\n";
    const json all =
        json_of_comparison(head +
                           "\"0\",\"forward_kernel\",\"s\",\"dram__bytes_read.sum\",\"Gbyte\",\"1\"\r\n"
                           "\"0\",\"forward_kernel\",\"s\",\"dram__bytes_write.sum\",\"byte\",\"12\"\r\n"
                           "\"0\",\"forward_kernel\",\"s\",\"sm__cycles\",\"cycle\",\"n/a\"\r\n");
    EXPECT_EQ(all.at("kernels").at(0).at("dram_read_bytes"), 1e9);
    EXPECT_EQ(all.at("kernels").at(0).at("dram_write_bytes"), 12);
    EXPECT_TRUE(all.at("kernels").at(0).at("l2_bytes").is_null());
    const Outcome table = compare(head +
                                  "\"0\",\"copy\",\"s\",\"dram__bytes_read.sum\",\"byte\",\"1\"\n"
                                  "\"0\",\"copy\",\"s\",\"dram__bytes_write.sum\",\"byte\",\"1\"\n");
    expect_success(table);
    EXPECT_THAT(table.out, HasSubstr("none of these is a kernel of flash2, memory_efficient or flash1"));
}

TEST_F(LabNcu, RefusesOtherFilesInOneLine) {
    const auto refused = [&](const std::string& csv, const std::vector<std::string>& parts) {
        SCOPED_TRACE(csv.substr(0, 200));
        expect_refused(compare(csv), parts);
    };
    const std::string header = "\"ID\",\"Kernel Name\",\"dram__bytes_read.sum\",\"dram__bytes_write.sum\"\n";
    const std::string units = "\"\",\"\",\"byte\",\"byte\"\n";
    refused("", {"kernels.csv", "no header"});
    refused("hello\n", {"no header"});
    refused(std::string(1000, '"'), {"no header"});
    refused(std::string("\0\xff\x01\n", 4), {"no header"});
    refused(header, {"no kernel"});
    refused(header + units, {"no kernel"});
    refused(header + "\"0\",\"k\",\"1\",\"2\"\n", {"line 2", "row of units"});
    refused(header + units + "\"0\",\"k\",\"1\"\n", {"line 3", "3 fields; expected 4"});
    refused(header + units + "\"0\",\"k\",\"1\",\"2\n", {"line 3", "quote"});
    refused(header + units + "\"0\",\"k\",\"1\"x,\"2\"\n", {"line 3", "quote"});
    for (const char* number :
         {"", "n/a", "nan", "inf", "-1", "1e99", "65,77", "1,0000", ",100", "1.5.2", "0x10", "1 "})
        refused(header + units + "\"0\",\"k\",\"1\",\"" + number + "\"\n", {"line 3", "is not a number"});
    refused(header + "\"\",\"\",\"byte\",\"furlong\"\n\"0\",\"k\",\"1\",\"2\"\n",
            {"line 3", "unit 'furlong'", "Kbyte"});
    refused("\"ID\",\"Kernel Name\",\"dram__bytes_read.sum\"\n", {"line 1", "dram__bytes_write.sum"});
    refused(
        "\"ID\",\"Kernel "
        "Name\",\"dram__bytes_read.sum\",\"dram__bytes_read.sum\",\"dram__bytes_write.sum\"\n",
        {"line 1", "two columns"});
    refused("\"ID\",\"Kernel Name\",\"Metric Name\"\n", {"line 1", "Metric Unit"});
    refused(
        "\"ID\",\"Kernel Name\",\"Metric Name\",\"Metric Unit\",\"Metric Value\"\n"
        "\"0\",\"k\",\"dram__bytes_read.sum\",\"byte\",\"1\"\n",
        {"kernel k has no dram__bytes_write.sum"});
    // Control characters in a name do not reach the terminal.
    const Outcome colored = compare(header + units + "\"0\",\"\x1b[31mred\",\"1\",\"2\"\n");
    expect_success(colored);
    EXPECT_THAT(colored.out, HasSubstr("?[31mred"));
}

TEST_F(LabNcu, RefusesWrongFlags) {
    expect_refused(run({"lab", "--ncu", (place_ / "none.csv").string()}), {"none.csv"});
    expect_refused(run({"lab", "--ncu", place_.path().string()}), {"is a directory"});
    expect_refused(compare(raw_page, {"--sweep", "length"}), {"--ncu", "--sweep"});
    expect_refused(compare(raw_page, {"--heads", "0"}), {"--heads: 0"});
    expect_refused(run({"lab", "--heads", "2"}), {"--heads: 2", "--ncu"});
}

}  // namespace
}  // namespace gradtile::test
