// Checkpoints with a false tensor list and correct checksums: each is refused in one line that names the
// object.
#include <gmock/gmock.h>

#include <limits>

#include <gradtile/train/checkpoint/checkpoint.h>

#include <support/resealed_checkpoint.h>
#include "checkpoint_test_support.h"

namespace gradtile {
namespace {

using test::error_of;
using test::MemoryFileSystem;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();

class HostileManifest : public testing::Test {
  protected:
    static Checkpoint small_checkpoint() {
        const Context ctx(Device::cpu(), 1);
        Checkpoint c;
        c.params["first"] = randn(ctx, {20, 30}, DType::f32, Seed{1});
        c.params["second"] = randn(ctx, {20, 30}, DType::f32, Seed{2});
        c.params["large"] = randn(ctx, {150, 1000}, DType::f32, Seed{3});  // two chunks
        c.params["none"] = zeros(ctx, {4, 0}, DType::bf16);
        return c;
    }

    std::string refusal(const std::vector<std::byte>& file) const {
        MemoryFileSystem fs;
        fs.put("bad.h5", file);
        const std::string read = error_of([&] { read_checkpoint("bad.h5", {}, fs); });
        EXPECT_EQ(error_of([&] { inspect_checkpoint("bad.h5", fs); }), read);
        EXPECT_THAT(read, StartsWith("checkpoint bad.h5: "));
        EXPECT_THAT(read, Not(HasSubstr("\n")));
        return read;
    }
    /// Returns the reader's message after `change` was applied to the list, or to one of its entries.
    std::string refusal_of_list(const std::function<void(std::vector<StoredObject>&)>& change) const {
        return refusal(test::with_manifest(sound_, [&](CheckpointManifest& m) { change(m.objects); }));
    }
    std::string refusal_of(const std::string& name, const std::function<void(StoredObject&)>& change) const {
        return refusal_of_list([&](std::vector<StoredObject>& objects) { change(find(objects, name)); });
    }
    static StoredObject& find(std::vector<StoredObject>& objects, const std::string& name) {
        const auto found = std::find_if(objects.begin(), objects.end(),
                                        [&](const StoredObject& object) { return object.name == name; });
        check(found != objects.end(), "no ", name);
        return *found;
    }
    std::vector<std::byte> with_field(std::size_t offset, std::uint64_t value) const {
        std::vector<std::byte> file = sound_;
        put_little_endian(file.data() + offset, value);
        return test::reseal(std::move(file));
    }

    const std::vector<std::byte> sound_ = test::file_of(small_checkpoint());
};

TEST_F(HostileManifest, AnUnchangedFileIsRead) {
    MemoryFileSystem fs;
    fs.put("good.h5", test::with_manifest(sound_, [](CheckpointManifest&) {}));
    EXPECT_EQ(fs.bytes("good.h5"), sound_);
    test::expect_same(read_checkpoint("good.h5", {}, fs), small_checkpoint());
}

TEST_F(HostileManifest, AListOfAnotherLengthMovesTheBodyAndIsRead) {
    MemoryFileSystem fs;
    fs.put("good.h5", test::with_manifest(sound_, [](CheckpointManifest& manifest) {
               StoredObject& last = manifest.objects.emplace_back();
               last.name = "zzz";
               manifest.objects.pop_back();
               StoredObject second = find(manifest.objects, "params/second");
               std::erase_if(manifest.objects,
                             [](const StoredObject& o) { return o.name == "params/second"; });
               for (int i = 0; i < 100; ++i) {
                   StoredObject empty{concat("params/t", 100 + i), DType::f32, {3, 0, 5}, 0, {}};
                   manifest.objects.insert(manifest.objects.end() - 1, empty);
               }
           }));
    const Checkpoint read = read_checkpoint("good.h5", {}, fs);
    EXPECT_EQ(read.params.size(), 103u);
    EXPECT_EQ(read.params.at("t142").shape(), (Shape{3, 0, 5}));
    EXPECT_EQ(test::row_major_bytes(read.params.at("large")),
              test::row_major_bytes(small_checkpoint().params.at("large")));
}

TEST_F(HostileManifest, InvalidTensorNamesAreRefused) {
    for (const char* name : {"", "params", "params/", "params//a", "params/../a", "other/a", "config/json/a",
                             "config/other", "/etc/passwd", "params/a b", "params/a\nb", "params/\xff"}) {
        EXPECT_THAT(refusal_of_list([&](auto& objects) { find(objects, "params/first").name = name; }),
                    HasSubstr("invalid tensor name"));
    }
    EXPECT_THAT(refusal_of("params/first", [](auto& o) { o.name = "params/" + std::string(1100, 'a'); }),
                HasSubstr("invalid tensor name"));
}

TEST_F(HostileManifest, NamesThatAreListedTwiceOrOutOfOrderAreRefused) {
    EXPECT_THAT(refusal_of("params/second", [](auto& o) { o.name = "params/first"; }),
                HasSubstr("params/first: listed twice"));
    EXPECT_THAT(refusal_of("params/second", [](auto& o) { o.name = "params/a"; }),
                HasSubstr("not in the order of names"));
}

TEST_F(HostileManifest, TextsMustExistAndBeTexts) {
    for (const char* name : {"config/json", "data/json", "meta/json", "rng/json"}) {
        EXPECT_THAT(refusal_of_list([&](auto& objects) {
                        std::erase_if(objects, [&](const StoredObject& o) { return o.name == name; });
                    }),
                    HasSubstr(name));
        EXPECT_THAT(refusal_of(name, [](auto& o) { o.dtype = DType::f32; }), HasSubstr("not a text"));
        EXPECT_THAT(refusal_of(name,
                               [](auto& o) {
                                   o.shape = {o.shape[0] - 1};
                                   o.extents[0].bytes -= 1;
                               }),
                    HasSubstr(concat(name, ": not JSON")));
    }
    EXPECT_THAT(refusal_of("params/first", [](auto& o) { o.dtype.reset(); }), HasSubstr("not a tensor"));
}

TEST_F(HostileManifest, TextsWhoseValuesWouldFillTheMemoryAreRefused) {
    EXPECT_THAT(refusal_of("config/json", [](auto& o) { o.shape = {(64 << 20) + 1}; }),
                HasSubstr("config/json: a text of 67108865 bytes, at most 67108864"));
    Checkpoint large;
    large.meta = std::string(std::size_t{64} << 20, 'x');
    MemoryFileSystem fs;
    EXPECT_THAT(error_of([&] { write_checkpoint("large.h5", large, fs); }),
                HasSubstr("meta/json: a text of 67108866 bytes"));
}

TEST_F(HostileManifest, ShapesThatDoNotMatchTheirBytesAreRefused) {
    const auto with_shape = [&](const Shape& shape) {
        return refusal_of("params/first", [&](StoredObject& o) { o.shape = shape; });
    };
    EXPECT_THAT(with_shape({20, 31}), HasSubstr("params/first: stored in 2400 bytes, its shape has 2480"));
    EXPECT_THAT(with_shape({20, 29}), HasSubstr("stored in more bytes than its shape has"));
    EXPECT_THAT(with_shape({20, 0}), HasSubstr("in more bytes"));
    EXPECT_THAT(with_shape({kHuge, 30}), HasSubstr("params/first: too large"));
    EXPECT_THAT(with_shape({kHuge}), HasSubstr("too large"));
    EXPECT_THAT(with_shape({0, kHuge, kHuge}), HasSubstr("too large"));
    EXPECT_THAT(with_shape({std::int64_t{1} << 32, std::int64_t{1} << 32}), HasSubstr("too large"));
    EXPECT_THAT(with_shape({-20, -30}), HasSubstr("negative"));
    EXPECT_THAT(with_shape({std::int64_t{1} << 40}), HasSubstr("its shape has"));
    EXPECT_THAT(refusal_of("params/first", [](StoredObject& o) { o.shape = Shape(); }),
                HasSubstr("0 axes, expected 1 to 6"));
    EXPECT_THAT(refusal_of("params/first", [](StoredObject& o) { o.dtype = DType::f64; }),
                HasSubstr("its shape has 4800"));
}

TEST_F(HostileManifest, BytesOutsideTheBodyAreNeverRead) {
    for (const std::uint64_t begin : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{sound_.size()},
                                      std::uint64_t{1} << 63, ~std::uint64_t{0}, ~std::uint64_t{0} - 2399}) {
        EXPECT_THAT(refusal_of("params/first", [&](StoredObject& o) { o.extents[0].begin = begin; }),
                    HasSubstr("params/first: "));
    }
    EXPECT_THAT(
        refusal_of("params/first", [&](StoredObject& o) { o.extents[0].begin = sound_.size() - 2399; }),
        HasSubstr("outside the file's body"));
    EXPECT_THAT(refusal_of("params/first", [](StoredObject& o) { o.extents[0].bytes = ~std::uint64_t{0}; }),
                HasSubstr("outside the file's body"));
    EXPECT_THAT(refusal_of("params/first", [](StoredObject& o) { o.extents[0].bytes = 0; }),
                HasSubstr("outside the file's body"));
}

// If tensors could overlap, a small file could make the reader allocate any amount of memory.
TEST_F(HostileManifest, OverlappingTensorsAreRefused) {
    EXPECT_THAT(refusal_of_list([](auto& objects) {
                    find(objects, "params/second").extents = find(objects, "params/first").extents;
                }),
                HasSubstr("shares bytes with params/"));
    EXPECT_THAT(refusal_of_list([](auto& objects) {
                    find(objects, "params/second").extents[0].begin =
                        find(objects, "params/first").extents[0].begin + 2399;
                }),
                HasSubstr("shares bytes with"));
    EXPECT_THAT(refusal_of("params/large", [](StoredObject& o) { o.extents[1].begin = o.extents[0].begin; }),
                HasSubstr("params/large: shares bytes with params/large"));
}

TEST_F(HostileManifest, TensorsInTinyPiecesAreRefused) {
    EXPECT_THAT(refusal_of("params/large",
                           [](StoredObject& o) {
                               std::vector<FileExtent> pieces;
                               for (const FileExtent& extent : o.extents)
                                   for (std::uint64_t offset = 0; offset < extent.bytes; offset += 4)
                                       pieces.push_back({extent.begin + offset, 4});
                               o.extents = pieces;
                           }),
                HasSubstr("params/large: 600000 bytes in 150000 pieces"));
}

TEST_F(HostileManifest, AnyOrderOfPiecesIsRead) {
    MemoryFileSystem fs;
    fs.put("good.h5", test::with_manifest(sound_, [](CheckpointManifest& manifest) {
               std::vector<FileExtent>& extents = find(manifest.objects, "params/large").extents;
               ASSERT_EQ(extents.size(), 2u);
               ASSERT_EQ(extents[0].bytes, extents[1].bytes);
               std::swap(extents[0], extents[1]);
           }));
    const std::vector<std::byte> read =
        test::row_major_bytes(read_checkpoint("good.h5", {}, fs).params.at("large"));
    const std::vector<std::byte> meant = test::row_major_bytes(small_checkpoint().params.at("large"));
    const auto half = static_cast<std::ptrdiff_t>(meant.size() / 2);
    EXPECT_TRUE(std::equal(meant.begin() + half, meant.end(), read.begin()));
    EXPECT_TRUE(std::equal(meant.begin(), meant.begin() + half, read.begin() + half));
}

TEST_F(HostileManifest, HeadersWhoseSizesContradictEachOtherAreRefused) {
    const auto block = get_little_endian<std::uint64_t>(sound_.data() + test::kUserBlockField);
    for (const std::uint64_t value :
         {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{256}, block + 1, block / 2, block * 2,
          std::uint64_t{1} << 20, std::uint64_t{1} << 31, std::uint64_t{1} << 63, ~std::uint64_t{0}}) {
        EXPECT_THAT(refusal(with_field(test::kUserBlockField, value)), HasSubstr("damaged"));
    }
    for (const std::uint64_t value : {std::uint64_t{0}, std::uint64_t{3}, block - 128, block - 127, block,
                                      std::uint64_t{1} << 32, ~std::uint64_t{0}}) {
        EXPECT_THAT(refusal(with_field(test::kManifestBytesField, value)), HasSubstr("damaged"));
    }
    for (const std::uint64_t value :
         {std::uint64_t{0}, block, std::uint64_t{sound_.size() + 1}, ~std::uint64_t{0}}) {
        EXPECT_THAT(refusal(with_field(test::kLengthField, value)), HasSubstr("checkpoint bad.h5: "));
    }
    EXPECT_THAT(refusal(with_field(test::kStepField, std::uint64_t{1} << 63)), HasSubstr("step -"));
}

TEST_F(HostileManifest, AListThatClaimsMoreEntriesThanItHasBytesIsRefused) {
    for (const std::uint32_t count : {0u, 7u, 9u, 100'001u, 0xffffffffu}) {
        std::vector<std::byte> file = sound_;
        put_little_endian(file.data() + test::kHeaderEnd, count);
        EXPECT_THAT(refusal(test::reseal(std::move(file))), HasSubstr("list of"));
    }
}

TEST_F(HostileManifest, AnyLengthOfGarbageUnderCorrectChecksumsIsRefused) {
    for (const std::size_t size : {129, 512, 1024, 5000, 100'000}) {
        for (const int byte : {0, 0x20, 0x5b, 0x89, 0xff}) {
            std::vector<std::byte> file(size, static_cast<std::byte>(byte));
            std::copy_n(sound_.begin(), 128, file.begin());
            put_little_endian(file.data() + test::kLengthField, std::uint64_t{size});
            refusal(test::reseal(std::move(file)));
        }
    }
}

TEST_F(HostileManifest, LaterVersionsAreNamed) {
    std::vector<std::byte> file = sound_;
    put_little_endian(file.data() + test::kVersionField, std::uint32_t{4});
    EXPECT_THAT(refusal(test::reseal(std::move(file))),
                HasSubstr("format version 4; this program reads versions 2 and 3"));
}

}  // namespace
}  // namespace gradtile
