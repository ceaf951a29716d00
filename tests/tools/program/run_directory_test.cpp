// Unusual run directories: missing checkpoints, another run's checkpoints, links and pipes in place of files,
// another working directory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <map>

#include <gradtile/train/checkpoint/checkpoint.h>
#include <gradtile/train/config/settings.h>

#include <support/json.h>
#include <support/sanitized.h>
#include <support/signal_process.h>

#include "running_program.h"

namespace gradtile::test {
namespace {

using testing::HasSubstr;
using testing::Not;
namespace fs = std::filesystem;

/// Every path below a directory with its type, contents and modification time. The lock is left out, because
/// every command writes it.
std::map<std::string, std::string> state_of_files(const fs::path& directory) {
    std::map<std::string, std::string> state;
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(directory)) {
        if (entry.path().filename() == ".lock") continue;
        std::string about = concat(static_cast<int>(entry.symlink_status().type()));
        if (entry.is_regular_file())
            about += concat(' ', entry.last_write_time().time_since_epoch().count(), ' ',
                            contents_of(entry.path()));
        state[entry.path().string()] = about;
    }
    return state;
}

void remove_all_in(const fs::path& directory) {
    for (const fs::directory_entry& entry : fs::directory_iterator(directory)) fs::remove(entry.path());
}

/// Limits time and memory for a program that hangs or allocates without bound. Under a sanitizer memory is
/// not limited, because a sanitizer reserves terabytes of address space.
const ProcessOptions limited{.prefix = sanitized ? Arguments{"timeout", "60"}
                                                 : Arguments{"prlimit", "--as=4000000000", "timeout", "60"}};

class RunOnDisk : public testing::Test {
  protected:
    Arguments training(const fs::path& out) const {
        return tiny_training(stories_, out) + Arguments{"--save-every", "2", "--keep-last", "3", "--quiet"};
    }
    /// Trains steps 1 to 6 of 8, with checkpoints at steps 2, 4 and 6.
    void train_six_steps(const fs::path& out, const Arguments& extra = {}) const {
        expect_success(run(training(out) + extra + Arguments{"--stop-after", "6"}));
    }
    Arguments resume() const { return {"train", "--resume", out_.string(), "--quiet"}; }
    fs::path checkpoint(int step) const { return out_ / concat("checkpoints/step_0000000", step, ".h5"); }
    void expect_refused_unchanged(const std::vector<std::string>& parts) const {
        const auto before = state_of_files(out_);
        expect_refused(run(resume(), limited), parts);
        EXPECT_EQ(state_of_files(out_), before);
    }
    void expect_finished_as_straight() const {
        const fs::path straight = place_ / "straight";
        expect_success(run(training(straight)));
        EXPECT_EQ(steps_of(out_), steps_of(straight));
        EXPECT_EQ(tensors_of(out_), tensors_of(straight));
    }

    TemporaryDirectory place_;
    std::string stories_ = write_stories(place_);
    fs::path out_ = place_ / "run";
};

// ---- Missing checkpoints ----

using MissingCheckpoint = RunOnDisk;

TEST_F(MissingCheckpoint, IsReportedAndNothingChanges) {
    train_six_steps(out_);
    const std::vector<std::string> parts{"announces the checkpoint of step 6", "step_00000006.h5 is missing",
                                         "--restart"};
    fs::rename(checkpoint(6), place_ / "newest");
    expect_refused_unchanged(parts + Arguments{"or continue from step 4"});
    remove_all_in(out_ / "checkpoints");
    expect_refused_unchanged(parts + Arguments{"or continue from the start"});
    fs::remove(out_ / "checkpoints");
    expect_refused_unchanged(parts);
    fs::create_directory(out_ / "checkpoints");
    fs::rename(place_ / "newest", checkpoint(6));
    expect_success(run(resume()));
    expect_finished_as_straight();
}

TEST_F(MissingCheckpoint, IsReportedWhenItsDiskIsNotMounted) {
    train_six_steps(out_);
    fs::rename(out_ / "checkpoints", place_ / "disk");
    fs::create_symlink(place_ / "disk", out_ / "checkpoints");
    fs::rename(place_ / "disk", place_ / "unmounted");
    expect_refused_unchanged({"checkpoints: is a symbolic link to", "disk mounted?"});
    fs::rename(place_ / "unmounted", place_ / "disk");
    expect_success(run(resume()));
    EXPECT_TRUE(exists(place_ / "disk/step_00000008.h5"));
}

TEST_F(MissingCheckpoint, RestartResumesFromTheNewestExisting) {
    train_six_steps(out_);
    fs::remove(checkpoint(6));
    const Outcome outcome = run(resume() + Arguments{"--restart"});
    EXPECT_EQ(outcome.exit_code, 0);
    EXPECT_THAT(outcome.error_lines(), testing::ElementsAre(HasSubstr("checkpoint of step 6 is missing")));
    EXPECT_THAT(outcome.err, HasSubstr("continues from step 4"));
    expect_finished_as_straight();
}

TEST_F(MissingCheckpoint, RestartStartsAgainWithoutCheckpoints) {
    train_six_steps(out_);
    remove_all_in(out_ / "checkpoints");
    const Outcome outcome = run(resume() + Arguments{"--restart"});
    EXPECT_EQ(outcome.exit_code, 0);
    EXPECT_THAT(outcome.err, HasSubstr("continues from the start"));
    expect_finished_as_straight();
}

TEST_F(MissingCheckpoint, RestartStartsAgainWithoutASoundCheckpoint) {
    train_six_steps(out_);
    for (const int step : {2, 4, 6}) fs::resize_file(checkpoint(step), 5000);
    expect_refused_unchanged({"holds no sound checkpoint", "--restart", "step_00000006.h5"});
    const Outcome outcome = run(resume() + Arguments{"--restart"});
    EXPECT_EQ(outcome.exit_code, 0);
    EXPECT_EQ(outcome.error_lines().size(), 3u) << outcome.err;  // one line for each damaged file
    expect_finished_as_straight();
}

TEST_F(MissingCheckpoint, OfARunWhoseEverySaveFailedIsReportedAndNothingChanges) {
    const std::uint64_t enough_for_metrics = 20'000;
    const Outcome failed =
        run(training(out_) + Arguments{"--stop-after", "6"}, {.max_file_bytes = enough_for_metrics});
    EXPECT_EQ(failed.exit_code, 1);
    EXPECT_EQ(steps_of(out_).size(), 6u);
    expect_refused_unchanged({"holds no checkpoint: its saves failed, the last one at step 6", "--restart"});
    const Outcome outcome = run(resume() + Arguments{"--restart"});
    EXPECT_EQ(outcome.exit_code, 0);
    EXPECT_THAT(outcome.err, HasSubstr("the save of step 6 failed; "));
    EXPECT_THAT(outcome.err, HasSubstr("continues from the start"));
    expect_finished_as_straight();
}

TEST_F(MissingCheckpoint, RestartNeedsResume) {
    expect_refused(run(training(out_) + Arguments{"--restart"}), {"--restart: needs --resume"});
}

/// --restart accepts a missing checkpoint at the first start only, not after a crash.
TEST_F(MissingCheckpoint, LauncherAcceptsItAtTheFirstStartOnly) {
    train_six_steps(out_, {"--steps", "3000", "--save-every", "100"});
    remove_all_in(out_ / "checkpoints");
    Program launcher(resume() + Arguments{"--restart", "--restarts", "1"});
    pid_t process = -1;
    wait_until(launcher, [&] {
        return contents_of(out_ / "metrics.jsonl").find(R"({"event":"checkpoint","step":100})") !=
                   std::string::npos &&
               (process = find_process(out_, "RANK=0")) > 0;
    });
    ASSERT_GT(process, 0);
    EXPECT_THAT(contents_of(concat("/proc/", process, "/cmdline")), HasSubstr(concat("--restart", '\0')));
    signal_process(process, SIGKILL);
    wait_until(launcher, [&] {
        const pid_t next = find_process(out_, "RANK=0");
        if (next <= 0 || next == process) return false;
        process = next;
        return true;
    });
    EXPECT_THAT(contents_of(concat("/proc/", process, "/cmdline")),
                Not(HasSubstr(concat("--restart", '\0'))));
    const Outcome outcome = launcher.wait();
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("restart 1 of 1 from the last sound checkpoint"));
    EXPECT_EQ(steps_of(out_).size(), 3000u);
}

// ---- Disks that are too small ----

class SmallDisk : public RunOnDisk {
  protected:
    void SetUp() override {
        if (run({}, {.prefix = on_disk("exit 0")}).exit_code != 0)
            GTEST_SKIP() << "mounting a small tmpfs needs privileges this process does not have";
    }
    /// Prefix for a program that sees a 200 KB file system at disk_: metrics fit, but no checkpoint.
    Arguments on_disk(const std::string& script) const {
        return {"unshare", "-m", "sh", "-c",
                concat("mount -t tmpfs -o size=200k none '", disk_.string(), "' 2> /dev/null || exit 77; ",
                       script)};
    }
    static constexpr const char* run_program = "\"$0\" \"$@\"";

    fs::path disk_ = make_disk();

  private:
    fs::path make_disk() const {
        fs::create_directory(place_ / "disk");
        return place_ / "disk";
    }
};

TEST_F(SmallDisk, IsRefusedBeforeTheFirstStepAndHoldsNoRun) {
    const std::string script = concat(run_program, "; code=$?; ls -A '", disk_.string(), "'; exit $code");
    // expect_refused() also expects that the file list, which the script prints, is empty.
    expect_refused(run(training(disk_ / "run"), {.prefix = on_disk(script)}),
                   {"out: '", "disk/run': no room for a checkpoint of ", "No space left on device"});
}

TEST_F(SmallDisk, OfCheckpointsIsRefusedWhenARunIsResumed) {
    train_six_steps(out_);
    fs::rename(out_ / "checkpoints", place_ / "kept");
    fs::create_symlink(disk_, out_ / "checkpoints");
    const std::string script = concat("cp '", (place_ / "kept").string(), "/step_00000006.h5' '",
                                      disk_.string(), "'; ", run_program);
    const std::string metrics = contents_of(out_ / "metrics.jsonl");
    expect_refused(run(resume(), {.prefix = on_disk(script)}),
                   {"resume: '", "run': no room for a checkpoint of ", "No space left on device"});
    EXPECT_EQ(contents_of(out_ / "metrics.jsonl"), metrics);
}

// ---- Checkpoints from another run ----

using ForeignCheckpoint = RunOnDisk;

TEST_F(ForeignCheckpoint, IsRefusedByNameAndNothingChanges) {
    train_six_steps(out_);
    const fs::path other = place_ / "other";
    expect_success(run(training(other) + Arguments{"--seed", "2", "--stop-after", "7"}));
    EXPECT_NE(contents_of(out_ / "run.json"), contents_of(other / "run.json"));
    fs::copy(other / "checkpoints/step_00000007.h5", checkpoint(7));
    const std::string id =
        nlohmann::json::parse(contents_of(other / "run.json"))["identity"].get<std::string>();
    EXPECT_EQ(id.size(), 32u);
    expect_refused_unchanged({"step_00000007.h5: belongs to run " + id, "move the file away"});
    const Outcome forced = run(resume() + Arguments{"--restart"});
    expect_refused(forced, {"step_00000007.h5: belongs to run " + id});
    fs::remove(checkpoint(7));
    expect_success(run(resume()));
    expect_finished_as_straight();
}

TEST_F(ForeignCheckpoint, IsRefusedInPlaceOfTheRunsOwn) {
    train_six_steps(out_);
    const fs::path other = place_ / "other";
    train_six_steps(other, {"--width", "32"});
    fs::copy(other / "checkpoints/step_00000006.h5", checkpoint(6), fs::copy_options::overwrite_existing);
    expect_refused_unchanged({"step_00000006.h5: belongs to run "});
}

TEST_F(ForeignCheckpoint, IsEveryCheckpointWithoutRunJson) {
    train_six_steps(out_);
    fs::remove(out_ / "run.json");
    expect_refused_unchanged({"step_00000006.h5: belongs to run ", "without run.json"});
    std::ofstream(out_ / "run.json") << R"({"identity":"none"})";
    expect_refused_unchanged({"run.json: is not a run's identity", "32 hexadecimal digits"});
}

TEST_F(ForeignCheckpoint, ConfigJsonStartsARunWithANewIdentity) {
    train_six_steps(out_);
    const fs::path other = place_ / "other";
    expect_success(
        run({"train", "--config", (out_ / "config.json").string(), "--out", other.string(), "--quiet"}));
    EXPECT_NE(contents_of(out_ / "run.json"), contents_of(other / "run.json"));
}

// ---- Files that are not regular ----

using NonRegularFile = RunOnDisk;

TEST_F(NonRegularFile, IsRefusedAsConfig) {
    const fs::path pipe = place_ / "pipe.json";
    ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
    const Arguments training = tiny_training(stories_, out_);
    expect_refused(run(training + Arguments{"--config", pipe.string()}, limited),
                   {"pipe.json: is not a regular file"});
    expect_refused(run(training + Arguments{"--config", "/dev/zero"}, limited),
                   {"/dev/zero: is not a regular file"});
    const std::string large = place_.write("large.json", std::string(2 << 20, ' '));
    expect_refused(run(training + Arguments{"--config", large}, limited),
                   {"large.json: 2097152 bytes; expected at most 1048576"});
    EXPECT_FALSE(exists(out_));
}

TEST_F(NonRegularFile, IsRefusedInARunsDirectory) {
    train_six_steps(out_);
    for (const std::string name : {"metrics.jsonl", "run.json", ".lock"}) {
        const fs::path file = out_ / name;
        fs::rename(file, place_ / "kept");
        ASSERT_EQ(::mkfifo(file.c_str(), 0600), 0);
        expect_refused(run(resume(), limited), {name + ": is not a regular file"});
        fs::remove(file);
        fs::create_symlink("/dev/zero", file);
        expect_refused(run(resume(), limited), {name + ": is a symbolic link"});
        fs::remove(file);
        fs::rename(place_ / "kept", file);
    }
    expect_success(run(resume()));
}

TEST_F(NonRegularFile, IsRefusedAsConfigJsonOfARun) {
    train_six_steps(out_, {"--save-every", "0"});
    fs::remove_all(out_ / "checkpoints");
    fs::remove(out_ / "metrics.jsonl");
    fs::remove(out_ / "config.json");
    ASSERT_EQ(::mkfifo((out_ / "config.json").c_str(), 0600), 0);
    expect_refused_unchanged({"config.json: is not a regular file"});
}

TEST_F(NonRegularFile, CountsAsADamagedCheckpoint) {
    train_six_steps(out_);
    ASSERT_EQ(::mkfifo(checkpoint(7).c_str(), 0600), 0);
    ASSERT_EQ(::mkfifo((out_ / "checkpoints/best.h5").c_str(), 0600), 0);
    const Outcome outcome = run(resume() + Arguments{"--stop-after", "7"}, limited);
    EXPECT_EQ(outcome.exit_code, 0);
    EXPECT_THAT(outcome.err, HasSubstr("best.h5: is not a regular file"));
    EXPECT_THAT(outcome.err, HasSubstr("step_00000007.h5: is not a regular file"));
}

// ---- Directories with other programs' files ----

class PreparedDirectory : public RunOnDisk {
  protected:
    PreparedDirectory() { fs::create_directory(out_); }
    void link(const std::string& name) const { fs::create_symlink(foreign_file_, out_ / name); }
    void expect_foreign_file_unchanged() const { EXPECT_EQ(contents_of(foreign_file_), "precious"); }

    std::string foreign_file_ = place_.write("victim", "precious");
    std::string missing_file_ = (place_ / "absent").string();
};

TEST_F(PreparedDirectory, RefusesLinksInPlaceOfARunsFiles) {
    for (const std::string name : {".lock", "config.json", "metrics.jsonl", "checkpoints"}) {
        for (const std::string& target : {foreign_file_, missing_file_}) {
            fs::create_symlink(target, out_ / name);
            expect_refused(run(training(out_)), {name, "is a symbolic link"});
            fs::remove(out_ / name);
        }
    }
    expect_foreign_file_unchanged();
    EXPECT_FALSE(exists(fs::path(missing_file_)));
    expect_success(run(training(out_)));
}

TEST_F(PreparedDirectory, DoesNotFollowLinksNamedLikeTemporaryFiles) {
    // The shell execs the program, so $$ is the program's process id.
    const std::string script = "for f in config.json run.json metrics.jsonl loss.svg; do ln -s " +
                               foreign_file_ + " " + out_.string() + "/$f.tmp-$$; done; exec \"$0\" \"$@\"";
    link("loss.svg.tmp");
    link("loss.svg");
    expect_success(run(training(out_), {.prefix = {"sh", "-c", script}}));
    expect_foreign_file_unchanged();
    EXPECT_TRUE(fs::is_regular_file(symlink_status(out_ / "loss.svg")));
    for (const fs::directory_entry& entry : fs::directory_iterator(out_))
        EXPECT_THAT(entry.path().filename().string(), Not(HasSubstr(".tmp")));
}

TEST_F(PreparedDirectory, RefusesHardLinks) {
    fs::create_hard_link(foreign_file_, out_ / ".lock");
    expect_refused(run(training(out_)), {".lock: has 2 names"});
    fs::remove(out_ / ".lock");
    train_six_steps(out_);
    fs::create_hard_link(out_ / "metrics.jsonl", place_ / "second");
    expect_refused_unchanged({"metrics.jsonl: has 2 names (hard links)"});
    fs::remove(place_ / "second");
    expect_success(run(resume()));
    expect_foreign_file_unchanged();
}

TEST_F(PreparedDirectory, RefusesFilesAndLinksOfAnotherUser) {
    if (::geteuid() != 0) GTEST_SKIP() << "only root can give files away";
    train_six_steps(out_);
    for (const std::string name : {".lock", "metrics.jsonl"}) {
        ASSERT_EQ(::chown((out_ / name).c_str(), 12345, 12345), 0);
        expect_refused(run(resume()), {name + ": belongs to user 12345"});
        ASSERT_EQ(::chown((out_ / name).c_str(), 0, 0), 0);
    }
    fs::rename(out_ / "checkpoints", place_ / "disk");
    fs::create_symlink(place_ / "disk", out_ / "checkpoints");
    ASSERT_EQ(::lchown((out_ / "checkpoints").c_str(), 12345, 12345), 0);
    expect_refused_unchanged({"checkpoints: is a symbolic link of user 12345"});
    ASSERT_EQ(::lchown((out_ / "checkpoints").c_str(), 0, 0), 0);
    expect_success(run(resume()));
}

TEST_F(PreparedDirectory, RunDirectoryMayBeALink) {
    fs::create_directory_symlink(out_, place_ / "link");
    train_six_steps(place_ / "link");
    expect_success(run({"train", "--resume", (place_ / "link").string(), "--quiet"}));
    EXPECT_EQ(steps_of(out_).size(), 8u);
}

TEST_F(PreparedDirectory, RemovesTemporaryFilesOfAKilledProcess) {
    train_six_steps(out_);
    const std::vector<std::string> leftovers{"config.json.tmp-12", "metrics.jsonl.tmp-0123456789abcdef",
                                             "loss.svg.tmp", "checkpoints/step_00000009.h5.tmp-12"};
    for (const std::string& name : leftovers) std::ofstream(out_ / name) << "half";
    std::ofstream(out_ / "notes.tmp-12") << "mine";
    expect_success(run(resume()));
    for (const std::string& name : leftovers) EXPECT_FALSE(exists(out_ / name)) << name;
    EXPECT_TRUE(exists(out_ / "notes.tmp-12"));
}

/// Returns the names of all settings whose value is a text: each might name a path.
std::vector<std::string> text_settings() {
    std::vector<std::string> names;
    const TrainConfig any;
    visit_settings(any, [&](const Setting& setting, const auto& member) {
        if constexpr (std::is_same_v<decltype(member), const std::string&>) names.emplace_back(setting.name);
    });
    return names;
}

/// Files that another user prepared set each text setting to a place outside the run's directory, which does
/// or does not exist. Whatever the setting means, nothing is made or written there.
TEST_F(PreparedDirectory, NoSettingOfAFileLeadsOutOfTheRun) {
    train_six_steps(out_);
    const Checkpoint sound = read_checkpoint(checkpoint(6));
    const nlohmann::json sound_config = nlohmann::json::parse(contents_of(out_ / "config.json"));
    const fs::path outside = place_ / "outside", checkpoints = out_ / "checkpoints", kept = place_ / "kept",
                   metrics = out_ / "metrics.jsonl";
    fs::copy(metrics, place_ / "metrics");
    const std::vector<std::string> names = text_settings();
    EXPECT_THAT(names, testing::IsSupersetOf({"out", "tensorboard", "data"}));
    for (const std::string& name : names)
        for (const bool exists : {false, true}) {
            const fs::path target = outside / name;
            fs::create_directories(exists ? target : outside);
            const auto before = state_of_files(outside);
            const auto expect_nothing_made = [&](const char* file) {
                EXPECT_EQ(state_of_files(outside), before) << name << " in " << file;
            };
            nlohmann::json config = sound_config;
            config[name] = target.string();
            Checkpoint prepared = sound;
            prepared.config = json_value(config);
            write_checkpoint(checkpoint(6), prepared);
            run(resume() + Arguments{"--stop-after", "7"});
            expect_nothing_made("a checkpoint");

            fs::rename(checkpoints, kept);
            fs::remove(metrics);
            std::ofstream(out_ / "config.json") << config;
            run(resume() + Arguments{"--stop-after", "1"});
            expect_nothing_made("config.json");
            fs::remove_all(checkpoints);
            fs::rename(kept, checkpoints);
            fs::remove(checkpoint(7));
            fs::copy(place_ / "metrics", metrics, fs::copy_options::overwrite_existing);

            const std::string file =
                place_.write("given.json", nlohmann::json{{name, target.string()}}.dump());
            const fs::path other = place_ / "other";
            run({"train", "--config", file, "--data", stories_, "--out", other.string(), "--steps", "1",
                 "--layers", "1", "--heads", "2", "--width", "16", "--context", "16", "--device", "cpu"});
            expect_nothing_made("a file of --config");
            fs::remove_all(other);
            fs::remove_all(outside);
        }
}

TEST_F(PreparedDirectory, ALinkToCheckpointsOfNoRunIsRefused) {
    train_six_steps(out_);
    const fs::path elsewhere = place_ / "elsewhere";
    fs::rename(out_ / "checkpoints", place_ / "kept");
    fs::create_directory(elsewhere);
    fs::create_symlink(elsewhere, out_ / "checkpoints");
    expect_refused_unchanged({"step_00000006.h5 is missing"});
    expect_refused(run(resume() + Arguments{"--restart"}),
                   {"checkpoints: is a symbolic link to a directory without a sound checkpoint"});
    fs::remove(out_ / "metrics.jsonl");  // as if the run had never saved
    expect_refused_unchanged({"checkpoints: is a symbolic link to a directory without a sound checkpoint"});
    EXPECT_TRUE(fs::is_empty(elsewhere));
}

TEST_F(PreparedDirectory, ARunThatNeverMadeAStepIsReplaced) {
    train_six_steps(out_);
    const std::string settings = contents_of(out_ / "config.json"), identity = contents_of(out_ / "run.json");
    fs::remove_all(out_);
    const auto prepare = [&] {
        fs::remove_all(out_);
        fs::create_directories(out_ / "checkpoints");
        std::ofstream(out_ / "config.json") << settings;
        std::ofstream(out_ / "run.json") << identity;
        std::ofstream(out_ / "metrics.jsonl") << "";
    };
    prepare();
    std::ofstream(out_ / "checkpoints/step_00000000.h5.tmp-0123456789abcdef") << "half";
    expect_success(run(training(out_)));
    EXPECT_NE(contents_of(out_ / "run.json"), identity);
    expect_finished_as_straight();
    // A metrics line, a checkpoint, or another program's settings are not lost.
    const std::map<std::string, std::string> kept{{"metrics.jsonl", "{}\n"},
                                                  {"checkpoints/step_00000001.h5", "damaged"},
                                                  {"config.json", R"({"name": "another program"})"},
                                                  {"run.json", "{}"}};
    for (const auto& [name, content] : kept) {
        prepare();
        std::ofstream(out_ / name) << content;
        const auto before = state_of_files(out_);
        expect_refused(run(training(out_)), {"already holds a run"});
        EXPECT_EQ(state_of_files(out_), before) << name;
    }
}

// ---- Other working directories ----

using WorkingDirectory = RunOnDisk;

TEST_F(WorkingDirectory, IsIrrelevantToAResumedRun) {
    const ProcessOptions in_place{.prefix = {"env", "-C", place_.path().string()}};
    const Arguments relative = tiny_training("stories.txt", "run") +
                               Arguments{"--val-data", "stories.txt", "--save-every", "2", "--quiet"};
    expect_success(run(relative + Arguments{"--stop-after", "4"}, in_place));
    const nlohmann::json config = nlohmann::json::parse(contents_of(out_ / "config.json"));
    EXPECT_EQ(config["data"], stories_);
    EXPECT_EQ(config["val-data"], stories_);
    expect_success(run(resume(), {.prefix = {"env", "-C", "/"}}));
    EXPECT_EQ(steps_of(out_).size(), 8u);
}

TEST_F(WorkingDirectory, ResumeAcceptsTheNewPathOfMovedData) {
    train_six_steps(out_);
    fs::rename(stories_, place_ / "moved.txt");
    expect_refused(run(resume() + Arguments{"--stop-after", "7"}), {"stories.txt", "No such file"});
    const ProcessOptions in_place{.prefix = {"env", "-C", place_.path().string()}};
    expect_success(run(resume() + Arguments{"--data", "moved.txt", "--stop-after", "7"}, in_place));
    expect_success(run(resume()));  // the step-7 checkpoint has the new path
    fs::rename(place_ / "moved.txt", stories_);
    expect_finished_as_straight();
}

TEST_F(WorkingDirectory, ResumeRefusesNewValidationData) {
    train_six_steps(out_);
    const auto before = state_of_files(out_);
    expect_refused(run(resume() + Arguments{"--val-data", stories_}), {"val-data: '", "at another place"});
    EXPECT_EQ(state_of_files(out_), before);
}

// ---- Finished runs ----

using FinishedRun = RunOnDisk;

TEST_F(FinishedRun, IsReportedAndUnchanged) {
    expect_success(run(training(out_)));
    const auto before = state_of_files(out_);
    for (const Arguments& extra : {Arguments{}, Arguments{"--steps", "8"}, Arguments{"--restart"}}) {
        const Outcome outcome = run(resume() + extra);
        expect_success(outcome);
        EXPECT_EQ(outcome.out, "the run is finished at step 8; --steps M continues it up to step M\n");
        EXPECT_EQ(state_of_files(out_), before);
    }
    expect_success(run(resume() + Arguments{"--steps", "9"}));
    EXPECT_EQ(steps_of(out_).size(), 9u);
}

}  // namespace
}  // namespace gradtile::test
