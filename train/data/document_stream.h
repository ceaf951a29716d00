#pragma once
/// Documents that are read and encoded while a model trains on them, so that memory does not grow with the
/// data.
///
/// An epoch reads the files in an order that follows from the seed and the epoch, and their documents in the
/// order of the file. Successive documents form a block, whose documents are shuffled. So a block is a
/// function of the seed and of the place where it begins, and a run resumes at any block without reading what
/// is before it in the epoch.
#include <atomic>
#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <gradtile/core/random.h>
#include <gradtile/core/text/json_value.h>
#include <gradtile/train/data/document_encoder.h>
#include <gradtile/train/data/stream_files.h>
#include <gradtile/train/data/token_sequence.h>

namespace gradtile {

/// Where a block begins.
struct StreamPlace {
    std::int64_t epoch = 0;
    std::int64_t file = 0;   ///< index in the epoch's order of the files
    std::int64_t row = 0;    ///< index in the file
    std::int64_t block = 0;  ///< number of the block since the run's start

    bool operator==(const StreamPlace&) const = default;
};

/// The documents that a loader cuts into windows together.
struct StreamBlock {
    StreamPlace begin{}, end{};
    TokenSequence tokens{};  ///< with examples(), unless the documents are texts; empty: an epoch without any
};

struct DocumentStreamOptions {
    std::vector<std::string> files{};
    std::string source{};  ///< name of the data in messages
    std::string text_column{};
    /// Documents in a block. A block also ends after max_block_bytes of text, and never divides a row.
    std::int64_t buffer = 1;
    Seed seed{};
    /// Whether rows that StreamFiles::is_validation() selects are left out of the blocks.
    bool keeps_validation = false;
    DocumentEncoderOptions encoding{};
    JsonValue expected_files{};  ///< see StreamFiles
};

class DocumentStream {
  public:
    static constexpr std::size_t max_block_bytes = std::size_t{1} << 25;
    static constexpr std::int64_t max_validation_tokens = 10'000'000;

    /// Reads up to the first document. Throws Error when there is none, and what StreamFiles and
    /// DocumentReader throw.
    DocumentStream(DocumentStreamOptions options, const Tokenizer& tokenizer);
    ~DocumentStream();
    DocumentStream(const DocumentStream&) = delete;
    DocumentStream& operator=(const DocumentStream&) = delete;

    const std::string& source() const { return options_.source; }
    std::int64_t buffer() const { return options_.buffer; }
    DocumentKind kind() const { return form_.kind(); }
    const StreamFiles& files() const { return files_; }
    /// Returns what a checkpoint at this place says about the files, see StreamFiles::to_json(). It has the
    /// hashes of the files that are read to their ends before the place, even if the other thread knows more,
    /// so that equal runs have equal checkpoints.
    JsonValue record_at(const StreamPlace& place) const;

    /// Returns the block that begins at `begin`, and begins to read the one after it in another thread.
    /// Throws Error when a file cannot be read or was changed. Call from one thread.
    StreamBlock block(const StreamPlace& begin);
    /// Returns the documents that blocks leave out for validation, up to max_validation_tokens; empty if
    /// there are none. Call before block().
    TokenSequence validation();

  private:
    std::vector<std::int64_t> file_order(std::int64_t epoch) const;
    void open(const StreamPlace& begin);
    void fetch();
    void pass_files(std::int64_t file);
    StreamPlace next_place(const StreamPlace& begin) const;
    std::vector<PlacedDocument> take_documents();
    StreamBlock read_block(const StreamPlace& begin);
    TokenSequence join(std::vector<EncodedDocument> documents) const;
    void stop_reading_ahead();

    DocumentStreamOptions options_;
    StreamFiles files_;
    DocumentReader form_;  // has found the documents' format, columns and kind
    DocumentEncoder encoder_;
    ThreadPool pool_;

    // Used by the thread that reads ahead, while it runs.
    std::optional<DocumentReader> reader_;
    StreamPlace place_;                      // the next block's
    std::vector<std::int64_t> order_;        // the files in the epoch's order
    std::int64_t file_ = 0;                  // index in order_: all files before it were read
    std::optional<PlacedDocument> pending_;  // the document after the block's; empty: the epoch ends
    DocumentPlace pending_place_;            // with the index in order_

    std::atomic<bool> stops_ = false;
    std::optional<StreamPlace> ahead_;  // begin of the block that is read ahead
    std::future<StreamBlock> ahead_block_;
    std::thread thread_;
};

}  // namespace gradtile
