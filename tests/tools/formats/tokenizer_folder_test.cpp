// The tokenizer of a transformers folder: from which files it comes, and how large they may be.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/train/tokenizers/tokenizer_files.h>
#include <gradtile/train/tokenizers/tokenizer_folder.h>

#include <support/error_message.h>
#include <tools/formats/published_folder.h>

namespace gradtile {
namespace {

#if GRADTILE_HAVE_PCRE2

using namespace test::published;
using nlohmann::json;
using test::contents_of;
using test::json_of;
using test::message_of;
using test::TemporaryDirectory;
using test::write_json;
using testing::ElementsAre;
using testing::HasSubstr;

namespace fs = std::filesystem;

TEST(TokenizerFolder, VocabJsonTakesItsTokensFromTheFilesBesideIt) {
    const TemporaryDirectory place;
    const fs::path folder = place / "folder";
    fs::create_directory(folder);
    json vocab = json_of(published_folder(place) / "tokenizer.json")["model"]["vocab"];
    vocab["<s>"] = 256;
    write_json(folder / "vocab.json", vocab);
    write_text(folder / "merges.txt", "#version: 0.2\n");
    write_json(folder / "added_tokens.json", {{"<|im_start|>", 257}});
    write_json(folder / "tokenizer_config.json", {{"tokenizer_class", "GPT2Tokenizer"},
                                                  {"bos_token", "<s>"},
                                                  {"eos_token", "<s>"},
                                                  {"unk_token", "<s>"},
                                                  {"add_bos_token", true}});
    UnknownMembers unknown;
    const TokenizerFolder found = load_tokenizer_folder(folder.string(), "", unknown);
    ASSERT_TRUE(found.tokenizer.has_value());
    EXPECT_THAT(
        found.tokenizer->encode("<|im_start|>a<s>", "t",
                                {.special_tokens = SpecialTokens::recognised, .add_special_tokens = true}),
        ElementsAre(256, 257, 'a', 256));
    EXPECT_EQ(found.files.size(), 2u);
    EXPECT_FALSE(load_tokenizer_folder((place / "published/..").string(), "", unknown).tokenizer);
}

TEST(Import, ALargeTokenizerIsKeptInTheRun) {
    const TemporaryDirectory place;
    const fs::path folder = published_folder(place);
    // Llama 3.2's tokenizer.json has 17 MB, that of gpt-oss 28 MB. Line ends take two bytes in a checkpoint.
    const std::string tokenizer = contents_of(folder / "tokenizer.json");
    const auto padded = [&](std::size_t bytes) {
        return tokenizer + std::string(bytes - tokenizer.size(), '\n');
    };
    write_text(folder / "tokenizer.json", padded(std::size_t{30} << 20));
    write_imported_run(import_model(folder.string()), place / "run");
    export_model(load_checkpoint((place / "run").string()), "run", {.out = place / "again"});
    EXPECT_TRUE(contents_of(folder / "tokenizer.json") == contents_of(place / "again/tokenizer.json"));
    write_text(folder / "tokenizer.json", padded((std::size_t{32} << 20) + 1));
    EXPECT_THAT(message_of([&] { import_model(folder.string()); }),
                HasSubstr("33554433 bytes; expected a tokenizer of at most 33554432"));
}

TEST(TokenizerFolder, LimitsTheSizeOfItsFiles) {
    const TemporaryDirectory place;
    for (const char* const name : tokenizer_folder_files) {
        const fs::path folder = published_folder(place, name);
        const std::string text = contents_of(folder / name),
                          padding((std::size_t{1} << 22) - text.size(), ' ');
        UnknownMembers unknown;
        const auto message = [&] {
            return message_of([&] { load_tokenizer_folder(folder.string(), "", unknown); });
        };
        write_text(folder / name, text + padding);
        EXPECT_EQ(message(), "no error") << name;
        write_text(folder / name, text + padding + ' ');
        EXPECT_THAT(message(), HasSubstr(concat(name, ": 4194305 bytes; expected at most 4194304")));
    }
}

TEST(TokenizerFolder, HasAtMostAsManyAddedTokensAsTokenizerJson) {
    const TemporaryDirectory place;
    const fs::path folder = place / "folder";
    fs::create_directory(folder);
    const json vocab = json_of(published_folder(place) / "tokenizer.json")["model"]["vocab"];
    write_text(folder / "merges.txt", "#version: 0.2\n");
    const auto message_with = [&](std::size_t in_vocab, std::size_t in_decoder, std::size_t in_file) {
        json words = vocab, decoder = json::object(), added = json::object();
        std::size_t id = 256;
        for (std::size_t i = 0; i < in_vocab; ++i, ++id) words[concat("<|", i, "|>")] = id;
        for (std::size_t i = 0; i < in_decoder; ++i, ++id)
            decoder[std::to_string(id)] = {{"content", concat("d", i)}};
        for (std::size_t i = 0; i < in_file; ++i, ++id) added[concat("f", i)] = id;
        write_json(folder / "vocab.json", words);
        write_json(folder / "added_tokens.json", added);
        write_json(folder / "tokenizer_config.json", {{"added_tokens_decoder", decoder}});
        UnknownMembers unknown;
        return message_of([&] { load_tokenizer_folder(folder.string(), "", unknown); });
    };
    // Seconds would pass if each token were compared with each other.
    EXPECT_EQ(message_with(10'000, 12'768, 10'000), "no error");
    EXPECT_THAT(message_with(0, 32'769, 0), HasSubstr("added_tokens_decoder: more than 32768 tokens"));
    EXPECT_THAT(message_with(32'769, 0, 0), HasSubstr("vocab.json: vocab: more than 32768 tokens"));
    EXPECT_THAT(message_with(0, 0, 32'769), HasSubstr("added_tokens.json: more than 32768 values"));
    EXPECT_THAT(message_with(12'768, 10'000, 10'001),
                HasSubstr("added_tokens.json: more than 32768 added tokens"));
}

#endif

}  // namespace
}  // namespace gradtile
