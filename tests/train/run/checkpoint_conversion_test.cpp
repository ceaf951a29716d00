// Checkpoints of format version 1: the messages about them, and `gradtile convert`.
#include <gmock/gmock.h>

#include <sys/resource.h>
#include <unistd.h>

#include <csignal>

#include <gradtile/train/checkpoint/checkpoint_directory.h>
#include <gradtile/train/checkpoint/checkpoint_version_1.h>
#include <gradtile/train/checkpoint/internal/confined_child.h>
#include <gradtile/train/run/checkpoint_conversion.h>
#include <gradtile/train/run/run_directory.h>

#include <support/sanitized.h>
#include <support/version_1_file.h>
#include "checkpoint/checkpoint_test_support.h"

namespace gradtile {
namespace {

using test::error_of;
using test::TemporaryDirectory;
using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

// The checkpoint that was given to the program that wrote version_1.h5.
Checkpoint meant() {
    const Context ctx(Device::cpu(), 1);
    Checkpoint c;
    c.step = 7;
    c.params["sound"] = randn(ctx, {20, 30}, DType::f32, Seed{1});
    c.params["half"] = randn(ctx, {3, 5}, DType::bf16, Seed{2});
    c.master["half"] = randn(ctx, {3, 5}, DType::f32, Seed{3});
    c.optimizer["m/half"] = randn(ctx, {3, 5}, DType::f32, Seed{4});
    c.config.set("width", 30);
    c.data.set("position", 84);
    c.tokenizer = R"("characters")";
    c.rng.set("seed", 18446744073709551615u);
    c.meta.set("val_loss", 0.125);
    return c;
}

class CheckpointConversion : public testing::Test {
  protected:
    CheckpointConversion() { test::write_bytes(old_, test::version_1_file()); }

    // Returns the message of a failed conversion, and checks that no file is left.
    std::string refusal() {
        const std::string message = error_of([&] { convert_checkpoint(old_, new_); });
        EXPECT_THAT(message, AllOf(StartsWith("checkpoint "), Not(HasSubstr("\n"))));
        for (const auto& entry : std::filesystem::directory_iterator(place_.path()))
            EXPECT_EQ(entry.path(), old_);
        return message;
    }

    TemporaryDirectory place_;
    std::filesystem::path old_ = place_ / "old.h5";
    std::filesystem::path new_ = place_ / "new.h5";
};

TEST_F(CheckpointConversion, KeepsAFileOfVersion1BitForBit) {
    convert_checkpoint(old_, new_);
    test::expect_same(read_checkpoint(new_), meant());
    EXPECT_EQ(test::file_bytes(old_), test::version_1_file());
    write_checkpoint(place_ / "direct.h5", meant());
    EXPECT_EQ(test::file_bytes(new_), test::file_bytes(place_ / "direct.h5"));
}

TEST_F(CheckpointConversion, ReadersNameTheConversionCommand) {
    const std::string command =
        concat("format version 1, of an earlier program; convert it once: gradtile convert ", old_.string(),
               ' ', (place_ / "old-v2.h5").string());
    EXPECT_THAT(error_of([&] { read_checkpoint(old_); }), EndsWith(command));
    EXPECT_THAT(error_of([&] { inspect_checkpoint(old_); }), EndsWith(command));

    std::filesystem::create_directories(place_ / "run/checkpoints");
    for (const char* name : {"step_00000007.h5", "best.h5"})
        rename(old_, place_ / "run/checkpoints" / name), test::write_bytes(old_, test::version_1_file());
    const auto loaded = CheckpointDirectory(place_ / "run/checkpoints").load_newest();
    EXPECT_FALSE(loaded.checkpoint.has_value());
    ASSERT_EQ(loaded.damaged.size(), 2u);
    for (const std::string& line : loaded.damaged)
        EXPECT_THAT(line, EndsWith(concat("gradtile convert ", (place_ / "run").string(), ' ',
                                          (place_ / "run-v2").string())));
}

TEST_F(CheckpointConversion, SurvivesAFileThatCrashesLibhdf5) {
    test::write_bytes(old_, test::version_1_file_that_crashes_libhdf5());
    const std::string message = refusal();
#if !H5_VERSION_GE(1, 12, 0)
    EXPECT_THAT(message, AllOf(HasSubstr("old.h5: damaged: libhdf5 was ended by signal 8"),
                               HasSubstr("while it read the file")));
#endif
}

TEST_F(CheckpointConversion, RefusesDamagedFilesByName) {
    std::vector<std::byte> file = test::version_1_file();
    file[5000] ^= std::byte{1};
    test::write_bytes(old_, file);
    EXPECT_THAT(refusal(), HasSubstr("old.h5: damaged: the checksum of the file's content"));
    file.resize(6000);
    test::write_bytes(old_, file);
    EXPECT_THAT(refusal(), HasSubstr("old.h5: truncated"));
    write_checkpoint(old_, meant());
    EXPECT_THAT(refusal(), HasSubstr("old.h5: not a checkpoint of format version 1"));
}

TEST_F(CheckpointConversion, ReplacesNoExistingFile) {
    test::write_bytes(new_, std::vector(3, std::byte{'x'}));
    EXPECT_THAT(error_of([&] { convert_checkpoint(old_, new_); }), HasSubstr("new.h5: exists already"));
    EXPECT_THAT(error_of([&] { convert_checkpoint(old_, old_); }), HasSubstr("old.h5: exists already"));
    EXPECT_EQ(test::file_bytes(new_).size(), 3u);
}

TEST_F(CheckpointConversion, CommandsCanBePastedIntoAShell) {
    const auto command_for = [&](const std::filesystem::path& directory, const char* name) {
        create_directories(place_ / directory);
        test::write_bytes(place_ / directory / name, test::version_1_file());
        const std::string message = error_of([&] { read_checkpoint(place_ / directory / name); });
        return message.substr(message.find("gradtile convert "));
    };
    const std::string place = place_.path().string();
    EXPECT_EQ(command_for("it's", "a b.h5"),
              concat("gradtile convert '", place, "/it'\\''s/a b.h5' '", place, "/it'\\''s/a b-v2.h5'"));
    EXPECT_EQ(command_for("run.1/checkpoints", "best.h5"),
              concat("gradtile convert ", place, "/run.1 ", place, "/run.1-v2"));
    EXPECT_EQ(command_for("run.1/./checkpoints", "best.h5"),
              concat("gradtile convert ", place, "/run.1 ", place, "/run.1-v2"));
}

class RunConversion : public testing::Test {
  protected:
    RunConversion() {
        create_directories(checkpoints_);
        test::write_bytes(checkpoints_ / "step_00000007.h5", test::version_1_file());
        create_hard_link(checkpoints_ / "step_00000007.h5", checkpoints_ / "best.h5");
        test::write_bytes(run_ / "config.json", std::vector(2, std::byte{'{'}));
        test::write_bytes(run_ / "metrics.jsonl", std::vector(9, std::byte{'\n'}));
    }

    TemporaryDirectory place_;
    std::filesystem::path run_ = place_ / "run";
    std::filesystem::path checkpoints_ = run_ / "checkpoints";
    std::filesystem::path new_ = place_ / "new";
};

TEST_F(RunConversion, ConvertsCheckpointsAndCopiesTheRest) {
    const ConvertedRun converted = convert_run(run_, new_);
    EXPECT_THAT(converted.damaged, testing::IsEmpty());
    EXPECT_THAT(converted.files, testing::ElementsAre(new_ / "checkpoints/step_00000007.h5"));
    EXPECT_TRUE(equivalent(new_ / "checkpoints/step_00000007.h5", new_ / "checkpoints/best.h5"));
    EXPECT_EQ(test::file_bytes(new_ / "metrics.jsonl"), test::file_bytes(run_ / "metrics.jsonl"));
    EXPECT_EQ(test::file_bytes(new_ / "config.json"), test::file_bytes(run_ / "config.json"));
    const auto loaded = CheckpointDirectory(new_ / "checkpoints").load_newest();
    EXPECT_THAT(loaded.damaged, testing::IsEmpty());
    test::expect_same(*loaded.checkpoint, meant());
}

TEST_F(RunConversion, ADamagedNewestCheckpointIsNamedAndTheOlderOneUsed) {
    for (const bool crashes_libhdf5 : {false, true}) {
        remove_all(new_);
        std::vector<std::byte> damaged = test::version_1_file_that_crashes_libhdf5();
        if (!crashes_libhdf5) damaged.resize(damaged.size() / 2);
        test::write_bytes(checkpoints_ / "step_00000009.h5", damaged);
        const ConvertedRun converted = convert_run(run_, new_);
        ASSERT_EQ(converted.damaged.size(), 1u);
        EXPECT_THAT(converted.damaged[0], HasSubstr("step_00000009.h5"));
        test::expect_same(*CheckpointDirectory(new_ / "checkpoints").load_newest().checkpoint, meant());
    }
}

TEST_F(RunConversion, WithoutASoundCheckpointCreatesNothing) {
    resize_file(checkpoints_ / "step_00000007.h5", 100);
    EXPECT_THAT(error_of([&] { convert_run(run_, new_); }), HasSubstr("holds no sound checkpoint"));
    EXPECT_FALSE(exists(new_));
}

// Another user may have prepared the directory.
TEST_F(RunConversion, FollowsNoSymbolicLinkInTheRun) {
    create_symlink("/etc/hostname", run_ / "notes.txt");
    create_symlink("step_00000007.h5", checkpoints_ / "step_00000009.h5");
    const ConvertedRun converted = convert_run(run_, new_);
    EXPECT_FALSE(exists(symlink_status(new_ / "notes.txt")));
    ASSERT_EQ(converted.damaged.size(), 1u);
    EXPECT_THAT(converted.damaged[0], HasSubstr("step_00000009.h5: is a symbolic link"));
    EXPECT_THAT(converted.files, testing::ElementsAre(new_ / "checkpoints/step_00000007.h5"));
}

TEST_F(RunConversion, RefusesARunInUseAndATargetThatExists) {
    {
        const RunLock lock(run_);
        EXPECT_THAT(error_of([&] { convert_run(run_, new_); }), HasSubstr("run"));
        EXPECT_FALSE(exists(new_));
    }
    EXPECT_THAT(error_of([&] { convert_run(run_, run_); }), HasSubstr("exists already"));
    EXPECT_THAT(error_of([&] { convert_run(place_.path(), new_); }), HasSubstr("holds no run"));
}

TEST(ConfinedChild, ReportsHowItEnded) {
    const ProcessLimits limits{.memory_bytes = std::uint64_t{64} << 20, .cpu_seconds = 1};
    EXPECT_EQ(run_confined(limits, [] {}).error, "");
    EXPECT_EQ(run_confined(limits, [] { throw Error("a reason"); }).error, "a reason");
    EXPECT_EQ(run_confined(limits, [] { ::_exit(3); }).error, "exit code 3");
    EXPECT_EQ(run_confined(limits, [] { ::raise(SIGKILL); }).ended_by, "signal 9 (Killed)");
    const std::string too_much =
        run_confined(limits, [] { std::vector<char> all(std::size_t{1} << 30, 'x'); }).error;
    // Under AddressSanitizer the child ends where operator new would throw.
    if (!test::sanitized) {
        EXPECT_THAT(too_much, HasSubstr("bytes of memory needed"));
    }
    EXPECT_NE(too_much, "");
}

TEST(ConfinedChild, EndlessWorkIsEnded) {
    const ChildOutcome outcome =
        run_confined({.memory_bytes = std::uint64_t{64} << 20, .cpu_seconds = 1}, [] {
            while (true) asm volatile("");
        });
    EXPECT_THAT(outcome.ended_by, HasSubstr(concat("signal ", SIGXCPU)));
}

}  // namespace
}  // namespace gradtile
