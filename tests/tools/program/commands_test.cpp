// Output and files from commands that succeed.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <map>
#include <sstream>
#include <thread>

#include <gradtile/core/version.h>
#include <gradtile/train/config/settings.h>

#include <support/sanitized.h>

#include "program.h"

namespace gradtile::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class Commands : public testing::Test {
  protected:
    Arguments tiny() const { return tiny_training(stories_, out_); }

    TemporaryDirectory place_;
    std::string stories_ = write_stories(place_);
    std::filesystem::path out_ = place_ / "run";
};

TEST_F(Commands, HelpListsEveryCommandAndPreset) {
    const Outcome help = run({"--help"});
    expect_success(help);
    for (const char* command : {"train", "sample", "eval", "gradcheck", "inspect", "corpus", "tokenizer",
                                "tokenize", "bench", "import", "export", "lab", "chat"}) {
        EXPECT_THAT(help.out, HasSubstr(command));
        const Outcome own = run({command, "--help"});
        expect_success(own);
        EXPECT_THAT(own.out, HasSubstr("--help"));
    }
    const std::string train = run({"train", "--help"}).out;
    for (const std::string& name : preset_names()) EXPECT_THAT(train, HasSubstr(name));
}

/// Returns the flags that --help lists, each with the word after it: {"--layers", "INTEGER"}.
std::map<std::string, std::string> flags_in_help(const Arguments& command) {
    std::map<std::string, std::string> flags;
    std::istringstream lines(run(command + Arguments{"--help"}).out);
    for (std::string line; std::getline(lines, line);) {
        std::istringstream words(line);
        std::string flag, type;
        words >> flag >> type;
        if (flag.ends_with(',')) flag.pop_back();  // "--bias, --no-bias"
        if (flag.starts_with("--")) flags.emplace(flag, type);
    }
    return flags;
}

TEST_F(Commands, HaveTheFlagsOfExactlyTheSettingsThatTheyUse) {
    const TrainConfig any;
    const auto expect_flags = [&](const Arguments& command, bool SettingUsers::*user) {
        const std::map<std::string, std::string> flags = flags_in_help(command);
        visit_settings(any, [&](const Setting& setting, const auto& member) {
            const auto flag = flags.find(concat("--", setting.name));
            const bool is_used = user == nullptr || setting.used_by.*user;
            EXPECT_EQ(flag != flags.end(), is_used) << command.back() << " --" << setting.name;
            if (flag == flags.end()) return;
            const bool is_list = std::is_same_v<decltype(member), const std::vector<double>&> ||
                                 (command.front() == "bench" && setting.in_bench == FlagTakes::list);
            EXPECT_EQ(flag->second.starts_with("LIST"), is_list) << command.back() << " --" << setting.name;
        });
    };
    expect_flags({"train"}, nullptr);
    expect_flags({"plan"}, &SettingUsers::plan);
    expect_flags({"bench", "train"}, &SettingUsers::bench_train);
    expect_flags({"bench", "generate"}, &SettingUsers::bench_generate);
    expect_flags({"bench", "gemm"}, &SettingUsers::bench_gemm);
    expect_flags({"bench", "layers"}, &SettingUsers::bench_layers);
}

TEST_F(Commands, TheProgramItsLibraryAndItsCheckpointsAgreeOnTheVersion) {
    const Outcome program = run({"--version"});
    expect_success(program);
    EXPECT_EQ(program.out, concat("gradtile ", version(), '\n'));
    expect_success(run(tiny_training(stories_, out_)));
    const Outcome inspected = run({"inspect", out_.string(), "--json"});
    expect_success(inspected);
    EXPECT_EQ(json::parse(inspected.out)["meta"]["gradtile"], version());
}

TEST_F(Commands, SampleReadsPromptsFromFilesAndStandardInput) {
    expect_success(run(tiny_training(stories_, out_)));
    const Arguments sampling{"sample", out_.string(), "--tokens", "20", "--seed", "4"};
    const std::string expected = run(sampling + Arguments{"--prompt", "The "}).out;
    EXPECT_EQ(expected.size(), 25u);
    const std::string file = place_.write("prompt.txt", "The \n");
    EXPECT_EQ(run(sampling + Arguments{"--prompt-file", file}).out, expected);
    const Outcome piped = run(sampling + Arguments{"--prompt-file", "-"},
                              {.prefix = {"sh", "-c", "printf 'The \\n' | \"$0\" \"$@\""}});
    expect_success(piped);
    EXPECT_EQ(piped.out, expected);
    expect_refused(run(sampling + Arguments{"--prompt", "a", "--prompt-file", file}), {"--prompt-file"});
    expect_refused(run(sampling + Arguments{"--prompt-file", (place_ / "none").string()}), {"none"});
    expect_success(run({"sample", out_.string(), "--tokens", "5"}));  // needs no prompt
}

TEST_F(Commands, SampleRefusesAStandardInputThatCannotBeRead) {
    expect_success(run(tiny_training(stories_, out_)));
    for (const char* flag : {"--prompt-file", "--prompts"})
        expect_refused(
            run({"sample", out_.string(), flag, "-"}, {.prefix = {"sh", "-c", "exec \"$0\" \"$@\" < /"}}),
            {"standard input: cannot be read: Is a directory"});
}

TEST_F(Commands, SampleWaitsForAPromptInANonBlockingPipe) {
    expect_success(run(tiny_training(stories_, out_)));
    // The reader and the program share the pipe's O_NONBLOCK flag, as with programs that node starts.
    const int input = ::dup(STDIN_FILENO);
    int pipe[2];
    ASSERT_EQ(::pipe2(pipe, O_CLOEXEC | O_NONBLOCK), 0);
    ::dup2(pipe[0], STDIN_FILENO);
    std::thread writer([end = pipe[1]] {
        std::this_thread::sleep_for(std::chrono::milliseconds(500));
        EXPECT_EQ(::write(end, "The ", 4), 4);
        ::close(end);
    });
    const Outcome outcome = run({"sample", out_.string(), "--tokens", "3", "--prompt-file", "-"});
    writer.join();
    ::dup2(input, STDIN_FILENO);
    for (const int file : {input, pipe[0]}) ::close(file);
    expect_success(outcome);
    EXPECT_THAT(outcome.out, testing::StartsWith("The "));
}

TEST_F(Commands, SampleStopsRepeatsAndPrintsJson) {
    expect_success(run(tiny_training(stories_, out_)));
    const Arguments sampling{"sample", out_.string(), "--tokens", "40", "--prompt", "The ", "--json"};
    const Outcome two = run(sampling + Arguments{"--num-samples", "2"});
    expect_success(two);
    const std::vector<json> samples = two.json_lines();
    ASSERT_EQ(samples.size(), 2u);
    EXPECT_EQ(samples[0]["prompt"], "The ");
    EXPECT_EQ(samples[0]["tokens"].size(), 40u);
    EXPECT_FALSE(samples[0]["stopped"]);
    EXPECT_NE(samples[0]["text"], samples[1]["text"]);
    const auto text = samples[0]["text"].get<std::string>();
    const json cut = json::parse(run(sampling + Arguments{"--stop", text.substr(10, 4), "zzzz"}).out);
    EXPECT_TRUE(cut["stopped"]);
    EXPECT_EQ(cut["text"], text.substr(0, text.find(text.substr(10, 4))));
    const Outcome plain = run({"sample", out_.string(), "--tokens", "3", "--num-samples", "3", "--min-p",
                               "0.1", "--repetition-penalty", "1.2"});
    expect_success(plain);
    EXPECT_THAT(plain.out, HasSubstr("\n---\n"));
    expect_refused(run(sampling + Arguments{"--num-samples", "0"}), {"--num-samples: 0"});
    expect_refused(run(sampling + Arguments{"--min-p", "2"}), {"--min-p: 2"});
    expect_refused(run(sampling + Arguments{"--repetition-penalty", "0"}), {"--repetition-penalty: 0"});
}

TEST_F(Commands, SampleReadsPromptsAsTrainingReadsText) {
    expect_success(run(tiny_training(stories_, out_)));
    const std::string utf16 = place_.write("w.txt", std::string("o\0n\0e\0 \0l\0i\0n\0e\0\n\0", 18));
    const std::string packed = place_ / "p.gz";
    ASSERT_EQ(std::system(("printf 'The \\n' | gzip > " + packed).c_str()), 0);
    for (const char* flag : {"--prompt-file", "--prompts"}) {
        const Arguments sampling{"sample", out_.string(), "--tokens", "9", "--temperature", "0", flag};
        expect_refused(run(sampling + Arguments{utf16}), {"w.txt: is UTF-16LE", "expected UTF-8 text"});
        expect_refused(
            run(sampling + Arguments{"-"}, {.prefix = {"sh", "-c", "exec \"$0\" \"$@\" < " + utf16}}),
            {"standard input: is UTF-16LE"});
        const Outcome unpacked = run(sampling + Arguments{packed});
        expect_success(unpacked);
        EXPECT_THAT(unpacked.out, testing::StartsWith("The "));
    }
    const std::string rows = place_ / "p.jsonl.gz";
    ASSERT_EQ(std::system(("printf '{\"prompt\": \"The \"}\\n' | gzip > " + rows).c_str()), 0);
    EXPECT_THAT(run({"sample", out_.string(), "--tokens", "9", "--prompts", rows}).out,
                testing::StartsWith("The "));
}

TEST_F(Commands, SampleContinuesManyPromptsAsItContinuesEachAlone) {
    expect_success(run(tiny_training(stories_, out_)));
    const Arguments sampling{"sample", out_.string(), "--tokens", "30", "--temperature", "0"};
    const std::vector<std::string> prompts{"The ", "Once upon a time there was", "a", "On"};
    std::string lines, objects, expected;
    for (const std::string& prompt : prompts) {
        lines += prompt + "\r\n";
        objects += json{{"id", 7}, {"prompt", prompt}}.dump() + "\n\n";
        expected += (expected.empty() ? "" : "---\n") + run(sampling + Arguments{"--prompt", prompt}).out;
    }
    const std::string file = place_.write("prompts.txt", lines), jsonl = place_.write("p.jsonl", objects);
    for (const char* batch : {"0", "1", "3"}) {
        const Outcome all = run(sampling + Arguments{"--prompts", file, "--batch", batch});
        expect_success(all);
        EXPECT_EQ(all.out, expected) << batch;
    }
    EXPECT_EQ(run(sampling + Arguments{"--prompts", jsonl}).out, expected);
    const std::string mark = "\xEF\xBB\xBF";  // byte order mark
    EXPECT_EQ(run(sampling + Arguments{"--prompts", place_.write("mark.txt", mark + lines)}).out, expected);
    EXPECT_EQ(run(sampling + Arguments{"--prompts", place_.write("mark.jsonl", mark + objects)}).out,
              expected);
    EXPECT_EQ(run(sampling + Arguments{"--prompt-file", place_.write("one.txt", mark + "a\n")}).out,
              run(sampling + Arguments{"--prompt", "a"}).out);
    const Outcome piped = run(sampling + Arguments{"--prompts", "-"},
                              {.prefix = {"sh", "-c", "printf 'a\nOn' | \"$0\" \"$@\""}});
    EXPECT_EQ(piped.out, run(sampling + Arguments{"--prompt", "a"}).out + "---\n" +
                             run(sampling + Arguments{"--prompt", "On"}).out);

    const Outcome two_each = run({"sample", out_.string(), "--tokens", "9", "--prompts", file,
                                  "--num-samples", "2", "--json", "--seed", "5"});
    expect_success(two_each);
    const std::vector<json> samples = two_each.json_lines();
    ASSERT_EQ(samples.size(), 8u);
    for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(samples[i]["prompt"], prompts[i / 2]);
    EXPECT_NE(samples[0]["text"], samples[1]["text"]);

    const auto refusal = [&](const std::string& content, const char* name) {
        return run(sampling + Arguments{"--prompts", place_.write(name, content)});
    };
    expect_refused(refusal("The \n\na\n", "gap.txt"), {"gap.txt: line 2 is empty"});
    expect_refused(refusal("", "none.txt"), {"none.txt: holds no prompt"});
    expect_refused(refusal("\n", "none.jsonl"), {"none.jsonl: holds no prompt"});
    expect_refused(refusal("{\"prompt\": \"a\"}\n{\"text\": \"a\"}\n", "b.jsonl"),
                   {"b.jsonl: line 2", "expected an object"});
    expect_refused(refusal("{\"prompt\": 3}\n", "c.jsonl"), {"c.jsonl: line 1", "expected an object"});
    expect_refused(refusal("a\n\x01\n", "d.txt"), {"prompt 2"});
    expect_refused(run(sampling + Arguments{"--prompts", file, "--prompt", "a"}), {"--prompts", "--prompt"});
    expect_refused(run(sampling + Arguments{"--prompts", file, "--prompt-file", file}), {"--prompt-file"});
    expect_refused(run(sampling + Arguments{"--prompts", (place_ / "absent").string()}), {"absent"});
    expect_refused(run(sampling + Arguments{"--prompts", file, "--batch", "-1"}), {"--batch: -1"});
}

#if GRADTILE_HAVE_PCRE2
TEST_F(Commands, TextIsReadAndSampledByATrainedTokenizer) {
    const std::string tokenizer = place_ / "tokenizer.json";
    const Outcome made =
        run({"tokenizer", "train", "--data", stories_, "--vocabulary", "300", "--out", tokenizer});
    expect_success(made);
    EXPECT_THAT(made.out, HasSubstr("300 tokens"));
    expect_success(run(tiny_training(stories_, out_) + Arguments{"--tokenizer", tokenizer}));
    std::filesystem::remove(tokenizer);  // the checkpoint contains the tokenizer
    const Outcome sampled = run({"sample", out_.string(), "--prompt", "The ", "--tokens", "5"});
    expect_success(sampled);
    EXPECT_THAT(sampled.out, testing::StartsWith("The "));
    EXPECT_THAT(run({"eval", out_.string(), "--data", stories_}).out, HasSubstr("BPE tokens"));
    expect_success(run({"train", "--resume", out_.string(), "--steps", "12"}));
}

TEST_F(Commands, AnExportedRunComesBackWithItsTokenizerAndIsTrainedFurther) {
    const std::string tokenizer = place_ / "tokenizer.json", folder = place_ / "exported",
                      again = place_ / "again";
    expect_success(
        run({"tokenizer", "train", "--data", stories_, "--vocabulary", "300", "--out", tokenizer}));
    expect_success(run(tiny_training(stories_, out_) + Arguments{"--tokenizer", tokenizer}));
    expect_success(run({"export", out_.string(), "--out", folder}));
    expect_success(
        run({"export", out_.string(), "--format", "gguf", "--out", (place_ / "model.gguf").string()}));
    const Outcome imported = run({"import", folder, "--out", again});
    expect_success(imported);
    EXPECT_THAT(imported.out, HasSubstr("bpe (300)"));
    const std::string logits = place_ / "logits.safetensors";
    EXPECT_EQ(run({"eval", out_.string(), "--data", stories_, "--json"}).out,
              run({"eval", again, "--data", stories_, "--json", "--logits", logits}).out);
    EXPECT_GT(std::filesystem::file_size(logits), 0u);
    EXPECT_EQ(run({"sample", out_.string(), "--prompt", "The "}).out,
              run({"sample", again, "--prompt", "The "}).out);
    // The command line has no model settings: --init-from takes them from the imported run.
    const Outcome tuned =
        run({"train", "--init-from", again, "--data", stories_, "--out", (place_ / "tuned").string(),
             "--steps", "2", "--batch", "2", "--device", "cpu", "--threads", "1"});
    EXPECT_EQ(tuned.exit_code, 0) << tuned.err;
    expect_refused(run({"train", "--resume", again}), {"imported weights", "--init-from"});
}

TEST_F(Commands, ImportListsTheFamilies) {
    const Outcome listed = run({"import", "--list"});
    expect_success(listed);
    for (const char* const type : {"gpt2", "llama", "mistral", "qwen2", "qwen3", "smollm3", "olmo2", "gemma2",
                                   "gemma3_text", "gpt_neox", "phi3"})
        EXPECT_THAT(listed.out, HasSubstr(concat("\n", type, " "))) << type;
    EXPECT_THAT(listed.out, HasSubstr("auto_map"));
    expect_refused(run({"import", "--out", (place_ / "x").string()}), {"weights", "--list"});
    expect_refused(run({"import", "x"}), {"--out"});
}

TEST_F(Commands, ImportIgnoresUnknownMembersWhenAllowed) {
    const std::string folder = place_ / "exported", out = place_ / "imported";
    expect_success(run(tiny_training(stories_, out_) + Arguments{"--tokenizer", "bytes"}));
    run({"export", out_.string(), "--out", folder});
    place_.write("exported/generation_config.json", R"({"temperature": 0.5, "a_new_member": 1})");
    const Arguments import{"import", folder, "--out", out};
    expect_refused(run(import), {"generation_config.json: 'a_new_member'", "--allow-unknown"});
    EXPECT_FALSE(std::filesystem::exists(out));
    const Outcome allowed = run(import + Arguments{"--allow-unknown"});
    EXPECT_EQ(allowed.exit_code, 0) << allowed.err;
    EXPECT_THAT(allowed.err, HasSubstr("'a_new_member' has no known meaning and is ignored"));
}

TEST_F(Commands, TokenizeSplitsDocumentsAtTheSeparator) {
    const std::string tokenizer = place_ / "tokenizer.json";
    const std::string text =
        place_.write("documents.txt", "one<|endoftext|>two<|endoftext|><|endoftext|>three");
    expect_success(
        run({"tokenizer", "train", "--data", stories_, "--vocabulary", "257", "--out", tokenizer}));
    const std::string out = place_ / "a.bin", val = place_ / "b.bin";
    const Outcome split =
        run({"tokenize", text, "--tokenizer", tokenizer, "--format", "nanogpt", "--out", out, "--separator",
             "<|endoftext|>", "--val-fraction", "0.3", "--val-out", val});
    expect_success(split);
    EXPECT_THAT(split.out, HasSubstr("8 tokens of 2 documents"));  // a token a byte, and two separators
    EXPECT_THAT(split.out, HasSubstr("6 tokens of 1 document"));
    EXPECT_EQ(std::filesystem::file_size(out), 16u);

    // A run on token files that is told their tokenizer knows its text.
    const std::string tokens = place_ / "stories.bin", run_of_tokens = place_ / "tokens";
    expect_success(run({"tokenize", stories_, "--tokenizer", tokenizer, "--out", tokens}));
    expect_success(
        run(tiny_training(tokens, run_of_tokens) +
            Arguments{"--tokenizer", tokenizer, "--sample-every", "4", "--sample-prompt", "The "}));
    EXPECT_THAT(run({"sample", run_of_tokens, "--prompt", "The ", "--tokens", "5"}).out,
                testing::StartsWith("The "));
    EXPECT_THAT(run({"eval", run_of_tokens, "--data", tokens, "--json"}).out, HasSubstr("\"bits_per_byte\""));
    expect_success(run({"train", "--resume", run_of_tokens, "--steps", "12"}));

    expect_refused(run({"tokenize", text, "--tokenizer", tokenizer, "--out", out, "--separator", "<|none|>"}),
                   {"<|none|>", "is not an added token"});
    expect_refused(run({"tokenize", text, "--tokenizer", tokenizer, "--out", out, "--val-fraction", "0.5"}),
                   {"val-out"});
    expect_refused(run({"tokenize", text, "--tokenizer", tokenizer, "--out", out, "--val-fraction", "0.5",
                        "--val-out", val}),
                   {"only one document"});
}
#endif

TEST_F(Commands, TokenizeReadsFoldersAndStandardInput) {
    std::filesystem::create_directory(place_ / "data");
    place_.write("data/b.jsonl", "{\"body\": \"four\"}\n");
    const std::string first =
        place_.write("data/a.txt", "{\"body\": \"one\"}\n{\"body\": [\"two\", \"\"]}\n");
    const std::string out = place_ / "t.bin";
    const auto tokenize = [&](const std::string& data, const ProcessOptions& options = {}) {
        return run({"tokenize", data, "--tokenizer", "bytes", "--text-column", "body", "--format", "nanogpt",
                    "--out", out},
                   options);
    };
    EXPECT_THAT(tokenize(place_ / "data").out, HasSubstr("t.bin: 10 tokens of 3 documents, headerless"));
    EXPECT_EQ(contents_of(out), std::string("o\0n\0e\0t\0w\0o\0f\0o\0u\0r\0", 20));
    const ProcessOptions from_file{.prefix = {"sh", "-c", "exec \"$0\" \"$@\" < " + first}};
    EXPECT_THAT(tokenize("-", from_file).out, HasSubstr("6 tokens of 2 documents"));
    place_.write("data/c.txt", "plain");
    expect_refused(tokenize(place_ / "data"), {"c.txt: holds plain text; the file before it"});
    expect_refused(tokenize(place_ / "none*"), {"none*: no file matches"});
}

TEST_F(Commands, TrainAndEvalDescribeTheirData) {
    const std::string shard = place_ / "train.bin", val = place_ / "val.bin";
    std::string ids;
    for (int i = 0; i < 500; ++i) ids += {static_cast<char>(i % 50), '\0'};
    std::string header(1024, '\0');
    const std::int32_t words[] = {20240520, 1, 500};
    header.replace(0, sizeof words, reinterpret_cast<const char*>(words), sizeof words);
    place_.write("train.bin", header + ids);
    place_.write("val.bin", ids);
    const Outcome outcome =
        run(tiny_training(shard, out_) + Arguments{"--val-data", val, "--vocabulary", "64"});
    expect_success(outcome);
    EXPECT_THAT(outcome.out, HasSubstr(shard + ": llm.c shard, version 1, 500 uint16 tokens\n"));
    EXPECT_THAT(outcome.out, HasSubstr(val + ": headerless uint16, 500 tokens\n"));
    const Outcome eval = run({"eval", out_.string(), "--data", val});
    expect_success(eval);
    EXPECT_THAT(eval.out, HasSubstr(val + ": headerless uint16, 500 tokens\n"));

    const Outcome wide = run(tiny_training(stories_, place_ / "wide") + Arguments{"--vocabulary", "5000"});
    expect_success(wide);
    EXPECT_THAT(wide.out, HasSubstr("vocabulary 5,000 as set; the data needs "));
}

TEST_F(Commands, EscapesNamesOfDataFiles) {
    const std::string name = "red\x1b[31m\n.txt", path = place_.write(name, contents_of(stories_));
    const Outcome train = run(tiny_training(path, out_));
    expect_success(train);
    const Outcome eval = run({"eval", out_.string(), "--data", path});
    expect_success(eval);
    for (const std::string& out : {train.out, eval.out}) {
        EXPECT_THAT(out, HasSubstr("red\\u001b[31m\\n.txt: text, "));
        EXPECT_THAT(out, testing::Not(HasSubstr("\x1b[31m")));
    }
}

TEST_F(Commands, TrainPrintsResultsAndPaths) {
    const Outcome outcome = run(tiny());
    expect_success(outcome);
    for (const char* part : {"memory for", "step 8/8", "loss", "tokens/s", "ETA 0:00",
                             "\nval_loss: ", "nats per character: the model ", ", the grammar itself "})
        EXPECT_THAT(outcome.out, HasSubstr(part));
    for (const char* file : {"checkpoints/step_00000008.h5", "metrics.jsonl", "loss.svg"}) {
        EXPECT_THAT(outcome.out, HasSubstr((out_ / file).string()));
        EXPECT_TRUE(exists(out_ / file));
    }
    const auto steps = steps_of(out_);
    ASSERT_EQ(steps.size(), 8u);
    EXPECT_TRUE(steps.back().contains("val_loss"));
}

TEST_F(Commands, MemoryPrintsThePlanAndWritesNoFile) {
    const Outcome outcome = run(tiny() + Arguments{"--memory"});
    expect_success(outcome);
    EXPECT_THAT(outcome.out, HasSubstr("activations"));
    EXPECT_THAT(outcome.out, HasSubstr("total"));
    EXPECT_FALSE(exists(out_));
}

TEST_F(Commands, LastRepeatedFlagCountsAndFlagsOverrideTheConfig) {
    const std::string config = place_.write("config.json", R"({"steps": 5, "seed": 7, "bias": false})");
    expect_success(run(tiny() + Arguments{"--config", config, "--steps", "3"}));
    EXPECT_EQ(steps_of(out_).size(), 3u);
    const json made = json::parse(contents_of(out_ / "config.json"));
    EXPECT_EQ(made["seed"], 7);
    EXPECT_EQ(made["bias"], false);
}

/// The checkpoint holds the attention options: eval repeats the run's last evaluation, which has no dropout.
TEST_F(Commands, EvalAndSampleUseTheAttentionOfTheModel) {
    const std::string val = place_.write("val.txt", contents_of(stories_).substr(0, 1500));
    const Arguments options = {"--val-data",  val,         "--heads",  "4",
                               "--positions", "alibi",     "--window", "5",
                               "--sinks",     "--layers",  "2",        "--window-pattern",
                               "2",           "--softcap", "10",       "--attention-dropout",
                               "0.3"};
    expect_success(run(tiny() + options));
    const Outcome eval = run({"eval", out_.string(), "--data", val, "--json"});
    expect_success(eval);
    const double trained = steps_of(out_).back()["val_loss"];
    EXPECT_NEAR(json::parse(eval.out)["loss"].get<double>(), trained, 1e-8 * trained);
    const Arguments sample = {"sample", out_.string(), "--tokens", "40", "--seed", "3"};
    const Outcome once = run(sample);
    expect_success(once);
    EXPECT_EQ(run(sample).out, once.out);
}

TEST_F(Commands, ThePackedPresetTrainsOnTheStoriesOfCorpus) {
    const Arguments smaller = {"--layers", "1", "--width", "48", "--device", "cpu", "--warmup", "1"};
    expect_success(run(Arguments{"train", "--preset", "packed-tiny", "--data", stories_, "--out",
                                 out_.string(), "--steps", "12"} +
                       smaller));
    const json made = json::parse(contents_of(out_ / "config.json"));
    EXPECT_EQ(made["packed"], true);
    EXPECT_GT(made["attention-dropout"], 0);
    const std::vector<json> steps = steps_of(out_);
    ASSERT_EQ(steps.size(), 12u);
    EXPECT_LT(steps.back()["loss"], steps.front()["loss"]);
    expect_success(run({"sample", out_.string(), "--tokens", "20"}));
}

TEST_F(Commands, ConfigOfARunReproducesIt) {
    expect_success(run(tiny() + Arguments{"--dtype", "bf16", "--optimizer", "muon", "--schedule", "wsd",
                                          "--dropout", "0.1", "--no-bias", "--recompute", "block"}));
    const auto again = place_ / "again";
    expect_success(run({"train", "--config", (out_ / "config.json").string(), "--out", again.string()}));
    EXPECT_EQ(tensors_of(out_), tensors_of(again));
    EXPECT_EQ(steps_of(out_), steps_of(again));
}

TEST_F(Commands, CorpusDependsOnItsSeedAndCanBeScored) {
    const std::string other = (place_ / "other.txt").string(), same = (place_ / "same.txt").string();
    expect_success(run({"corpus", "--characters", "4000", "--seed", "2", "--out", other}));
    expect_success(run({"corpus", "--characters", "4000", "--out", same}));
    EXPECT_EQ(contents_of(same), contents_of(stories_));
    EXPECT_NE(contents_of(other), contents_of(stories_));
    EXPECT_GE(contents_of(other).size(), 4000u);

    const Outcome score = run({"corpus", "--score", stories_});
    expect_success(score);
    EXPECT_THAT(score.out, HasSubstr("nats per character"));
    const std::string poem = place_.write("poem.txt", "Roses are red.\n");
    expect_refused(run({"corpus", "--score", poem}),
                   {"poem.txt", "expected a text that `gradtile corpus` wrote"});
}

TEST_F(Commands, EvalMeasuresAWholeFile) {
    expect_success(run(tiny()));
    const Outcome outcome = run({"eval", out_.string(), "--data", stories_, "--json"});
    expect_success(outcome);
    const json result = json::parse(outcome.out);
    const double loss = result.at("loss");
    EXPECT_EQ(result.at("targets"), static_cast<std::int64_t>(contents_of(stories_).size()) - 1);
    // Every token is one ASCII character, so bits per character are loss / ln 2. JSON numbers have 17 digits.
    EXPECT_NEAR(result.at("bits_per_character").get<double>(), loss / std::log(2.0), 1e-12 * loss);
    EXPECT_NEAR(result.at("perplexity").get<double>(), std::exp(loss), 1e-12 * std::exp(loss));
    const Outcome readable = run({"eval", out_.string(), "--data", stories_});
    EXPECT_THAT(readable.out, HasSubstr("nats per token"));
}

TEST_F(Commands, EvalCountsTheSameTargetsAsTraining) {
    expect_success(run(tiny() + Arguments{"--tokenizer", "bytes", "--ignore-token", "32"}));
    const Outcome outcome = run({"eval", out_.string(), "--data", stories_, "--json"});
    expect_success(outcome);
    const std::string text = contents_of(stories_);
    EXPECT_EQ(json::parse(outcome.out).at("targets"),
              std::ranges::count_if(text.substr(1), [](char c) { return c != ' '; }));
}

TEST_F(Commands, SamplesDependOnTheirSeed) {
    expect_success(run(tiny()));
    const auto sampled = [&](const char* seed, const char* threads) {
        const Outcome outcome = run({"sample", out_.string(), "--prompt", "The ", "--tokens", "50", "--top-k",
                                     "20", "--top-p", "0.9", "--seed", seed, "--threads", threads});
        expect_success(outcome);
        EXPECT_THAT(outcome.out, testing::StartsWith("The "));
        EXPECT_EQ(outcome.out.size(), 4u + 50u + 1u);
        return outcome.out;
    };
    EXPECT_EQ(sampled("1", "1"), sampled("1", "2"));
    EXPECT_NE(sampled("1", "1"), sampled("2", "1"));
}

TEST(Gradcheck, PrintsOneJsonObjectPerInput) {
    // flash2's old name.
    EXPECT_THAT(run({"gradcheck", "--op", "attention-flash"}).out, HasSubstr("attention-flash2\n"));
    for (const char* op : {"attention-flash1", "attention-memory-efficient"})
        EXPECT_THAT(run({"gradcheck", "--op", op}).out, HasSubstr("all gradients agree"));
    const Outcome outcome = run({"gradcheck", "--op", "linear", "--json"});
    expect_success(outcome);
    std::vector<std::string> inputs;
    for (const json& report : outcome.json_lines()) {
        EXPECT_EQ(report.at("op"), "linear");
        EXPECT_EQ(report.at("ok"), true);
        EXPECT_LT(report.at("error").get<double>(), report.at("bound").get<double>());
        inputs.push_back(report.at("input"));
    }
    EXPECT_EQ(inputs.size(), 3u) << "x, weight and bias";
}

TEST(Gradcheck, PrintsALineForEveryKernelAndOption) {
    // tests/attention tests the kernels' accuracy, so one dtype suffices.
    const Outcome outcome = run({"gradcheck", "--dtype", "bf16", "--op", "attention"});
    expect_success(outcome);
    for (const char* line : {"attention bfloat16 generic, causal: ok;",
                             "attention bfloat16 generic, first of 8192 keys dominates: ok;",
                             "combinations in bfloat16 lie within their bounds"})
        EXPECT_THAT(outcome.out, testing::HasSubstr(line));
    EXPECT_THAT(outcome.out, testing::Not(testing::HasSubstr("WRONG")));
}

TEST(Gradcheck, PrintsOneJsonObjectPerLayerOption) {
    const Outcome outcome = run({"gradcheck", "--dtype", "f16,f32", "--op", "layer-norm", "--json"});
    expect_success(outcome);
    std::map<std::string, int> counts;
    for (const json& report : outcome.json_lines()) {
        ++counts[report.at("dtype")];
        EXPECT_EQ(report.at("ok"), true);
        EXPECT_LE(report.at("error").get<double>(), report.at("bound").get<double>());
    }
    EXPECT_EQ(counts, (std::map<std::string, int>{{"float16", 6}, {"float32", 6}}))
        << "three widths, with and without bias";
}

}  // namespace
}  // namespace gradtile::test
