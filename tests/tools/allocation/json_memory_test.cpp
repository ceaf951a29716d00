// Files above 1 MB are read with at most six times their size in memory, whatever JSON they hold.
#include <functional>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/core/io/little_endian.h>
#include <gradtile/core/text/json_writer.h>
#include <gradtile/tools/evaluation/multiple_choice.h>
#include <gradtile/tools/formats/internal/weight_files.h>
#include <gradtile/train/config/train_config.h>
#include <gradtile/train/model/language_model.h>
#include <gradtile/train/tokenizers/byte_characters.h>
#include <gradtile/train/tokenizers/byte_pair_encoding.h>
#include <gradtile/train/tokenizers/tokenizer_files.h>
#include <gradtile/train/tokenizers/tokenizer_json.h>

#include <support/documents.h>
#include <support/error_message.h>
#include <support/resealed_checkpoint.h>
#include <support/temporary_directory.h>

#include "counted_new.h"

namespace gradtile {
namespace {

using test::AllocationPeak;
using test::message_of;
using test::TemporaryDirectory;
using testing::HasSubstr;

constexpr std::size_t max_multiple = 6;

/// Runs work(), and expects that it needs at most six times `bytes` bytes of memory.
template <class Work>
void expect_small(std::string_view what, std::size_t bytes, Work&& work) {
    ASSERT_GE(bytes, 1'000'000u) << what;
    const AllocationPeak peak;
    work();
    EXPECT_LE(peak.bytes(), max_multiple * bytes)
        << what << ": " << static_cast<double>(peak.bytes()) / static_cast<double>(bytes)
        << " times its size";
}

std::string repeated(std::string_view element, std::size_t bytes) {
    std::string text;
    text.reserve(bytes + element.size());
    while (text.size() < bytes) text.append(text.empty() ? "" : ",").append(element);
    return text;
}

/// `count` different members with a value each: "aaaa":VALUE,"baaa":VALUE ...
std::string members(std::size_t count, std::string_view value) {
    std::string text;
    for (std::size_t i = 0; i < count; ++i) {
        text += i > 0 ? ",\"" : "\"";
        for (std::size_t left = i, k = 0; k < 4; ++k, left /= 26) text += static_cast<char>('a' + left % 26);
        text.append("\":").append(value);
    }
    return text;
}

/// JSON texts a little above 1 MB whose values would take up to 100 times as much.
std::vector<std::string> hostile_texts() {
    constexpr std::size_t size = 1'050'000;
    return {"[" + repeated("{}", size) + "]",
            "[" + repeated("[]", size) + "]",
            "[" + repeated("0", size) + "]",
            "[" + repeated("\"\"", size) + "]",
            "[" + repeated("[[[[0]]]]", size) + "]",
            "[" + repeated("{\"a\":{\"b\":0}}", size) + "]",
            "{" + members(size / 9, "0") + "}",
            "{" + members(size / 10, "\"\"") + "}",
            "{" + members(size / 10, "{}") + "}",
            "{\"model\":{" + members(size / 10, "[]") + "}}",
            "{\"messages\":[" + repeated("{\"role\":\"user\",\"content\":\"\"}", size) + "]}",
            "{\"ctx\":\"c\",\"label\":0,\"endings\":[" + repeated("\"e\"", size) + "]}",
            "\"" + std::string(size, 'x') + "\"",
            "{\"prompt\":\"" + std::string(size, 'x') + "\"}",
            "\"" + repeated("\\u00e9", size) + "\"",
            std::string(size, '[')};
}

/// A vocabulary with `size` tokens: 256 bytes, and tokens with 2 to `max_length` letters. One merge makes
/// each of the latter, as from an honest trainer. Then the merges repeat until there are `merges` merges.
BytePairVocabulary vocabulary_of(std::size_t size, std::size_t merges, std::size_t max_length) {
    BytePairVocabulary vocabulary{.patterns = {{std::string(gpt2_pattern())}}};
    std::set<std::string> known;
    for (int byte = 0; byte < 256; ++byte) {
        vocabulary.tokens.emplace_back(1, static_cast<char>(byte));
        known.insert(vocabulary.tokens.back());
    }
    std::uint64_t state = 1;
    const auto draw = [&](std::size_t below) {
        state = 6364136223846793005u * state + 1442695040888963407u;
        return static_cast<std::size_t>(state >> 33) % below;
    };
    std::vector<std::int32_t> parts;  // tokens that other tokens consist of
    for (std::int32_t letter = 'a'; letter <= 'z'; ++letter) parts.push_back(letter);
    while (vocabulary.tokens.size() < size) {
        const std::int32_t left = parts[draw(parts.size())], right = parts[draw(parts.size())];
        const std::string text = vocabulary.tokens[static_cast<std::size_t>(left)] +
                                 vocabulary.tokens[static_cast<std::size_t>(right)];
        if (text.size() > max_length || !known.insert(text).second) continue;
        const auto id = static_cast<std::int32_t>(vocabulary.tokens.size());
        vocabulary.tokens.push_back(text);
        vocabulary.merges.push_back({left, right, id});
        if (text.size() <= max_length / 2) parts.push_back(id);
    }
    const std::size_t distinct = vocabulary.merges.size();
    for (std::size_t i = 0; vocabulary.merges.size() < merges; ++i)
        vocabulary.merges.push_back(vocabulary.merges[i % distinct]);
    return vocabulary;
}

std::string tokenizer_json(const BytePairVocabulary& vocabulary, int indent) {
    std::string text;
    JsonWriter writer(text, indent);
    write_tokenizer_json(writer, vocabulary);
    writer.finish();
    return text;
}

/// Reads a tokenizer from its file and from a checkpoint.
void expect_small_tokenizer(const std::string& text, const std::string& what) {
    const TemporaryDirectory place;
    const std::string path = place.write("tokenizer.json", text);
    expect_small(what, text.size(), [&] { message_of([&] { load_tokenizer(path); }); });
    // As checkpoints hold it: the file's text, or, in older checkpoints, its object.
    const std::string begin = R"({"kind":"bpe","merges_by_id":false,)";
    for (const std::string& held : {concat(begin, "\"tokenizer\":", text, '}'),
                                    concat(begin, "\"file\":", JsonValue(text).dump(), '}')})
        expect_small(what + " in a checkpoint", held.size(), [&] {
            const std::string copy = held;
            message_of([&] { Tokenizer::from_json(copy, "c.h5"); });
        });
}

TEST(JsonMemory, HonestTokenizersOfAllSizes) {
    struct Size {
        std::size_t tokens, merges, max_length;
        int indent;
    };
    // Like GPT-2's, Qwen 2.5's, Llama 3's and a vocabulary of 256,000 tokens.
    for (const Size& size : {Size{50'257, 50'000, 10, -1}, Size{151'643, 151'387, 10, 2},
                             Size{128'000, 280'147, 12, 2}, Size{256'000, 255'744, 12, 2}}) {
        const BytePairVocabulary vocabulary = vocabulary_of(size.tokens, size.merges, size.max_length);
        const std::string text = tokenizer_json(vocabulary, size.indent);
        if (text.size() < 1'000'000) continue;
        const TemporaryDirectory place;
        const std::string path = place.write("tokenizer.json", text);
        expect_small(concat(size.tokens, " tokens"), text.size(), [&] {
            const Tokenizer tokenizer = load_tokenizer(path);
            EXPECT_EQ(tokenizer.vocab_size(), static_cast<std::int64_t>(size.tokens));
            EXPECT_TRUE(tokenizer.byte_pair_encoding()->vocabulary() == vocabulary);
        });
        expect_small(concat(size.tokens, " tokens, written"), text.size(),
                     [&] { EXPECT_EQ(tokenizer_json(vocabulary, size.indent).size(), text.size()); });
    }
}

TEST(JsonMemory, TokenizersMadeToTakeMemory) {
    const auto with = [](const std::string& vocab, const std::string& merges, const std::string& added = "") {
        return R"({"added_tokens":[)" + added + R"(],"pre_tokenizer":{"type":"ByteLevel",)" +
               R"("add_prefix_space":false},"model":{"type":"BPE","vocab":{)" + vocab + R"(},"merges":[)" +
               merges + "]}}";
    };
    std::string vocab, all_merges, shuffled;
    const std::string letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
    std::size_t id = 0;
    const auto add = [&](const std::string& token) {
        vocab += concat(id > 0 ? "," : "", '"', token, "\":", id);
        ++id;
        for (std::size_t cut = 1; cut < token.size(); ++cut)
            all_merges +=
                concat(all_merges.empty() ? "" : ",", '"', token.substr(0, cut), ' ', token.substr(cut), '"');
    };
    for (const char a : letters) add({a});
    for (const char a : letters)
        for (const char b : letters) add({a, b});
    const std::string short_tokens = vocab;
    for (const char a : letters)
        for (const char b : letters)
            for (const char c : letters.substr(0, 30)) add({a, b, c});
    expect_small_tokenizer(with(vocab, ""), "short tokens");
    expect_small_tokenizer(with(vocab, all_merges), "all merges");
    expect_small_tokenizer(with(vocab, repeated("\"a b\"", 2'000'000)), "one merge, repeated");
    expect_small_tokenizer(with(short_tokens, repeated("\"a b\"", 2'000'000)), "only merges");
    expect_small_tokenizer(with(vocab, repeated("\"a 0\"", 2'000'000)), "merges of a later vocabulary");
    expect_small_tokenizer(with(vocab, repeated(R"(["a","b"])", 2'000'000)), "merges as pairs");
    std::string added;
    for (std::size_t i = 0; i < 30'000; ++i)
        added += concat(i > 0 ? "," : "", R"({"id":)", id + i, R"(,"content":")", i, "\"}");
    expect_small_tokenizer(with(vocab, "", added), "added tokens");
    // Values of this size in any place.
    for (const char* const place : {"normalizer", "pre_tokenizer", "added_tokens", "model", "other"})
        for (const std::string& text : hostile_texts())
            expect_small_tokenizer(concat("{\"", place, "\":", text, '}'), place);
    for (const std::string& text : hostile_texts()) expect_small_tokenizer(text, text.substr(0, 40));
}

TEST(JsonMemory, IdsWithGapsNeedNoMemoryOfTheirOwn) {
    const auto refusal = [](const std::string& text) {
        const AllocationPeak peak;
        const std::string message =
            message_of([&] { Tokenizer::byte_pairs(vocabulary_of_tokenizer_json(text, "t"), "t"); });
        EXPECT_LE(peak.bytes(), std::size_t{4} << 20) << text;
        return message;
    };
    const auto text = [](std::int64_t id, std::int64_t added_id) {
        return concat(R"({"added_tokens":[{"id":)", added_id,
                      R"(,"content":"<x>"}],"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false},)",
                      R"("model":{"vocab":{"a":0,"b":)", id, R"(},"merges":[]}})");
    };
    EXPECT_EQ(refusal(text(max_missing_ids + 2, 1)), "no error");
    EXPECT_EQ(refusal(text(max_missing_ids + 3, 1)),
              "t: the largest id is 65539, but there are only 3 tokens; expected at most 65536 ids without a "
              "token");
    EXPECT_EQ(refusal(text(1, max_missing_ids + 2)), "no error");
    EXPECT_THAT(refusal(text(1, 4'194'303)), HasSubstr("the largest id is 4194303"));
    EXPECT_THAT(refusal(text(4'194'303, 2)), HasSubstr("the largest id is 4194303"));
    EXPECT_EQ(vocabulary_of_ranks("YQ== 65537\nYg== 0\n", "r").tokens.size(), 65538u);
    EXPECT_THAT(message_of([] { vocabulary_of_ranks("YQ== 4194303\nYg== 0\n", "r"); }),
                HasSubstr("r: the largest id is 4194303"));
}

std::string safetensors_file(const std::string& header, std::size_t data_bytes) {
    std::string bytes(8, '\0');
    put_little_endian(reinterpret_cast<std::byte*>(bytes.data()), std::uint64_t{header.size()});
    return bytes + header + std::string(data_bytes, '\0');
}

TEST(JsonMemory, SafetensorsHeaders) {
    const TemporaryDirectory place;
    const auto expect_small_file = [&](const std::string& header, std::size_t data_bytes,
                                       const std::string& what) {
        const std::string path = place.write("model.safetensors", safetensors_file(header, data_bytes));
        std::string message;
        expect_small(what, header.size(), [&] {
            message = message_of([&] {
                const WeightFiles files(path);
                EXPECT_FALSE(files.names().empty());
            });
        });
        return message;
    };
    std::string honest = R"({"__metadata__":{"format":"pt"})", least = "{";
    const int count = 40'000;
    for (int i = 0; i < count; ++i) {
        honest += concat(",\"model.layers.", i / 300, ".mlp.experts.", i % 300,
                         R"(.gate_proj.weight":{"dtype":"BF16","shape":[1,2],"data_offsets":[)", 4 * i, ',',
                         4 * i + 4, "]}");
        least += concat(i > 0 ? ",\"" : "\"", i, R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})");
    }
    EXPECT_EQ(expect_small_file(honest + "}", 4 * count, "honest header"), "no error");
    EXPECT_EQ(expect_small_file(least + "}", 0, "shortest entries"), "no error");
    expect_small_file("{\"__metadata__\":{" + members(100'000, "\"\"") + "}}", 0, "metadata");
    expect_small_file("{\"__metadata__\":{" + members(15'000, "\"\"") + "}," + least.substr(1) + "}", 0,
                      "metadata and entries");
    for (const std::string& text : hostile_texts()) {
        expect_small_file(text, 0, text.substr(0, 40));
        expect_small_file("{\"a\":" + text + "}", 0, "a tensor");
    }
}

TEST(JsonMemory, IndicesOfWeights) {
    const TemporaryDirectory place;
    const std::string least = [] {
        std::string header = "{";
        for (int i = 0; i < 40'000; ++i)
            header += concat(i > 0 ? ",\"" : "\"", i, R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})");
        return header + "}";
    }();
    place.write("a.st", safetensors_file(least, 0));
    std::string map;
    for (int i = 0; i < 40'000; ++i) map += concat(i > 0 ? ",\"" : "\"", i, "\":\"a.st\"");
    const std::string honest = concat(R"({"metadata":{"total_size":0},"weight_map":{)", map, "}}");
    const std::string index = place.write("model.safetensors.index.json", honest);
    expect_small("index", honest.size() + least.size(), [&] {
        const WeightFiles files(index);
        EXPECT_EQ(files.names().size(), 40'000u);
    });
    place.write("model.safetensors.index.json",
                concat(R"({"weight_map":{"0":"a.st",)", map.substr(0, map.size() - 1), "\"}}"));
    EXPECT_THAT(message_of([&] { WeightFiles files(index); }), HasSubstr("weight_map: '0' occurs twice"));
    for (const std::string& text : hostile_texts())
        for (const std::string& index_text : {text, concat("{\"weight_map\":", text, "}")}) {
            place.write("model.safetensors.index.json", index_text);
            expect_small("hostile index", index_text.size(),
                         [&] { message_of([&] { WeightFiles files(index); }); });
        }
    std::string many_files;
    for (int i = 0; i < 100'000; ++i) many_files += concat(i > 0 ? ",\"" : "\"", i, "\":\"", i, '"');
    place.write("model.safetensors.index.json", concat(R"({"weight_map":{)", many_files, "}}"));
    expect_small("files", many_files.size(), [&] {
        EXPECT_THAT(message_of([&] { WeightFiles files(index); }), HasSubstr("more than 10000 files"));
    });
}

TEST(JsonMemory, JsonLines) {
    const TemporaryDirectory place;
    const auto expect_small_lines = [&](const std::string& text, const std::string& what) {
        const std::string path = place.write("c.jsonl", text);
        expect_small(what, text.size(), [&] { message_of([&] { test::documents_in({path}); }); });
        expect_small(what, text.size(),
                     [&] { message_of([&] { read_choice_questions(TextReader(text, "q.jsonl")); }); });
    };
    std::string conversations, questions;
    for (int i = 0; i < 20'000; ++i) {
        conversations += R"({"messages":[{"role":"user","content":"a"}]})"
                         "\n";
        questions += R"({"ctx":"a","endings":["b","c"],"label":0})"
                     "\n";
    }
    const std::string filler(1'000'000, ' ');
    conversations += R"({"messages":[{"role":"user","content":")" + filler + "\"}]}\n";
    const std::string path = place.write("c.jsonl", conversations);
    expect_small("conversations", conversations.size(),
                 [&] { EXPECT_EQ(test::documents_in({path}).size(), 20'001u); });
    questions += R"({"ctx":")" + filler + R"(","endings":["b","c"],"label":0})" + "\n";
    expect_small("questions", questions.size(),
                 [&] { EXPECT_EQ(read_choice_questions(TextReader(questions, "q.jsonl")).size(), 20'001u); });
    for (const std::string& text : hostile_texts()) expect_small_lines(text, text.substr(0, 40));
}

TEST(JsonMemory, Checkpoints) {
    const TemporaryDirectory place;
    const std::filesystem::path path = place / "c.h5";
    const BytePairVocabulary vocabulary = vocabulary_of(100'000, 100'000, 10);
    TrainConfig config;
    config.model.vocabulary = 100'000;
    Checkpoint checkpoint;
    checkpoint.config = to_json(config);
    checkpoint.data.set("loader", JsonValue::object({{"epoch", 1}}));
    checkpoint.tokenizer = Tokenizer::byte_pairs(vocabulary, "t").to_json();
    expect_small("written", checkpoint.tokenizer.size(), [&] { write_checkpoint(path, checkpoint); });
    const auto size = static_cast<std::size_t>(file_size(path));
    expect_small("read", size, [&] {
        const Checkpoint found = read_checkpoint(path);
        EXPECT_EQ(found.data, checkpoint.data);
        EXPECT_TRUE(found.tokenizer == checkpoint.tokenizer);
    });
    expect_small("inspected and printed", size, [&] {
        const CheckpointInfo info = inspect_checkpoint(path);
        std::size_t bytes = 0;
        JsonWriter writer([&](std::string_view piece) { bytes += piece.size(); });
        write_checkpoint_data(writer, info.data, info.tokenizer);
        writer.finish();
        EXPECT_GT(bytes, checkpoint.tokenizer.size());
    });
    {
        const Checkpoint found = read_checkpoint(path);
        EXPECT_TRUE(tokenizer_of(found, "c.h5")->byte_pair_encoding()->vocabulary() == vocabulary);
    }

    // A text of the same length replaces the file's text, under correct checksums.
    for (const char* const name : {"config", "data", "meta", "rng"})
        for (const std::string& text : hostile_texts()) {
            Checkpoint plain;
            JsonValue& value = std::string_view(name) == "config" ? plain.config
                               : std::string_view(name) == "data" ? plain.data
                               : std::string_view(name) == "meta" ? plain.meta
                                                                  : plain.rng;
            value = std::string(text.size() - 2, 'x');
            std::vector<std::byte> file = test::file_of(plain);
            const std::string meant = value.dump();
            const auto from = std::as_bytes(std::span(meant)), to = std::as_bytes(std::span(text));
            const auto position = std::search(file.begin(), file.end(), from.begin(), from.end());
            ASSERT_NE(position, file.end());
            std::copy(to.begin(), to.end(), position);
            file = test::reseal(std::move(file));
            const std::string hostile =
                place.write("hostile.h5", {reinterpret_cast<const char*>(file.data()), file.size()});
            expect_small(name, file.size(), [&] { message_of([&] { read_checkpoint(hostile); }); });
            expect_small(name, file.size(), [&] { message_of([&] { inspect_checkpoint(hostile); }); });
        }
}

}  // namespace
}  // namespace gradtile
