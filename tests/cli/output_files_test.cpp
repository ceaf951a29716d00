// Files that commands write: never one of their inputs, whole or absent, and nothing else is lost.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <map>

#include "program.h"

namespace gradtile::test {
namespace {

using testing::HasSubstr;

class OutputFiles : public testing::Test {
  protected:
    /// Expects that the command is refused, and that all files of the directory stay as they are.
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
    // The test uses a pipe in place of a device: if the program had the defect, /dev/null of the machine
    // would be lost.
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
        // Half of a file without a header would look like a whole one.
        expect_nothing_lost(
            {"tokenize", stories_, "--tokenizer", tokenizer, "--format", "nanogpt", "--out", out},
            {out, "File too large"}, full);
    }
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
    EXPECT_TRUE(std::filesystem::is_empty(folder));
    expect_success(run(command));
}
#endif

}  // namespace
}  // namespace gradtile::test
