// Checkpoints that are damaged, truncated or from another model, and saves on a full disk.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/stat.h>

#include <fstream>
#include <span>

#include <support/resealed_checkpoint.h>
#include "program.h"

namespace gradtile::test {
namespace {

using testing::HasSubstr;

void flip_bit(const std::filesystem::path& path, std::uint64_t offset) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(offset));
    const char byte = static_cast<char>(file.get() ^ 0x10);
    file.seekp(static_cast<std::streamoff>(offset));
    file.put(byte);
}

class CheckpointInput : public testing::Test {
  protected:
    /// Makes a finished 8-step run, with checkpoints at steps 4 and 8.
    CheckpointInput() {
        expect_success(run(tiny_training(stories_, out_) + Arguments{"--save-every", "4", "--quiet"}));
    }
    std::filesystem::path newest() const { return out_ / "checkpoints/step_00000008.h5"; }

    void expect_fallback(const char* reason) {
        for (const char* command : {"sample", "inspect"}) {
            const Outcome outcome = run({command, out_.string()});
            EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
            EXPECT_THAT(outcome.err, HasSubstr("step_00000008.h5"));
        }
        expect_refused(run({"sample", newest().string()}), {"step_00000008.h5", reason});
        expect_refused(run({"eval", newest().string(), "--data", stories_}), {"step_00000008.h5", reason});
        expect_refused(run({"inspect", newest().string()}), {"step_00000008.h5", reason});
        expect_refused(
            run(tiny_training(stories_, place_ / "other") + Arguments{"--init-from", newest().string()}),
            {"step_00000008.h5", reason});

        const Outcome resumed = run({"train", "--resume", out_.string(), "--quiet"});
        EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
        EXPECT_THAT(resumed.err, HasSubstr("step_00000008.h5"));
        // The run was resumed from step 4 and has written the step-8 file again.
        expect_success(run({"inspect", newest().string()}));
        EXPECT_EQ(steps_of(out_).size(), 8u);
    }

    TemporaryDirectory place_;
    std::string stories_ = write_stories(place_);
    std::filesystem::path out_ = place_ / "run";
};

TEST_F(CheckpointInput, FallsBackFromATruncatedFile) {
    resize_file(newest(), file_size(newest()) / 2);
    expect_fallback("truncated");
}

TEST_F(CheckpointInput, FallsBackFromAFlippedBit) {
    flip_bit(newest(), file_size(newest()) / 2);
    expect_fallback("checksum");
}

TEST_F(CheckpointInput, WithoutASoundCheckpointCommandsFail) {
    for (const auto& entry : std::filesystem::directory_iterator(out_ / "checkpoints"))
        resize_file(entry.path(), 100);
    for (const Arguments& command :
         {Arguments{"train", "--resume", out_.string()}, Arguments{"inspect", out_.string()},
          Arguments{"sample", out_.string()}}) {
        const Outcome outcome = run(command);
        EXPECT_EQ(outcome.signal, 0);
        EXPECT_GT(outcome.exit_code, 0);
        EXPECT_THAT(outcome.error_lines().back(), HasSubstr("no sound checkpoint"));
    }
}

TEST_F(CheckpointInput, RefusesAFileThatIsNoCheckpoint) {
    expect_refused(run({"inspect", stories_}), {"stories.txt", "not a gradtile checkpoint"});
    expect_refused(run({"sample", stories_}), {"stories.txt", "not a gradtile checkpoint"});
    expect_refused(run({"inspect", (place_ / "none").string()}), {"none", "No such file"});
}

TEST_F(CheckpointInput, RefusesWeightsOfAnotherModel) {
    const Arguments from{"--init-from", out_.string()};
    const auto other = place_ / "other";
    expect_refused(run(tiny_training(stories_, other) + from + Arguments{"--width", "32"}),
                   {"run", "parameter", "32"});
    expect_refused(run(tiny_training(stories_, other) + from + Arguments{"--layers", "2"}),
                   {"run", "no parameter 'h.1."});
    EXPECT_FALSE(exists(other));
    expect_success(run(tiny_training(stories_, other) + from));
}

TEST_F(CheckpointInput, InitFromRefusesAnotherTokenizer) {
    const auto other = place_ / "other";
    expect_refused(
        run(tiny_training(stories_, other) + Arguments{"--init-from", out_.string(), "--tokenizer", "bytes"}),
        {concat("tokenizer bytes: differs from the one that ", out_.string(), " was trained with"),
         "expected none, or the same"});
    EXPECT_FALSE(exists(other));
}

#if GRADTILE_HAVE_PCRE2
TEST_F(CheckpointInput, InitFromTakesTheCheckpointsTokenizerFile) {
    const auto bpe = place_ / "bpe", same = place_ / "same", other = place_ / "other";
    const auto tokenizer = [&](const char* vocabulary) {
        std::string file = place_ / concat(vocabulary, ".json");
        expect_success(
            run({"tokenizer", "train", "--data", stories_, "--vocabulary", vocabulary, "--out", file}));
        return file;
    };
    const std::string own = tokenizer("300"), fewer = tokenizer("290");
    expect_success(run(tiny_training(stories_, bpe) + Arguments{"--tokenizer", own, "--quiet"}));
    const auto tuning = [&](const std::filesystem::path& out, const Arguments& more) {
        return run(tiny_training(stories_, out) + Arguments{"--init-from", bpe.string(), "--quiet"} + more);
    };
    expect_success(tuning(same, {"--tokenizer", own}));
    expect_refused(tuning(other, {"--tokenizer", fewer}), {fewer, "differs", bpe.string()});
    EXPECT_FALSE(exists(other));
    // Without a setting the run's config.json can be used again, also when the tokenizer's file is gone.
    std::filesystem::remove(own);
    const Outcome first = tuning(other, {});
    EXPECT_EQ(first.exit_code, 0);
    EXPECT_THAT(first.err, HasSubstr("the checkpoint's tokenizer is used: bpe (300), not characters"));
    const auto again = place_ / "again";
    const Outcome second =
        run({"train", "--config", (other / "config.json").string(), "--out", again.string(), "--quiet"});
    EXPECT_EQ(second.exit_code, 0) << second.err;
    EXPECT_EQ(tensors_of(again), tensors_of(other));
    expect_success(run({"train", "--resume", again.string(), "--steps", "9", "--quiet"}));
}

/// One changed byte under right checksums gives a token the id 999, in a model with 300 tokens.
TEST_F(CheckpointInput, EveryCommandRefusesATokenIdBeyondTheVocabulary) {
    const std::string tokenizer = (place_ / "tokenizer.json").string();
    expect_success(
        run({"tokenizer", "train", "--data", stories_, "--vocabulary", "300", "--out", tokenizer}));
    const auto bpe = place_ / "bpe", made = place_ / "made";
    expect_success(run(tiny_training(stories_, bpe) +
                       Arguments{"--tokenizer", tokenizer, "--stop-after", "4", "--quiet"}));
    const std::string file = (bpe / "checkpoints/step_00000004.h5").string();
    std::string text = contents_of(file);
    const std::size_t id = text.find(": 299");
    ASSERT_NE(id, std::string::npos);
    text[id + 2] = '9';
    const auto bytes = std::as_bytes(std::span(text));
    const std::vector<std::byte> resealed = reseal({bytes.begin(), bytes.end()});
    std::ofstream(file, std::ios::binary)
        .write(reinterpret_cast<const char*>(resealed.data()), static_cast<std::streamsize>(resealed.size()));
    expect_success(run({"inspect", file}));
    for (const Arguments& command :
         {Arguments{"sample", file}, Arguments{"chat", file}, Arguments{"eval", file, "--data", stories_},
          Arguments{"export", file, "--format", "gguf", "--out", made.string()},
          Arguments{"export", file, "--out", made.string()}, Arguments{"train", "--resume", bpe.string()},
          tiny_training(stories_, made) + Arguments{"--init-from", file}})
        expect_refused(run(command), {file, "its tokenizer has 1000 ids, but the model's vocabulary is 300"});
    EXPECT_FALSE(exists(made));
}
#endif

TEST_F(CheckpointInput, FullDiskStopsNoTrainingAndDamagesNoCheckpoint) {
    const auto out = place_ / "full";
    const Arguments training = tiny_training(stories_, out) + Arguments{"--save-every", "2", "--quiet"};
    expect_success(run(training + Arguments{"--stop-after", "2"}));
    const auto checkpoint_tensors = tensors_of(out);
    const std::uint64_t too_little = file_size(out / "checkpoints/step_00000002.h5") / 2;

    const Outcome outcome =
        run({"train", "--resume", out.string(), "--quiet"}, {.max_file_bytes = too_little});
    EXPECT_EQ(outcome.signal, 0);
    EXPECT_EQ(outcome.exit_code, 1);  // the final state was not saved
    EXPECT_THAT(outcome.err, HasSubstr("step_00000008.h5"));
    EXPECT_THAT(outcome.err, HasSubstr("File too large"));
    EXPECT_EQ(steps_of(out).size(), 8u) << "training must continue after a failed save";
    EXPECT_EQ(tensors_of(out), checkpoint_tensors);

    const Outcome again = run({"train", "--resume", out.string(), "--quiet"});  // without the size limit
    EXPECT_EQ(again.exit_code, 0);
    EXPECT_THAT(again.err,
                HasSubstr("the save of step 8 failed; " + out.string() + " continues from step 2"));
    EXPECT_EQ(tensors_of(out), tensors_of(out_));
}

TEST_F(CheckpointInput, RefusesFilesThatAreNotRegular) {
    const std::string fifo = (place_ / "fifo").string();
    ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
    for (const std::string& path : {fifo, std::string("/dev/zero")})
        for (const char* command : {"inspect", "sample"})
            expect_refused(run({command, path}), {path, "not a regular file"});
    // Symbolic links in a run's directory are refused too.
    remove(newest());
    create_symlink("/dev/zero", newest());
    const Outcome outcome = run({"inspect", out_.string()});
    EXPECT_EQ(outcome.exit_code, 0);
    EXPECT_THAT(outcome.err, HasSubstr("step_00000008.h5: is a symbolic link; expected a regular file"));
}

TEST_F(CheckpointInput, RefusesFormatVersion1ByName) {
    constexpr std::streamoff version_at = 32;
    const std::string old_file = newest().string();
    std::fstream file(old_file, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(version_at);
    file.put(1);
    file.close();
    for (const char* command : {"inspect", "sample"})
        expect_refused(run({command, old_file}),
                       {old_file, "format version 1", "`gradtile convert` of commit"});
}

}  // namespace
}  // namespace gradtile::test
