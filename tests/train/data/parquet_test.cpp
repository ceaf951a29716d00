// Parquet files, which pyarrow wrote (tests/reference/make_parquet_reference.py), and damage to them.
// tests/judge/parquet_judge.py compares many more files.
#include <iterator>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/core/io/little_endian.h>
#include <gradtile/train/data/readers/parquet_rows.h>
#include <gradtile/train/data/readers/thrift.h>

#include <support/documents.h>
#include <support/error_message.h>
#include <support/temporary_directory.h>

namespace gradtile {
namespace {

using test::contents_of;
using test::documents_in;
using test::message_of;
using test::TemporaryDirectory;
using testing::AnyOf;
using testing::ElementsAre;
using testing::HasSubstr;

const std::filesystem::path folder = std::string(GRADTILE_SOURCE_DIR) + "/tests/reference/parquet";

std::vector<std::string> expected_texts() {
    std::vector<std::string> texts;
    for (int i = 0; i < 9; ++i) {
        texts.push_back(concat("text ", i, " "));
        for (int k = 0; k < i % 3; ++k) texts.back() += "again ";
    }
    texts.emplace_back("ä\n水");  // an empty text before it is left out
    return texts;
}

/// Returns the texts, or why they cannot be read.
std::vector<std::string> texts_or_error(const std::filesystem::path& path) {
    std::vector<std::string> texts;
    try {
        for (const Document& document : documents_in({path.string()}))
            texts.push_back(std::get<std::string>(document));
    } catch (const Error& error) {
        texts = {error.what()};
    }
    return texts;
}

TEST(Parquet, AFileWithoutRowsHasNoDocuments) {
    EXPECT_THAT(texts_or_error(folder / "none.parquet"), testing::IsEmpty());
}

bool lacks_library(const std::vector<std::string>& texts) {
    return texts.size() == 1 && texts[0].find("when gradtile was built") != std::string::npos;
}

TEST(Parquet, EveryCodecPageVersionAndEncodingGivesTheSameTexts) {
    int files = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
        if (!entry.path().filename().string().starts_with("text_")) continue;
        const std::vector<std::string> texts = texts_or_error(entry.path());
        ++files;
        if (lacks_library(texts)) continue;
        EXPECT_EQ(texts, expected_texts()) << entry.path();
    }
    EXPECT_EQ(files, 11);
}

TEST(Parquet, ListsOfStructsAreConversations) {
    for (const char* name : {"messages_v1.parquet", "messages_v2.parquet"}) {
        const std::vector<Document> documents = documents_in({folder / name});
        ASSERT_EQ(documents.size(), 5u);
        for (std::size_t i = 0; i < 5; ++i) {
            const auto& conversation = std::get<Conversation>(documents[i]);
            ASSERT_EQ(conversation.size(), 2u);
            EXPECT_EQ(conversation[0].content, concat("question ", i));
            EXPECT_EQ(conversation[0].train, std::nullopt);
            EXPECT_EQ(conversation[1].role, ChatRole::assistant);
            EXPECT_EQ(conversation[1].train, i != 3);
        }
    }
}

TEST(Parquet, ListsOfStringsAndPairsAreDocuments) {
    EXPECT_THAT(texts_or_error(folder / "list.parquet"), ElementsAre("a", "b", "c"));
    const std::vector<Document> pairs = documents_in({folder / "pairs.parquet"});
    ASSERT_EQ(pairs.size(), 2u);
    EXPECT_EQ(std::get<Completion>(pairs[1]).prompt, "2 + 2 = ");
    EXPECT_EQ(std::get<Completion>(pairs[1]).completion, "4");
}

TEST(Parquet, AnErrorNamesRowGroupAndColumn) {
    ParquetRows rows(folder / "text_none_v1.parquet");
    EXPECT_THAT(rows.columns(), ElementsAre("id", "text"));
    rows.select({"id"}, {});
    JsonValue row;
    EXPECT_THAT(message_of([&] { rows.next(row); }),
                HasSubstr("text_none_v1.parquet: row group 0, column 'id': type INT64; expected strings"));
    ParquetRows texts(folder / "text_none_v1.parquet");
    texts.select({"text"}, {});
    for (int i = 0; i < 8; ++i) ASSERT_TRUE(texts.next(row));
    EXPECT_THAT(texts.where(), HasSubstr("text_none_v1.parquet: row group 1, row 2"));
}

TEST(Parquet, TwoColumnsOfOneNameAreRefused) {
    const std::string file = contents_of(folder / "pairs.parquet");
    const std::size_t length_at = file.size() - 8;  // of the metadata at the end
    const auto* const bytes = reinterpret_cast<const std::byte*>(file.data());
    const std::size_t footer = get_little_endian<std::uint32_t>(bytes + length_at);
    std::string metadata = file.substr(length_at - footer, footer);
    const std::string other =
                          "\x0A"
                          "completion",
                      same =
                          "\x06"
                          "prompt";  // with their lengths
    for (std::size_t at; (at = metadata.find(other)) != std::string::npos;)
        metadata.replace(at, other.size(), same);
    const TemporaryDirectory place;
    std::string end(4, '\0');
    put_little_endian(reinterpret_cast<std::byte*>(end.data()), static_cast<std::uint32_t>(metadata.size()));
    const std::string path =
        place.write("p.parquet", file.substr(0, length_at - footer) + metadata + end + "PAR1");
    ParquetRows rows(path);
    rows.select({"prompt"}, {});
    JsonValue row;
    EXPECT_THAT(
        message_of([&] { rows.next(row); }),
        HasSubstr("row group 0, column 'prompt': there are several columns of this name; expected one"));
}

/// A changed byte may change nothing, or give other rows; it never does anything else, which the sanitized
/// build of this test shows.
TEST(Parquet, DamageIsRefusedInOneLineOrRead) {
    const TemporaryDirectory place;
    for (const char* name : {"text_snappy_v1.parquet", "text_none_v2.parquet",
                             "text_delta_byte_array.parquet", "messages_v1.parquet"}) {
        const std::string bytes = contents_of(folder / name);
        for (std::size_t i = 0; i < bytes.size(); ++i) {
            std::string damaged = bytes;
            damaged[i] = static_cast<char>(damaged[i] ^ (i % 2 == 0 ? 1 : 128));
            const std::string path = place.write("d.parquet", damaged);
            const std::string message = message_of([&] { documents_in({path}); });
            EXPECT_TRUE(message == "no error" || message.starts_with(path)) << message;
            EXPECT_EQ(message.find('\n'), std::string::npos) << message;
        }
        for (std::size_t size = 4; size < bytes.size(); size += 7) {
            const std::string path = place.write("d.parquet", bytes.substr(0, size));
            EXPECT_THAT(message_of([&] { documents_in({path}); }),
                        AnyOf(HasSubstr("d.parquet: truncated: "), HasSubstr("it is truncated")));
        }
    }
}

TEST(Parquet, ADamagedPageDoesNotHaveItsCrc) {
    const TemporaryDirectory place;
    std::string bytes = contents_of(folder / "text_none_v1.parquet");
    bytes[bytes.find("text 0") + 1] ^= 1;
    EXPECT_THAT(message_of([&] { documents_in({place.write("d.parquet", bytes)}); }),
                HasSubstr("d.parquet: row group 0, column 'text': damaged: the page at byte "));
}

TEST(Thrift, NestingAndListsAreBounded) {
    const auto refusal = [](const std::string& bytes) {
        return message_of([&] {
            ThriftReader reader(std::as_bytes(std::span(bytes)), "input");
            reader.read_struct([](std::int64_t, ThriftReader::Type) { return false; });
        });
    };
    EXPECT_THAT(refusal(std::string(100, '\x1c')), HasSubstr("input: nested more than 32 levels deep"));
    EXPECT_THAT(refusal("\x19\xfc\xff\xff\xff\xff\x0f"),
                HasSubstr("a list of 4294967295 elements ends too early"));
    EXPECT_THAT(refusal(std::string("\x1f\x00", 2)), HasSubstr("input: damaged: Thrift type 15"));
    EXPECT_EQ(refusal(std::string("\x15\x02\x00", 3)), "no error");
    EXPECT_THAT(refusal("\x15"), HasSubstr("ends too early"));
}

}  // namespace
}  // namespace gradtile
