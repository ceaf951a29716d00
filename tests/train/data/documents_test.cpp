// Documents in JSON Lines and in plain text: which members are read, how formats are recognised, and what is
// refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/train/data/documents.h>
#include <gradtile/train/data/readers/data_files.h>

#include <support/documents.h>
#include <support/error_message.h>
#include <support/temporary_directory.h>

namespace gradtile {
namespace {

using test::conversations_in;
using test::documents_in;
using test::message_of;
using test::TemporaryDirectory;
using testing::ElementsAre;
using testing::HasSubstr;
using namespace std::string_literals;

std::vector<std::string> texts_in(std::vector<std::string> files, const std::string& column = {}) {
    std::vector<std::string> texts;
    for (const Document& document : documents_in(std::move(files), column))
        texts.push_back(std::get<std::string>(document));
    return texts;
}

/// Returns the refusal of a file's second line, after a sound first one.
std::string refusal(const std::string& line,
                    const std::string& first = R"({"messages":[{"role":"user","content":""}]})") {
    const TemporaryDirectory place;
    return message_of([&] { documents_in({place.write("f.jsonl", first + "\n" + line)}); });
}

TEST(Documents, FilesAreHashedWithoutASecondRead) {
    const TemporaryDirectory place;
    for (const std::string& text :
         {std::string("plain"), std::string("{\"text\":\"a\"}\n{\"text\":\"b\"}\n\n")}) {
        const std::vector<std::string> files{place.write("a", text), place.write("b", text)};
        std::vector<DataContent> expected;
        for (const std::string& path : files) expected.push_back(full_content_of(DataFile(path)));
        DocumentReader reader(files);
        reader.hash_files();
        for (Document document; reader.next(document);) {
        }
        for (const std::string& path : files) std::filesystem::remove(path);
        EXPECT_EQ(reader.content(0), expected[0]);
        EXPECT_EQ(reader.content(1), expected[1]);
    }
}

TEST(Documents, ABinaryFileAmongTextsIsRefused) {
    const TemporaryDirectory place;
    const std::string text = place.write("a.txt", "a text"),
                      image = place.write("b.png", std::string("\x89PNG\r\n\x1a\n\0\0\0\rIHDR", 16));
    EXPECT_EQ(texts_in({text}), std::vector<std::string>{"a text"});
    EXPECT_THAT(
        message_of([&] { texts_in(data_files(place.path().string())); }),
        testing::StartsWith(image + ": is binary (it has zero bytes and is not UTF-8); expected UTF-8"));
    EXPECT_EQ(texts_in({image}).front().size(), 16u);
    // A zero byte is a character of UTF-8. The part that is looked at ends within a character.
    std::string long_text = std::string(1, '\0');
    while (long_text.size() < 9000) long_text += "\u20ac";
    const std::string zero = place.write("c.txt", long_text);
    EXPECT_EQ(texts_in({text, zero}), (std::vector<std::string>{"a text", long_text}));
}

TEST(Documents, AFileThatShrinksWhileItIsReadIsNamed) {
    const TemporaryDirectory place;
    std::string rows;
    while (rows.size() < 200'000) rows += "{\"text\": \"a row\"}\n";
    const std::string path = place.write("f.jsonl", rows);
    DocumentReader reader({path});
    Document document;
    ASSERT_TRUE(reader.next(document));
    std::filesystem::resize_file(path, 100'000);
    const std::string message = message_of([&] {
        while (reader.next(document)) {
        }
    });
    EXPECT_THAT(message, testing::StartsWith(path + ": ends at byte 100000; expected "));
}

TEST(Documents, ConversationsAreReadLineByLine) {
    const std::vector<Conversation> conversations = conversations_in(
        "\xEF\xBB\xBF{\"id\": 7, \"messages\": [{\"role\": \"user\", \"content\": \"a\\nb\"}]}\r\n"
        "\n"
        "{\"messages\": [{\"role\": \"assistant\", \"content\": \"\", \"name\": \"x\"}, "
        "{\"role\": \"system\", \"content\": \"\\u00e9\", \"train\": true}]}");
    ASSERT_EQ(conversations.size(), 2u);
    EXPECT_EQ(conversations[0][0].role, ChatRole::user);
    EXPECT_EQ(conversations[0][0].content, "a\nb");
    EXPECT_EQ(conversations[1][0].content, "");
    EXPECT_EQ(conversations[1][0].train, std::nullopt);
    EXPECT_EQ(conversations[1][1].content, "é");
    EXPECT_EQ(conversations[1][1].train, true);
}

TEST(Documents, TheLineThatIsWrongIsNamed) {
    EXPECT_THAT(refusal("{"), HasSubstr("f.jsonl: line 2: not JSON"));
    EXPECT_THAT(refusal("[]"),
                HasSubstr("f.jsonl: line 2: [...]; expected an object with messages, as the first row has"));
    EXPECT_THAT(refusal("{\"text\": \"a\"}"), HasSubstr("line 2: {...}; expected an object with messages"));
    EXPECT_THAT(refusal("{\"messages\": []}"),
                HasSubstr("line 2: messages is empty; expected at least one message"));
    EXPECT_THAT(refusal("{\"messages\": 3}"),
                HasSubstr("line 2: messages: 3; expected an array of messages"));
    EXPECT_THAT(refusal("{\"messages\": [3]}"),
                HasSubstr("line 2: message 1: 3; expected an object with the texts role and content"));
    EXPECT_THAT(refusal("{\"messages\": [{\"role\": \"user\", \"content\": [1]}]}"),
                HasSubstr("message 1: content: [...]; expected a text"));
    EXPECT_THAT(refusal("{\"messages\": [{\"role\": \"user\"}]}"),
                HasSubstr("message 1: content: missing; expected a text"));
    EXPECT_THAT(refusal("{\"messages\": [{\"content\": \"a\"}]}"),
                HasSubstr("message 1: role: missing; expected a text"));
    EXPECT_THAT(refusal("{\"messages\": [{\"role\": \"assistant\", \"tool_calls\": [7]}]}"),
                HasSubstr("message 1: tool call 1: 7; expected an object with name and arguments"));
    EXPECT_THAT(
        refusal("{\"messages\": [{\"role\": \"critic\", \"content\": \"a\"}]}"),
        HasSubstr("line 2: message 1: role: 'critic' is unknown; expected system, user, assistant or tool"));
    EXPECT_THAT(refusal("{\"messages\": [{\"role\": \"user\", \"content\": \"a\", \"train\": 1}]}"),
                HasSubstr("message 1: train: 1; expected true or false"));
    EXPECT_THAT(refusal("{\"messages\": [{\"role\": \"user\", \"content\": \"a\", \"weight\": 0}]}"),
                HasSubstr("message 1: weight: 0; expected 1"));
    EXPECT_THAT(refusal("{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"tools\": [{}]}"),
                HasSubstr("line 2: tools: definitions of tools are not a part of the chat template"));
    EXPECT_THAT(
        refusal(R"({"messages": [{"role": "user", "content": "a"}], "tools": "[{\"name\": \"f\"}]"})"),
        HasSubstr("line 2: tools: definitions of tools are not a part of the chat template"));
    EXPECT_THAT(refusal(R"({"messages": [{"role": "user", "content": "a"}], "tools": "f"})"),
                HasSubstr("line 2: tools: definitions of tools"));
    for (const char* const none : {"[]", "null", "\"\"", "\"[]\""})
        EXPECT_EQ(
            conversations_in(concat(R"({"messages":[{"role":"user","content":"a"}],"tools":)", none, "}"))
                .size(),
            1u)
            << none;
    EXPECT_THAT(refusal(std::string(100'000, '[')), HasSubstr("line 2: nested more than 64 levels"));
    EXPECT_THAT(refusal("{\"messages\": 1, \"messages\": 2}"), HasSubstr("line 2: 'messages' occurs twice"));
    EXPECT_THAT(
        message_of([] { conversations_in("{\"body\": \"a\"}"); }),
        HasSubstr("c.jsonl: line 1: expected an object with an array named messages or conversations, with "
                  "prompt and completion or completions, or with text (another name: --text-column NAME); it "
                  "has: body"));
}

TEST(Documents, ToolCallsHaveTheFormsThatOpenAiAndTransformersWrite) {
    const std::vector<Conversation> conversations = conversations_in(
        R"({"messages":[{"role":"assistant","content":null,"tool_calls":[{"type":"function","id":"1",)"
        R"("function":{"name":"add","arguments":"{\"b\": 1, \"a\": 2}"}},{"name":"sub","arguments":{"a":3}}]},)"
        R"({"role":"tool","content":"3","tool_call_id":"1"}]})");
    ASSERT_EQ(conversations[0][0].tool_calls.size(), 2u);
    EXPECT_EQ(conversations[0][0].tool_calls[0].name, "add");
    EXPECT_EQ(conversations[0][0].tool_calls[0].arguments, "{\"b\": 1, \"a\": 2}");
    EXPECT_EQ(conversations[0][0].tool_calls[1].arguments, "{\"a\":3}");
    EXPECT_EQ(conversations[0][1].role, ChatRole::tool);
    EXPECT_THAT(
        refusal(R"({"messages":[{"role":"assistant","tool_calls":[{"name":"add","arguments":"{"}]}]})"),
        HasSubstr("line 2: message 1: tool call 1: arguments: not JSON"));
    EXPECT_THAT(refusal(R"({"messages":[{"role":"assistant","tool_calls":[{"name":"add","arguments":3}]}]})"),
                HasSubstr("tool call 1: arguments: 3; expected an object or its JSON text"));
}

TEST(Documents, ShareGptIsAConversation) {
    const std::vector<Conversation> conversations = conversations_in(
        R"({"system":"Be kind.","conversations":[{"from":"human","value":"Hi"},{"from":"gpt","value":"Hello"},)"
        R"({"from":"observation","value":"3"}]})");
    ASSERT_EQ(conversations[0].size(), 4u);
    EXPECT_EQ(conversations[0][0].role, ChatRole::system);
    EXPECT_EQ(conversations[0][1].role, ChatRole::user);
    EXPECT_EQ(conversations[0][2].content, "Hello");
    EXPECT_EQ(conversations[0][3].role, ChatRole::tool);
    EXPECT_THAT(refusal(R"({"conversations":[{"from":"bing","value":"a"}]})",
                        R"({"conversations":[{"from":"human","value":"a"}]})"),
                HasSubstr("line 2: message 1: from: 'bing' is unknown"));
}

TEST(Documents, APromptWithItsCompletionIsTwoTextsOrTwoListsOfMessages) {
    const TemporaryDirectory place;
    const auto documents =
        documents_in({place.write("p.jsonl", R"({"prompt":"1 + 1 = ","completion":"2","text":"other"})")});
    EXPECT_EQ(std::get<Completion>(documents.at(0)).prompt, "1 + 1 = ");
    EXPECT_EQ(std::get<Completion>(documents.at(0)).completion, "2");
    const Conversation conversation =
        conversations_in(R"({"prompt":[{"role":"assistant","content":"a"},{"role":"user","content":"b"}],)"
                         R"("completion":[{"role":"assistant","content":"c"}]})")
            .at(0);
    ASSERT_EQ(conversation.size(), 3u);
    EXPECT_EQ(conversation[0].train, false);
    EXPECT_EQ(conversation[2].train, true);
    EXPECT_THAT(refusal(R"({"prompt":"a"})", R"({"prompt":"a","completion":"b"})"),
                HasSubstr("line 2: completion: missing; expected a text"));
}

TEST(Documents, TextsAreInTheNamedColumn) {
    const TemporaryDirectory place;
    const std::string path = place.write("t.jsonl", R"({"text":"a","body":["b","","c"],"messages":[]})");
    EXPECT_THAT(texts_in({path}, "text"), ElementsAre("a"));
    EXPECT_THAT(texts_in({path}, "body"), ElementsAre("b", "c")) << "empty documents are left out";
    EXPECT_THAT(
        message_of([&] { texts_in({path}, "title"); }),
        HasSubstr("t.jsonl: line 1: has no column 'title' (text-column); it has: body, messages, text"));
    EXPECT_THAT(message_of([&] { texts_in({place.write("n.jsonl", "{\"text\": null}")}); }),
                HasSubstr("n.jsonl: line 1: text: null; expected a text"));
    EXPECT_THAT(message_of([&] { texts_in({place.write("p.txt", "plain")}, "body"); }),
                HasSubstr("p.txt: holds plain text; expected rows with a column 'body' (text-column)"));
}

TEST(Documents, AFormatFollowsFromTheContent) {
    const TemporaryDirectory place;
    EXPECT_THAT(texts_in({place.write("a.txt", "{\"text\": \"a\"}\n{\"text\": \"b\"}\n")}),
                ElementsAre("a", "b"));
    EXPECT_THAT(texts_in({place.write("b.txt", "{\"other\": \"a\"}\n")}),
                ElementsAre("{\"other\": \"a\"}\n"));
    EXPECT_THAT(texts_in({place.write("c.json", "{\n\"text\": \"a\"}\n")}),
                ElementsAre("{\n\"text\": \"a\"}\n"));
    const std::string longer(100'000, 'x');
    EXPECT_THAT(texts_in({place.write("d", "{\"text\": \"" + longer + "\"}")}), ElementsAre(longer));
    EXPECT_THAT(message_of([&] { texts_in({place.write("e.parquet", "text")}); }),
                HasSubstr("e.parquet: is no Parquet file: it does not begin with PAR1"));
    EXPECT_THAT(message_of([&] { texts_in({place.write("f.json", "[{\"text\": \"a\"}]")}); }),
                HasSubstr("f.json: is one JSON array; expected JSON Lines"));
    const auto refusal = [&](const std::string& text) {
        return message_of([&] { texts_in({place.write("i.json", text)}); });
    };
    for (const char* const spaced :
         {"{ \"text\": \"a\"}\n", " {\"text\": \"a\"}\n", "\n\r\n{\"text\" : \"a\"}\n"})
        EXPECT_THAT(texts_in({place.write("i.json", spaced)}), ElementsAre("a")) << spaced;
    // Not JSON, but in the form of a row: no text.
    EXPECT_THAT(refusal("{\"text\": \"a\", \"score\": NaN}\n"), HasSubstr("i.json: line 1: not JSON"));
    EXPECT_THAT(refusal("{\"text\": \"a\"}\r{\"text\": \"b\"}\r"), HasSubstr("i.json: line 1: not JSON"));
    EXPECT_THAT(refusal("{\"text\": \"\xFF\"}\n"), HasSubstr("i.json: line 1"));
    EXPECT_THAT(texts_in({place.write("j", "{\"id\": 1, \"text\": \"" + longer + "\"}\n{\"text\": \"b\"}")}),
                ElementsAre(longer, "b"));
    EXPECT_THAT(texts_in({place.write("k.txt", "{ \"text\"\n")}), ElementsAre("{ \"text\"\n"));
    EXPECT_THAT(texts_in({place.write("k.txt", "{ \"name\": x }\n")}), ElementsAre("{ \"name\": x }\n"));
    std::string tar(1024, '\0');
    tar.replace(0, 5, "a.txt").replace(257, 5, "ustar").replace(512, 4, "text");
    EXPECT_THAT(refusal(tar), HasSubstr("i.json: is a tar archive; expected text"));
    EXPECT_TRUE(is_plain_text(place.write("g.txt", "text"), ""));
    EXPECT_FALSE(is_plain_text(place.write("h.txt", "{\"text\": \"a\"}"), ""));
}

TEST(Documents, Utf16AndUtf32AreRefusedWithAndWithoutAByteOrderMark) {
    const TemporaryDirectory place;
    const auto encoded = [](const std::u32string& text, std::size_t unit_bytes, bool is_big) {
        std::string bytes;
        for (const char32_t c : text)
            for (std::size_t i = 0; i < unit_bytes; ++i)
                bytes += static_cast<char>(c >> 8 * (is_big ? unit_bytes - 1 - i : i));
        return bytes;
    };
    const std::u32string ascii = U"one line\r\n",
                         cyrillic = U"\u043E\u0434\u0438\u043D \u0431\u0430\u0439\u0442\n";
    for (const std::u32string& text : {ascii, cyrillic})
        for (const std::size_t unit_bytes : {2u, 4u})
            for (const bool is_big : {false, true})
                for (const bool has_mark : {false, true}) {
                    const std::string bytes =
                        encoded((has_mark ? U"\uFEFF" : U"") + text, unit_bytes, is_big);
                    const std::string name = concat("UTF-", 8 * unit_bytes,
                                                    has_mark ? ""
                                                    : is_big ? "BE"
                                                             : "LE");
                    EXPECT_THAT(message_of([&] { texts_in({place.write("w.txt", bytes)}); }),
                                HasSubstr(concat("w.txt: is ", name, " by its zero byte at offset ",
                                                 bytes.find('\0'), "; expected UTF-8 text (iconv -f ", name)))
                        << bytes.size() << " bytes";
                }
    for (const std::string& other :
         {std::string(64, '\0'), std::string(100, 'a') + "\0 one zero byte"s, "\1\0\xFF\xFF\2\0"s,
          "\xFF\xFE no zero byte"s, "a\0"s, "fields of\0 even length, \0each\0\n"s})
        EXPECT_THAT(texts_in({place.write("other", other)}), ElementsAre(other)) << other.size() << " bytes";
}

TEST(Documents, AllDocumentsHaveOneKind) {
    const TemporaryDirectory place;
    const std::string rows = place.write("a.jsonl", "{\"text\": \"a\"}"), plain = place.write("b.txt", "b"),
                      pairs = place.write("c.jsonl", R"({"text":"a","prompt":"a","completion":"b"})");
    EXPECT_THAT(message_of([&] {
                    texts_in({rows, plain});
                }),
                HasSubstr(concat("b.txt: holds plain text; the file before it, ", rows, ", holds rows")));
    EXPECT_THAT(texts_in({rows, pairs}), ElementsAre("a", "a")) << "the first row chooses the column";
    EXPECT_THAT(
        message_of([&] {
            documents_in({place.write("d.jsonl", R"({"prompt":"a","completion":"b"})"
                                                 "\n"
                                                 R"({"prompt":[{"role":"user","content":"a"}],)"
                                                 R"("completion":[{"role":"user","content":"a"}]})")});
        }),
        HasSubstr("d.jsonl: line 2: holds a conversation, but the documents before it are a prompt with a "
                  "completion each"));
}

TEST(DataFiles, AreSortedByPath) {
    const TemporaryDirectory place;
    std::filesystem::create_directories(place / "data" / "b");
    std::filesystem::create_directories(place / "data" / ".git");
    for (const char* name : {"data/c.txt", "data/a.txt", "data/b/d.txt", "data/.hidden", "data/.git/config"})
        place.write(name, name);
    const std::string folder = place / "data";
    EXPECT_THAT(data_files(folder), ElementsAre(folder + "/a.txt", folder + "/b/d.txt", folder + "/c.txt"));
    EXPECT_THAT(data_files(folder + "/*.txt"), ElementsAre(folder + "/a.txt", folder + "/c.txt"));
    EXPECT_THAT(data_files(folder + "/c.txt"), ElementsAre(folder + "/c.txt"));
    EXPECT_THAT(message_of([&] { data_files(folder + "/.git"); }), "no error");
    EXPECT_THAT(message_of([&] { data_files(folder + "/*.md"); }), HasSubstr("*.md: no file matches"));
    EXPECT_THAT(message_of([&] { texts_in({place.write("t.bin", "ab")}); }),
                HasSubstr("t.bin: is a token file"));
    // Other bytes than those of gzip and zstd: the name decides.
    const auto refusal_of = [&](const char* name) {
        return message_of([&] { texts_in({place.write(name, "ab")}); });
    };
    const std::string packed = ": is a compressed token file by its name; expected it decompressed ";
    EXPECT_THAT(refusal_of("t.bin.gz"), HasSubstr("t.bin.gz" + packed + "(gzip -d)"));
    EXPECT_THAT(refusal_of("t.bin.zst"), HasSubstr("t.bin.zst" + packed + "(zstd -d)"));
}

TEST(DataFiles, ANameThatExistsIsNoPattern) {
    const TemporaryDirectory place;
    for (const char* const folder : {"p[1]", "p1", "b*\\", "b-"}) {
        std::filesystem::create_directories(place / folder);
        for (const char* const name : {"a.txt", "we*ird?.txt", "we-irds.txt"})
            place.write(std::string(folder) + "/" + name, folder);
    }
    for (const std::string folder : {"p[1]", "b*\\"}) {
        const std::string base = place / folder;
        for (const std::string name : {"/a.txt", "/we*ird?.txt"}) {
            EXPECT_FALSE(is_pattern(base + name)) << base + name << ": is a pattern; expected the file";
            EXPECT_THAT(data_files(base + name), ElementsAre(base + name)) << "files of " << base + name;
        }
        EXPECT_THAT(data_files(base + "/a*.txt"), ElementsAre(base + "/a.txt")) << "files of a pattern";
        EXPECT_THAT(data_files(base + "/we*.txt"), ElementsAre(base + "/we*ird?.txt", base + "/we-irds.txt"));
        EXPECT_EQ(folder_of_pattern(base + "/we*.txt"), base);
        EXPECT_THAT(message_of([&] { data_files(base + "/b[1].txt"); }), HasSubstr("no file matches"));
    }
    EXPECT_THAT(data_files(place / "p[0-9]/a.txt"), ElementsAre((place / "p1/a.txt").string()))
        << "files of a pattern whose folder does not exist";
}

}  // namespace
}  // namespace gradtile
