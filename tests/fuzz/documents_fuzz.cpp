// Fuzzes the readers of documents (JSON Lines, Parquet, gzip, zstd, plain text): any bytes give one clear
// Error, or documents that become tokens, examples and windows.
#include "memory_file.h"

#include <utility>
#include <vector>

#include <gradtile/core/check.h>
#include <gradtile/train/data/document_encoder.h>
#include <gradtile/train/data/examples.h>

namespace {

using namespace gradtile;
using fuzz::MemoryFile;
using fuzz::require;

/// Documents that are encoded: a small Parquet file can hold millions.
constexpr int max_documents = 1000;

void require_windows(const Examples& examples) {
    for (const std::int64_t context : {1, 7, 1000}) {
        for (const Packing& packing : {Packing{}, Packing{{DocumentRule::Kind::examples}, 4}}) {
            std::int64_t targets = 0;
            for (const TokenWindow& window : windows_of(examples, context, packing)) {
                require(window.begin >= 0 && window.begin < window.end &&
                        window.end - window.begin <= context && window.end < examples.begins.back());
                for (std::int64_t i = window.begin + 1; i <= window.end; ++i)
                    targets += examples.is_target[static_cast<std::size_t>(i)];
            }
            require(targets == examples.targets());
        }
    }
}

/// Every window's row ranges are inside the window, and each token sees itself.
void require_row_ranges(const Examples& examples) {
    constexpr std::int64_t context = 50;
    for (const DocumentMask mask : {DocumentMask::ranges, DocumentMask::prefix_ranges}) {
        const Packing packing{{DocumentRule::Kind::examples}, 4, mask};
        for (const TokenWindow& window : windows_of(examples, context, packing)) {
            std::vector<std::int32_t> positions(context), ranges(4 * context);
            write_row_ranges(examples, window, context, mask,
                             {nullptr, nullptr, positions.data(), ranges.data()});
            for (std::int32_t i = 0; i < context; ++i) {
                const std::int32_t* const r = ranges.data() + 4 * i;
                const bool is_used = i < window.end - window.begin;
                const bool sees_itself = (r[0] <= i && i < r[1]) || (r[2] <= i && i < r[3]);
                require(sees_itself == is_used && positions[static_cast<std::size_t>(i)] < context);
                for (int end = 0; end < 4; ++end) require(r[end] >= 0 && r[end] <= window.end - window.begin);
            }
        }
    }
}

void read_documents(const std::string& path, ChatTemplate chat_template, TrainOn train_on) {
    DocumentReader reader({path});
    const DocumentEncoder encoder(Tokenizer::bytes(),
                                  {.chat_template = chat_template, .train_on = train_on, .text_end = "\n"});
    Examples examples;
    std::int64_t tokens = 0;
    Document document;
    for (int i = 0; i < max_documents && reader.next(document); ++i) {
        require(!reader.where().empty());
        const EncodedDocument encoded = encoder.encode(document, reader.where());
        if (reader.kind() == DocumentKind::text) continue;
        require(encoded.is_target.size() == encoded.ids.size());
        require(encoded.is_target.empty() || !encoded.is_target.front());
        examples.begins.push_back(tokens += std::ssize(encoded.ids));
        examples.is_target.insert(examples.is_target.end(), encoded.is_target.begin(),
                                  encoded.is_target.end());
    }
    if (examples.count() == 0) return;
    require_windows(examples);
    if (reader.kind() == DocumentKind::conversations) return;
    examples.kind = reader.kind();
    require_row_ranges(examples);
}

/// Documents with their places, as bytes.
using PlacedIds = std::vector<std::pair<DocumentPlace, std::vector<std::int32_t>>>;

PlacedIds read_places(DocumentReader& reader) {
    const DocumentEncoder encoder(Tokenizer::bytes(), {.text_end = "\n"});
    PlacedIds result;
    Document document;
    for (int i = 0; i < max_documents && reader.next(document); ++i)
        result.emplace_back(reader.place(), encoder.encode(document, reader.where()).ids);
    return result;
}

/// A reader that starts at a row, or that passes over rows, finds the documents of the other rows.
void require_places(const std::string& path) {
    DocumentReader all({path});
    const PlacedIds documents = read_places(all);
    if (documents.empty() || std::ssize(documents) == max_documents) return;
    for (const std::int64_t row : {1, 2, 7}) {
        const auto is_later = [&](const DocumentPlace& place) { return place.row >= row; };
        PlacedIds expected = documents;
        std::erase_if(expected, [&](const auto& document) { return !is_later(document.first); });
        if (expected.empty()) continue;
        DocumentReader started({path}, all), selecting({path}, all);
        started.start_at({0, row});
        require(read_places(started) == expected);
        selecting.select_rows(is_later);
        require(read_places(selecting) == expected);
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    static const MemoryFile bytes;
    bytes.write({data, size});
    for (const auto& [chat_template, train_on] :
         {std::pair{ChatTemplate::plain, TrainOn::answers}, std::pair{ChatTemplate::chatml, TrainOn::all},
          std::pair{ChatTemplate::llama3, TrainOn::answers}}) {
        try {
            read_documents(bytes.path(), chat_template, train_on);
        } catch (const Error& error) {
            fuzz::require_clear(error, bytes.path());
        }
    }
    try {
        require_places(bytes.path());
    } catch (const Error&) {
        // The reader refused the file.
    }
    return 0;
}
