// The commands in docs/recipes.md, run as they are written there.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include <gradtile/core/check.h>

#include <support/parquet_file.h>

#include "program.h"

namespace gradtile::test {
namespace {

using nlohmann::json;
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

    std::string path_of(const char* name) const { return (place_ / name).string(); }

    /// Puts a program before those of the machine.
    void make_program(const std::string& name, const std::string& script) const {
        const std::string file = place_.write("bin/" + name, "#!/bin/sh -e\n" + script);
        std::filesystem::permissions(file, std::filesystem::perms::owner_all);
    }

    /// Makes a `git` that only knows `git clone URL`, and copies a folder.
    void make_git(const std::string& url, const std::string& folder) const {
        make_program("git", concat("[ \"$*\" = 'clone ", url, "' ]\ncp -r '", folder, "' .\n"));
    }

    /// Makes a `llama-cli` that expects a GGUF file.
    void make_llama_cli() const {
        make_program("llama-cli",
                     "[ \"$1\" = --model ]\n[ \"$(head -c 4 \"$2\")\" = GGUF ]\necho \"llama-cli: $2\"\n");
    }

    /// Makes a folder with random weights of Qwen2.5-0.5B's architecture, in bfloat16, and with the files of
    /// its publisher.
    std::string make_qwen() const {
        const std::string text = write_stories(place_, 20000), folder = path_of("Qwen2.5-0.5B");
        expect_success(
            run({"tokenizer", "train", "--data", text, "--vocabulary", "300", "--out", path_of("t.json"),
                 "--special-tokens", "<|endoftext|>", "<|im_start|>", "<|im_end|>"}));
        write_json("t.json", qwen_tokenizer(json::parse(contents_of(path_of("t.json")))));
        expect_success(run(Arguments{"train",
                                     "--preset",
                                     "llama-tiny",
                                     "--data",
                                     text,
                                     "--tokenizer",
                                     path_of("t.json"),
                                     "--out",
                                     path_of("qwen-run"),
                                     "--layers",
                                     "2",
                                     "--heads",
                                     "4",
                                     "--kv-heads",
                                     "2",
                                     "--width",
                                     "32",
                                     "--qkv-bias",
                                     "--tied-head",
                                     "--rope-base",
                                     "1000000",
                                     "--norm-epsilon",
                                     "1e-6",
                                     "--vocabulary",
                                     "320",
                                     "--dtype",
                                     "bf16",
                                     "--steps",
                                     "1",
                                     "--warmup",
                                     "1",
                                     "--quiet"}));
        expect_success(run({"export", path_of("qwen-run"), "--format", "safetensors", "--out", folder}));
        const json exported = json::parse(contents_of(folder + "/config.json"));
        json config = qwen_config();
        for (const char* const size : {"hidden_size", "intermediate_size", "num_attention_heads",
                                       "num_hidden_layers", "num_key_value_heads", "vocab_size"})
            config[size] = exported.at(size);
        write_json("Qwen2.5-0.5B/config.json", config);
        write_json("Qwen2.5-0.5B/generation_config.json", {{"bos_token_id", 0},
                                                           {"do_sample", false},
                                                           {"eos_token_id", 0},
                                                           {"max_new_tokens", 2048},
                                                           {"transformers_version", "4.37.0"}});
        write_json("Qwen2.5-0.5B/tokenizer_config.json", qwen_tokenizer_config());
        return folder;
    }

    /// Makes the repository of a data set of stories, in Parquet.
    std::string make_stories() const {
        const std::filesystem::path folder = place_ / "TinyStories", data = folder / "data";
        std::filesystem::create_directories(data);
        std::istringstream text(contents_of(write_stories(place_, 30000)));
        std::vector<std::string> stories{""};
        for (std::string line; std::getline(text, line);) {
            if (line.empty() && !stories.back().empty()) stories.emplace_back();
            if (!line.empty()) stories.back() += line + '\n';
        }
        check(stories.size() > 20, "only ", stories.size(), " stories");
        const std::size_t third = stories.size() / 3;
        const auto write = [&](const char* name, std::size_t part) {
            const auto begin = stories.begin() + static_cast<std::ptrdiff_t>(part * third);
            place_.write(concat("TinyStories/data/", name),
                         parquet_file("text", {begin, begin + static_cast<std::ptrdiff_t>(third)}));
        };
        write("train-00000-of-00002.parquet", 0);
        write("train-00001-of-00002.parquet", 1);
        write("validation-00000-of-00001.parquet", 2);
        return folder;
    }

    TemporaryDirectory place_;
    std::filesystem::path work_ = place_ / "work";

  private:
    void write_json(const std::string& name, const json& value) const { place_.write(name, value.dump(2)); }

    /// Qwen2.5-0.5B's config.json. The sizes belong to the weights, and the ids to the tokenizer.
    static json qwen_config() {
        return json::parse(R"({
            "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 0,
            "eos_token_id": 0, "hidden_act": "silu", "hidden_size": 896, "initializer_range": 0.02,
            "intermediate_size": 4864, "max_position_embeddings": 32768, "max_window_layers": 24,
            "model_type": "qwen2", "num_attention_heads": 14, "num_hidden_layers": 24,
            "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
            "sliding_window": 32768, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
            "transformers_version": "4.40.1", "use_cache": true, "use_mrope": false,
            "use_sliding_window": false, "vocab_size": 151936})");
    }

    /// Gives a tokenizer.json the normalizer and the pattern of Qwen2.5's.
    static json qwen_tokenizer(json tokenizer) {
        if (GRADTILE_HAVE_UTF8PROC) tokenizer["normalizer"] = {{"type", "NFC"}};
        tokenizer["pre_tokenizer"] = json::parse(R"json({"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex":
             "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
             "behavior": "Isolated", "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false}]})json");
        tokenizer["post_processor"] = json::parse(
            R"({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false})");
        return tokenizer;
    }

    /// The template is not ChatML's text, as Qwen's is not.
    static json qwen_tokenizer_config() {
        json config = json::parse(R"({"add_bos_token": false, "add_prefix_space": false,
            "additional_special_tokens": ["<|im_start|>", "<|im_end|>"], "bos_token": null,
            "chat_template": "{%- if tools %}{{ tools }}{%- endif %}{{ messages }}",
            "clean_up_tokenization_spaces": false, "eos_token": "<|endoftext|>", "errors": "replace",
            "model_max_length": 32768, "pad_token": "<|endoftext|>", "split_special_tokens": false,
            "tokenizer_class": "Qwen2Tokenizer", "unk_token": null})");
        int id = 0;
        for (const char* const token : {"<|endoftext|>", "<|im_start|>", "<|im_end|>"})
            config["added_tokens_decoder"][std::to_string(id++)] = {
                {"content", token}, {"lstrip", false},      {"normalized", false},
                {"rstrip", false},  {"single_word", false}, {"special", true}};
        return config;
    }
};

const std::string own_text = "1. A tokenizer and a model of your own text",
                  qwen = "2. Fine-tune Qwen2.5-0.5B on your jsonl and run it in llama.cpp",
                  parquet = "4. Pretrain on a folder of parquet";

TEST_F(Recipes, AreFiveStoriesThatTheTestsFollow) {
    std::vector<std::string> titles;
    for (const Recipe& recipe : read_recipes()) {
        titles.push_back(recipe.title);
        EXPECT_GE(recipe.commands, 2) << recipe.title;
        std::istringstream lines(recipe.script);
        for (std::string line; std::getline(lines, line);)
            EXPECT_EQ(line.find("in tests"), std::string::npos) << "a mark that is not understood: " << line;
    }
    EXPECT_THAT(titles, testing::ElementsAre(own_text, qwen, "3. Chat", parquet, "5. Evaluate"));
}

TEST_F(Recipes, OwnText) {
    const std::string out = follow({own_text});
    EXPECT_THAT(out, HasSubstr("\nstep: 20\n"));
    EXPECT_THAT(out, HasSubstr("the run is finished at step 20"));
    EXPECT_THAT(out, HasSubstr("\nOne day"));
    EXPECT_FALSE(std::filesystem::is_empty(work_ / "logs/mine"));
}

TEST_F(Recipes, FineTuneQwen) {
    make_git("https://huggingface.co/Qwen/Qwen2.5-0.5B", make_qwen());
    make_llama_cli();
    const std::string out = follow({qwen});
    EXPECT_THAT(out, HasSubstr("Qwen2.5-0.5B "));  // the table of models
    EXPECT_THAT(out, HasSubstr("in the template chatml"));
    EXPECT_THAT(out, HasSubstr("\nbest_val_loss: "));
    EXPECT_THAT(out, HasSubstr("\nllama-cli: talk.gguf\n"));
    EXPECT_EQ(json::parse(contents_of(work_ / "talk-qwen/config.json")).at("model_type"), "qwen2");
    EXPECT_THAT(contents_of(work_ / "talk-qwen/chat_template.jinja"), HasSubstr("<|im_start|>"));
    EXPECT_THAT(contents_of(work_ / "talk.gguf"), HasSubstr("qwen2"));
}

TEST_F(Recipes, Chat) {
    const std::string out = follow({"3. Chat"});
    EXPECT_THAT(out, HasSubstr("in the template plain"));
    const std::string answers = out.substr(out.rfind("loss_curve: "));
    EXPECT_EQ(std::ranges::count(answers, '\n'), 1 + 4) << answers;  // an answer for each of the four lines
}

TEST_F(Recipes, PretrainOnParquet) {
    make_program("git", concat("case \"$1 $GIT_LFS_SKIP_SMUDGE $3\" in\n'clone 1 ') cp -r '", make_stories(),
                               "' . ;;\n'-C  lfs') ;;\n*) exit 1 ;;\nesac\n"));
    make_llama_cli();
    const std::string out = follow({parquet});
    EXPECT_THAT(out, HasSubstr("the run is finished at step 10"));
    EXPECT_THAT(out, HasSubstr("bits per byte"));
    EXPECT_THAT(out, HasSubstr("\nOnce upon a time"));
    EXPECT_THAT(out, HasSubstr("\nllama-cli: stories.gguf\n"));
    EXPECT_FALSE(std::filesystem::is_empty(work_ / "cache"));
}

TEST_F(Recipes, Evaluate) {
    const std::string out = follow({own_text, "5. Evaluate"});
    EXPECT_THAT(out, testing::ContainsRegex("bits per byte"));
    EXPECT_THAT(out, HasSubstr("report.html: 2 runs"));
    EXPECT_THAT(contents_of(work_ / "report.html"), HasSubstr("</html>"));
}

}  // namespace
}  // namespace gradtile::test
