// Streams of documents: their order, their blocks, the documents for validation, and files that change.
#include <fstream>
#include <map>
#include <numeric>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/core/io/checksum.h>
#include <gradtile/core/io/data_file.h>
#include <gradtile/core/philox.h>
#include <gradtile/train/data/data_loader.h>
#include <gradtile/train/data/dataset.h>
#include <gradtile/train/data/document_stream.h>
#include <gradtile/train/data/examples.h>
#include <gradtile/train/data/readers/data_content.h>
#include <gradtile/train/data/readers/data_files.h>

#include <support/error_message.h>
#include <support/sanitized.h>
#include <support/temporary_directory.h>

namespace gradtile {
namespace {

using test::message_of;
using test::sanitized;
using test::TemporaryDirectory;
using testing::HasSubstr;

std::string little_endian(std::uint64_t value, int bytes) {
    std::string text;
    for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i));
    return text;
}

/// A gzip file with one stored block.
std::string gzip_of(const std::string& text) {
    std::string file("\x1f\x8b\x08\0\0\0\0\0\0\xff\x01", 11);
    file += little_endian(text.size(), 2) + little_endian(~text.size(), 2) + text;
    return file + little_endian(crc32(std::as_bytes(std::span(text))), 4) + little_endian(text.size(), 4);
}

/// A zstd frame with one raw block.
std::string zstd_of(const std::string& text) {
    return std::string("\x28\xb5\x2f\xfd\x00\x58", 6) + little_endian(text.size() << 3 | 1, 3) + text;
}

/// Rows with the texts NAME0, NAME1, ...
std::string rows_of(const std::string& name, int count) {
    std::string rows;
    for (int i = 0; i < count; ++i) rows += concat("{\"text\":\"", name, i, "\"}\n");
    return rows;
}

std::vector<std::string> documents_of(const TokenSequence& tokens) {
    std::vector<std::int32_t> ids(static_cast<std::size_t>(tokens.size()));
    tokens.read(0, ids);
    const std::string text = Tokenizer::bytes().decode(ids);
    std::vector<std::string> documents;
    for (std::size_t begin = 0; begin < text.size();) {
        const std::size_t end = text.find("\n\n", begin);
        documents.push_back(text.substr(begin, end - begin));
        begin = end + 2;
    }
    return documents;
}

struct Epoch {
    std::vector<StreamPlace> places;                  // of the blocks
    std::vector<std::vector<std::string>> documents;  // of each block
    std::vector<std::string> all() const {
        std::vector<std::string> list;
        for (const auto& block : documents) list.insert(list.end(), block.begin(), block.end());
        return list;
    }
};

/// Returns the epoch that begins at `place`, and sets `place` to the next one.
Epoch read_epoch(DocumentStream& stream, StreamPlace& place) {
    Epoch epoch;
    for (const std::int64_t number = place.epoch; place.epoch == number;) {
        const StreamBlock block = stream.block(place);
        EXPECT_EQ(block.begin, place);
        EXPECT_EQ(block.end.block, place.block + 1);
        epoch.places.push_back(place);
        epoch.documents.push_back(documents_of(block.tokens));
        place = block.end;
    }
    return epoch;
}

class Stream : public testing::Test {
  protected:
    Stream() {
        std::filesystem::create_directories(folder_ / "more");
        place_.write("data/a.jsonl", rows_of("a", 150));
        place_.write("data/b.jsonl.zst", zstd_of(rows_of("b", 120)));
        place_.write("data/more/c.jsonl.gz", gzip_of(rows_of("c", 90)));
        place_.write("data/more/empty.jsonl", "");
    }
    DatasetOptions options(std::int64_t buffer, std::uint64_t seed = 1) const {
        return {.data = folder_.string(),
                .tokenizer = TokenizerKind::bytes,
                .stream_buffer = buffer,
                .stream_seed = Seed{seed}};
    }
    /// A resumed run's stream: after a run that has read `epochs` epochs.
    std::string message_on_resume(int epochs, const std::function<void()>& change) {
        JsonValue files;
        {
            const Dataset dataset = load_dataset(options(7));
            StreamPlace place;
            for (int i = 0; i < epochs; ++i) read_epoch(*dataset.stream, place);
            files = dataset.stream->record_at(place);
        }
        change();
        DatasetOptions resumed = options(7);
        resumed.expected_content = JsonValue::object({{"data", std::move(files)}});
        return message_of([&] {
            const Dataset dataset = load_dataset(resumed);
            StreamPlace place;
            read_epoch(*dataset.stream, place);
        });
    }
    void touch(const std::string& name) const {
        std::filesystem::last_write_time(
            folder_ / name, std::filesystem::last_write_time(folder_ / name) + std::chrono::seconds(5));
    }

    TemporaryDirectory place_;
    std::filesystem::path folder_ = place_ / "data";
};

/// Skips the test in a build without the libraries.
#define SKIP_WITHOUT_LIBRARIES()                                                                             \
    if (message_of([&] { load_dataset(options(10)); }).find("when gradtile was built") != std::string::npos) \
    GTEST_SKIP() << "this build lacks zlib or libzstd"

TEST_F(Stream, AnEpochHasEachDocumentOnceAndValidationTheRest) {
    SKIP_WITHOUT_LIBRARIES();
    const Dataset dataset = load_dataset(options(10));
    EXPECT_EQ(dataset.train.size(), 0);
    StreamPlace place;
    std::vector<std::string> found = read_epoch(*dataset.stream, place).all();
    const std::vector<std::string> validation = documents_of(dataset.validation);
    EXPECT_FALSE(validation.empty());
    EXPECT_LT(validation.size(), 15u) << "about one in 100 of 360";
    found.insert(found.end(), validation.begin(), validation.end());
    std::vector<std::string> expected;
    for (const auto& [name, count] : {std::pair("a", 150), {"b", 120}, {"c", 90}})
        for (int i = 0; i < count; ++i) expected.push_back(concat(name, i));
    EXPECT_THAT(found, testing::UnorderedElementsAreArray(expected));
    EXPECT_EQ(documents_of(load_dataset(options(3, /*seed=*/2)).validation), validation)
        << "validation depends neither on the seed nor on the buffer";
}

TEST_F(Stream, ValidationHasTheRowsOfAHash) {
    SKIP_WITHOUT_LIBRARIES();
    const Dataset dataset = load_dataset(options(10));
    const std::map<char, std::string> names{{'a', "a.jsonl"}, {'b', "b.jsonl.zst"}, {'c', "more/c.jsonl.gz"}};
    std::set<std::string> expected;
    for (const auto& [file, count] : {std::pair('a', 150), {'b', 120}, {'c', 90}})
        for (std::uint64_t row = 0; row < static_cast<std::uint64_t>(count); ++row)
            if (const std::uint64_t name = std::stoull(sha256(names.at(file)).substr(0, 16), nullptr, 16);
                mix_seed(name, row) % 100 == 0)
                expected.insert(concat(file, row));
    const std::vector<std::string> found = documents_of(dataset.validation);
    EXPECT_EQ(std::set(found.begin(), found.end()), expected);
}

TEST_F(Stream, WithoutValidationAllDocumentsAreForTraining) {
    SKIP_WITHOUT_LIBRARIES();
    DatasetOptions without = options(10), with_own = options(10);
    without.val_fraction = 0.0;
    with_own.val_data = place_.write("val.txt", "some text");
    for (const DatasetOptions& each : {without, with_own}) {
        const Dataset dataset = load_dataset(each);
        StreamPlace place;
        EXPECT_EQ(read_epoch(*dataset.stream, place).all().size(), 360u);
        EXPECT_EQ(dataset.validation.size(), each.val_data.empty() ? 0 : 9);
    }
}

TEST_F(Stream, BlocksHoldTheBuffersDocumentsInAnOrderOfTheSeed) {
    SKIP_WITHOUT_LIBRARIES();
    const Dataset dataset = load_dataset(options(10)), same = load_dataset(options(10)),
                  other = load_dataset(options(10, /*seed=*/2));
    StreamPlace place, same_place, other_place;
    const Epoch first = read_epoch(*dataset.stream, place), second = read_epoch(*dataset.stream, place);
    for (std::size_t i = 0; i + 1 < first.documents.size(); ++i) EXPECT_EQ(first.documents[i].size(), 10u);
    EXPECT_NE(first.all(), second.all());
    EXPECT_EQ(first.all(), read_epoch(*same.stream, same_place).all());
    EXPECT_NE(first.all(), read_epoch(*other.stream, other_place).all());
    int in_order = 0;
    for (std::vector<std::string> block : first.documents) in_order += std::ranges::is_sorted(block);
    EXPECT_LE(in_order, 1);
    const Dataset one = load_dataset(options(1)), all = load_dataset(options(1'000));
    StreamPlace one_place, all_place;
    const Epoch singles = read_epoch(*one.stream, one_place), together = read_epoch(*all.stream, all_place);
    EXPECT_EQ(singles.places.size(), singles.all().size());
    EXPECT_EQ(together.places.size(), 1u);
    EXPECT_THAT(together.all(), testing::UnorderedElementsAreArray(singles.all()));
}

/// What a resume does: a new stream reads from the place of any block.
void expect_blocks_from_any_place(const DatasetOptions& options) {
    const Dataset dataset = load_dataset(options);
    StreamPlace place;
    for (int epochs = 0; epochs < 2; ++epochs) {
        const Epoch epoch = read_epoch(*dataset.stream, place);
        for (std::size_t i = 0; i < epoch.places.size(); ++i) {
            const Dataset resumed = load_dataset(options);
            StreamPlace from = epoch.places[i];
            const Epoch rest = read_epoch(*resumed.stream, from);
            EXPECT_EQ(from, place);
            EXPECT_EQ(rest.documents, std::vector(epoch.documents.begin() + static_cast<std::ptrdiff_t>(i),
                                                  epoch.documents.end()));
        }
    }
}

TEST_F(Stream, ABlockFollowsFromItsPlace) {
    SKIP_WITHOUT_LIBRARIES();
    expect_blocks_from_any_place(options(17));
}

TEST_F(Stream, ABlockFollowsFromItsPlaceInParquetFiles) {
    const std::filesystem::path reference = std::string(GRADTILE_SOURCE_DIR) + "/tests/reference/parquet";
    for (const std::string pattern : {"text_none_*", "text_delta_*", "list.*"}) {
        DatasetOptions options{.data = (reference / pattern).string(),
                               .val_fraction = 0.0,
                               .tokenizer = TokenizerKind::bytes,
                               .stream_buffer = 3};
        expect_blocks_from_any_place(options);
    }
}

TEST_F(Stream, ABlockFollowsFromItsPlaceInTexts) {
    const std::filesystem::path texts = place_ / "texts";
    std::filesystem::create_directories(texts);
    for (int i = 0; i < 12; ++i) std::ofstream(texts / concat(i, ".txt")) << "text " << i;
    expect_blocks_from_any_place(
        {.data = texts.string(), .tokenizer = TokenizerKind::bytes, .stream_buffer = 5});
}

TEST_F(Stream, ARowIsNotDivided) {
    const std::string path =
        place_.write("lists.jsonl",
                     "{\"text\":[\"a\",\"b\",\"c\"]}\n{\"text\":[]}\n{\"text\":[\"d\"]}\n"
                     "{\"text\":[\"e\",\"\",\"f\"]}\n");
    const DatasetOptions options{
        .data = path, .val_fraction = 0.0, .tokenizer = TokenizerKind::bytes, .stream_buffer = 2};
    const Dataset dataset = load_dataset(options);
    StreamPlace place;
    const Epoch epoch = read_epoch(*dataset.stream, place);
    ASSERT_EQ(epoch.documents.size(), 2u);
    EXPECT_THAT(epoch.documents[0], testing::UnorderedElementsAre("a", "b", "c"));
    EXPECT_THAT(epoch.documents[1], testing::UnorderedElementsAre("d", "e", "f"));
    expect_blocks_from_any_place(options);
}

TEST_F(Stream, ExamplesKeepTheirTargets) {
    const std::string path = place_.write("p.jsonl",
                                          "{\"prompt\":\"ab\",\"completion\":\"c\"}\n"
                                          "{\"prompt\":\"xy\",\"completion\":\"z\"}\n");
    const Dataset dataset = load_dataset(
        {.data = path, .val_fraction = 0.0, .tokenizer = TokenizerKind::bytes, .stream_buffer = 2});
    const TokenSequence tokens = dataset.stream->block({}).tokens;
    ASSERT_NE(tokens.examples(), nullptr);
    EXPECT_EQ(tokens.examples()->begins, (std::vector<std::int64_t>{0, 5, 10}));
    EXPECT_EQ(tokens.examples()->is_target,
              (std::vector<bool>{false, false, true, true, true, false, false, true, true, true}));
}

// ---- Files that change ----

TEST_F(Stream, AResumeAcceptsTheSameFiles) {
    SKIP_WITHOUT_LIBRARIES();
    EXPECT_EQ(message_on_resume(0, [] {}), "no error");
    EXPECT_EQ(message_on_resume(1, [] {}), "no error");
    // Files that were read to their ends are known by their hash.
    EXPECT_EQ(message_on_resume(1, [&] { touch("a.jsonl"); }), "no error");
    EXPECT_EQ(message_on_resume(1,
                                [&] {
                                    std::filesystem::rename(folder_, place_ / "moved");
                                    folder_ = place_ / "moved";
                                }),
              "no error");
}

TEST_F(Stream, AResumeRefusesOtherFilesByName) {
    SKIP_WITHOUT_LIBRARIES();
    EXPECT_THAT(message_on_resume(0, [&] { touch("a.jsonl"); }),
                HasSubstr("a.jsonl: was modified since the run was made, which had not read it to its end"));
    EXPECT_THAT(message_on_resume(1,
                                  [&] {
                                      place_.write("data/a.jsonl", rows_of("x", 150));
                                      touch("a.jsonl");
                                  }),
                HasSubstr("a.jsonl: is not the data that the run was made with: hash sha256:"));
    EXPECT_THAT(message_on_resume(1, [&] { place_.write("data/a.jsonl", rows_of("a", 149)); }),
                HasSubstr("a.jsonl: is not the data that the run was made with: bytes "));
    EXPECT_THAT(message_on_resume(1, [&] { place_.write("data/new.jsonl", rows_of("n", 2)); }),
                HasSubstr("new.jsonl: was not there when the run was made"));
    EXPECT_THAT(message_on_resume(1, [&] { std::filesystem::remove(folder_ / "new.jsonl"); }),
                HasSubstr("data: has no file new.jsonl, which the run was made with"));
}

TEST_F(Stream, ARecordHasTheHashesOfTheFilesThatWereRead) {
    SKIP_WITHOUT_LIBRARIES();
    const Dataset dataset = load_dataset(options(50));
    const auto hashes = [&](const StreamPlace& place) {
        std::vector<std::string> names;
        const JsonValue record = dataset.stream->record_at(place);
        for (const JsonValue& file : record.elements())
            if (file.find("hash") != nullptr) {
                EXPECT_EQ(file["hash"].text(), full_content_of(DataFile(folder_ / file["name"].text())).hash);
                names.push_back(file["name"].text());
            }
        return names.size();
    };
    StreamPlace place;
    EXPECT_EQ(hashes(place), 0u);
    while (place.epoch == 0) {
        EXPECT_EQ(hashes(place), static_cast<std::size_t>(place.file)) << "whatever was read ahead";
        place = dataset.stream->block(place).end;
    }
    EXPECT_EQ(hashes(place), 4u);
}

std::vector<std::string> names_of(const std::string& data) {
    std::vector<std::string> names;
    const JsonValue files = StreamFiles(data_files(data), {}, data).names_and_sizes();
    for (const JsonValue& file : files.elements()) names.push_back(file["name"].text());
    return names;
}

/// The names do not depend on where the data are, nor a file's name on which other files there are.
TEST_F(Stream, FilesHaveNamesBelowTheFolderOfTheData) {
    using testing::ElementsAre;
    const std::string folder = folder_.string();
    const auto all = ElementsAre("a.jsonl", "b.jsonl.zst", "more/c.jsonl.gz", "more/empty.jsonl");
    EXPECT_THAT(names_of(folder), all);
    EXPECT_THAT(names_of(folder + "/"), all);
    EXPECT_THAT(names_of(folder + "/more"), ElementsAre("c.jsonl.gz", "empty.jsonl"));
    EXPECT_THAT(names_of(folder + "/more/*.gz"), ElementsAre("c.jsonl.gz"));
    EXPECT_THAT(names_of(folder + "/mo*/*.gz"), ElementsAre("more/c.jsonl.gz"));
    EXPECT_THAT(names_of(folder + "/a.jsonl"), ElementsAre("."));
    std::filesystem::create_directory(folder_ / "d[1]");
    std::filesystem::copy(folder_ / "a.jsonl", folder_ / "d[1]");
    EXPECT_THAT(names_of(folder + "/d[1]/*.jsonl"), ElementsAre("a.jsonl"));
}

TEST_F(Stream, AFileThatChangesDuringTheRunIsNamed) {
    for (const bool shrinks : {false, true}) {
        const std::filesystem::path folder = place_ / concat("changing", shrinks);
        std::filesystem::create_directories(folder);
        for (const char* name : {"a.jsonl", "b.jsonl", "c.jsonl"})
            std::ofstream(folder / name) << rows_of("r", 40);
        const Dataset dataset = load_dataset({.data = folder.string(),
                                              .val_fraction = 0.0,
                                              .tokenizer = TokenizerKind::bytes,
                                              .stream_buffer = 5});
        StreamPlace place = dataset.stream->block({}).end;
        for (const char* name : {"a.jsonl", "b.jsonl", "c.jsonl"}) {
            const auto time = std::filesystem::last_write_time(folder / name);
            std::ofstream(folder / name) << rows_of("r", shrinks ? 3 : 40);
            std::filesystem::last_write_time(folder / name, time + std::chrono::seconds(5));
        }
        const std::string message = message_of([&] {
            while (place.epoch == 0) place = dataset.stream->block(place).end;
        });
        EXPECT_THAT(message, HasSubstr(shrinks ? ".jsonl: " : ".jsonl: was modified since"));
        EXPECT_THAT(message_of([&] { dataset.stream->block(place); }), HasSubstr(".jsonl: ")) << "it stays";
    }
}

TEST_F(Stream, AnErrorInARowHasItsPlace) {
    const std::string path = place_.write("bad.jsonl", rows_of("g", 10) + "{\"text\":\n" + rows_of("h", 10));
    const Dataset dataset = load_dataset(
        {.data = path, .val_fraction = 0.0, .tokenizer = TokenizerKind::bytes, .stream_buffer = 4});
    StreamPlace place;
    EXPECT_THAT(message_of([&] {
                    while (place.epoch == 0) place = dataset.stream->block(place).end;
                }),
                HasSubstr("bad.jsonl: line 11: "));
    EXPECT_EQ(place.row, 8);
}

TEST_F(Stream, RefusesByNameWhatItCannotRead) {
    const auto message = [&](const std::string& data, TokenizerKind kind = TokenizerKind::bytes) {
        return message_of([&] { load_dataset({.data = data, .tokenizer = kind, .stream_buffer = 10}); });
    };
    EXPECT_THAT(message("-"), HasSubstr("data: - is standard input"));
    EXPECT_THAT(message(place_.write("a.bin", "0123")), HasSubstr("a.bin: is a token file"));
    EXPECT_THAT(message(place_.write("a.txt", "text")),
                HasSubstr("a.txt: is one text; expected files of documents"));
    EXPECT_THAT(message(place_.write("d.jsonl", rows_of("a", 3)), TokenizerKind::characters),
                HasSubstr("tokenizer: characters are collected from all documents"));
    EXPECT_THAT(message(place_.write("e.jsonl", "")), HasSubstr("e.jsonl: is empty"));
}

// ---- Memory ----

std::int64_t resident_bytes() {
    std::ifstream file("/proc/self/statm");
    std::int64_t all = 0, resident = 0;
    file >> all >> resident;
    return resident * ::sysconf(_SC_PAGESIZE);
}

/// Writes `count` rows of 1,000 characters each.
std::string write_many_rows(const TemporaryDirectory& place, int count) {
    const std::string row = "{\"text\":\"" + std::string(1'000, 'x') + "\"}\n", path = place / "many.jsonl";
    std::ofstream file(path, std::ios::binary);
    for (int i = 0; i < count; ++i) file << row;
    return path;
}

TEST_F(Stream, MemoryDoesNotGrowWithTheData) {
    if (sanitized) GTEST_SKIP() << "a sanitizer keeps memory that was freed";
    const std::string path = write_many_rows(place_, 100'000);
    const Dataset dataset =
        load_dataset({.data = path, .tokenizer = TokenizerKind::bytes, .stream_buffer = 1'000});
    StreamPlace place = dataset.stream->block({}).end;
    const std::int64_t before = resident_bytes();
    std::int64_t most = before;
    while (place.epoch == 0) {
        place = dataset.stream->block(place).end;
        most = std::max(most, resident_bytes());
    }
    // A block has a megabyte of text and four of tokens; a few blocks exist at a time, where the data have
    // 100 MB.
    EXPECT_LT(most - before, 40'000'000);
}

TEST_F(Stream, ALongBufferIsLimitedByItsText) {
    const std::string path = write_many_rows(place_, 80'000);
    const Dataset dataset =
        load_dataset({.data = path, .tokenizer = TokenizerKind::bytes, .stream_buffer = 1 << 24});
    StreamPlace place;
    const StreamBlock block = dataset.stream->block(place);
    EXPECT_GT(block.tokens.size(), static_cast<std::int64_t>(DocumentStream::max_block_bytes));
    EXPECT_LT(block.tokens.size(), static_cast<std::int64_t>(DocumentStream::max_block_bytes) * 101 / 100);
    EXPECT_EQ(block.end.epoch, 0);
}

// ---- Loader ----

class StreamLoader : public Stream {
  protected:
    static constexpr std::int64_t context_ = 16;
    std::string rows_ = place_.write("rows.jsonl", rows_of("row", 300));
    DataLoader loader(std::int64_t buffer, std::int64_t rank = 0, std::int64_t ranks = 1) {
        DatasetOptions how = options(buffer);
        how.data = rows_;
        return DataLoader(load_dataset(how).stream,
                          {.context = context_, .seed = Seed{3}, .rank = rank, .ranks = ranks});
    }
    static std::vector<std::int32_t> next_rows(DataLoader& loader, std::int64_t rows) {
        std::vector<std::int32_t> both(static_cast<std::size_t>(2 * rows * context_));
        loader.next(std::span(both).first(both.size() / 2), std::span(both).last(both.size() / 2));
        return both;
    }
};

TEST_F(StreamLoader, EveryTokenOfABlockIsATargetOnce) {
    for (const std::int64_t buffer : {1, 2, 20, 1000}) {
        DataLoader data = loader(buffer);
        const Dataset dataset = load_dataset([&] {
            DatasetOptions how = options(buffer);
            how.data = rows_;
            return how;
        }());
        std::int64_t expected = 0, counted = 0;
        for (StreamPlace place; place.epoch == 0;) {
            const StreamBlock block = dataset.stream->block(place);
            expected += block.tokens.size() - 1;
            place = block.end;
        }
        std::vector<std::int32_t> row(2 * context_);
        while (data.epoch() == 0)
            counted += data.next(std::span(row).first(context_), std::span(row).last(context_));
        EXPECT_EQ(counted, expected) << buffer;
    }
}

TEST_F(StreamLoader, ResumesAnywhere) {
    for (const std::int64_t buffer : {1, 30, 1000}) {
        DataLoader data = loader(buffer);
        for (int i = 0; i < 150; ++i) {  // two epochs
            const JsonValue state = data.state();
            DataLoader resumed = loader(buffer);
            resumed.restore(state);
            EXPECT_EQ(resumed.state(), state);
            const std::vector<std::int32_t> next = next_rows(data, 5);
            ASSERT_EQ(next_rows(resumed, 5), next) << "buffer " << buffer << ", batch " << i;
            if (i % 10 == 0) {  // a step that is dropped
                data.restore(state);
                ASSERT_EQ(next_rows(data, 5), next);
            }
        }
        EXPECT_GT(data.epoch(), 0);
    }
}

TEST_F(StreamLoader, RanksShareTheWindowsOfOneProcess) {
    DataLoader alone = loader(30), first = loader(30, 0, 2), second = loader(30, 1, 2);
    for (int i = 0; i < 100; ++i) {
        const std::vector<std::int32_t> all = next_rows(alone, 4);
        const std::vector<std::int32_t> a = next_rows(first, 2), b = next_rows(second, 2);
        std::vector<std::int32_t> joined(a.begin(), a.begin() + 2 * context_);
        joined.insert(joined.end(), b.begin(), b.begin() + 2 * context_);
        ASSERT_EQ(joined, std::vector(all.begin(), all.begin() + 4 * context_));
        ASSERT_EQ(first.state(), alone.state());
    }
}

TEST_F(StreamLoader, RefusesAStateOfOtherData) {
    DataLoader data = loader(30);
    const JsonValue state = data.state();
    const auto message_with = [&](const char* key, std::int64_t value) {
        JsonValue other = state;
        other.set(key, value);
        const std::string message = message_of([&] { data.restore(other); });
        EXPECT_EQ(data.state(), state);
        return message;
    };
    EXPECT_THAT(message_with("buffer", 31), HasSubstr("belongs to stream-buffer 31, not 30"));
    EXPECT_THAT(message_with("file", 1), HasSubstr("row 0 of file 1; the data have 1 files"));
    EXPECT_THAT(message_with("file", -1), HasSubstr("row 0 of file -1"));
    EXPECT_THAT(message_with("row", -1), HasSubstr("row -1 of file 0"));
    EXPECT_THAT(message_with("row", 301), HasSubstr("rows.jsonl: has fewer than 301 rows"));
    EXPECT_THAT(message_with("block", -1), HasSubstr("data position: block -1"));
    EXPECT_THAT(message_with("epoch", -1), HasSubstr("in epoch -1"));
    EXPECT_THAT(message_with("position", 1'000'000), HasSubstr("data position: window 1000000 of"));
    EXPECT_THAT(message_with("seed", 4), HasSubstr("another seed"));
}

TEST_F(StreamLoader, DataWithoutATargetAreRefused) {
    const std::string path = place_.write("p.jsonl", "{\"prompt\":\"ab\",\"completion\":\"c\"}\n");
    DatasetOptions how{.data = path, .tokenizer = TokenizerKind::bytes, .stream_buffer = 2};
    how.val_data = path;
    const Dataset dataset = load_dataset(how);
    EXPECT_EQ(message_of([&] { DataLoader(dataset.stream, {.context = 8}); }), "no error");
    // All rows are for validation: an epoch without documents.
    std::string name_row;
    for (int i = 0; name_row.empty(); ++i) {
        const std::filesystem::path folder = place_ / concat("only", i);
        std::filesystem::create_directories(folder);
        std::ofstream(folder / concat(i, ".jsonl")) << rows_of("a", 1);
        std::ofstream(folder / "z.jsonl");
        const std::uint64_t name = std::stoull(sha256(concat(i, ".jsonl")).substr(0, 16), nullptr, 16);
        if (mix_seed(name, 0) % 100 == 0) name_row = folder.string();
    }
    how.val_data.clear();
    how.data = name_row;
    const Dataset only = load_dataset(how);
    EXPECT_GT(only.validation.size(), 0);
    EXPECT_THAT(message_of([&] { DataLoader(only.stream, {.context = 8}); }),
                HasSubstr("has no target to train on"));
}

}  // namespace
}  // namespace gradtile
