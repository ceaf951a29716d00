// Bytes, lines and compressed data.
#include <chrono>
#include <filesystem>
#include <fstream>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/core/io/checksum.h>
#include <gradtile/core/io/little_endian.h>
#include <gradtile/train/data/readers/byte_source.h>
#include <gradtile/train/data/readers/decompressor.h>

#include <support/error_message.h>
#include <support/temporary_directory.h>

namespace gradtile {
namespace {

using test::message_of;
using test::TemporaryDirectory;
using testing::HasSubstr;

std::string from_hexadecimal(std::string_view digits) {
    std::string bytes;
    for (std::size_t i = 0; i + 1 < digits.size(); i += 2)
        bytes += static_cast<char>(std::stoi(std::string(digits.substr(i, 2)), nullptr, 16));
    return bytes;
}

// "one\ntwo\n" by Python's gzip, and by zstandard with write_checksum.
const std::string gzip_lines = from_hexadecimal("1f8b08000000000002ffcbcf4be52a29cfe70200e60bba1208000000");
const std::string zstd_lines = from_hexadecimal("28b52ffd24084100006f6e650a74776f0ae6a60e40");

std::string all_text(const std::string& path) {
    return open_text(path).read_all(1);
}

/// Skips the test in a build without the library.
#define SKIP_WITHOUT_LIBRARY(path)                                                                \
    if (message_of([&] { all_text(path); }).find("when gradtile was built") != std::string::npos) \
    GTEST_SKIP() << "this build has no such library"

void expect_compressed_text(const std::string& data) {
    const TemporaryDirectory place;
    const std::string path = place.write("lines.txt", data);
    SKIP_WITHOUT_LIBRARY(path);
    EXPECT_EQ(all_text(path), "one\ntwo\n");
    EXPECT_EQ(all_text(place.write("twice", data + data)), "one\ntwo\none\ntwo\n");
    for (std::size_t size = 4; size < data.size(); ++size)
        EXPECT_THAT(message_of([&] { all_text(place.write("short", data.substr(0, size))); }),
                    HasSubstr("short: its compressed data end too early (the file is truncated)"));
    std::string damaged = data;
    damaged[damaged.size() - 5] ^= 1;  // the text or its checksum
    EXPECT_THAT(message_of([&] { all_text(place.write("damaged", damaged)); }),
                HasSubstr("damaged: damaged "));
    EXPECT_THAT(message_of([&] { all_text(place.write("rest", data + "rest")); }),
                HasSubstr("rest: damaged "));
}

TEST(Readers, GzipDataAreDecompressed) {
    expect_compressed_text(gzip_lines);
}

TEST(Readers, ZerosAfterAGzipMemberAreSkipped) {
    const TemporaryDirectory place;
    SKIP_WITHOUT_LIBRARY(place.write("lines.gz", gzip_lines));
    for (const std::size_t count : {1, 512, 200'000}) {
        const std::string padded = gzip_lines + std::string(count, '\0');
        EXPECT_EQ(all_text(place.write("padded.gz", padded)), "one\ntwo\n") << count;
        EXPECT_EQ(all_text(place.write("two.gz", padded + padded)), "one\ntwo\none\ntwo\n") << count;
        EXPECT_THAT(message_of([&] { all_text(place.write("rest.gz", padded + "rest")); }),
                    HasSubstr("rest.gz: damaged gzip data"));
    }
}

TEST(Readers, ZstdDataAreDecompressed) {
    expect_compressed_text(zstd_lines);
}

/// pzstd begins with a frame that is skipped, in which the next frame's length stands.
TEST(Readers, SkippableZstdFramesAreSkipped) {
    const TemporaryDirectory place;
    const std::string skipped = from_hexadecimal("502a4d180400000015000000");
    const std::string path = place.write("lines.zst", skipped + zstd_lines);
    SKIP_WITHOUT_LIBRARY(path);
    EXPECT_EQ(all_text(path), "one\ntwo\n");
    EXPECT_EQ(all_text(place.write("twice", skipped + zstd_lines + skipped + zstd_lines)),
              "one\ntwo\none\ntwo\n");
}

/// File systems may give two quick changes one modification time.
void move_modification_time(const std::string& path) {
    std::filesystem::last_write_time(path, std::filesystem::last_write_time(path) + std::chrono::seconds(5));
}
TEST(Readers, AFileThatIsChangedWhileItIsReadIsRefused) {
    const TemporaryDirectory place;
    const std::string path = place.write("f", std::string(200'000, 'x'));
    for (const auto& [hash, text] : {std::pair{FileHash::none, "some"}, {FileHash::computed, "other"}}) {
        TextReader reader = open_text(path, hash);
        reader.peek(1);  // reads the beginning
        std::ofstream(path, std::ios::in | std::ios::out) << text;
        move_modification_time(path);
        EXPECT_EQ(message_of([&] { reader.read_all(1); }), path + ": was changed while it was read");
    }
    TextReader reader = open_text(path, FileHash::computed);
    reader.peek(1);
    std::ofstream(path, std::ios::app) << "more";
    EXPECT_EQ(message_of([&] { reader.read_all(1); }),
              path + ": ends at byte 200004; expected 200000 (it was changed while it was read)");
}
TEST(Readers, AHashedFileThatIsOnlyTouchedIsReadOn) {
    const TemporaryDirectory place;
    const std::string path = place.write("f", std::string(200'000, 'x'));
    TextReader reader = open_text(path, FileHash::computed);
    reader.peek(1);
    move_modification_time(path);
    EXPECT_EQ(reader.read_all(1).size(), 200'000U);
}

/// The beginnings of files by xz, zip, 7z, lz4 and bzip2. Without the check their bytes would be a text.
TEST(Readers, OtherCompressedDataAreRefusedByName) {
    const TemporaryDirectory place;
    for (const auto& [digits, what] : {std::pair{"fd377a585a000004e6d6b446", "xz data"},
                                       {"504b0304140000000800", "a zip archive"},
                                       {"377abcaf271c0004", "a 7z archive"},
                                       {"04224d186440a7", "lz4 data"},
                                       {"425a683931415926535937", "bzip2 data"}}) {
        const std::string path = place.write("f.txt", from_hexadecimal(digits));
        EXPECT_EQ(message_of([&] { all_text(path); }),
                  path + ": is " + what + "; expected text, or text compressed with gzip or zstd");
    }
    for (const std::string text : {"BZh9", "BZh91AY&S", "PK", "7z", "BZh9 1AY&SY"})
        EXPECT_EQ(all_text(place.write("f.txt", text)), text);
}

TEST(Readers, FilesAreHashedAsTheyAreOnTheDisk) {
    const TemporaryDirectory place;
    for (const std::string& data :
         {std::string(), std::string("one\n"), std::string(200'000, 'x'), gzip_lines, zstd_lines}) {
        const std::string path = place.write("f", data);
        SKIP_WITHOUT_LIBRARY(path);
        TextReader reader = open_text(path, FileHash::computed);
        reader.read_all(1);
        EXPECT_EQ(reader.content(), full_content_of(DataFile(path)));
        TextReader unread = open_text(place.write("long", std::string(200'000, 'x')), FileHash::computed);
        unread.peek(1);
        EXPECT_EQ(unread.content(), std::nullopt) << "not read to its end";
        TextReader plain = open_text(path);
        plain.read_all(1);
        EXPECT_EQ(plain.content(), std::nullopt);
    }
}

TEST(Readers, LinesOfAnyLengthAreRead) {
    std::string text;
    for (const std::size_t length : {0, 1, 300'000, 0, 262'144, 5}) text += std::string(length, 'x') + "\n";
    text += "last";
    TextReader reader(text, "lines");
    EXPECT_EQ(reader.peek(3), "\nx\n");
    std::string joined;
    std::string_view line;
    while (reader.next_line(line, 300'000)) joined += std::string(line) + "\n";
    EXPECT_EQ(joined, text + "\n");
    TextReader again(text, "lines");
    again.next_line(line, 10);
    again.next_line(line, 10);
    EXPECT_EQ(message_of([&] { again.next_line(line, 10); }), "lines: line 3: more than 10 bytes");
}

std::string snappy(std::string_view block, std::size_t size) {
    std::string out(size, '\0');
    decompress_snappy(std::as_bytes(std::span(block)), std::as_writable_bytes(std::span(out)), "block");
    return out;
}

/// The elements are those in Snappy's description of its format.
TEST(Snappy, LiteralsAndCopiesAreDecompressed) {
    EXPECT_EQ(snappy(std::string("\x03\x08"
                                 "abc",
                                 5),
                     3),
              "abc");
    EXPECT_EQ(snappy(std::string("\x0a\x04"
                                 "ab"
                                 "\x11\x02",
                                 6),
                     10),
              "ababababab")
        << "offset of 11 bits; overlaps";
    EXPECT_EQ(snappy(std::string("\x0a\x04"
                                 "ab"
                                 "\x1e\x02\x00",
                                 7),
                     10),
              "ababababab")
        << "offset of 16 bits";
    EXPECT_EQ(snappy(std::string("\x0a\x04"
                                 "ab"
                                 "\x1f\x02\x00\x00\x00",
                                 9),
                     10),
              "ababababab")
        << "32 bits";
    const std::string literal(300, 'z');
    EXPECT_EQ(snappy(std::string("\xac\x02\xf4\x2b\x01", 5) + literal, 300), literal)
        << "length in two bytes";
}

TEST(Snappy, DamagedBlocksAreRefused) {
    const auto refusal = [](std::string_view block, std::size_t size) {
        return message_of([&] { snappy(block, size); });
    };
    EXPECT_THAT(refusal("", 0), HasSubstr("block: damaged: a Snappy block ends too early"));
    EXPECT_THAT(refusal(std::string("\x03\x08"
                                    "ab",
                                    4),
                        3),
                HasSubstr("ends too early"));
    EXPECT_THAT(refusal(std::string("\x03\x08"
                                    "abc",
                                    5),
                        4),
                HasSubstr("has 3 bytes; expected 4"));
    EXPECT_THAT(refusal(std::string("\x02\x08"
                                    "abc",
                                    5),
                        2),
                HasSubstr("has more than 2 bytes"));
    EXPECT_THAT(refusal(std::string("\x0a\x04"
                                    "ab"
                                    "\x11\x03",
                                    6),
                        10),
                HasSubstr("copies bytes 3 before byte 2"));
    EXPECT_THAT(refusal(std::string("\x0a\x04"
                                    "ab"
                                    "\x11\x00",
                                    6),
                        10),
                HasSubstr("copies bytes 0 before byte 2"));
    EXPECT_THAT(refusal(std::string("\x0a\x04"
                                    "ab",
                                    4),
                        10),
                HasSubstr("has 2 bytes; expected 10"));
    EXPECT_THAT(refusal(std::string(11, '\xff'), 10), HasSubstr("an integer of more than 64 bits"));
}

TEST(Varint, HoldsUpTo64Bits) {
    const auto value_of = [](std::string_view bytes) {
        std::size_t place = 0;
        return read_varint([&] { return static_cast<unsigned char>(bytes.at(place++)); }, "v");
    };
    EXPECT_EQ(value_of(std::string_view("\0", 1)), 0u);
    EXPECT_EQ(value_of("\x7f"), 127u);
    EXPECT_EQ(value_of("\xac\x02"), 300u);  // the example in protocol buffers' documentation
    const std::string nine(9, '\xff');
    EXPECT_EQ(value_of(nine + '\x01'), ~std::uint64_t{0});
    for (const char last : {'\x02', '\x7f', '\xff'})
        EXPECT_EQ(message_of([&] { value_of(nine + last); }), "v: damaged: an integer of more than 64 bits");
    EXPECT_EQ(from_zigzag(0), 0);
    EXPECT_EQ(from_zigzag(1), -1);
    EXPECT_EQ(from_zigzag(2), 1);
    EXPECT_EQ(from_zigzag(~std::uint64_t{0}), std::numeric_limits<std::int64_t>::min());
}

TEST(Crc32, GivesThePublishedValue) {
    EXPECT_EQ(crc32(std::as_bytes(std::span(std::string_view("123456789")))), 0xcbf43926u);  // RFC 1952's CRC
    EXPECT_EQ(crc32({}), 0u);
}

}  // namespace
}  // namespace gradtile
