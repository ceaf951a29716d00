#include <gradtile/core/io/data_file.h>

#include <chrono>
#include <cstring>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <gradtile/train/data/readers/data_content.h>

#include <support/error_message.h>

#include <support/temporary_directory.h>

namespace gradtile {
namespace {

using test::message_of;
using test::TemporaryDirectory;
using testing::HasSubstr;

std::string read_part(const DataFile& file, std::int64_t offset, std::size_t length) {
    std::string text(length, '?');
    file.read(offset, std::as_writable_bytes(std::span(text)));
    return text;
}

void overwrite(const std::string& path, std::int64_t offset, std::string_view bytes) {
    std::fstream(path, std::ios::binary | std::ios::in | std::ios::out)
        .seekp(offset)
        .write(bytes.data(), std::ssize(bytes));
}

/// Shifts the modification time; two writes within a clock tick would have the same time.
void set_time(const std::string& path, std::int64_t seconds) {
    const timespec times[2] = {{seconds, 0}, {seconds, 0}};
    ASSERT_EQ(utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
}

TEST(DataFile, ReadsAnyPart) {
    const TemporaryDirectory place;
    const DataFile file(place.write("t", "0123456789"));
    EXPECT_EQ(file.size(), 10);
    EXPECT_EQ(read_part(file, 0, 10), "0123456789");
    EXPECT_EQ(read_part(file, 7, 3), "789");
    EXPECT_EQ(read_part(file, 10, 0), "");
    EXPECT_THAT(message_of([&] { read_part(file, 8, 3); }), HasSubstr("t: bytes [8, 11) of 10"));
    EXPECT_THAT(message_of([&] { read_part(file, -1, 3); }), HasSubstr("t: bytes [-1, 2) of 10"));
}

TEST(DataFile, AcceptsOnlyRegularFiles) {
    const TemporaryDirectory place;
    const auto message = [](const std::string& path) { return message_of([&] { DataFile file(path); }); };
    EXPECT_EQ(message(""), "data: no file given");
    EXPECT_EQ(message(place / "none"),
              (place / "none").string() + ": cannot be opened: No such file or directory");
    EXPECT_EQ(message(place.path()), place.path().string() + ": is a directory; expected a file");
    EXPECT_EQ(message("/dev/zero"), "/dev/zero: is not a regular file");
    EXPECT_EQ(message("/dev/null"), "/dev/null: is not a regular file");
    const std::string pipe = place / "pipe", local = place / "socket";
    ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
    EXPECT_EQ(message(pipe), pipe + ": is not a regular file");
    const Descriptor listener(socket(AF_UNIX, SOCK_STREAM, 0));
    sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
    std::strncpy(address.sun_path, local.c_str(), sizeof address.sun_path - 1);
    ASSERT_EQ(bind(*listener, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(message(local), local + ": is not a regular file");
}

TEST(DataFile, TruncationIsAnErrorAndNotASignal) {
    const TemporaryDirectory place;
    const std::string path = place.write("t", std::string(100'000, 'x'));
    const DataFile file(path);
    EXPECT_FALSE(file.was_modified());
    ASSERT_EQ(truncate(path.c_str(), 70'000), 0);
    EXPECT_TRUE(file.was_modified());
    EXPECT_EQ(read_part(file, 0, 70'000), std::string(70'000, 'x'));
    const std::string expected =
        path + ": ends at byte 70000; expected 100000 (it was changed while it was read)";
    EXPECT_EQ(message_of([&] { read_part(file, 69'999, 2); }), expected);
    EXPECT_EQ(message_of([&] { read_part(file, 99'999, 1); }), expected);
    EXPECT_EQ(message_of([&] { file.require_same_size(); }), expected);
}

TEST(DataFile, AReplacementOfTheSameNameIsNotRead) {
    const TemporaryDirectory place;
    const std::string path = place.write("t", "first");
    const DataFile file(path);
    std::filesystem::rename(place.write("other", "second"), path);
    EXPECT_EQ(read_part(file, 0, 5), "first");
    std::filesystem::remove(path);
    EXPECT_EQ(read_part(file, 0, 5), "first");
    EXPECT_FALSE(file.was_modified());
}

TEST(DataContent, MatchesSha256sum) {
    const TemporaryDirectory place;
    // sha256sum of these bytes
    const std::pair<std::string, const char*> cases[] = {
        {"", "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        {"hello\n", "sha256:5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03"},
        {std::string(3'000'000, 'x'),
         "sha256:e55b8bdf621ddaa8f462c74745db9680d3bb7536a9cf854f8d6668b34a287890"}};
    for (const auto& [text, hash] : cases) {
        const DataContent expected{std::ssize(text), hash};
        EXPECT_EQ(content_of(text), expected);
        EXPECT_EQ(content_of(DataFile(place.write("t", text))), expected);
    }
    EXPECT_EQ(
        content_of("hello\n").to_json().dump(),
        R"({"bytes":6,"hash":"sha256:5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03"})");
}

TEST(DataContent, CoversEveryByteOfASmallFile) {
    const TemporaryDirectory place;
    std::string bytes(10'000, 'a');
    const std::string path = place.write("t", bytes);
    const DataContent before = content_of(DataFile(path));
    for (const std::int64_t position : {0, 1, 4095, 5000, 9999}) {
        overwrite(path, position, "b");
        EXPECT_NE(content_of(DataFile(path)), before) << position;
        overwrite(path, position, "a");
        EXPECT_EQ(content_of(DataFile(path)), before) << position;
    }
}

TEST(DataContent, CoversTheEndsAnd256BlocksOfALargeFile) {
    const TemporaryDirectory place;
    const std::string path = place.write("t", "");
    constexpr std::int64_t mebibyte = 1 << 20, size = 1026 * mebibyte + 3;
    if (truncate(path.c_str(), size) != 0) GTEST_SKIP() << "no room for a sparse file";
    const DataContent before = content_of(DataFile(path));
    EXPECT_EQ(before.bytes, size);
    EXPECT_THAT(before.hash, testing::StartsWith("sha256-sampled:"));
    const std::int64_t sampled[] = {0,
                                    mebibyte - 1,
                                    mebibyte,
                                    mebibyte + 4095,
                                    5 * mebibyte,
                                    1021 * mebibyte + 4095,
                                    size - mebibyte,
                                    size - 1};
    for (const std::int64_t position : sampled) {
        overwrite(path, position, "b");
        EXPECT_NE(content_of(DataFile(path)), before) << position;
        overwrite(path, position, std::string_view("\0", 1));
        EXPECT_EQ(content_of(DataFile(path)), before) << position;
    }
    // Bytes between the samples are not part of the hash.
    overwrite(path, 3 * mebibyte, "b");
    EXPECT_EQ(content_of(DataFile(path)), before);
}

TEST(DataContent, ReadsFewMebibytesOfTheLargestSparseFile) {
    const TemporaryDirectory place;
    const std::string path = place.write("t", "");
    std::int64_t size = std::numeric_limits<std::int64_t>::max();
    while (size > 1 << 30 && truncate(path.c_str(), size) != 0) size /= 2;
    const DataFile file(path);
    ASSERT_EQ(file.size(), size);
    std::int64_t read = 0;
    visit_samples(file, [&](std::span<const std::byte> bytes) { read += std::ssize(bytes); });
    EXPECT_EQ(read, 3 << 20);
    EXPECT_EQ(content_of(file).bytes, size);
}

TEST(DataContent, AcceptsANewTimeOfChangeWithTheSameContent) {
    const TemporaryDirectory place;
    const std::string path = place.write("t", "0123456789");
    set_time(path, 1'000'000'000);
    const DataFile file(path);
    const DataContent content = content_of(file);
    EXPECT_EQ(message_of([&] { require_unchanged(file, content); }), "no error");
    set_time(path, 1'000'000'001);
    EXPECT_EQ(message_of([&] { require_unchanged(file, content); }), "no error");
    overwrite(path, 4, "x");
    EXPECT_EQ(message_of([&] { require_unchanged(file, content); }),
              path + ": holds " + content_of("0123x56789").hash + "; expected " + content.hash +
                  " (it was changed while it was read)");
    overwrite(path, 10, "more");
    EXPECT_EQ(message_of([&] { require_unchanged(file, content); }),
              path + ": ends at byte 14; expected 10 (it was changed while it was read)");
}

}  // namespace
}  // namespace gradtile
