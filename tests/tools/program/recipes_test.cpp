// The commands in docs/recipes.md, run as they are written there.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "program.h"

#include <gradtile/core/check.h>

namespace gradtile::test {
namespace {

using testing::HasSubstr;

/// One story's sh blocks as a script.
struct Recipe {
    std::string title, script;
    std::int64_t commands = 0, shortened = 0;
};

/// "gradtile train --out a    # in tests: --steps 2" -> "gradtile train --out a --steps 2"; any other comment
/// stays.
std::string shortened_command(const std::string& line, Recipe& recipe) {
    static const std::string mark = "# in tests: ";
    const std::size_t position = line.find(mark);
    if (position == std::string::npos) return line;
    ++recipe.shortened;
    return line.substr(0, position) + line.substr(position + mark.size());
}

std::vector<Recipe> read_recipes() {
    std::istringstream page(contents_of(std::filesystem::path(GRADTILE_SOURCE_DIR) / "docs/recipes.md"));
    std::vector<Recipe> recipes;
    bool in_block = false;
    for (std::string line; std::getline(page, line);) {
        if (line.starts_with("## ")) recipes.push_back({.title = line.substr(3), .script = {}});
        if (line == "```sh") {
            check(!recipes.empty(), "recipes.md: a block before the first story");
            in_block = true;
        } else if (line == "```") {
            in_block = false;
        } else if (in_block) {
            recipes.back().script += shortened_command(line, recipes.back()) + '\n';
            recipes.back().commands += line.starts_with("gradtile ");
        }
    }
    return recipes;
}

class Recipes : public testing::Test {
  protected:
    void SetUp() override {
        if (!GRADTILE_HAVE_PCRE2) GTEST_SKIP() << "BPE tokenizers need PCRE2";
        std::filesystem::create_directories(place_ / "bin");
        std::filesystem::create_directories(work_);
        std::filesystem::create_symlink(GRADTILE_PROGRAM, place_ / "bin/gradtile");
    }

    /// Runs stories one after the other in one directory; returns all output.
    std::string follow(const std::vector<std::string>& titles) const {
        std::string script;
        for (const std::string& title : titles) {
            const std::vector<Recipe> recipes = read_recipes();
            const auto found = std::ranges::find(recipes, title, &Recipe::title);
            check(found != recipes.end(), "recipes.md: no story '", title, "'");
            script += found->script;
        }
        const std::string file = place_.write("script.sh", script);
        const std::string path = concat((place_ / "bin").string(), ':', std::getenv("PATH"));
        const Outcome outcome =
            run({"-c", concat("cd '", work_.string(), "' && exec sh -eux '", file, "' </dev/null")},
                {.environment = {{"PATH", path}, {"OMP_NUM_THREADS", "1"}}, .program = "/bin/sh"});
        EXPECT_EQ(outcome.exit_code, 0) << script << '\n' << outcome.err;
        return outcome.out;
    }

    /// Makes a `git` that copies a small GPT-2 with a tokenizer, in the transformers format.
    void make_git() const {
        const std::string text = write_stories(place_, 20000);
        const auto path = [&](const char* name) { return (place_ / name).string(); };
        expect_success(
            run({"tokenizer", "train", "--data", text, "--vocabulary", "300", "--out", path("t.json")}));
        expect_success(run(tiny_training(text, path("gpt2-run")) +
                           Arguments{"--tokenizer", path("t.json"), "--bias", "--steps", "2", "--quiet"}));
        expect_success(run({"export", path("gpt2-run"), "--format", "safetensors", "--out", path("gpt2")}));
        const std::string git = place_.write(
            "bin/git", concat("#!/bin/sh -e\n"
                              "[ \"$*\" = 'clone https://huggingface.co/openai-community/gpt2' ]\n"
                              "cp -r '",
                              path("gpt2"), "' gpt2\n"));
        std::filesystem::permissions(git, std::filesystem::perms::owner_all);
    }

    TemporaryDirectory place_;
    std::filesystem::path work_ = place_ / "work";
};

const std::string own_text = "1. A tokenizer and a model of your own text";

TEST_F(Recipes, AreFiveStoriesThatTheTestsFollow) {
    std::vector<std::string> titles;
    for (const Recipe& recipe : read_recipes()) {
        titles.push_back(recipe.title);
        EXPECT_GE(recipe.commands, 2) << recipe.title;
        std::istringstream lines(recipe.script);
        for (std::string line; std::getline(lines, line);)
            EXPECT_EQ(line.find("in tests"), std::string::npos) << "a mark that is not understood: " << line;
    }
    EXPECT_THAT(titles, testing::ElementsAre(own_text, "2. Fine-tune GPT-2", "3. Chat",
                                             "4. Export to llama.cpp", "5. Evaluate"));
}

TEST_F(Recipes, OwnText) {
    const std::string out = follow({own_text});
    EXPECT_THAT(out, HasSubstr("\nstep: 20\n"));
    EXPECT_THAT(out, HasSubstr("the run is finished at step 20"));
    EXPECT_THAT(out, HasSubstr("\nOne day"));
    EXPECT_FALSE(std::filesystem::is_empty(work_ / "logs/mine"));
}

TEST_F(Recipes, FineTuneGpt2) {
    make_git();
    const std::string out = follow({"2. Fine-tune GPT-2"});
    EXPECT_THAT(out, HasSubstr("\nbest_val_loss: "));
    EXPECT_TRUE(exists(work_ / "mine-gpt2/model.safetensors"));
    EXPECT_TRUE(exists(work_ / "mine-gpt2/tokenizer.json"));
}

TEST_F(Recipes, Chat) {
    const std::string out = follow({"3. Chat"});
    EXPECT_THAT(out, HasSubstr("in the template plain"));
    const std::string answers = out.substr(out.rfind("loss_curve: "));
    EXPECT_EQ(std::ranges::count(answers, '\n'), 1 + 4) << answers;  // an answer for each of the four lines
}

TEST_F(Recipes, ExportToLlamaCpp) {
    follow({own_text, "4. Export to llama.cpp"});
    for (const char* file : {"mine.gguf", "mine-bf16.gguf"})
        EXPECT_THAT(contents_of(work_ / file), testing::StartsWith("GGUF"));
    EXPECT_LT(file_size(work_ / "mine-bf16.gguf"), file_size(work_ / "mine.gguf"));
}

TEST_F(Recipes, Evaluate) {
    const std::string out = follow({own_text, "5. Evaluate"});
    EXPECT_THAT(out, testing::ContainsRegex("bits per byte"));
    EXPECT_THAT(out, HasSubstr("report.html: 2 runs"));
    EXPECT_THAT(contents_of(work_ / "report.html"), HasSubstr("</html>"));
}

}  // namespace
}  // namespace gradtile::test
