// A checkpoint is plain HDF5: h5py reads it through docs/read_checkpoint.py, without gradtile.
#include <gmock/gmock.h>

#include <cmath>
#include <cstdio>
#include <fstream>
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

/// A checkpoint with a one-chunk tensor and a tensor with several chunks, for h5py to read.
class CheckpointPython : public testing::Test {
  protected:
    void SetUp() override {
        if (run(concat(kPython, " -c 'import h5py, numpy'")).status != 0)
            GTEST_SKIP() << kPython << " has no h5py (apt-get install python3-h5py)";
        c.params["half"] = randn(ctx, {40, 3}, DType::f16, Seed{1});
        c.params["large"] = randn(ctx, {700, 900}, DType::bf16, Seed{3});
    }

    const Context ctx;
    const test::TemporaryDirectory directory;
    Checkpoint c = test::generated_checkpoint(ctx, 12);
};

/// Writes the checkpoint as one file, or in parts.
class CheckpointPythonIn : public CheckpointPython, public testing::WithParamInterface<int> {};

TEST_P(CheckpointPythonIn, H5pyReadsEveryTensorAndEverySetting) {
    c.params["double"] = randn(ctx, {40, 3}, DType::f64, Seed{2});
    c.config.set("text", "gr\xc3\xbc\xc3\x9f");
    const CheckpointDirectory checkpoints(directory.path());
    const std::filesystem::path file = checkpoints.path_of(12);
    if (GetParam() == 0) {
        write_checkpoint(file, c);
    } else {
        test::save_in_parts(checkpoints, c, /*save=*/0x0123456789abcdef, GetParam());
    }
    const auto [status, output] =
        run(concat(kPython, ' ', GRADTILE_SOURCE_DIR, "/docs/read_checkpoint.py ", file.string()));
    ASSERT_EQ(status, 0) << output;
    EXPECT_THAT(output, testing::StartsWith("step 12, "));
    EXPECT_THAT(output,
                testing::HasSubstr(R"(config: {"dtype": "bf16", "text": "gr\u00fc\u00df", "width": 24})"));
    EXPECT_THAT(output, testing::HasSubstr(R"(rng: {"seed": 18446744073709551615})"));

    const CheckpointInfo info = inspect_checkpoint(file);
    const auto value_of = [&](const std::string& name) -> const Tensor& {
        const std::size_t slash = name.find('/');
        const NamedTensors& tensors = name.starts_with("params")   ? c.params
                                      : name.starts_with("master") ? c.master
                                                                   : c.optimizer;
        return tensors.at(name.substr(slash + 1));
    };
    for (const TensorInfo& tensor : info.tensors) {
        const std::size_t position = output.find("\n" + tensor.name + " [");
        ASSERT_NE(position, std::string::npos) << tensor.name;
        const std::string line = output.substr(position + 1, output.find('\n', position + 1) - position - 1);
        // h5py returns bfloat16 as float32 and all other types unchanged.
        const std::string dtype =
            tensor.dtype == DType::bf16 ? "float32" : std::string(name_of(tensor.dtype));
        EXPECT_THAT(line, testing::HasSubstr(concat(tensor.name, ' ', tensor.shape, ' ', dtype, ' ')));
        // All elements are exact in float64, so only the summation order differs: at most n roundings, each
        // relative to a partial sum, which is at most the sum of magnitudes.
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

INSTANTIATE_TEST_SUITE_P(Parts, CheckpointPythonIn, testing::Values(0, 1, 3));

// Reads the tensor list in the user block as docs/checkpoint_format.md describes it, and compares every entry
// with h5py's view of the same dataset: shape, elements, checksum, and the chunks' positions.
constexpr const char* kManifestReader = R"(
import struct, sys, h5py, numpy as np
path = sys.argv[1]
data = open(path, 'rb').read()
block, listed = struct.unpack_from('<QQ', data, 64)
offset = 128
def take(form):
    global offset
    values = struct.unpack_from('<' + form, data, offset)
    offset += struct.calcsize('<' + form)
    return values
seen = []
with h5py.File(path, 'r') as file:
    assert file.userblock_size == block, (file.userblock_size, block)
    count, = take('I')
    for _ in range(count):
        length, = take('H')
        name = take('%ds' % length)[0].decode()
        kind, rank = take('BB')
        shape = take('%dQ' % rank)
        crc, pieces = take('IQ')
        extents = [take('QQ') for _ in range(pieces)]
        item = file[name]
        raw = b''.join(data[begin:begin + size] for begin, size in extents)
        values = item[()]
        if kind == 0:
            assert shape == (len(raw),), name
            meant = values[0]
        else:
            assert shape == item.shape, name
            meant = (values.view(np.uint32) >> 16).astype(np.uint16).tobytes() if kind == 3 else values.tobytes()
        assert raw == meant, name
        assert crc == int(item.attrs['crc32c']), name
        # h5py 3.7 with libhdf5 1.10.8 counts from the user block's end or from the file's begin.
        chunks = [item.id.get_chunk_info(i) for i in range(item.id.get_num_chunks())]
        begins = [chunk.byte_offset for chunk in chunks]
        assert begins == [b for b, _ in extents] or [b + block for b in begins] == [b for b, _ in extents], name
        seen.append(name)
    assert offset == 128 + listed and seen == sorted(seen)
    datasets = []
    file.visititems(lambda name, item: datasets.append(name) if isinstance(item, h5py.Dataset) else None)
    assert sorted(datasets) == seen, (datasets, seen)
print(len(seen), 'objects')
)";

TEST_F(CheckpointPython, TheManifestMatchesWhatH5pyReads) {
    c.params["none"] = zeros(ctx, {4, 0}, DType::f64);
    c.params["padded"] = randn(ctx, {3, 333'333}, DType::f32, Seed{4});
    c.optimizer["counts"] = from_host(ctx, std::vector<std::int32_t>{1, -2, 3}, {3});
    write_checkpoint(directory / "a.h5", c);
    std::ofstream(directory / "manifest.py") << kManifestReader;
    const auto [status, output] =
        run(concat(kPython, ' ', (directory / "manifest.py").string(), ' ', (directory / "a.h5").string()));
    EXPECT_EQ(status, 0) << output;
    EXPECT_EQ(output, "21 objects\n");
}

}  // namespace
}  // namespace gradtile
