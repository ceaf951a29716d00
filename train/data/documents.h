#pragma once
/// Documents: texts, prompts with one or more completions, and conversations, from data files of every
/// format.
#include <algorithm>
#include <compare>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <gradtile/train/data/chat_template.h>
#include <gradtile/train/data/readers/byte_source.h>

namespace gradtile {

class RowSource;

struct Completion {
    std::string prompt, completion;
};
/// Several answers to one prompt, each of which sees the prompt and itself.
struct SharedPrompt {
    std::string prompt;
    std::vector<std::string> completions;  ///< at least one
};
using Document = std::variant<std::string, Completion, Conversation, SharedPrompt>;
/// In the order of Document's alternatives.
enum class DocumentKind { text, completions, conversations, shared_prompts };

/// Which members of a row hold a document. A row is a line of a JSON Lines file or a row of a Parquet file.
///
///     messages                [{"role": ..., "content": ..., "tool_calls": [...], "train": false}, ...]
///     conversations           [{"from": ..., "value": ...}, ...], and "system" (ShareGPT)
///     prompt and completion   two texts, or two lists of messages
///     prompt and completions  a text, and a list of texts
///     text                    a text, or a list of texts: one document each
///
/// The first of these that the first row has is read; other members are ignored. A named column is read as
/// `text`.
class RowColumns {
  public:
    /// `text_column`: --text-column; empty: none.
    explicit RowColumns(std::string text_column) : text_column_(std::move(text_column)) {}

    /// Chooses from the members of the first row. Throws Error, with the place, when there is no document.
    void choose(const std::vector<std::string>& members, const std::string& where);
    /// Returns whether a row has members from which choose() can choose.
    bool finds_document(const std::vector<std::string>& members) const;
    bool is_chosen() const { return !chosen_.empty(); }
    const std::vector<std::string>& chosen() const { return chosen_; }
    const std::string& text_column() const { return text_column_; }
    /// Appends the row's documents. Throws Error that begins with `where` when a member has another form.
    void read(const JsonValue& row, const std::string& where, std::deque<Document>& documents) const;

  private:
    std::vector<std::string> columns_in(const std::vector<std::string>& members) const;

    std::string text_column_;
    std::vector<std::string> chosen_;
};

/// Where a document is: the index of its file in a list, and the index of its row in this file, counted from
/// 0. All documents of a row have one place. A plain text is row 0.
struct DocumentPlace {
    std::int64_t file = 0, row = 0;
    auto operator<=>(const DocumentPlace&) const = default;
};

/// Reads documents from files one after another, with a small part of a file in memory (of a plain text all
/// of it). A file's format follows from its content: Parquet, gzip and zstd from the first bytes, JSON Lines
/// from the first line; a name that ends in .jsonl, .ndjson or .parquet must be right. Everything else is
/// plain text, one document a file.
class DocumentReader {
  public:
    DocumentReader(std::vector<std::string> files, std::string text_column = {});
    /// Reads documents of the format, the columns and the kind that `like` has found in the files that it has
    /// read.
    DocumentReader(std::vector<std::string> files, const DocumentReader& like);
    ~DocumentReader();

    /// Begins at a place instead of the first file's first row. Call before next().
    void start_at(const DocumentPlace& place);
    /// Passes over the rows for which `selects` is false. Call before next().
    void select_rows(std::function<bool(const DocumentPlace&)> selects) { selects_ = std::move(selects); }

    /// Hashes files while they are read. Call before next().
    void hash_files() { hash_ = FileHash::computed; }
    /// Returns the content of a file that was read to its end. Only files that were not hashed meanwhile are
    /// read again: Parquet files, which are not read in order.
    DataContent content(std::int64_t file) const;

    /// Opens the first file and returns whether it is plain text.
    bool begins_with_plain_text();
    /// Sets `document` to the next document that is not empty; returns false at the end. All documents have
    /// one kind, and all files hold rows, or all hold plain text. Throws Error with the file's name and, in a
    /// file of rows, the row's place.
    bool next(Document& document);
    /// Returns the last document's place, for error messages: "FILE" or "FILE: line 7".
    std::string where() const;
    /// Returns the last document's place.
    DocumentPlace place() const { return {file_index(), std::max<std::int64_t>(rows_read_ - 1, 0)}; }
    /// The kind of the documents read so far.
    DocumentKind kind() const { return static_cast<DocumentKind>(kind_.value_or(0)); }
    /// How many bytes of the files were read, before decompression.
    std::int64_t bytes_done() const;

  private:
    enum class Format { none, text, rows };

    void open_next_file();
    void close_file();
    bool read_more();
    bool next_row(JsonValue& row);
    bool is_selected(std::int64_t row) const { return !selects_ || selects_({file_index(), row}); }
    std::int64_t file_index() const { return static_cast<std::int64_t>(next_file_) - 1; }
    void open_rows(std::unique_ptr<RowSource> rows);
    void set_format(Format format);
    void require_one_kind(const Document& document);

    std::vector<std::string> files_;
    std::size_t next_file_ = 0;
    std::int64_t rows_read_ = 0, rows_to_skip_ = 0;  // in the open file, and in the file that is opened next
    std::function<bool(const DocumentPlace&)> selects_;  // empty: all rows
    RowColumns columns_;
    std::optional<TextReader> text_;   // the open plain text
    std::unique_ptr<RowSource> rows_;  // the open file of rows
    std::deque<Document> waiting_;     // of the last row
    Format format_ = Format::none;
    std::optional<std::size_t> kind_;  // index of Document's alternative
    std::int64_t bytes_before_ = 0;    // in the files before the open one
    FileHash hash_ = FileHash::none;
    std::map<std::int64_t, DataContent> contents_;  // of files that were hashed
};

/// Returns whether --data names one file of plain text, which is one text rather than documents. Throws the
/// errors that opening the file throws.
bool is_plain_text(const std::string& path, const std::string& text_column);

/// Returns all texts in a document, without the text of a chat template.
std::vector<std::string> texts_of(const Document& document);

}  // namespace gradtile
