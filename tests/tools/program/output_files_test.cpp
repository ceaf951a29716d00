// Files that commands write: an output is never an input, it is complete or absent, and nothing else is lost.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <csignal>
#include <map>
#include <memory>
#include <regex>
#include <set>

#include <gradtile/core/check.h>

#include <support/sanitized.h>

#include "program.h"

namespace gradtile::test {
namespace {

using testing::HasSubstr;

class OutputFiles : public testing::Test {
  protected:
    /// Expects that the command is refused, and that all files in the directory stay as they are.
    void expect_nothing_lost(const Arguments& arguments, const std::vector<std::string>& parts,
                             const ProcessOptions& options = {}) const {
        const auto before = contents();
        expect_refused(run(arguments, options), parts);
        EXPECT_EQ(contents(), before) << testing::PrintToString(arguments);
    }
    std::map<std::string, std::string> contents() const {
        std::map<std::string, std::string> all;
        for (const auto& entry : std::filesystem::recursive_directory_iterator(place_.path()))
            if (entry.is_regular_file()) all[entry.path().string()] = contents_of(entry.path());
        return all;
    }
    std::string path(const std::string& name) const { return place_ / name; }

    TemporaryDirectory place_;
    std::string stories_ = write_stories(place_);
};

TEST_F(OutputFiles, OfARunAreNoPlaceForAPageOrLogits) {
    const std::filesystem::path trained = place_ / "run";
    expect_success(run(tiny_training(stories_, trained)));
    for (const char* name : {"metrics.jsonl", "config.json", "checkpoints/step_00000008.h5"}) {
        const std::string file = trained / name;
        expect_nothing_lost({"report", trained.string(), "--out", file}, {file, "would be lost"});
        expect_nothing_lost({"lab", "--length", "16", "--html", file}, {file, "would be lost"});
        expect_nothing_lost({"eval", trained.string(), "--data", stories_, "--logits", file},
                            {file, "would be lost"});
    }
    expect_nothing_lost({"eval", trained.string(), "--data", stories_, "--logits", stories_},
                        {"--logits", stories_, "is also read"});
    const std::string weights = path("exported/model.safetensors");
    expect_success(run(tiny_training(stories_, place_ / "bytes") + Arguments{"--tokenizer", "bytes"}));
    EXPECT_EQ(run({"export", path("bytes"), "--out", path("exported")}).exit_code, 0);
    expect_nothing_lost({"eval", trained.string(), "--data", stories_, "--logits", weights},
                        {weights, "would be lost", "expected a new file or a file of logits"});
    // A page, a picture and logits are replaced by newer ones.
    const std::string page = path("page.html"), logits = path("logits");
    for (int i = 0; i < 2; ++i) {
        expect_success(run({"report", trained.string(), "--out", page}));
        expect_success(run({"eval", trained.string(), "--data", stories_, "--logits", logits}));
    }
    expect_success(run({"report", trained.string(), "--out", place_.write("empty.html", "")}));
}

TEST_F(OutputFiles, AreNoPlaceOfAPipeOrDevice) {
    const std::filesystem::path trained = place_ / "run", pipe = place_ / "pipe";
    expect_success(run(tiny_training(stories_, trained)));
    // The test uses a pipe in place of a device: if the program had the defect, it would destroy the
    // machine's /dev/null.
    ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
    for (const Arguments& arguments :
         {Arguments{"eval", trained.string(), "--data", stories_, "--logits", pipe.string()},
          {"report", trained.string(), "--out", pipe.string()},
          {"lab", "--length", "16", "--html", pipe.string()},
          {"export", trained.string(), "--format", "gguf", "--out", pipe.string()}}) {
        expect_refused(run(arguments), {pipe.string()});
        EXPECT_TRUE(std::filesystem::is_fifo(pipe)) << testing::PrintToString(arguments);
    }
}

TEST_F(OutputFiles, AreNotReplacedByAPartOnAFullDisk) {
    const ProcessOptions full{.max_file_bytes = 1000};
    const std::string old = place_.write("old", "what was there");
    expect_nothing_lost({"corpus", "--characters", "5000", "--out", old}, {old, "File too large"}, full);
    expect_nothing_lost({"corpus", "--characters", "5000", "--out", path("new")}, {"new"}, full);
}

TEST_F(OutputFiles, ReplaceTheTargetOfALinkAndAreWrittenToPipes) {
    const std::string target = place_.write("target", "old"), link = path("link");
    std::filesystem::create_symlink(target, link);
    expect_success(run({"corpus", "--characters", "100", "--out", link}));
    EXPECT_TRUE(std::filesystem::is_symlink(link));
    EXPECT_GE(contents_of(target).size(), 100u);
    const Outcome piped = run({"corpus", "--characters", "100", "--out", "/dev/stdout"},
                              {.prefix = {"bash", "-c", "set -o pipefail; \"$0\" \"$@\" | cat"}});
    expect_success(piped);
    EXPECT_THAT(piped.out, HasSubstr(contents_of(target)));
}

#if GRADTILE_HAVE_PCRE2
TEST_F(OutputFiles, OfTokenizersAreNeverTheirInputs) {
    const std::string tokenizer = path("tokenizer.json"), link = path("link"), hard_link = path("hard"),
                      other = place_.write("other.txt", "one more text");
    std::filesystem::create_symlink(stories_, link);
    std::filesystem::create_hard_link(stories_, hard_link);
    const Arguments train{"tokenizer", "train", "--vocabulary", "300", "--data", stories_, "--out"};
    expect_success(run(train + Arguments{tokenizer}));
    const Arguments tokenize{"tokenize", stories_, other, "--tokenizer", tokenizer, "--out"};
    for (const std::string& out : {stories_, link, hard_link, place_.path().string() + "/./stories.txt"}) {
        expect_nothing_lost(train + Arguments{out}, {"--out", out, "is also read"});
        expect_nothing_lost(tokenize + Arguments{out}, {"--out", out, "is also read"});
    }
    expect_nothing_lost(tokenize + Arguments{tokenizer}, {"--out", tokenizer, "is also read"});
    const std::string encoder = place_.write("encoder.json", "{}"), merges = place_.write("vocab.bpe", "");
    expect_nothing_lost({"tokenize", stories_, "--tokenizer", encoder, "--out", merges},
                        {"--out", merges, "is also read"});
    expect_nothing_lost({"tokenize", stories_, "--tokenizer", merges, "--out", encoder},
                        {"--out", encoder, "is also read"});
    const std::string config = place_.write("tokenizer_config.json", "{}");
    for (const std::string& out : {tokenizer, config})
        expect_nothing_lost({"tokenize", stories_, "--tokenizer", place_.path().string(), "--out", out},
                            {"--out", out, "is also read"});
    const Arguments split{path("train.bin"), "--val-fraction", "0.5", "--val-out"};
    expect_nothing_lost(tokenize + split + Arguments{other}, {"--val-out", other, "is also read"});
    // Neither file exists yet.
    expect_nothing_lost(tokenize + split + Arguments{place_.path().string() + "/./train.bin"},
                        {"--val-out", "is the file of --out"});
}

TEST_F(OutputFiles, OfTokenizersAreNotReplacedByAPartOnAFullDisk) {
    const ProcessOptions full{.max_file_bytes = 1000};
    const std::string tokenizer = path("tokenizer.json"), old = place_.write("old", "what was there");
    const Arguments train{"tokenizer", "train", "--vocabulary", "300", "--data", stories_, "--out"};
    expect_success(run(train + Arguments{tokenizer}));
    for (const std::string& out : {old, path("new")}) {
        expect_nothing_lost(train + Arguments{out}, {out, "File too large"}, full);
        // Half a file without a header would look like a complete file.
        expect_nothing_lost(
            {"tokenize", stories_, "--tokenizer", tokenizer, "--format", "nanogpt", "--out", out},
            {out, "File too large"}, full);
    }
    // Both files appear, or none: an old validation file may have documents of a new training file.
    const Arguments split{"tokenize", stories_, stories_, "--tokenizer", tokenizer, "--out", old};
    expect_nothing_lost(split + Arguments{"--val-fraction", "0.5", "--val-out", place_ / "no" / "val.bin"},
                        {"val.bin", "cannot create"});
}

TEST_F(OutputFiles, OfAnExportAreRemovedWhenTheDiskIsFull) {
    const std::string tokenizer = path("tokenizer.json"), folder = path("exported");
    expect_success(
        run({"tokenizer", "train", "--vocabulary", "500", "--data", stories_, "--out", tokenizer}));
    expect_success(run(tiny_training(stories_, place_ / "run") +
                       Arguments{"--tokenizer", tokenizer, "--width", "2", "--dtype", "bf16"}));
    const Arguments command{"export", path("run"), "--out", folder};
    expect_success(run(command));
    const std::uint64_t weights = std::filesystem::file_size(folder + "/model.safetensors"),
                        json = std::filesystem::file_size(folder + "/tokenizer.json");
    ASSERT_LT(weights, json);
    std::filesystem::remove_all(folder);
    // The weights fit, the tokenizer does not.
    expect_nothing_lost(command, {"tokenizer.json", "File too large"}, {.max_file_bytes = json - 1});
    EXPECT_FALSE(std::filesystem::exists(folder));
    expect_success(run(command));
}
#endif

// ---- Commands that are interrupted while they write ----

class InterruptedOutput : public OutputFiles {
  protected:
    /// A model whose file is large enough to be caught while it is written: 6 MB.
    void SetUp() override {
        expect_success(run(tiny_training(stories_, run_) +
                           Arguments{"--width", "256", "--layers", "2", "--steps", "1", "--quiet"}));
        std::filesystem::create_directory(outputs_);
    }
    static bool is_temporary(const std::filesystem::path& path) {
        return path.filename().string().find(".tmp-") != std::string::npos;
    }
    /// Names relative to the output directory.
    std::vector<std::string> written() const {
        std::vector<std::string> names;
        std::error_code gone;  // files may disappear meanwhile
        for (std::filesystem::recursive_directory_iterator entry(outputs_, gone), end; !gone && entry != end;
             entry.increment(gone))
            names.push_back(entry->path().lexically_relative(outputs_).string());
        std::ranges::sort(names);
        return names;
    }
    /// Whether there is a temporary file whose name begins with `begin`.
    bool has_temporary(const std::string& begin = {}) const {
        return std::ranges::any_of(written(), [&](const std::filesystem::path& path) {
            return is_temporary(path) && path.filename().string().starts_with(begin);
        });
    }
    /// Runs a command that may print notes.
    static void expect_done(const Arguments& command) {
        const Outcome outcome = run(command);
        EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    }
    /// Starts a command and stops it with SIGSTOP while such a temporary file exists.
    std::unique_ptr<Program> stopped_while_writing(const Arguments& command,
                                                   const std::string& begin = {}) const {
        for (int attempt = 0; attempt < 100; ++attempt) {
            auto program = std::make_unique<Program>(command);
            while (program->running() && !has_temporary(begin)) {
            }
            if (program->running()) {
                program->send(SIGSTOP);
                if (program->running() && has_temporary(begin)) return program;
            }
            // The command was faster than this process.
            program.reset();
            std::filesystem::remove_all(outputs_);
            std::filesystem::create_directory(outputs_);
        }
        return nullptr;
    }

    std::string run_ = path("run");
    std::filesystem::path outputs_ = place_ / "outputs";
    std::string out_ = (outputs_ / "out").string();
    Arguments folder_{"export", run_, "--out", out_};
    Arguments gguf_{"export", run_, "--format", "gguf", "--out", out_};
};

TEST_F(InterruptedOutput, IsRemovedByASignal) {
    for (const Arguments& command : {folder_, gguf_})
        for (const int signal : {SIGTERM, SIGINT, SIGHUP}) {
            const auto program = stopped_while_writing(command);
            ASSERT_NE(program, nullptr);
            program->send(signal);
            program->send(SIGCONT);
            EXPECT_EQ(program->wait().signal, signal);
            EXPECT_THAT(written(), testing::IsEmpty());
        }
}

TEST_F(InterruptedOutput, IsRemovedByTheNextCommand) {
    for (const Arguments& command : {folder_, gguf_}) {
        {
            const auto program = stopped_while_writing(command);
            ASSERT_NE(program, nullptr);
            program->send(SIGKILL);
            EXPECT_EQ(program->wait().signal, SIGKILL);
        }
        EXPECT_TRUE(has_temporary());
        expect_done(command);
        EXPECT_FALSE(has_temporary());
        std::filesystem::remove_all(out_);
    }
}

TEST_F(InterruptedOutput, OfTwoCommandsWithOneNameOnlyOneSucceeds) {
    for (const Arguments& command : {folder_, gguf_}) {
        const auto slow = stopped_while_writing(command);
        ASSERT_NE(slow, nullptr);
        expect_done(command);
        const auto before = contents();
        slow->send(SIGCONT);
        expect_refused(slow->wait(), {out_, "exists already"});
        EXPECT_FALSE(has_temporary());
        for (const auto& [name, content] : before) {
            if (is_temporary(name)) continue;
            EXPECT_EQ(contents().at(name), content) << name;
        }
        std::filesystem::remove_all(out_);
    }
}

TEST_F(InterruptedOutput, AnImportLeavesNothingOrIsRepeated) {
    const std::string weights = path("weights");
    expect_done({"export", run_, "--out", weights});
    expect_nothing_lost({"import", weights, "--out", weights}, {weights, "already holds a run"});
    const Arguments command{"import", weights, "--out", out_};
    for (const char* begin : {"run.json", "step_00000000.h5"}) {
        const auto program = stopped_while_writing(command, begin);
        ASSERT_NE(program, nullptr);
        expect_refused(run(command), {"in use by process"});
        program->send(SIGTERM);
        program->send(SIGCONT);
        EXPECT_EQ(program->wait().signal, SIGTERM);
        EXPECT_THAT(written(), testing::IsEmpty());
    }
    {
        const auto program = stopped_while_writing(command, "step_00000000.h5");
        ASSERT_NE(program, nullptr);
        program->send(SIGKILL);
        EXPECT_EQ(program->wait().signal, SIGKILL);
    }
    EXPECT_TRUE(has_temporary());
    expect_refused(run({"train", "--resume", out_}),
                   {"an import that was interrupted; import into it again"});
    expect_done(command);
    EXPECT_FALSE(has_temporary());
    expect_refused(run(command), {"already holds a run"});
}

/// A command that writes files below outputs_.
struct WritingCommand {
    Arguments arguments;
    int undone = 1;    ///< a signal before this rename, or an earlier one, leaves nothing
    int repeated = 1;  ///< after kill -9 before this rename, or an earlier one, the command can be repeated
    int together = 0;  ///< files that get their names together: a signal leaves none of them or all
};

class EveryWritingCommand : public OutputFiles {
  protected:
    void SetUp() override {
        if (sanitized) GTEST_SKIP() << "a sanitizer does not allow that a module is loaded before it";
        expect_success(
            run({"tokenizer", "train", "--vocabulary", "300", "--data", stories_, "--out", tokenizer_}));
        expect_success(run(tiny_training(stories_, run_) + Arguments{"--tokenizer", tokenizer_}));
        ASSERT_EQ(run({"export", run_, "--out", weights_}).exit_code, 0);
    }
    std::vector<WritingCommand> commands() const {
        const Arguments tokenize{"tokenize", stories_, stories_, "--tokenizer", tokenizer_, "--out", out_};
        return {{{"corpus", "--characters", "100", "--out", out_}},
                {{"tokenizer", "train", "--vocabulary", "300", "--data", stories_, "--out", out_}},
                {tokenize},
                {tokenize + Arguments{"--val-fraction", "0.5", "--val-out", out_ + "-val"}, 0, 2, 2},
                {{"eval", run_, "--data", stories_, "--logits", out_}},
                {{"report", run_, "--out", out_}},
                {{"lab", "--length", "16", "--html", out_}},
                {{"lab", "--sweep", "length", "--svg", out_}},
                {{"export", run_, "--format", "gguf", "--out", out_}},
                {{"export", run_, "--out", out_}, 5, 5, 5},
                // run.json, config.json and the checkpoint
                {{"import", weights_, "--out", out_}, 3, 3},
                {tiny_training(stories_, out_), 2, 2},
                {tiny_training(stories_, out_) + Arguments{"--tensorboard", out_ + "-events"}, 2, 2}};
    }
    std::vector<std::string> written() const {
        std::vector<std::string> names;
        for (const auto& entry : std::filesystem::recursive_directory_iterator(outputs_))
            names.push_back(entry.path().lexically_relative(outputs_).string());
        return names;
    }
    /// Runs the command in an empty directory until the program is about to rename a file for the n-th time,
    /// or has done so, and sends it the signal.
    void run_until_rename(const Arguments& arguments, int n, int signal, const char* place = "before") const {
        std::filesystem::remove_all(outputs_);
        std::filesystem::create_directory(outputs_);
        const Outcome outcome = run(
            arguments, {.environment = {{"LD_PRELOAD", GRADTILE_SIGNAL_AT_RENAME_MODULE},
                                        {"GRADTILE_SIGNAL_AT_RENAME", concat(signal, ':', n, ':', place)}}});
        EXPECT_TRUE(outcome.signal == signal || outcome.exit_code == 128 + signal) << outcome.err;
    }

    const std::string tokenizer_ = path("tokenizer.json"), run_ = path("run"), weights_ = path("weights");
    const std::filesystem::path outputs_ = place_ / "outputs";
    const std::string out_ = (outputs_ / "out").string();
};

TEST_F(EveryWritingCommand, LeavesNothingAfterASignalAndIsRepeatedAfterAKill) {
    for (const WritingCommand& command : commands()) {
        SCOPED_TRACE(testing::PrintToString(command.arguments));
        for (int n = 1; n <= command.undone; ++n) {
            run_until_rename(command.arguments, n, SIGTERM);
            EXPECT_THAT(written(), testing::IsEmpty()) << n;
        }
        for (int n = 1; n <= command.repeated; ++n) {
            run_until_rename(command.arguments, n, SIGKILL);
            EXPECT_THAT(written(), testing::Contains(HasSubstr(".tmp-"))) << n;
            const Outcome again = run(command.arguments);
            EXPECT_EQ(again.exit_code, 0) << n << ": " << again.err;
            EXPECT_THAT(written(), testing::Not(testing::Contains(HasSubstr(".tmp-")))) << n;
        }
    }
}

TEST_F(EveryWritingCommand, NamesFilesThatBelongTogetherAllOrNone) {
    const auto files = [&] {
        return std::ranges::count_if(std::filesystem::recursive_directory_iterator(outputs_),
                                     [](const auto& entry) { return entry.is_regular_file(); });
    };
    for (const WritingCommand& command : commands())
        for (int n = 1; n <= command.together; ++n)
            for (const char* const place : {"before", "after"}) {
                SCOPED_TRACE(concat(testing::PrintToString(command.arguments), ", ", place, " rename ", n));
                run_until_rename(command.arguments, n, SIGTERM, place);
                EXPECT_THAT(files(), testing::AnyOf(0, command.together));
            }
}

/// A command that can write has a row above for each flag that names an output.
TEST_F(EveryWritingCommand, IsTested) {
    std::set<std::string> tested;
    for (const WritingCommand& command : commands()) {
        const Arguments& all = command.arguments;
        const std::string name = all[0] == "tokenizer" ? all[0] + " " + all[1] : all[0];
        for (const std::string& argument : all)
            if (argument.starts_with("--")) tested.insert(name + " " + argument);
    }
    const std::regex name_of_command("(?:^|\n)  ([a-z]+)  "),
        output("--(?:out|val-out|logits|html|svg|tensorboard) ");
    const auto matches = [](const std::string& text, const std::regex& pattern) {
        std::vector<std::string> found;
        for (std::sregex_iterator match(text.begin(), text.end(), pattern), end; match != end; ++match)
            found.push_back(match->size() > 1 ? (*match)[1] : match->str());
        return found;
    };
    const std::vector<std::string> names = matches(run({"help"}).out, name_of_command);
    EXPECT_GE(names.size(), 15u);
    for (std::string name : names) {
        Arguments help{name, "--help"};
        if (name == "tokenizer") {
            name += " train";
            help = {"tokenizer", "train", "--help"};
        }
        for (std::string flag : matches(run(help).out, output)) {
            flag.pop_back();
            EXPECT_TRUE(tested.contains(name + " " + flag)) << name << ' ' << flag;
        }
    }
}

}  // namespace
}  // namespace gradtile::test
