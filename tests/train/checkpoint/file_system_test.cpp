#include <gradtile/core/io/file_system.h>

#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <fcntl.h>

#include <cerrno>
#include <set>

#include <support/memory_file_system.h>
#include "checkpoint_test_support.h"

namespace gradtile {
namespace {

using test::error_of;
using test::FaultyFileSystem;
using test::TemporaryDirectory;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;

std::vector<std::string> lines_in(const std::string& file, std::size_t max_bytes) {
    TextLines lines(open_regular_file(FileSystem::posix(), file), max_bytes);
    std::vector<std::string> all;
    for (std::string_view line; lines.next(line);) all.emplace_back(line);
    return all;
}

TEST(ReadTextFile, ReadsRegularFilesUpToItsLimit) {
    const TemporaryDirectory place;
    const std::string file = place.write("text", "0123456789");
    EXPECT_EQ(read_text_file(file, 10), "0123456789");
    EXPECT_EQ(read_text_file(place.write("empty", ""), 10), "");
    EXPECT_EQ(error_of([&] { read_text_file(file, 9); }), file + ": 10 bytes; expected at most 9");
    const std::string long_file = place.write("long", std::string(300'000, 'x'));
    EXPECT_EQ(read_text_file(long_file, 300'000).size(), 300'000u);
    EXPECT_THAT(read_text_file("/proc/self/status", 1 << 20),
                HasSubstr("VmRSS"));  // the kernel reports the size 0 for this file
    EXPECT_THAT(error_of([] { read_text_file("/proc/self/status", 100); }),
                HasSubstr("more than 100 bytes; expected at most 100"));
}

TEST(ReadTextFile, NamesFilesThatItRefuses) {
    const TemporaryDirectory place;
    const std::string pipe = place / "pipe", link = place / "link", absent = place / "absent";
    ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
    EXPECT_EQ(error_of([&] { read_text_file(pipe, 10); }), pipe + ": is not a regular file");
    EXPECT_EQ(error_of([&] { read_text_file("/dev/zero", 10); }), "/dev/zero: is not a regular file");
    EXPECT_EQ(error_of([&] { read_text_file(place.path(), 10); }),
              place.path().string() + ": is a directory; expected a file");
    EXPECT_EQ(error_of([&] { read_text_file(absent, 10); }),
              absent + ": cannot be opened: No such file or directory");
    std::filesystem::create_symlink(place.write("text", "x"), link);
    EXPECT_EQ(read_text_file(link, 10), "x");
    EXPECT_EQ(error_of([&] { read_text_file(link, 10, SymbolicLinks::refuse); }),
              link + ": is a symbolic link; expected a regular file");
}

TEST(TextLines, ReturnsCompleteLinesAndSkipsLongOnes) {
    const TemporaryDirectory place;
    EXPECT_THAT(lines_in(place.write("a", "one\n\nthree\ntorn"), 5), ElementsAre("one", "", "three"));
    EXPECT_THAT(lines_in(place.write("b", "12345\n123456\n1\n"), 5), ElementsAre("12345", "1"));
    // Line lengths around the size of the read buffer.
    std::string text;
    std::vector<std::string> expected;
    for (const std::size_t length : {262'143, 1, 262'144, 262'145, 0, 524'288, 3}) {
        const std::string line(length, static_cast<char>('a' + expected.size()));
        text += line + '\n';
        if (length <= 262'144) expected.push_back(line);
    }
    EXPECT_EQ(lines_in(place.write("c", text), 262'144), expected);
    EXPECT_THAT(lines_in(place.write("d", ""), 5), ElementsAre());
}

TEST(TextLines, HoldsNoLongLineInMemory) {
    const TemporaryDirectory place;
    const std::string file = place.write("holes", "first\n");
    constexpr std::int64_t hole = 256 << 20;
    std::filesystem::resize_file(file, hole);  // a sparse file
    std::ofstream(file, std::ios::app) << "\nlast\n";
    const auto largest_kib = [] {
        rusage usage{};
        ::getrusage(RUSAGE_SELF, &usage);
        return usage.ru_maxrss;
    };
    const long before = largest_kib();
    EXPECT_THAT(lines_in(file, 65'536), ElementsAre("first", "last"));
    EXPECT_LT(largest_kib() - before, hole / 1024 / 4);
}

TEST(OpenOwnFile, RefusesForeignFiles) {
    const TemporaryDirectory place;
    const std::string file = place.write("file", "x"), link = place / "link", second = place / "second";
    EXPECT_NO_THROW(open_own_file(file, O_RDONLY));
    std::filesystem::create_symlink(file, link);
    EXPECT_EQ(error_of([&] { open_own_file(link, O_RDWR | O_CREAT); }),
              "is a symbolic link; expected a regular file");
    std::filesystem::create_hard_link(file, second);
    EXPECT_EQ(error_of([&] { open_own_file(file, O_RDWR); }),
              "has 2 names (hard links); expected a file of this run alone");
    EXPECT_EQ(error_of([&] { open_own_file(place.path(), O_RDONLY); }), "is a directory; expected a file");
}

TEST(RandomHex, DrawsNewDigitsEachTime) {
    std::set<std::string> drawn;
    for (int i = 0; i < 1000; ++i) drawn.insert(random_hex(8));
    EXPECT_EQ(drawn.size(), 1000u);
    EXPECT_THAT(*drawn.begin(), testing::MatchesRegex("[0-9a-f]{16}"));
    EXPECT_EQ(owner_of_new_files(std::filesystem::temp_directory_path()), ::geteuid());
}

// ---- Room for a file ----

using Call = FaultyFileSystem::Call;

constexpr std::uint64_t no_disk_has_this = std::uint64_t{1} << 62;

/// A file system in which one call fails with `error`.
FaultyFileSystem failing(Call failing_call, int error) {
    return {FileSystem::posix(),
            [=](Call call, std::size_t) -> std::int64_t { return call == failing_call ? -error : 0; }};
}

TEST(DiskSpace, OfAFileIsReservedAndFreed) {
    const TemporaryDirectory place;
    require_disk_space(FileSystem::posix(), place.path(), 10'000);
    EXPECT_TRUE(std::filesystem::is_empty(place.path()));
}

TEST(DiskSpace, ThatCannotBeReservedIsAnError) {
    const TemporaryDirectory place;
    for (const int error : {ENOSPC, EDQUOT}) {
        FaultyFileSystem full = failing(Call::reserve, error);
        EXPECT_THAT(error_of([&] { require_disk_space(full, place.path(), 10'000); }),
                    EndsWith("cannot reserve disk space: " + describe_errno(error)));
    }
    EXPECT_TRUE(std::filesystem::is_empty(place.path()));
}

TEST(DiskSpace, IsTheFreeSpaceWhereNoneCanBeReserved) {
    const TemporaryDirectory place;
    FaultyFileSystem network = failing(Call::reserve, EOPNOTSUPP);
    require_disk_space(network, place.path(), 10'000);
    EXPECT_THAT(error_of([&] { require_disk_space(network, place.path(), no_disk_has_this); }),
                HasSubstr(" free bytes"));
    EXPECT_TRUE(std::filesystem::is_empty(place.path()));
}

}  // namespace
}  // namespace gradtile
