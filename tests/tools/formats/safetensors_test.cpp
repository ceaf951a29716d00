#include <gradtile/tools/formats/safetensors.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/core/io/little_endian.h>
#include <gradtile/core/tensor_ops.h>

#include <support/error_message.h>
#include <support/temporary_directory.h>

namespace gradtile {
namespace {

using test::message_of;
using test::TemporaryDirectory;
using testing::HasSubstr;

std::string file_of(std::string_view header, std::size_t data_bytes,
                    std::optional<std::uint64_t> length = std::nullopt) {
    std::string bytes(8, '\0');
    put_little_endian(reinterpret_cast<std::byte*>(bytes.data()), length.value_or(header.size()));
    return bytes + std::string(header) + std::string(data_bytes, '\1');
}

TEST(Safetensors, ATensorOfAnyDtypeAndStrideComesBackBitForBit) {
    const TemporaryDirectory place;
    const Context ctx(Device::cpu(), 1);
    std::vector<double> values;
    for (int i = 0; i < 24; ++i) values.push_back(0.37 * i - 3);
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
        const Tensor x = from_host(ctx, values, {2, 3, 4}, dtype);
        const Tensor strided = x.transpose(0, 2).slice(1, 1, 2);
        const Tensor none = from_host(ctx, std::span<const double>(), {0, 5}, dtype);
        const std::string path = place / "x.safetensors";
        write_safetensors(path, {{"whole", x}, {"none", none}, {"strided", strided}}, {{"format", "pt"}});
        const SafetensorsFile file(path);
        EXPECT_EQ(file.header().metadata["format"], "pt");
        EXPECT_EQ(to_host(ctx, file.read(*file.find("whole"))), to_host(ctx, x)) << dtype;
        EXPECT_EQ(to_host(ctx, file.read(*file.find("strided"))), to_host(ctx, strided)) << dtype;
        EXPECT_EQ(file.read(*file.find("none")).shape(), Shape({0, 5}));
        EXPECT_EQ(file.read(*file.find("whole")).dtype(), dtype);
        EXPECT_EQ(file.find("other"), nullptr);
    }
}

TEST(Safetensors, ReadsTheBytesThatTheFormatPromises) {
    // Written by hand from the format's description: two float32, 1 and -2, and one bfloat16, 1.
    const TemporaryDirectory place;
    const std::string header =
        R"({"b":{"dtype":"BF16","shape":[],"data_offsets":[8,10]},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
    const std::string bytes = file_of(header, 0) + std::string("\0\0\x80\x3f\0\0\0\xc0\x80\x3f", 10);
    const SafetensorsFile file(place.write("x.safetensors", bytes));
    const Context ctx(Device::cpu(), 1);
    EXPECT_EQ(to_host(ctx, file.read(*file.find("a"))), (std::vector<double>{1, -2}));
    EXPECT_EQ(to_host(ctx, file.read(*file.find("b"))), std::vector<double>{1});
}

struct Hostile {
    const char* what;
    std::string bytes;
    const char* expected;
};

TEST(Safetensors, HostileFilesAreRefusedByName) {
    const auto tensor = [](const std::string& members) { return "{\"x\":{" + members + "}}"; };
    const auto of = [&](const char* dtype, const char* shape, const char* offsets) {
        return tensor(concat("\"dtype\":\"", dtype, "\",\"shape\":", shape, ",\"data_offsets\":", offsets));
    };
    // A file with one tensor and this many data bytes.
    const auto with = [&](const char* dtype, const char* shape, const char* offsets, std::size_t bytes) {
        return file_of(of(dtype, shape, offsets), bytes);
    };
    const std::string deep = std::string(200, '[') + std::string(200, ']');
    const std::vector<Hostile> files = {
        {"empty", "", "0 bytes"},
        {"half a length", "\1", "has 1 bytes"},
        {"a length behind the end", file_of("{}", 0, 3), "a header of 3 bytes in a file of 10"},
        {"a length that overflows", file_of("{}", 0, ~std::uint64_t{0} - 4), "expected at most 100000000"},
        {"a long header", file_of("{}", 0, 100'000'001), "expected at most 100000000"},
        {"no object", file_of("[]", 0), "begin with '{'"},
        {"a space first", file_of(" {}", 0), "begin with '{'"},
        {"not JSON", file_of("{\"x\":", 0), "unexpected end"},
        {"not UTF-8", file_of("{\"\xff\":1}", 0), "UTF-8"},
        {"a deep value", file_of("{\"x\":" + deep + "}", 0), "levels deep"},
        {"a name twice",
         file_of(R"({"x":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)"
                 R"("x":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
                 0),
         "occurs twice"},
        {"no tensor", file_of(R"({"x":3})", 0), "'x': is not an object"},
        {"no dtype", file_of(tensor(R"("shape":[1],"data_offsets":[0,4])"), 4), "has no dtype"},
        {"no shape", file_of(tensor(R"("dtype":"F32","data_offsets":[0,4])"), 4), "has no shape"},
        {"no offsets", file_of(tensor(R"("dtype":"F32","shape":[1])"), 4), "has no data_offsets"},
        {"another member", file_of(tensor(R"("dtype":"F32","shape":[1],"data_offsets":[0,4],"y":1)"), 4),
         "unknown member 'y'"},
        {"another dtype", with("F31", "[1]", "[0,4]", 4), "dtype 'F31' is not known"},
        {"a negative length", with("F32", "[-1]", "[0,4]", 4), "0 or more"},
        {"half an element", with("F32", "[1.5]", "[0,6]", 6), "0 or more"},
        {"a shape that overflows", with("F32", "[4294967296,4294967296]", "[0,0]", 0), "overflows"},
        {"a shape that overflows to 0", with("F64", "[2305843009213693952]", "[0,0]", 0), "overflows"},
        {"an empty shape whose strides overflow", with("F32", "[0,4611686018427387904,4]", "[0,0]", 0),
         "overflows"},
        {"a length above 2^62", with("F32", "[18446744073709551615,0]", "[0,0]", 0), "too large"},
        {"three offsets", with("F32", "[1]", "[0,4,8]", 4), "3 numbers"},
        {"offsets turned round", with("F32", "[1]", "[4,0]", 4), "4 to 0"},
        {"another size than the shape's", with("F32", "[2]", "[0,4]", 4), "have 8 bytes"},
        {"another size than the dtype's", with("BF16", "[2]", "[0,8]", 8), "have 4 bytes"},
        {"a range behind the end", with("F32", "[2]", "[0,8]", 4), "but the file holds 4"},
        {"trailing bytes", with("F32", "[1]", "[0,4]", 5), "but the file holds 5"},
        {"a hole at the start", with("F32", "[1]", "[4,8]", 8), "expected no hole"},
        {"a hole",
         file_of(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                 R"("b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})",
                 3),
         "'b' begins at byte 2"},
        {"an overlap",
         file_of(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                 R"("b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
                 3),
         "expected no overlap"},
        {"metadata of numbers", file_of(R"({"__metadata__":{"a":1}})", 0), "not a string"},
        {"metadata that is no object", file_of(R"({"__metadata__":[]})", 0), "not an object"},
    };
    const TemporaryDirectory place;
    for (const Hostile& file : files) {
        const std::string path = place.write("hostile.safetensors", file.bytes);
        const std::string message = message_of([&] { const SafetensorsFile opened(path); });
        EXPECT_THAT(message, HasSubstr("hostile.safetensors")) << file.what;
        EXPECT_THAT(message, HasSubstr(file.expected)) << file.what;
    }
}

TEST(Safetensors, ATensorThatIsNoFloatCanBeListedButNotRead) {
    const TemporaryDirectory place;
    const SafetensorsFile file(
        place.write("x.safetensors",
                    file_of(R"({"m":{"dtype":"BOOL","shape":[1,1,1,1,1,1,3],"data_offsets":[0,3]}})", 3)));
    ASSERT_NE(file.find("m"), nullptr);
    EXPECT_THAT(message_of([&] { file.read(*file.find("m")); }), HasSubstr("'m' is BOOL"));
}

TEST(Safetensors, AFileThatShrinksWhileItIsOpenIsAnError) {
    const TemporaryDirectory place;
    const std::string path = place.write(
        "x.safetensors", file_of(R"({"m":{"dtype":"F32","shape":[8],"data_offsets":[0,32]}})", 32));
    const SafetensorsFile file(path);
    std::filesystem::resize_file(path, 80);
    EXPECT_THAT(message_of([&] { file.read(*file.find("m")); }), HasSubstr("changed while it was read"));
}

}  // namespace
}  // namespace gradtile
