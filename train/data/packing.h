#pragma once
/// Packing: which documents a window of tokens holds.
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <gradtile/train/tokenizers/tokenizer.h>

namespace gradtile {

/// Where documents begin. The first token of a window always begins a document: a document that began before
/// the window is cut there.
struct DocumentRule {
    enum class Kind {
        none,         ///< a window counts as one document
        separator,    ///< at each token `token`
        blank_lines,  ///< after blank lines; `token` is a line break
        examples      ///< at each example of the data (see examples.h); other text is one document
    };
    Kind kind = Kind::none;
    std::int32_t token = -1;

    /// Whether tokens[i] begins a document. Reads the two tokens before tokens[i]; there is no line break
    /// before the span.
    bool begins_document(std::span<const std::int32_t> tokens, std::size_t i) const;
    /// Whether the first token of a document is a target. A separator is a target, because the tokens before
    /// it determine that their document ends. Other first tokens are not targets, because no token before
    /// them belongs to their document.
    bool predicts_first_token() const { return kind != Kind::blank_lines; }
};

/// The windows of a batch as packed documents.
struct Packing {
    DocumentRule rule = {};
    /// The largest number of documents in a window. If a window has more, the targets after the last of these
    /// documents are ignored.
    std::int64_t max_documents = 1;

    explicit operator bool() const { return rule.kind != DocumentRule::Kind::none; }
    /// The number of documents in `windows` windows; 0 if windows are not packed.
    std::int64_t documents_of(std::int64_t windows) const { return *this ? windows * max_documents : 0; }
};

/// The id with which a tokenizer's documents begin: BPE's <|endoftext|>, if it has this token.
std::optional<std::int32_t> separator_of(const Tokenizer& tokenizer);
/// Returns the rule of a run: documents begin at `document_token`, or, if `document_token` is -1, after blank
/// lines of a text. Throws Error if there is neither.
DocumentRule document_rule(std::int64_t document_token, const std::optional<Tokenizer>& tokenizer);

/// One row of a batch: inputs, targets and, if packed, the position of each token in its document.
struct WindowRow {
    std::int32_t* tokens;
    std::int32_t* targets;
    std::int32_t* positions = nullptr;
};
/// Divides the first `length` tokens of a row of `context` into documents: ignores targets in other
/// documents, writes the positions, and appends to `starts` where documents begin. `read` holds the row's
/// tokens and the one after them, from index `first` on; tokens before `first` only help to find borders.
void divide_into_documents(const Packing& packing, std::span<const std::int32_t> read, std::size_t first,
                           std::int64_t length, std::int64_t context, const WindowRow& row,
                           std::vector<std::int32_t>& starts);
/// Divides a row into examples. `borders` holds the places of the row where examples begin, in increasing
/// order. No target is the first token of an example.
void divide_into_examples(const Packing& packing, std::span<const std::int64_t> borders, std::int64_t length,
                          std::int64_t context, const WindowRow& row, std::vector<std::int32_t>& starts);

}  // namespace gradtile
