// Every call of operator new may fail while JSON is read, changed or written: the caller gets std::bad_alloc
// or Error, and the program goes on.
#include <gtest/gtest.h>

#include <gradtile/core/io/little_endian.h>
#include <gradtile/core/text/json_writer.h>
#include <gradtile/tools/evaluation/multiple_choice.h>
#include <gradtile/tools/formats/internal/weight_files.h>
#include <gradtile/train/config/train_config.h>
#include <gradtile/train/model/language_model.h>
#include <gradtile/train/run/metrics_file.h>
#include <gradtile/train/tokenizers/byte_pair_encoding.h>
#include <gradtile/train/tokenizers/tokenizer_files.h>
#include <gradtile/train/tokenizers/tokenizer_json.h>

#include <support/documents.h>
#include <support/temporary_directory.h>

#include "counted_new.h"

namespace gradtile {
namespace {

using test::Failing;
using test::FailingNew;
using test::TemporaryDirectory;

/// Runs work() again and again while its first, second, ... allocation fails, and until none fails.
template <class Work>
void expect_survival(const Work& work) {
    for (const Failing failing : {Failing::once, Failing::from_then_on}) {
        std::int64_t survived = 0;
        for (bool has_failed = true; has_failed; ++survived) {
            const FailingNew failure(survived + 1, failing);
            try {
                work();
            } catch (const Error&) {
                // the input is refused, or the failure is described
            } catch (const std::bad_alloc&) {
            }
            has_failed = failure.has_failed();
        }
        EXPECT_GT(survived, 3);
    }
}

const char* const texts[] = {
    R"({"a":[1,2.5,{"b":[]},"a string that is too long for the object itself"],"c":{"d":null,"e":true}})",
    R"([[[[[1]]]],{},{"a":{"a":{"a":[{"b":1},{"b":"another string of more than fifteen bytes"}]}}}])",
    R"({"a":[1,2,3],"b":{"c":[1,{"d":2}]},"b":1})",
    R"({"a":[1,2,3],"b":{"c":[1,{"d":2}]},"e":)",
    R"({"a":[1,2,3],"b":"\ud800"})",
    "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[["};

TEST(FailingNew, WhileTextsAreParsed) {
    for (const char* const text : texts) {
        expect_survival([&] { parse_json(text, "source"); });
        expect_survival([&] {
            JsonElements elements(JsonElements::Of::object, [](const std::string&, const JsonValue&) {});
            parse_json(text, "source", {{{}, elements}});
        });
        expect_survival([&] {
            std::string copy;
            JsonWriter writer(copy, 2);
            read_json(text, "source", writer);
            writer.finish();
        });
    }
}

TEST(FailingNew, WhileValuesAreCopiedChangedAndPrinted) {
    const JsonValue value = parse_json(texts[0], "source");
    expect_survival([&] {
        JsonValue copy = value;
        copy.set("new member", JsonValue::object({{"list", std::vector<int>{1, 2, 3}}, {"copy", value}}));
        copy.set("a", JsonValue::array());
        copy.erase("c");
        JsonValue list = copy["new member"]["list"];
        list.push_back(copy);
        list = list[3];
        EXPECT_EQ(list.dump(2), copy.dump(2));
    });
}

TEST(FailingNew, WhileConfigsAreRead) {
    TrainConfig config;
    expect_survival([&] { apply_config_text(config, R"({"layers":2,"preset":"llama-tiny"})", "c.json"); });
    expect_survival([&] { apply_config_text(config, R"({"layers":[1,[2,{"a":3}]]})", "c.json"); });
    expect_survival([&] { to_json(config).dump(2); });
}

TEST(FailingNew, WhileTokenizersAreRead) {
    const TemporaryDirectory place;
    const BytePairVocabulary vocabulary{
        .tokens = {"a", "b", "ab", "a b", " "},
        .merges = {{0, 1, 2}},
        .added = {{.id = 5, .text = "<|endoftext|>"}, {.id = 6, .text = "<x>", .special = false}},
        .patterns = {{std::string(gpt2_pattern())}}};
    std::string text;
    expect_survival([&] {
        text.clear();
        JsonWriter writer(text);
        write_tokenizer_json(writer, vocabulary);
        writer.finish();
    });
    std::string encoder = R"({"a":0,"b":1,"ab":2,"<|endoftext|>":3})";
    const std::string broken = text.substr(0, text.size() - 40);
    const std::string hostile =
        R"({"model":{"vocab":{"a":0,"b":[[1],{"c":2}]},"merges":[["a","b"],[[],{"a":1}]]}})";
    for (const std::string& tokenizer_json : {text, broken, hostile})
        expect_survival(
            [&] { Tokenizer::byte_pairs(vocabulary_of_tokenizer_json(tokenizer_json, "t"), "t"); });
    expect_survival(
        [&] { Tokenizer::byte_pairs(vocabulary_of_encoder_json(encoder, "#version\na b\n", "e"), "e"); });
    const std::string path = place.write("tokenizer.json", text);
    expect_survival([&] { load_tokenizer(path); });
    const Tokenizer tokenizer = load_tokenizer(path);
    expect_survival([&] { Tokenizer::from_json(tokenizer.to_json(), "c.h5"); });
}

TEST(FailingNew, WhileWeightsAreListed) {
    const TemporaryDirectory place;
    const std::string header =
        R"({"__metadata__":{"format":"pt","a":"b"},"model.layers.0.attention.weight":{"dtype":"U8","shape":[1,2],)"
        R"("data_offsets":[0,2]},"b":{"dtype":"U8","shape":[0],"data_offsets":[2,2]}})";
    std::string file(8, '\0');
    put_little_endian(reinterpret_cast<std::byte*>(file.data()), std::uint64_t{header.size()});
    const std::string path = place.write("a.safetensors", file + header + "xy");
    expect_survival([&] { EXPECT_EQ(WeightFiles(path).names().size(), 2u); });
    const std::string index = place.write(
        "i.json",
        R"({"weight_map":{"b":"a.safetensors","model.layers.0.attention.weight":"a.safetensors"},"x":{"y":[1]}})");
    expect_survival([&] { EXPECT_EQ(WeightFiles(index).names().size(), 2u); });
}

TEST(FailingNew, WhileLinesAreRead) {
    const TemporaryDirectory place;
    const std::string conversations = place.write(
        "c.jsonl", R"({"messages":[{"role":"user","content":"a text of more than fifteen bytes"}]})"
                   "\n{\"messages\":[{\"role\":[{}]}]}\n");
    expect_survival([&] { test::documents_in({conversations}); });
    expect_survival([] {
        read_choice_questions(
            TextReader(R"({"ctx":"a text of more than fifteen bytes","endings":["b","c"],"label":0})"
                       "\n{\"ctx\":{\"a\":[1]}}\n",
                       "q.jsonl"));
    });
    const std::string metrics = place.write("metrics.jsonl",
                                            "{\"step\":1,\"loss\":2.5,\"x\":[{\"y\":1}]}\n[[1],[2]]\n"
                                            "{\"event\":\"checkpoint\",\"step\":1}\n");
    expect_survival([&] { MetricsFile::read(metrics); });
    expect_survival([&] { MetricsFile::newest_saves(metrics); });
}

TEST(FailingNew, WhileCheckpointsAreReadAndWritten) {
    const TemporaryDirectory place;
    const std::filesystem::path path = place / "c.h5";
    Checkpoint checkpoint;
    checkpoint.config = parse_json(R"({"layers":2,"a list":[1,{"b":2}]})", "config");
    checkpoint.data = JsonValue::object({{"loader", JsonValue::object({{"epoch", 1}})}});
    checkpoint.meta = parse_json(texts[0], "meta");
    checkpoint.tokenizer = R"({"kind":"characters","characters":"abc"})";
    write_checkpoint(path, checkpoint);
    expect_survival([&] {
        const Checkpoint found = read_checkpoint(path);
        tokenizer_of(found, "c.h5");
    });
    expect_survival([&] {
        const CheckpointInfo info = inspect_checkpoint(path);
        std::string text;
        JsonWriter writer(text);
        write_checkpoint_data(writer, info.data, info.tokenizer);
        writer.finish();
    });
}

}  // namespace
}  // namespace gradtile
