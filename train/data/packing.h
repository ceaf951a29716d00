#pragma once
/// Packing: which documents a token window holds.
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <gradtile/train/data/token_sequence.h>
#include <gradtile/train/tokenizers/tokenizer.h>

namespace gradtile {

/// Where documents begin. A window's first token always begins a document: a document that began before the
/// window is cut there.
struct DocumentRule {
    enum class Kind {
        none,         ///< a window counts as one document
        separator,    ///< at each token `token`
        blank_lines,  ///< at the first line after blank lines; `token` is a line break
        examples      ///< at each example in the data (see examples.h); other text is one document
    };
    Kind kind = Kind::none;
    std::int32_t token = -1;
    /// blank_lines: ids for the characters that a blank line may hold: space, tab, vertical tab, form feed,
    /// and the carriage return from Windows line ends; -1: the tokenizer has no such character.
    std::array<std::int32_t, 5> blanks{-1, -1, -1, -1, -1};

    /// Returns whether a document's first token is a target. A separator is a target, because the tokens
    /// before it determine that their document ends. Other first tokens are not targets, because no token
    /// before them belongs to their document.
    bool predicts_first_token() const { return kind != Kind::blank_lines; }
};

/// How a batch says which tokens see each other (Documents).
enum class DocumentMask {
    offsets,       ///< attention is causal within each document
    ranges,        ///< row ranges: an answer sees its prompt and itself up to each token
    prefix_ranges  ///< the same, and the tokens of a prompt see each other (ModelConfig::prefix)
};

/// How a batch's windows are divided into packed documents.
struct Packing {
    DocumentRule rule = {};
    /// The largest document count in a window. If a window has more, the targets after the last counted
    /// document are ignored.
    std::int64_t max_documents = 1;
    DocumentMask mask = DocumentMask::offsets;  ///< row ranges need examples with prompts

    bool has_ranges() const { return mask != DocumentMask::offsets; }
    explicit operator bool() const { return rule.kind != DocumentRule::Kind::none; }
    /// How many offsets of documents a batch of `windows` windows has; 0 if it has none.
    std::int64_t offsets_of(std::int64_t windows) const {
        return *this && !has_ranges() ? windows * max_documents + 1 : 0;
    }
};

/// The id with which a tokenizer's documents begin: BPE's <|endoftext|>, if it has this token.
std::optional<std::int32_t> separator_of(const Tokenizer& tokenizer);
/// Returns a run's rule: documents begin at `document_token`, or, if `document_token` is -1, after a text's
/// blank lines. Throws Error if there is neither.
DocumentRule document_rule(std::int64_t document_token, const std::optional<Tokenizer>& tokenizer);

/// Returns the places after the first token where documents begin in tokens [0, count), in increasing order.
/// Reads all these tokens, unless the sequence has examples.
std::vector<std::int64_t> document_begins(const TokenSequence& tokens, const DocumentRule& rule,
                                          std::int64_t count);

/// One batch row: inputs, targets and, if packed, each token's position in its document, and its row ranges
/// [context, 4] if the packing has them.
struct WindowRow {
    std::int32_t* tokens;
    std::int32_t* targets;
    std::int32_t* positions = nullptr;
    std::int32_t* ranges = nullptr;
};
/// Divides the first `length` tokens in a row of `context` into documents: ignores targets in other
/// documents, writes the positions, and appends to `starts` where documents begin. `read` holds the row's
/// tokens and the one after them, in which the rule's separators are found.
void divide_at_separators(const Packing& packing, std::span<const std::int32_t> read, std::int64_t length,
                          std::int64_t context, const WindowRow& row, std::vector<std::int32_t>& starts);
/// Divides a row in the same way at `borders`, the places in the row where documents begin, in increasing
/// order.
void divide_at(const Packing& packing, std::span<const std::int64_t> borders, std::int64_t length,
               std::int64_t context, const WindowRow& row, std::vector<std::int32_t>& starts);

}  // namespace gradtile
