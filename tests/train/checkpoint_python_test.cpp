// The promise that a checkpoint is plain HDF5: h5py reads one through docs/read_checkpoint.py, without any of
// this code.
#include <gmock/gmock.h>

#include <cmath>
#include <cstdio>
#include <iomanip>
#include <limits>
#include <sstream>

#include "checkpoint_test_support.h"

namespace gradtile {
namespace {

constexpr const char* kPython = "/usr/bin/python3";

struct CommandResult {
    int status;
    std::string output;
};

CommandResult run(const std::string& command) {
    std::FILE* const pipe = ::popen((command + " 2>&1").c_str(), "r");
    check(pipe != nullptr, "cannot run ", command);
    std::string output;
    char buffer[4096];
    while (std::fgets(buffer, sizeof buffer, pipe) != nullptr) output += buffer;
    return {::pclose(pipe), output};
}

TEST(CheckpointPython, H5pyReadsEveryTensorAndEverySetting) {
    if (run(concat(kPython, " -c 'import h5py, numpy'")).status != 0) {
        GTEST_SKIP() << kPython << " has no h5py (apt-get install python3-h5py)";
    }
    const Context ctx;
    const test::TemporaryDirectory directory;
    Checkpoint c = test::made_up_checkpoint(ctx, 12);
    c.params["half"] = randn(ctx, {40, 3}, DType::f16, Seed{1});
    c.params["double"] = randn(ctx, {40, 3}, DType::f64, Seed{2});
    c.params["large"] = randn(ctx, {700, 900}, DType::bf16, Seed{3});
    (*c.config)["text"] = "gr\xc3\xbc\xc3\x9f";
    write_checkpoint(directory / "a.h5", c);
    const auto [status, output] = run(concat(kPython, ' ', GRADTILE_SOURCE_DIR, "/docs/read_checkpoint.py ",
                                             (directory / "a.h5").string()));
    ASSERT_EQ(status, 0) << output;
    EXPECT_THAT(output, testing::StartsWith("step 12, "));
    EXPECT_THAT(output,
                testing::HasSubstr(R"(config: {"dtype": "bf16", "text": "gr\u00fc\u00df", "width": 24})"));
    EXPECT_THAT(output, testing::HasSubstr(R"(rng: {"seed": 18446744073709551615})"));

    const CheckpointInfo info = inspect_checkpoint(directory / "a.h5");
    const auto value_of = [&](const std::string& name) -> const Tensor& {
        const std::size_t slash = name.find('/');
        const NamedTensors& tensors = name.starts_with("params")   ? c.params
                                      : name.starts_with("master") ? c.master
                                                                   : c.optimizer;
        return tensors.at(name.substr(slash + 1));
    };
    for (const TensorInfo& tensor : info.tensors) {
        const std::size_t at = output.find("\n" + tensor.name + " [");
        ASSERT_NE(at, std::string::npos) << tensor.name;
        const std::string line = output.substr(at + 1, output.find('\n', at + 1) - at - 1);
        // bfloat16 arrives as float32, everything else as it is.
        const std::string dtype =
            tensor.dtype == DType::bf16 ? "float32" : std::string(name_of(tensor.dtype));
        EXPECT_THAT(line, testing::HasSubstr(concat(tensor.name, ' ', tensor.shape, ' ', dtype, ' ')));
        // All elements are exact in float64, so only the order of summation differs: at most n roundings of a
        // partial sum that is no larger than the sum of magnitudes.
        const std::vector<double> values = to_host(ctx, value_of(tensor.name));
        double sum = 0;
        double magnitude = 0;
        for (const double v : values) {
            sum += v;
            magnitude += std::abs(v);
        }
        const double bound =
            2 * static_cast<double>(values.size()) * std::numeric_limits<double>::epsilon() * magnitude;
        double found = 0;
        std::istringstream(line.substr(line.find(" sum ") + 5)) >> found;
        EXPECT_NEAR(found, sum, bound) << line;
        std::ostringstream crc;
        crc << " crc32c " << std::hex << std::setfill('0') << std::setw(8) << tensor.crc32c << ' ';
        EXPECT_THAT(line, testing::HasSubstr(crc.str()));
    }
}

}  // namespace
}  // namespace gradtile
