// Outputs: whole or absent, also when a process is interrupted or another one writes to the same name.
#include <gradtile/core/io/durable_file.h>

#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <thread>

#include "checkpoint_test_support.h"

namespace gradtile {
namespace {

using test::error_of;
using test::TemporaryDirectory;
using testing::ElementsAre;

std::vector<std::string> names_in(const std::filesystem::path& directory) {
    std::vector<std::string> names;
    FileSystem::posix().list(directory, names);
    std::ranges::sort(names);
    return names;
}

void write(DurableFile& file, const std::string& text) {
    file.file().write(reinterpret_cast<const std::byte*>(text.data()), text.size(), 0);
    file.commit(text.size());
}

std::string text_of(const std::filesystem::path& path) {
    return read_text_file(path, 1000);
}

TEST(DurableFile, RemovesTheTemporariesOfItsNameThatHaveNoWriter) {
    const TemporaryDirectory place;
    const std::string left = "out.tmp-0123456789abcdef", left_directory = "out.tmp-00000000000000ff";
    place.write(left, "half");
    create_directories(place / left_directory / "inner");
    place.write(left_directory + "/inner/file", "half");
    const std::vector<std::string> others{"notes.tmp-0123456789abcdef", "out.tmp-0123456789ABCDEF",
                                          "out.tmp-12", "out2.tmp-0123456789abcdef"};
    for (const std::string& name : others) place.write(name, "of somebody");
    const DurableFile writing(place / "out");
    EXPECT_FALSE(exists(place / left));
    EXPECT_FALSE(exists(place / left_directory));
    for (const std::string& name : others) EXPECT_TRUE(exists(place / name)) << name;
}

TEST(DurableFile, KnowsTheFinalPathOfItsTemporaries) {
    EXPECT_EQ(DurableFile::final_path_of(DurableFile::temporary_for("a/out.tmp-x")), "a/out.tmp-x");
    for (const char* name : {"out", "out.tmp-12", "tmp-0123456789abcdef", "out.tmp-0123456789ABCDEF", ""})
        EXPECT_EQ(DurableFile::final_path_of(name), std::nullopt) << name;
}

TEST(DurableFile, LeavesTheTemporaryOfAnotherWriter) {
    const TemporaryDirectory place;
    DurableFile first(place / "out");
    {
        DurableFile second(place / "out");
        EXPECT_EQ(names_in(place.path()).size(), 2u);
        write(second, "second");
    }
    write(first, "first");
    EXPECT_EQ(text_of(place / "out"), "first");
    EXPECT_THAT(names_in(place.path()), ElementsAre("out"));
}

TEST(DurableFile, OfTwoWritersOfANewFileTheLaterOneIsRefused) {
    const TemporaryDirectory place;
    {
        DurableFile first(place / "out", FileSystem::posix(), Existing::refuse),
            second(place / "out", FileSystem::posix(), Existing::refuse);
        write(second, "second");
        EXPECT_EQ(error_of([&] { write(first, "first"); }), "exists already");
    }
    EXPECT_EQ(text_of(place / "out"), "second");
    EXPECT_THAT(names_in(place.path()), ElementsAre("out"));
    EXPECT_EQ(error_of([&] { DurableFile(place / "out", FileSystem::posix(), Existing::refuse); }),
              "exists already");
    std::filesystem::create_symlink("absent", place / "link");
    EXPECT_EQ(error_of([&] { DurableFile(place / "link", FileSystem::posix(), Existing::refuse); }),
              "exists already");
    EXPECT_THAT(names_in(place.path()), ElementsAre("link", "out"));
}

/// Runs `work` in a child process, in which no test's output matters, and returns its exit code.
template <class Work>
int exit_code_of_child(const Work& work) {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(work());
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(RemovedOnSignal, PathsOfThisProcessAreRemovedInReverseOrder) {
    const TemporaryDirectory place;
    const RemovedOnSignal parent_file(place.write("parent", ""));
    const std::string released = place.write("released", ""), kept = place / "kept";
    std::filesystem::create_directory(kept);
    place.write("kept/file", "");
    const int code = exit_code_of_child([&] {
        const std::filesystem::path made = place / "made";
        const RemovedOnSignal directory(made), not_empty(kept);
        std::filesystem::create_directory(made);
        { const RemovedOnSignal registered_for_a_while(released); }
        DurableFile file(made / "out");
        const RemovedOnSignal too_long(place / std::string(2000, 'x'));
        remove_registered_files();
        return exists(made) ? 1 : 0;
    });
    EXPECT_EQ(code, 0);
    EXPECT_THAT(names_in(place.path()), ElementsAre("kept", "parent", "released"));
    EXPECT_THAT(names_in(kept), ElementsAre("file"));
}

TEST(SignalsWait, TheLastSignalComesAgainAfterTheLastWait) {
    static std::atomic<int> received, ended;
    std::signal(SIGUSR2, [](int number) {
        ++received;
        if (ends_by_signal(number)) ++ended;
    });
    std::raise(SIGUSR2);
    EXPECT_EQ(ended, 1);
    {
        const SignalsWait outer;
        { const SignalsWait inner; }
        std::raise(SIGUSR2);
        std::raise(SIGUSR2);
        EXPECT_EQ(ended, 1);
        EXPECT_EQ(received, 3);
    }
    for (int i = 0; i < 1000 && ended < 2; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_EQ(ended, 2);
    EXPECT_EQ(received, 4);
    std::signal(SIGUSR2, SIG_DFL);
}

TEST(RemovedOnSignal, TheTableOfPathsMayBeFull) {
    const TemporaryDirectory place;
    const int code = exit_code_of_child([&] {
        std::vector<RemovedOnSignal> many;
        for (int i = 0; i < 1000; ++i) many.emplace_back(place / concat("absent", i));
        const RemovedOnSignal unregistered(place.write("file", ""));
        remove_registered_files();
        return 0;
    });
    EXPECT_EQ(code, 0);
    EXPECT_THAT(names_in(place.path()), ElementsAre("file"));
}

}  // namespace
}  // namespace gradtile
