#include <sys/stat.h>

#include <limits>

#include <gmock/gmock.h>

#include <gradtile/train/checkpoint/checkpoint.h>

#include "checkpoint_test_support.h"

namespace gradtile {
namespace {

using test::error_of;
using test::generated_checkpoint;
using test::TemporaryDirectory;
using testing::HasSubstr;

std::filesystem::path only_file_in(const std::filesystem::path& directory) {
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::directory_iterator(directory)) files.push_back(entry.path());
    return files.size() == 1 ? files[0] : std::filesystem::path();
}

TEST(Checkpoint, IsReadBackBitForBit) {
    const Context ctx;
    const TemporaryDirectory directory;
    const Checkpoint meant = generated_checkpoint(ctx, 7);
    write_checkpoint(directory / "a.h5", meant);
    test::expect_same(read_checkpoint(directory / "a.h5"), meant);
    EXPECT_EQ(only_file_in(directory.path()), directory / "a.h5");
}

TEST(Checkpoint, KeepsEveryDtypeAndEveryShapeBitForBit) {
    const Context ctx;
    const TemporaryDirectory directory;
    Checkpoint meant;
    // Shapes that are larger than a chunk along the first axis, the last axis, or an axis between; a shape
    // smaller than a chunk; an empty shape.
    const std::vector<Shape> shapes = {{1},          {3},       {500'000},     {1000, 777},
                                       {2, 300'000}, {5, 3, 7}, {3, 400, 500}, {2, 3, 1, 5, 2, 7},
                                       {0},          {4, 0, 3}};
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
        for (std::size_t i = 0; i < shapes.size(); ++i) {
            meant.params[concat(name_of(dtype), '.', i)] = randn(ctx, shapes[i], dtype, Seed{i});
        }
    }
    std::vector<std::int32_t> integers(200'000);
    for (std::size_t i = 0; i < integers.size(); ++i)
        integers[i] = static_cast<std::int32_t>(i * 2654435761u);
    meant.optimizer["counts"] = from_host(ctx, integers, {200'000});
    write_checkpoint(directory / "a.h5", meant);
    test::expect_same(read_checkpoint(directory / "a.h5"), meant);
}

TEST(Checkpoint, StoresStridedViewsRowMajor) {
    const Context ctx;
    const TemporaryDirectory directory;
    const Tensor x = randn(ctx, {40, 600, 17}, DType::f32, Seed{1});
    const Tensor narrow = randn(ctx, {300, 1001}, DType::bf16, Seed{2});
    Checkpoint meant;
    meant.params["transposed"] = x.transpose(0, 2);
    meant.params["slice"] = x.slice(1, 100, 333);
    meant.params["repeated"] = x.select(0, 3).select(0, 5).expand({1000, 17});
    meant.params["columns"] = narrow.slice(1, 3, 900).transpose(0, 1);
    meant.params["double"] = randn(ctx, {30, 20}, DType::f64, Seed{3}).transpose(0, 1);
    write_checkpoint(directory / "a.h5", meant);
    test::expect_same(read_checkpoint(directory / "a.h5"), meant);
}

TEST(Checkpoint, NamesMayBePrefixesOfEachOther) {
    const Context ctx;
    const TemporaryDirectory directory;
    Checkpoint meant;
    for (const std::string name : {"a-b", "a/c", "a.b", "ab", "a/c-d", "a0/c", "A/~"}) {
        meant.params[name] = randn(ctx, {3}, DType::f32, Seed{name.size()});
    }
    write_checkpoint(directory / "a.h5", meant);
    test::expect_same(read_checkpoint(directory / "a.h5"), meant);
}

TEST(Checkpoint, WithoutTensorsIsLegal) {
    const TemporaryDirectory directory;
    Checkpoint meant;
    meant.config = "just a text with \"quotes\" and \xc3\xbc";
    write_checkpoint(directory / "a.h5", meant);
    test::expect_same(read_checkpoint(directory / "a.h5"), meant);
}

TEST(Checkpoint, MayHaveATokenizerWithoutOtherData) {
    const TemporaryDirectory directory;
    Checkpoint meant;
    meant.tokenizer = R"({"kind":"bytes"})";
    write_checkpoint(directory / "a.h5", meant);
    const Checkpoint found = read_checkpoint(directory / "a.h5");
    EXPECT_EQ(found.tokenizer, meant.tokenizer);
    EXPECT_EQ(found.data, JsonValue::object());
}

TEST(Checkpoint, EqualCheckpointsAreEqualFiles) {
    const Context ctx;
    const TemporaryDirectory directory;
    write_checkpoint(directory / "a.h5", generated_checkpoint(ctx, 3));
    write_checkpoint(directory / "b.h5", generated_checkpoint(ctx, 3));
    EXPECT_EQ(test::file_bytes(directory / "a.h5"), test::file_bytes(directory / "b.h5"));
}

TEST(Checkpoint, ReadsOnlyWeightsOnRequest) {
    const Context ctx;
    const TemporaryDirectory directory;
    const Checkpoint meant = generated_checkpoint(ctx, 7);
    write_checkpoint(directory / "a.h5", meant);
    const Checkpoint found = read_checkpoint(directory / "a.h5", {.training_state = false});
    test::expect_same(found.params, meant.params);
    EXPECT_TRUE(found.master.empty());
    EXPECT_TRUE(found.optimizer.empty());
    EXPECT_EQ(found.config, meant.config);
}

TEST(Checkpoint, InspectListsTheContents) {
    const Context ctx;
    const TemporaryDirectory directory;
    const Checkpoint meant = generated_checkpoint(ctx, 7);
    write_checkpoint(directory / "a.h5", meant);
    const CheckpointInfo info = inspect_checkpoint(directory / "a.h5");
    EXPECT_EQ(info.step, 7);
    EXPECT_EQ(info.file_bytes, std::filesystem::file_size(directory / "a.h5"));
    EXPECT_EQ(info.tensors.size(), meant.params.size() + meant.master.size() + meant.optimizer.size());
    EXPECT_EQ(info.meta, meant.meta);
    const auto named = [&](const std::string& name) {
        return std::find_if(info.tensors.begin(), info.tensors.end(),
                            [&](const TensorInfo& t) { return t.name == name; });
    };
    const auto embedding = named("params/embedding.weight");
    ASSERT_NE(embedding, info.tensors.end());
    EXPECT_EQ(embedding->dtype, DType::bf16);
    EXPECT_EQ(embedding->shape, (Shape{65, 24}));
    EXPECT_NE(named("optimizer/adamw/m/embedding.weight"), info.tensors.end());
}

TEST(Checkpoint, RefusesNonFiniteValuesByName) {
    const Context ctx;
    const TemporaryDirectory directory;
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
        for (const double bad :
             {std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity(),
              std::numeric_limits<double>::quiet_NaN()}) {
            Checkpoint c = generated_checkpoint(ctx, 7);
            const Tensor x = zeros(ctx, {10, 33'333}, dtype);
            fill(ctx, x.slice(0, 9, 1).slice(1, 33'332, 1), bad);
            c.optimizer["adamw/m/odd"] = x;
            const std::string message = error_of([&] { write_checkpoint(directory / "a.h5", c); });
            EXPECT_THAT(message, HasSubstr("optimizer/adamw/m/odd: holds an infinity or a NaN"));
            EXPECT_THAT(message, HasSubstr((directory / "a.h5").string()));
            EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
        }
    }
}

TEST(Checkpoint, RefusesNamesThatCannotBeStored) {
    const Context ctx;
    const TemporaryDirectory directory;
    for (const std::string name : {"", "/a", "a/", "a//b", ".", "a/../b", "sp ace", "\xff", "a\nb"}) {
        Checkpoint c;
        c.params[name] = zeros(ctx, {1}, DType::f32);
        EXPECT_THAT(error_of([&] { write_checkpoint(directory / "a.h5", c); }),
                    HasSubstr("cannot name a tensor"));
    }
    Checkpoint both;  // "a" would be a tensor and a group
    both.params["a"] = zeros(ctx, {1}, DType::f32);
    both.params["a/b"] = zeros(ctx, {1}, DType::f32);
    EXPECT_THAT(error_of([&] { write_checkpoint(directory / "a.h5", both); }), HasSubstr("params/a"));
    EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

TEST(Checkpoint, RefusesOtherFilesInOneLine) {
    const TemporaryDirectory directory;
    EXPECT_THAT(error_of([&] { read_checkpoint(directory / "absent.h5"); }),
                HasSubstr("absent.h5: cannot be opened: No such file"));
    EXPECT_THAT(error_of([&] { read_checkpoint(directory.path()); }), HasSubstr("checkpoint "));
    EXPECT_THAT(error_of([&] { write_checkpoint(directory / "no" / "such.h5", {}); }),
                HasSubstr("cannot create: No such file"));
    EXPECT_THAT(error_of([&] { read_checkpoint(directory.path()); }),
                HasSubstr("is a directory; expected a file"));
    test::write_bytes(directory / "text.h5", std::vector(10'000, std::byte{'x'}));
    EXPECT_THAT(error_of([&] { read_checkpoint(directory / "text.h5"); }),
                HasSubstr("not a gradtile checkpoint"));
}

// Opening a FIFO without a writer would block, and a device has no end.
TEST(Checkpoint, ReadsOnlyRegularFiles) {
    const TemporaryDirectory directory;
    ASSERT_EQ(::mkfifo((directory / "fifo.h5").c_str(), 0600), 0);
    create_symlink("/dev/zero", directory / "link.h5");
    for (const std::filesystem::path& path :
         {directory / "fifo.h5", directory / "link.h5", std::filesystem::path("/dev/zero")}) {
        EXPECT_THAT(error_of([&] { read_checkpoint(path); }), HasSubstr(": is not a regular file"));
        EXPECT_THAT(error_of([&] { inspect_checkpoint(path); }), HasSubstr(": is not a regular file"));
    }
}

TEST(Checkpoint, FollowsASymbolicLinkUnlessForbidden) {
    const Context ctx;
    const TemporaryDirectory directory;
    write_checkpoint(directory / "a.h5", generated_checkpoint(ctx, 7));
    create_symlink("a.h5", directory / "link.h5");
    EXPECT_EQ(read_checkpoint(directory / "link.h5").step, 7);
    EXPECT_THAT(error_of([&] { read_checkpoint(directory / "link.h5", {.follow_links = false}); }),
                HasSubstr("link.h5: is a symbolic link; expected a regular file"));
}

/// A save fails before it begins when the disk has no room, so the space asked for is a near upper bound.
TEST(Checkpoint, TheSpaceAskedForIsNearTheFilesSize) {
    const TemporaryDirectory place;
    const Context ctx(Device::cpu());
    for (const int tensors : {0, 1, 60, 2000})
        for (const std::int64_t elements : {1, 1000, 300'000}) {
            if (tensors * elements > 20'000'000) continue;
            Checkpoint checkpoint;
            for (int i = 0; i < tensors; ++i)
                checkpoint.params[concat("layers.", i, ".weight")] = zeros(ctx, {elements}, DType::f32);
            write_checkpoint(place / "c.h5", checkpoint);
            const std::uint64_t size = std::filesystem::file_size(place / "c.h5"),
                                asked = checkpoint_bytes(checkpoint);
            SCOPED_TRACE(testing::Message() << tensors << " x " << elements << ": " << size);
            EXPECT_GE(asked, size);
            EXPECT_LE(asked, size + size / 10 + 1024 * static_cast<std::uint64_t>(tensors) + (192 << 10));
        }
}

TEST(Checkpoint, AFileOfManyTensorsHasAUserBlockThatHoldsTheirList) {
    const Context ctx;
    const TemporaryDirectory directory;
    for (const int tensors : {0, 1, 10, 100, 3000}) {
        Checkpoint meant;
        for (int i = 0; i < tensors; ++i)
            meant.params[concat("block.", i, "/weight")] =
                randn(ctx, {2}, DType::f32, Seed{static_cast<std::uint64_t>(i)});
        write_checkpoint(directory / "a.h5", meant);
        test::expect_same(read_checkpoint(directory / "a.h5"), meant);
    }
}

}  // namespace
}  // namespace gradtile
