// Compares byte-level BPE with ids from the tokenizers and tiktoken libraries, and tests it with hostile
// files.
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <gradtile/core/philox.h>
#include <gradtile/core/text/utf8.h>
#include <gradtile/train/tokenizers/byte_characters.h>
#include <gradtile/train/tokenizers/byte_pair_encoding.h>
#include <gradtile/train/tokenizers/internal/pcre2_pattern.h>
#include <gradtile/train/tokenizers/streaming_decoder.h>
#include <gradtile/train/tokenizers/tokenizer_files.h>
#include <gradtile/train/tokenizers/tokenizer_json.h>

#include <support/error_message.h>
#include <support/sanitized.h>
#include <support/temporary_directory.h>

namespace gradtile {
namespace {

using nlohmann::json;
using test::contents_of;
using test::message_of;
using test::TemporaryDirectory;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

std::string reference(const std::string& name) {
    return std::string(GRADTILE_SOURCE_DIR) + "/tests/reference/tokenizers/" + name;
}

std::string written_json(const BytePairVocabulary& vocabulary) {
    std::string text;
    JsonWriter writer(text);
    write_tokenizer_json(writer, vocabulary);
    writer.finish();
    return text;
}

json json_of_file(const std::string& path) {
    return json::parse(contents_of(path));
}

constexpr EncodeOptions recognised{.special_tokens = SpecialTokens::recognised};

void expect_ids(const Tokenizer& tokenizer, const json& cases, const EncodeOptions& options = {}) {
    ASSERT_GT(cases.size(), 20u);
    for (const json& one : cases) {
        const auto text = one["text"].get<std::string>();
        EXPECT_EQ(tokenizer.encode(text, "t", options), one["ids"].get<std::vector<std::int32_t>>()) << text;
        EXPECT_EQ(tokenizer.decode(tokenizer.encode(text, "t", options)), text);
    }
}

std::string random_bytes(std::size_t n, std::uint32_t seed) {
    std::string bytes;
    for (std::uint32_t i = 0; i < n; ++i) {
        const auto drawn = Philox::draw({i, 0, 0, 0}, {seed, 0});
        // Partial UTF-8 sequences, ASCII and whitespace, in any order.
        constexpr std::string_view some = "ab '\n\t1!\xC3\xA9\xE4\xB8\xAD\xF0\x9F\x98\x80\xED\xA0\x80\xFF";
        bytes += drawn[0] % 4 == 0 ? static_cast<char>(drawn[1]) : some[drawn[1] % some.size()];
    }
    return bytes;
}

class BytePairs : public testing::Test {
  protected:
    Tokenizer gpt2_ = load_tokenizer(reference("gpt2.json"));
    Tokenizer llama3_ = load_tokenizer(reference("llama3.json"));
    Tokenizer cl100k_ = load_tokenizer(reference("cl100k.tiktoken"));
    TemporaryDirectory place_;

    std::string refusal_of(const json& value) const {
        const std::string path = place_.write("tokenizer.json", value.dump());
        const std::string message = message_of([&] { load_tokenizer(path); });
        EXPECT_THAT(message, AllOf(StartsWith(path), testing::Not(HasSubstr("\n"))));
        return message;
    }
};

TEST_F(BytePairs, IdsAreThoseOfTheTokenizersLibrary) {
    const json gpt2 = json_of_file(reference("gpt2_ids.json")),
               llama3 = json_of_file(reference("llama3_ids.json"));
    expect_ids(gpt2_, gpt2["as_text"]);
    expect_ids(gpt2_, gpt2["recognised"], recognised);
    expect_ids(llama3_, llama3["as_text"]);
    expect_ids(llama3_, llama3["recognised"], recognised);
    EXPECT_NE(gpt2["as_text"], gpt2["recognised"]);
}

TEST_F(BytePairs, IdsOfARankFileAreThoseOfTiktoken) {
    expect_ids(cl100k_, json_of_file(reference("cl100k_ids.json"))["as_text"]);
    expect_ids(load_tokenizer(reference("o200k.tiktoken")),
               json_of_file(reference("o200k_ids.json"))["as_text"]);
    expect_ids(load_tokenizer(reference("tokenizer.model")),
               json_of_file(reference("llama3_ranks_ids.json"))["as_text"]);
}

TEST_F(BytePairs, Llama3sModelFileHas256SpecialTokensAfterItsRanks) {
    const Tokenizer tokenizer = load_tokenizer(reference("tokenizer.model"));
    const std::int32_t ranks = 440;
    EXPECT_EQ(tokenizer.vocab_size(), ranks + 256);
    EXPECT_EQ(tokenizer.encode("<|begin_of_text|><|start_header_id|><|end_header_id|><|eot_id|>"
                               "<|reserved_special_token_4|><|reserved_special_token_250|>",
                               "t", recognised),
              (std::vector<std::int32_t>{ranks, ranks + 6, ranks + 7, ranks + 9, ranks + 8, ranks + 255}));
    const std::string path = place_.write("tokenizer.model", std::string("\x0A\x0E\x0A\x05<unk>\x00", 10));
    EXPECT_THAT(message_of([&] { load_tokenizer(path); }),
                AllOf(StartsWith(path), HasSubstr("SentencePiece")));
}

TEST_F(BytePairs, InvalidUtf8ComesBackByteForByte) {
    for (std::uint32_t seed = 0; seed < 20; ++seed) {
        const std::string text = random_bytes(3000, seed);
        ASSERT_FALSE(is_utf8(text));
        for (const Tokenizer* tokenizer : {&gpt2_, &llama3_, &cl100k_})
            for (const EncodeOptions& options : {EncodeOptions{}, recognised})
                ASSERT_EQ(tokenizer->decode(tokenizer->encode(text, "t", options)), text);
    }
}

TEST_F(BytePairs, IdsDoNotDependOnTheNumberOfThreads) {
    const json ids = json_of_file(reference("gpt2_ids.json"));
    std::string text;
    for (std::uint32_t seed = 0; seed < 4; ++seed) {
        for (const json& one : ids["as_text"]) text += one["text"].get<std::string>();
        text += random_bytes(50, seed);
        // Each of three threads gets several chunks of 2^19 bytes.
        while (text.size() < (seed + 1) * (test::sanitized ? 800'000 : 1'500'000))
            text += text.substr(text.size() / 2 + seed);
    }
    for (const Tokenizer* tokenizer : {&gpt2_, &llama3_, &cl100k_})
        for (const SpecialTokens special : {SpecialTokens::as_text, SpecialTokens::recognised}) {
            const auto one = tokenizer->encode(text, "t", {.special_tokens = special, .threads = 1});
            const auto three = tokenizer->encode(text, "t", {.special_tokens = special, .threads = 3});
            EXPECT_TRUE(one == three);  // EXPECT_EQ would print millions of ids
            EXPECT_TRUE(tokenizer->decode(three) == text);
        }
    // Texts that are a single word, or a single run of spaces: chunks begin inside it, where dividing the
    // whole text gives no border.
    for (const char c : {'a', ' ', '7'}) {
        const std::string word(3'000'000, c);
        EXPECT_TRUE(cl100k_.encode(word, "t", {.threads = 1}) == cl100k_.encode(word, "t", {.threads = 3}));
    }
}

TEST_F(BytePairs, ALongWordTakesNoQuadraticTime) {
    // With n^2 steps, encoding these 8 million bytes would take days.
    std::string word;
    for (std::uint32_t i = 0; i < 8'000'000; ++i)
        word += static_cast<char>('a' + Philox::draw({i}, {1})[0] % 26);
    const auto ids = llama3_.encode(word, "t", {.threads = 1});
    EXPECT_LT(ids.size(), word.size());
    EXPECT_TRUE(llama3_.decode(ids) == word);
}

TEST_F(BytePairs, AStreamNeverEndsWithinACharacter) {
    std::string text = "é中😀\u180e\u0085 naïve ";
    for (const std::string& part :
         {std::string(text), text + "\xE4\xB8", text + "\xFF\xC0 " + text, random_bytes(2000, 7)}) {
        for (const Tokenizer* tokenizer : {&gpt2_, &llama3_}) {
            StreamingDecoder stream(*tokenizer);
            std::string all;
            for (const std::int32_t id : tokenizer->encode(part, "t")) {
                const std::string piece = stream.next(id);
                EXPECT_TRUE(is_utf8(piece) || !is_utf8(part)) << piece;
                all += piece;
            }
            const std::string rest = stream.finish();
            EXPECT_LE(rest.size(), 3u);
            EXPECT_EQ(all + rest, part);
            EXPECT_TRUE(rest.empty() || !is_utf8(part));
        }
    }
    // If a byte cannot continue an incomplete character, next() returns the bytes that were held back.
    StreamingDecoder stream(Tokenizer::bytes());
    EXPECT_EQ(stream.next(0xE4), "");
    EXPECT_EQ(stream.next(0xB8), "");
    EXPECT_EQ(stream.next('a'),
              "\xE4\xB8"
              "a");
    EXPECT_EQ(stream.next(0xED), "");
    EXPECT_EQ(stream.next(0xA0), "\xED\xA0");  // with a third byte the character would be a surrogate
    EXPECT_EQ(stream.next(0xF0), "");
    EXPECT_EQ(stream.finish(), "\xF0");
    EXPECT_THROW(stream.next(256), Error);
}

TEST_F(BytePairs, ACheckpointsJsonIsTheSameTokenizer) {
    for (const Tokenizer* tokenizer : {&gpt2_, &llama3_, &cl100k_}) {
        const Tokenizer copy = Tokenizer::from_json(tokenizer->to_json(), "c.h5");
        EXPECT_EQ(copy, *tokenizer);
        EXPECT_EQ(copy.name(), tokenizer->name());
        EXPECT_EQ(copy.kind(), TokenizerKind::bpe);
        const std::string text = "hello world<|endoftext|> \n\n world's 1234";
        EXPECT_EQ(copy.encode(text, "t", recognised), tokenizer->encode(text, "t", recognised));
    }
    // Older checkpoints hold the tokenizer.json object.
    const json object{
        {"kind", "bpe"}, {"merges_by_id", false}, {"tokenizer", json_of_file(reference("gpt2.json"))}};
    EXPECT_EQ(Tokenizer::from_json(object.dump(), "c.h5"), gpt2_);
    EXPECT_NE(gpt2_, llama3_);
    EXPECT_NE(gpt2_, Tokenizer::bytes());
    EXPECT_EQ(gpt2_.name(), "bpe (420)");
    json damaged = json::parse(gpt2_.to_json());
    json file = json::parse(damaged["file"].get<std::string>());
    file["model"]["vocab"]["a"] = 5000000;
    damaged["file"] = file.dump();
    EXPECT_THAT(message_of([&] { Tokenizer::from_json(damaged.dump(), "c.h5"); }),
                StartsWith("c.h5: tokenizer"));
    damaged.erase("merges_by_id");
    EXPECT_THAT(message_of([&] { Tokenizer::from_json(damaged.dump(), "c.h5"); }),
                StartsWith("c.h5: tokenizer"));
}

TEST_F(BytePairs, ASavedFileIsReadAgain) {
    const std::string path = (place_ / "saved.json").string();
    save_tokenizer(path, llama3_);
    EXPECT_EQ(load_tokenizer(path), llama3_);
    EXPECT_THAT(message_of([&] { save_tokenizer(path, Tokenizer::bytes()); }),
                HasSubstr("this one is bytes"));
    EXPECT_THAT(message_of([&] { save_tokenizer((place_ / "none/x.json").string(), gpt2_); }),
                HasSubstr("none/x.json: cannot create: No such file or directory"));
    // cl100k merges by id. save_tokenizer() writes its merges as a list, because other programs need a list.
    save_tokenizer(path, cl100k_);
    expect_ids(load_tokenizer(path), json_of_file(reference("cl100k_ids.json"))["as_text"]);
}

TEST_F(BytePairs, MergesHaveTwoSpellingsAndVocabulariesTwoFiles) {
    json value = json_of_file(reference("gpt2.json"));
    json pairs = json::array(), words = json::array();
    std::string lines = "#version: 0.2\n";
    for (const json& merge : value["model"]["merges"]) {
        const auto left = merge[0].get<std::string>(), right = merge[1].get<std::string>();
        pairs.push_back({left, right});
        words.push_back(left + " " + right);
        lines += left + " " + right + "\n";
    }
    for (const json& merges : {pairs, words}) {
        value["model"]["merges"] = merges;
        EXPECT_EQ(load_tokenizer(place_.write("tokenizer.json", value.dump())), gpt2_);
    }
    EXPECT_EQ(load_tokenizer(place_.path().string()), gpt2_);  // a directory that contains tokenizer.json
    const std::string encoder = place_.write("encoder.json", value["model"]["vocab"].dump());
    EXPECT_THAT(message_of([&] { load_tokenizer(encoder); }), HasSubstr("expected vocab.bpe or merges.txt"));
    const std::string merges = place_.write("vocab.bpe", lines);
    const Tokenizer pair = load_tokenizer(encoder);
    EXPECT_EQ(load_tokenizer(merges), pair);
    const std::string text = "hello world's <|endoftext|>";
    EXPECT_EQ(pair.encode(text, "t", recognised), gpt2_.encode(text, "t", recognised));
    EXPECT_EQ(pair.encode(text, "t"), gpt2_.encode(text, "t"));
}

TEST_F(BytePairs, APathWithANulByteIsRefused) {
    const std::string directory = place_.path().string();
    EXPECT_THAT(message_of([&] { load_tokenizer(directory + '\0' + 'x'); }), HasSubstr("a NUL byte"));
}

TEST_F(BytePairs, ALongAddedTokenIsRefused) {
    BytePairVocabulary vocabulary = gpt2_.byte_pair_encoding()->vocabulary();
    const auto id = static_cast<std::int32_t>(gpt2_.vocab_size());
    vocabulary.added.push_back({.id = id, .text = std::string(2048, 'x')});
    EXPECT_EQ(Tokenizer::byte_pairs(vocabulary, "t.json").vocab_size(), id + 1);
    vocabulary.added.back().text += 'x';
    EXPECT_EQ(message_of([&] { Tokenizer::byte_pairs(vocabulary, "t.json"); }),
              concat("t.json: added token ", id, " has 2049 bytes; expected at most 2048"));
}

TEST_F(BytePairs, AnAddedTokenThatIsListedTwiceIsNormalizedTwiceOrNever) {
    BytePairVocabulary vocabulary = gpt2_.byte_pair_encoding()->vocabulary();
    vocabulary.added.push_back(vocabulary.added.front());
    EXPECT_EQ(Tokenizer::byte_pairs(vocabulary, "t.json").vocab_size(), gpt2_.vocab_size());
    vocabulary.added.back().normalized = !vocabulary.added.front().normalized;
    EXPECT_EQ(message_of([&] { Tokenizer::byte_pairs(vocabulary, "t.json"); }),
              "t.json: added token '<|endoftext|>' occurs twice, with two values of normalized");
}

TEST_F(BytePairs, ATruncatedFileIsRefused) {
    const std::string full_text = contents_of(reference("gpt2.json"));
    for (std::size_t size = 0; size < full_text.size(); size += 1 + full_text.size() / 200) {
        const std::string path = place_.write("tokenizer.json", full_text.substr(0, size));
        ASSERT_THAT(message_of([&] { load_tokenizer(path); }), StartsWith(path)) << size;
    }
    const std::string ranks = contents_of(reference("cl100k.tiktoken"));
    const std::string path = place_.write("cl100k.tiktoken", ranks.substr(0, 1001));
    EXPECT_THAT(message_of([&] { load_tokenizer(path); }), AllOf(StartsWith(path), HasSubstr("line ")));
}

TEST_F(BytePairs, HostileJsonIsRefusedByName) {
    const json good = json_of_file(reference("gpt2.json"));
    const auto with = [&](const char* pointer, const json& value) {
        json changed = good;
        changed[json::json_pointer(pointer)] = value;
        return refusal_of(changed);
    };
    EXPECT_THAT(with("/model/vocab/a", 4194304), AllOf(HasSubstr("\"a\""), HasSubstr("4194303")));
    EXPECT_THAT(with("/model/vocab/a", 18446744073709551615u), HasSubstr("expected an integer"));
    EXPECT_THAT(with("/model/vocab/a", -1), HasSubstr("expected an integer"));
    EXPECT_THAT(with("/model/vocab/a", 1.5), HasSubstr("expected an integer"));
    EXPECT_THAT(with("/model/vocab/a", good["model"]["vocab"]["b"]), HasSubstr("occurs twice"));
    EXPECT_THAT(with("/model/vocab/\u2581", 1000), HasSubstr("not written in the characters"));
    EXPECT_THAT(with("/model/merges/0", "a nosuchtoken"),
                HasSubstr("\"nosuchtoken\" is not in the vocabulary"));
    EXPECT_THAT(with("/model/merges/0", "a b c"), HasSubstr("a space between"));
    EXPECT_THAT(with("/model/merges/0", "abc"), HasSubstr("a space between"));
    EXPECT_THAT(with("/model/merges/0", 3), HasSubstr("merges: 3"));
    EXPECT_THAT(with("/model/merges/0", json::array({"a"})), HasSubstr("merges"));
    EXPECT_THAT(with("/model/merges", nullptr), HasSubstr("merges"));
    EXPECT_THAT(with("/model/type", "WordPiece"), HasSubstr("model.type: \"WordPiece\""));
    EXPECT_THAT(with("/model/type", "Unigram"), HasSubstr("ByteLevel, which is not supported with Unigram"));
    EXPECT_THAT(with("/model/byte_fallback", true), HasSubstr("model.byte_fallback"));
    EXPECT_THAT(with("/model/dropout", 0.1), HasSubstr("model.dropout"));
    EXPECT_THAT(with("/normalizer", {{"type", "StripAccents"}}),
                HasSubstr("normalizer.type: \"StripAccents\""));
    EXPECT_THAT(with("/normalizer", {{"type", "Prepend"}, {"prepend", std::string(65, 'a')}}),
                HasSubstr("normalizer: a text of 65 bytes; expected at most 64"));
    EXPECT_THAT(with("/normalizer", {{"type", "Replace"}, {"pattern", {{"Regex", "a"}}}, {"content", ""}}),
                HasSubstr("normalizer.pattern"));
    const json grows = {
        {"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", std::string(9, 'a')}};
    EXPECT_THAT(with("/normalizer", {{"type", "Sequence"}, {"normalizers", {grows, grows}}}),
                HasSubstr("make a text 81 times as long; expected at most 64"));
    EXPECT_THAT(with("/pre_tokenizer/add_prefix_space", true), HasSubstr("add_prefix_space"));
    EXPECT_THAT(with("/pre_tokenizer/type", "WhitespaceSplit"), HasSubstr("\"WhitespaceSplit\""));
    EXPECT_THAT(with("/pre_tokenizer", {{"type", "Metaspace"}, {"replacement", "_"}}),
                HasSubstr("pre_tokenizer.replacement: \"_\""));
    EXPECT_THAT(with("/pre_tokenizer", nullptr), HasSubstr("pre_tokenizer"));
    EXPECT_THAT(with("/added_tokens/0/id", 5), HasSubstr("has id 5, which is"));
    EXPECT_THAT(with("/added_tokens/0/content", ""), HasSubstr("is empty"));
    EXPECT_THAT(with("/added_tokens/0/lstrip", 1), HasSubstr("lstrip"));
    EXPECT_THAT(with("/added_tokens/0", 1), HasSubstr("added_tokens"));
    EXPECT_THAT(with("/model", json::array()), HasSubstr("model"));
    EXPECT_THAT(refusal_of("text"), HasSubstr("expected an object"));

    const std::string path =
        place_.write("tokenizer.json", std::string(100000, '[') + std::string(100000, ']'));
    EXPECT_THAT(message_of([&] { load_tokenizer(path); }), HasSubstr("nested more than 64 levels deep"));
    const std::string surrogate = place_.write("tokenizer.json", R"({"model":{"vocab":{"\ud800":1}}})");
    EXPECT_THAT(message_of([&] { load_tokenizer(surrogate); }), HasSubstr("surrogate"));
}

TEST_F(BytePairs, HostilePatternsAreRefusedByName) {
    const auto with = [&](const std::string& pattern) {
        json value = json_of_file(reference("llama3.json"));
        value["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = pattern;
        return refusal_of(value);
    };
    EXPECT_THAT(with("(a"), HasSubstr("missing closing parenthesis"));
    EXPECT_THAT(with("\\w+"), HasSubstr("\\w is not supported"));
    EXPECT_THAT(with("[a[b]]"), HasSubstr("'[' in a character class"));
    EXPECT_THAT(with("[a&&b]"), HasSubstr("'&&'"));
    EXPECT_THAT(with("a$"), HasSubstr("the anchor $"));
    EXPECT_THAT(with("\\p{Nonsense}"), HasSubstr("pattern"));
    EXPECT_THAT(with("a\\"), HasSubstr("a backslash at the end"));
    EXPECT_THAT(with(std::string(10000, 'a')), HasSubstr("a pattern of 10000 bytes"));

    // A search that would take 2^40 steps ends with an error.
    json value = json_of_file(reference("llama3.json"));
    value["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "(a|a)+b";
    const Tokenizer slow = load_tokenizer(place_.write("tokenizer.json", value.dump()));
    EXPECT_THAT(message_of([&] { slow.encode(std::string(40, 'a') + "xb", "t"); }), HasSubstr("limit"));
}

TEST_F(BytePairs, ManyPatternsAreRefusedByNumber) {
    // Cutting recurses into one pattern after another; 150,000 patterns overflowed the stack.
    json value = json_of_file(reference("llama3.json"));
    const json digits{{"type", "Digits"}, {"individual_digits", true}};
    json steps(64, digits);
    steps.push_back({{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}});
    value["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", steps}};
    const Tokenizer most = load_tokenizer(place_.write("tokenizer.json", value.dump()));
    EXPECT_EQ(most.decode(most.encode("a 12 b", "t")), "a 12 b");
    value["pre_tokenizer"]["pretokenizers"].insert(value["pre_tokenizer"]["pretokenizers"].begin(), digits);
    EXPECT_THAT(refusal_of(value),
                HasSubstr("65 patterns that cut text (pre_tokenizer); expected at most 64"));
}

TEST_F(BytePairs, TextThatAPatternWouldRemoveIsRefusedByPlace) {
    json value = json_of_file(reference("llama3.json"));
    json& split = value["pre_tokenizer"]["pretokenizers"][0];
    split["behavior"] = "Removed";
    split["invert"] = true;
    // Llama 3's pattern matches every text, so nothing is removed.
    const Tokenizer covering = load_tokenizer(place_.write("tokenizer.json", value.dump()));
    const std::string text = "hello world's\n 1234 \xE6\x9D\xB1";
    EXPECT_EQ(covering.encode(text, "t"), llama3_.encode(text, "t"));
    EXPECT_EQ(Tokenizer::from_json(covering.to_json(), "c.h5"), covering);

    split["pattern"]["Regex"] = "[a-z]+| ";
    const Tokenizer letters = load_tokenizer(place_.write("tokenizer.json", value.dump()));
    EXPECT_EQ(letters.decode(letters.encode("one two", "t")), "one two");
    EXPECT_EQ(message_of([&] { letters.encode("one 2 three", "t"); }),
              "t: byte offset 4: '2' matches no pattern of the tokenizer, which would remove it "
              "(pre_tokenizer, behavior Removed)");
    EXPECT_THAT(message_of([&] { letters.encode("one two!", "t"); }), HasSubstr("byte offset 7: '!'"));
    // A long text's chunks begin within pieces, where a pattern may miss text that it covers in fact.
    split["pattern"]["Regex"] = "=[a-z]+";
    const Tokenizer words = load_tokenizer(place_.write("tokenizer.json", value.dump()));
    std::string many;
    while (many.size() < std::size_t{5} << 20) many += "=abcd";
    EXPECT_EQ(words.encode(many, "t", {.threads = 4}), words.encode(many, "t", {.threads = 1}));
    for (const std::size_t place : {std::size_t{3}, many.size() / 2 + 1, many.size() - 1}) {
        std::string damaged = many;
        damaged[place] = '!';
        const std::string alone = message_of([&] { words.encode(damaged, "t", {.threads = 1}); });
        EXPECT_THAT(alone, HasSubstr("would remove it"));
        EXPECT_THAT(message_of([&] { words.encode(damaged, "t", {.threads = 4}); }),
                    HasSubstr("would remove it"));
    }
}

TEST_F(BytePairs, APostProcessorAddsItsTokensWhenAsked) {
    json value = json_of_file(reference("llama3.json"));
    const json token{{"SpecialToken", {{"id", "<|endoftext|>"}, {"type_id", 0}}}},
        text{{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
    const json tokens{
        {"<|endoftext|>", {{"id", "<|endoftext|>"}, {"ids", {0}}, {"tokens", {"<|endoftext|>"}}}}};
    const json processor{{"type", "TemplateProcessing"},
                         {"single", {token, text, token}},
                         {"pair", json::array()},
                         {"special_tokens", tokens}};
    const json byte_level{{"type", "ByteLevel"}, {"trim_offsets", true}};
    value["post_processor"] = {{"type", "Sequence"}, {"processors", {byte_level, processor}}};
    const Tokenizer tokenizer = load_tokenizer(place_.write("tokenizer.json", value.dump()));
    EXPECT_THAT(tokenizer.encode("a", "t", {.add_special_tokens = true}), ElementsAre(0, 65, 0));
    EXPECT_THAT(tokenizer.encode("", "t", {.add_special_tokens = true}), ElementsAre(0, 0));
    EXPECT_THAT(tokenizer.encode("a", "t"), ElementsAre(65));
    const Tokenizer again = Tokenizer::byte_pairs(
        vocabulary_of_tokenizer_json(written_json(tokenizer.byte_pair_encoding()->vocabulary()), "t"), "t");
    EXPECT_EQ(again, tokenizer);
    EXPECT_NE(llama3_, tokenizer);
    // An added token may have the text of a token of bytes.
    BytePairVocabulary twins{.tokens = {"a"}, .added = {{.id = 1, .text = "a"}}, .before = {0, 1, 0}};
    twins.patterns.push_back({std::string(gpt2_pattern())});
    EXPECT_EQ(vocabulary_of_tokenizer_json(written_json(twins), "t").before, twins.before);

    const auto refusal = [&](const json& changed) {
        json other = value;
        other["post_processor"] = changed;
        return refusal_of(other);
    };
    json wrong = processor;
    wrong["special_tokens"]["<|endoftext|>"]["ids"] = {400000};
    EXPECT_THAT(refusal(wrong), HasSubstr("post_processor: adds token 400000"));
    wrong["special_tokens"] = json::object();
    EXPECT_THAT(refusal(wrong), HasSubstr("special_tokens has no \"<|endoftext|>\""));
    wrong = processor;
    wrong["single"] = json::array({token});  // Clang copies {token}
    EXPECT_THAT(refusal(wrong), HasSubstr("has no text A"));
    wrong["single"] = {text, text};
    EXPECT_THAT(refusal(wrong), HasSubstr("expected the text A once"));
    EXPECT_THAT(refusal({{"type", "Sequence"}, {"processors", {processor, processor}}}),
                HasSubstr("adds tokens in two steps"));
    EXPECT_THAT(refusal(3), HasSubstr("post_processor: 3"));
    const json roberta{{"type", "RobertaProcessing"}, {"sep", {"<|endoftext|>", 0}}, {"cls", {"a", 65}}};
    value["post_processor"] = roberta;
    EXPECT_THAT(load_tokenizer(place_.write("tokenizer.json", value.dump()))
                    .encode("b", "t", {.add_special_tokens = true}),
                ElementsAre(65, 66, 0));
}

TEST_F(BytePairs, AVocabularyWithoutAByteNamesIt) {
    const Tokenizer tokenizer =
        Tokenizer::byte_pairs({.tokens = {"a", "b", "ab"}, .merges = {{0, 1, 2}}}, "v");
    EXPECT_THAT(tokenizer.encode("abba", "t"), ElementsAre(2, 1, 0));
    EXPECT_EQ(message_of([&] { tokenizer.encode("ab\xFF", "poem.txt"); }),
              "poem.txt: byte 0xFF at byte offset 2 has no token in the vocabulary");
    EXPECT_TRUE(tokenizer.encode("", "t").empty());
}

TEST_F(BytePairs, AVocabularyIsChecked) {
    const auto refusal = [](BytePairVocabulary vocabulary) {
        return message_of([&] { Tokenizer::byte_pairs(std::move(vocabulary), "v"); });
    };
    EXPECT_THAT(refusal({}), HasSubstr("has no tokens"));
    EXPECT_THAT(refusal({.tokens = {"a", "a"}}), HasSubstr("tokens 0 and 1 are both 'a'"));
    EXPECT_THAT(refusal({.tokens = {"a", "b"}, .merges = {{0, 1, 2}}}), HasSubstr("merge 0 has token 2"));
    EXPECT_THAT(refusal({.tokens = {"a", "b", "ba"}, .merges = {{0, 1, 2}}}),
                HasSubstr("together are not 'ba'"));
    EXPECT_THAT(refusal({.tokens = {std::string(3000, 'a')}}), HasSubstr("has 3000 bytes"));
    EXPECT_THAT(refusal({.tokens = {"a"}, .added = {{.id = -1, .text = "x"}}}), HasSubstr("has id -1"));
    EXPECT_THAT(refusal({.tokens = {"a"}, .added = {{.id = 1, .text = "x"}, {.id = 2, .text = "x"}}}),
                HasSubstr("occurs twice"));
}

TEST_F(BytePairs, IdsMayHaveHoles) {
    const Tokenizer tokenizer =
        Tokenizer::byte_pairs({.tokens = {"a", "", "b"}, .added = {{.id = 9, .text = "<end>"}}}, "v");
    EXPECT_EQ(tokenizer.vocab_size(), 10);
    EXPECT_THAT(tokenizer.encode("ab<end>", "t", recognised), ElementsAre(0, 2, 9));
    for (const std::int32_t id : {1, 5, 10, -1}) {
        EXPECT_FALSE(tokenizer.has_text(id));
        EXPECT_THROW(tokenizer.decode(std::vector{id}), Error);
    }
    EXPECT_TRUE(tokenizer.has_text(9));
}

TEST(BytePairRanks, DamagedLinesAreNamed) {
    for (const char* text : {"YQ== ", "YQ== x", "YQ==", "YQ 0", "Y%== 0", " 0", "YQ== -1", "YQ== 4194304",
                             "YQ== 0 1", "YQ== 99999999999999999999", "YQ== 0\nYg== 0"})
        EXPECT_THAT(message_of([&] { vocabulary_of_ranks(text, "r.tiktoken"); }),
                    StartsWith("r.tiktoken: line "))
            << text;
    EXPECT_THAT(vocabulary_of_ranks("YQ== 1\nYWJj 0\n", "r").tokens, ElementsAre("abc", "a"));
    const TemporaryDirectory place;
    EXPECT_THAT(message_of([&] { load_tokenizer(place.write("x.tiktoken", "YQ== 0")); }),
                HasSubstr("the name of a rank file tells the split"));
}

TEST(ByteCharacters, EveryByteHasOneCharacter) {
    std::string bytes;
    for (int byte = 0; byte < 256; ++byte) bytes += static_cast<char>(byte);
    const std::string characters = characters_of_bytes(bytes);
    EXPECT_TRUE(is_utf8(characters));
    EXPECT_EQ(bytes_of_characters(characters), bytes);
    EXPECT_EQ(characters_of_bytes(" \n\xAD"), "\u0120\u010A\u0143");  // as in GPT-2's vocabulary
    EXPECT_EQ(bytes_of_characters("\u0144"), std::nullopt);
    EXPECT_EQ(bytes_of_characters(" "), std::nullopt);
    EXPECT_EQ(bytes_of_characters("\xFF"), std::nullopt);
}

TEST(Pcre2Pattern, WhitespaceAndScriptsAreThoseOfTheJudges) {
    const auto is_script = [](const std::string& name) { return name == "Han"; };
    const auto translated = [&](std::string_view pattern) { return pcre2_pattern(pattern, "p", is_script); };
    EXPECT_EQ(translated(R"([^\s\p{Han}\p{L}]|\S\\s)"),
              R"([^\p{White_Space}\p{sc:Han}\p{L}]|\P{White_Space}\\s)");
    EXPECT_EQ(translated(R"(\p{^Han}\P{Han}\pL)"), R"(\p{^sc:Han}\P{sc:Han}\pL)");
    EXPECT_EQ(translated(gpt2_pattern()).find(R"(\s)"), std::string::npos);
    EXPECT_THAT(message_of([&] { translated("(*LIMIT_MATCH=1)"); }), HasSubstr("(*"));
    EXPECT_THAT(message_of([&] { translated("\xFF"); }), HasSubstr("not UTF-8"));
}

}  // namespace
}  // namespace gradtile
