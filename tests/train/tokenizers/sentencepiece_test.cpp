// Compares SentencePiece's models, in model files and in tokenizer.json, with ids from the libraries
// sentencepiece and tokenizers (tests/reference/make_sentencepiece_reference.py), and tests them with hostile
// files.
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <gradtile/core/philox.h>
#include <gradtile/train/tokenizers/byte_pair_encoding.h>
#include <gradtile/train/tokenizers/internal/normalizer.h>
#include <gradtile/train/tokenizers/internal/token_trie.h>
#include <gradtile/train/tokenizers/streaming_decoder.h>
#include <gradtile/train/tokenizers/tokenizer_files.h>
#include <gradtile/train/tokenizers/tokenizer_folder.h>

#include <support/error_message.h>
#include <support/temporary_directory.h>

namespace gradtile {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::contents_of;
using test::message_of;
using test::TemporaryDirectory;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;
using Ids = std::vector<std::int32_t>;

std::string sentencepiece_reference(const std::string& name) {
    return std::string(GRADTILE_SOURCE_DIR) + "/tests/reference/tokenizers/sentencepiece/" + name;
}

class SentencePieceModels : public testing::Test {
  protected:
    void SetUp() override {
        if (!GRADTILE_HAVE_UTF8PROC) GTEST_SKIP() << "some of the files need utf8proc";
    }

    TemporaryDirectory place_;

    static Tokenizer load(const std::string& name) { return load_tokenizer(sentencepiece_reference(name)); }

    /// The error about a tokenizer.json that one value has changed.
    std::string message_with(const std::string& name, const char* pointer, const json& value) const {
        json changed = json::parse(contents_of(sentencepiece_reference(name)));
        changed[json::json_pointer(pointer)] = value;
        const std::string path = place_.write("tokenizer.json", changed.dump());
        return message_of([&] { load_tokenizer(path); });
    }
};

TEST_F(SentencePieceModels, IdsAreThoseOfTheLibraries) {
    const json all = json::parse(contents_of(sentencepiece_reference("ids.json")));
    EXPECT_EQ(all.size(), 11u);
    for (const auto& [name, cases] : all.items()) {
        const Tokenizer tokenizer = load(name);
        for (const json& one : cases) {
            const auto text = one["text"].get<std::string>();
            EXPECT_EQ(tokenizer.encode(text, "t"), one["ids"].get<Ids>()) << name << ": " << text;
        }
    }
}

TEST_F(SentencePieceModels, LongTextsHaveTheSameIdsOnSeveralThreads) {
    std::string text;
    for (int i = 0; i < 40'000; ++i) text += concat("for (int i = 0; i < ", i * i, "; ++i) naïve café\n  ");
    for (const char* const name : {"llama2.json", "gemma.json", "words_False.json", "unigram_nfkc.json"}) {
        const Tokenizer tokenizer = load(name);
        const Ids one = tokenizer.encode(text, "t", {.threads = 1});
        EXPECT_GT(one.size(), 100'000u) << name;
        EXPECT_TRUE(tokenizer.encode(text, "t", {.threads = 3}) == one) << name;
    }
}

TEST_F(SentencePieceModels, ByteFallbackKeepsEveryText) {
    const Tokenizer llama = load("llama2.json"), model = load("bpe_identity.model");
    for (const std::string text : {"", "a", " a", "  two  blanks ", "\n\t", "中文 한글 😀 e\u0301", "<0x41>"})
        for (const Tokenizer& tokenizer : {llama, model}) {
            const Ids ids = tokenizer.encode(text, "t");
            EXPECT_EQ(tokenizer.decode(ids), text);
            StreamingDecoder stream(tokenizer);
            std::string streamed;
            for (const std::int32_t id : ids) streamed += stream.next(id);
            EXPECT_EQ(streamed + stream.finish(), text);
        }
    const std::string invalid = "a\xFF\xC3 b";
    EXPECT_EQ(llama.decode(llama.encode(invalid, "t")), invalid);
    EXPECT_EQ(model.decode(model.encode(invalid, "t")), "a\uFFFD\uFFFD b");  // as in SentencePiece
}

TEST_F(SentencePieceModels, TheBlankBeforeATextIsDecodedOnlyAfterAnotherText) {
    const Tokenizer tokenizer = load("llama2.json");
    const Ids ids = tokenizer.encode("for", "t");
    EXPECT_EQ(tokenizer.decode(ids), "for");
    EXPECT_EQ(tokenizer.decode(ids, TextPlace::middle), " for");
    StreamingDecoder start(tokenizer), middle(tokenizer, TextPlace::middle);
    EXPECT_EQ(tokenizer.decode(Ids{ids[0]}, TextPlace::middle), " f");
    EXPECT_EQ(start.next(ids[0]), "f");
    EXPECT_EQ(start.next(ids[0]), " f");
    EXPECT_EQ(middle.next(ids[0]), " f");
}

TEST_F(SentencePieceModels, PostProcessorAndSpecialTokensAreAddedOnRequest) {
    const Tokenizer llama = load("llama2.json");
    EXPECT_EQ(llama.encode("", "t", {.add_special_tokens = true}), (Ids{1}));
    EXPECT_EQ(llama.encode("a", "t", {.add_special_tokens = true}).front(), 1);
    constexpr EncodeOptions recognised{.special_tokens = SpecialTokens::recognised};
    EXPECT_EQ(llama.encode("<s></s><unk>", "t", recognised), (Ids{1, 2, 0}));
    EXPECT_EQ(load("bpe_rules.model").encode("<s></s>", "t", recognised), (Ids{1, 2}));
    // Text does not become a control token unless that is asked for.
    for (const char* const name :
         {"llama2.json", "bpe_rules.model", "unigram_rules.model", "unigram_bytes.model"})
        for (const std::int32_t id : load(name).encode("<s>a</s>", "t"))
            EXPECT_TRUE(id != 1 && id != 2) << name;
}

TEST_F(SentencePieceModels, ACheckpointKeepsTheFileByteForByte) {
    for (const char* const name :
         {"llama2.json", "gemma.json", "unigram_nfkc.json", "bpe_rules.model", "unigram_bytes.model"}) {
        const Tokenizer tokenizer = load(name);
        const Tokenizer copy = Tokenizer::from_json(tokenizer.to_json(), "c.h5");
        EXPECT_EQ(copy, tokenizer) << name;
        EXPECT_EQ(copy.file().content, contents_of(sentencepiece_reference(name))) << name;
        EXPECT_EQ(copy.file().name,
                  fs::path(name).extension() == ".model" ? "tokenizer.model" : "tokenizer.json");
        EXPECT_EQ(copy.encode("for (int i)", "t"), tokenizer.encode("for (int i)", "t"));
    }
    EXPECT_EQ(load("unigram_bytes.model").name(),
              concat("unigram (", load("unigram_bytes.model").vocab_size(), ")"));
    EXPECT_NE(load("bpe_rules.model"), load("bpe_identity.model"));
}

TEST_F(SentencePieceModels, AFolderWithAModelFileAddsTheTokensThatTransformersAdds) {
    place_.write("tokenizer.model", contents_of(sentencepiece_reference("bpe_identity.model")));
    const auto encode = [&](const json& config) {
        place_.write("tokenizer_config.json", config.dump());
        const Tokenizer tokenizer = load_tokenizer(place_.path().string());
        const Tokenizer copy = Tokenizer::from_json(tokenizer.to_json(), "c.h5");
        EXPECT_EQ(copy, tokenizer);
        return copy.encode("", "t", {.add_special_tokens = true});
    };
    const json llama = {{"tokenizer_class", "LlamaTokenizer"}, {"bos_token", "<s>"}, {"unk_token", "<unk>"}};
    EXPECT_EQ(encode(llama), (Ids{1}));
    json changed = llama;
    changed["add_bos_token"] = false;
    changed["add_eos_token"] = true;
    EXPECT_EQ(encode(changed), (Ids{2}));
    changed["pad_token"] = "<pad>";
    EXPECT_THAT(message_of([&] { encode(changed); }),
                HasSubstr("\"<pad>\" is not one of added_tokens in tokenizer.model"));
    changed = llama;
    changed["add_prefix_space"] = false;
    EXPECT_THAT(message_of([&] { encode(changed); }),
                HasSubstr("add_prefix_space: false, but tokenizer.model puts a blank"));
}

TEST_F(SentencePieceModels, FilesOfUnsupportedTokenizersAreRefusedByName) {
    const auto refused = [&](const char* pointer, const json& value, const char* reason) {
        EXPECT_THAT(
            message_with("llama2.json", pointer, value),
            AllOf(StartsWith(place_.path().string()), HasSubstr(reason), testing::Not(HasSubstr("\n"))));
    };
    refused("/normalizer", {{"type", "Precompiled"}, {"precompiled_charsmap", ""}},
            "normalizer.type: \"Precompiled\"");
    refused("/decoder", {{"type", "WordPiece"}}, "decoder.type: \"WordPiece\"");
    refused("/model/unk_token", "<none>", "model.unk_token: \"<none>\"");
    refused("/model/end_of_word_suffix", "</w>", "end_of_word_suffix");
    refused("/pre_tokenizer",
            json::parse(R"({"type": "Sequence", "pretokenizers": [{"type": "Digits"}, {"type": "Metaspace",
            "replacement": "▁"}]})"),
            "Metaspace and another step");
    refused("/pre_tokenizer",
            json::parse(R"({"type": "Split", "pattern": {"String": "a"}, "behavior": "MergedWithPrevious"})"),
            "pre_tokenizer.behavior");
    json vocabulary = json::parse(contents_of(sentencepiece_reference("llama2.json")))["model"]["vocab"];
    const json byte = vocabulary["<0x41>"];
    vocabulary.erase("<0x41>");
    vocabulary["<0xXY>"] = byte;
    refused("/model/vocab", vocabulary, "the vocabulary has no token <0x41>");
    EXPECT_THAT(message_with("unigram_whole.json", "/model/vocab/5", {"a", "b"}),
                HasSubstr("a token and its score"));
    EXPECT_THAT(message_with("unigram_whole.json", "/model/vocab/5/1", nullptr),
                HasSubstr("a token and its score"));
    EXPECT_THAT(message_with("unigram_whole.json", "/model/unk_id", 100'000),
                HasSubstr("the unknown token 100000 is not in the vocabulary"));
}

TEST_F(SentencePieceModels, DamagedModelFilesAreRefusedInOneLine) {
    const std::string good = contents_of(sentencepiece_reference("bpe_rules.model"));
    const auto refusal = [&](const std::string& bytes) {
        const std::string path = place_.write("sp.model", bytes);
        return message_of([&] { load_tokenizer(path); });
    };
    const auto piece = [](const std::string& text, char type) {
        const std::string fields =
            std::string("\x0A") + static_cast<char>(text.size()) + text + "\x18" + type;
        return std::string("\x0A") + static_cast<char>(fields.size()) + fields;
    };
    const std::string bpe("\x12\x02\x18\x02", 4), nul("\x1A\x00", 2);
    EXPECT_EQ(refusal(piece("<unk>", 2) + piece("a", 1) + piece("b", 1) + piece("ab", 1) + bpe + nul),
              "no error");
    EXPECT_THAT(refusal(piece("<unk>", 2) + piece("ab", 1) + bpe + nul),
                HasSubstr("has a character that is no piece"));
    EXPECT_THAT(refusal(piece("a", 1) + bpe + nul), HasSubstr("no piece of type UNKNOWN"));
    EXPECT_THAT(refusal(piece("<unk>", 2) + piece("a", 5) + bpe + nul), HasSubstr("UNUSED"));
    EXPECT_THAT(refusal(piece("<unk>", 2) + piece("a", 1) + piece("a", 1) + bpe + nul),
                HasSubstr("are both 'a'"));
    EXPECT_THAT(refusal(piece("<unk>", 2) + std::string("\x12\x02\x18\x04", 4) + nul),
                HasSubstr("model_type 4"));
    EXPECT_THAT(refusal(piece("<unk>", 2) + std::string("\x0A\xFF\xFF\xFF\x7F\x00", 6)),
                HasSubstr("ends within field 1"));
    EXPECT_THAT(refusal(std::string("\x0B\x00", 2)), HasSubstr("wire type 3"));
    for (std::uint32_t round = 0; round < 300; ++round) {
        std::string bytes = good;
        const auto drawn = Philox::draw({round, 0, 0, 0}, {7, 0});
        if (round % 3 == 0) bytes.resize(drawn[0] % bytes.size());
        for (std::uint32_t i = 0; i < 1 + round % 4 && !bytes.empty(); ++i)
            bytes[drawn[i % 4] % bytes.size()] = static_cast<char>(drawn[(i + 1) % 4]);
        bytes += '\0';
        const std::string path = place_.write("sp.model", bytes);
        try {
            const Tokenizer tokenizer = load_tokenizer(path);
            tokenizer.decode(tokenizer.encode("<sym> e\u0301 ＡＢＣ the text", "t"));
        } catch (const Error& error) {
            EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
        }
    }
}

TEST(TokenTrieOfTokens, FindsEachTokenThatBeginsAtAPlace) {
    std::vector<std::string> texts;
    for (std::uint32_t i = 0; i < 3000; ++i) {
        const auto drawn = Philox::draw({i, 0, 0, 0}, {3, 0});
        std::string text;
        for (std::uint32_t n = 0; n <= drawn[0] % 6; ++n)
            text += static_cast<char>("ab\xFF\x00\xE2"[drawn[1] >> 4 * n & 3]);
        texts.push_back(text);
    }
    std::ranges::sort(texts);
    texts.erase(std::unique(texts.begin(), texts.end()), texts.end());
    std::vector<TokenTrie::Entry> entries;
    for (std::size_t i = 0; i < texts.size(); ++i)
        entries.emplace_back(texts[i], static_cast<std::int32_t>(i));
    const TokenTrie trie(entries);
    for (const std::string& text : texts) {
        std::vector<std::string> found, expected;
        trie.for_each(text, 0, [&](std::size_t end, std::int32_t id) {
            EXPECT_EQ(texts[static_cast<std::size_t>(id)], text.substr(0, end));
            found.push_back(text.substr(0, end));
        });
        for (std::size_t end = 1; end <= text.size(); ++end)
            if (std::ranges::binary_search(texts, text.substr(0, end)))
                expected.push_back(text.substr(0, end));
        EXPECT_EQ(found, expected);
    }
}

#if GRADTILE_HAVE_UTF8PROC
TEST(UnicodeNormalizers, NormalizeAsTheUnicodeStandardSays) {
    const auto run = [](const NormalizerStep& step, std::string_view text) {
        return Normalizer({step}, "t").run(text);
    };
    EXPECT_EQ(run(UnicodeForm::nfc, "e\u0301 \u1100\u1161\u11A8 \u2126"), "é 각 Ω");
    EXPECT_EQ(run(UnicodeForm::nfd, "é 각"), "e\u0301 \u1100\u1161\u11A8");
    EXPECT_EQ(run(UnicodeForm::nfkc, "ﬁ①Ａ\u00A0½"), "fi1A 1\u20442");
    EXPECT_EQ(run(UnicodeForm::nfkd, "ﬁé"), "fie\u0301");
    EXPECT_EQ(run(UnicodeForm::nfd, "a\u0301\u0327"), "a\u0327\u0301");  // marks are ordered by their class
    EXPECT_EQ(run(LowercaseStep{}, "ÀÉ İ ΣΑΣ ẞ"), "àé i\u0307 σασ ß");
    const std::string invalid = "e\xFF\u0301 A\xC3";
    EXPECT_EQ(run(UnicodeForm::nfc, invalid), invalid);
    EXPECT_EQ(run(LowercaseStep{}, invalid), "e\xFF\u0301 a\xC3");
}

/// The time grows as n log n: with the square of n, a million marks would take minutes.
/// In quadratic time this would take longer than ctest waits.
TEST(UnicodeNormalizers, OrderAMillionMarks) {
    const int count = 500'000;
    const auto repeated = [&](std::string_view mark) {
        std::string text;
        for (int i = 0; i < count; ++i) text += mark;
        return text;
    };
    const std::string text = "q" + repeated("\u0301\u0327") + "é";
    for (const UnicodeForm form :
         {UnicodeForm::nfc, UnicodeForm::nfd, UnicodeForm::nfkc, UnicodeForm::nfkd}) {
        const bool composes = form == UnicodeForm::nfc || form == UnicodeForm::nfkc;
        EXPECT_TRUE(Normalizer({form}, "t").run(text) ==
                    "q" + repeated("\u0327") + repeated("\u0301") + (composes ? "é" : "e\u0301"));
    }
}
#endif

}  // namespace
}  // namespace gradtile
