#pragma once
/// Examples: parts of a token sequence that are trained on one by one, such as conversations.
#include <cstdint>
#include <string_view>
#include <vector>

#include <gradtile/train/data/documents.h>
#include <gradtile/train/data/packing.h>

namespace gradtile {

/// A token sequence's examples. Each window in such a sequence begins at an example's first token (or, if the
/// example is longer than the context, at one of its later tokens), and only some window tokens are targets.
struct Examples {
    /// The index of each example's first token, in increasing order from 0, and then the token count.
    std::vector<std::int64_t> begins{0};
    /// By token: whether the model is trained to predict it. false for each example's first token.
    std::vector<bool> is_target{};
    /// With a list of completions, the prompt's last token is not in the prompt, but once before each answer.
    DocumentKind kind = DocumentKind::conversations;

    std::int64_t count() const { return std::ssize(begins) - 1; }
    std::int64_t targets() const;
    /// Returns the examples in tokens [begin, end). Throws Error, with `source`, when an example is divided.
    Examples slice(std::int64_t begin, std::int64_t end, std::string_view source) const;
};

/// Returns an epoch's windows, in example order. A window holds one example, or with packing as many
/// successive whole examples as fit in `context` tokens, at most packing.max_documents. An example with more
/// than context + 1 tokens is cut into windows that hold only this example. Windows without a target are left
/// out. If the packing has row ranges, longer examples are left out, too, because a part of an answer would
/// lack the prompt.
std::vector<TokenWindow> windows_of(const Examples& examples, std::int64_t context, const Packing& packing);

/// The kind of a sequence's documents.
DocumentKind document_kind_of(const TokenSequence& tokens);
/// Returns the packing for documents of this kind: prompts with lists of completions need row ranges, whether
/// windows are packed or not. Throws Error "SOURCE: ..." if the packing has row ranges and the documents have
/// no prompts.
Packing packing_for(const Packing& packing, DocumentKind kind, std::string_view source);
/// Returns a line that says how many examples windows_of() leaves out because they are too long; empty if
/// there are none.
std::string note_on_long_examples(const TokenSequence& tokens, std::int64_t context, const Packing& packing);

/// Writes positions and row ranges of the examples in a window, as far as their tokens are in it. A prompt's
/// tokens have positions from 0 on, and every answer goes on from the prompt's end. Unused keys are seen by
/// no row.
void write_row_ranges(const Examples& examples, const TokenWindow& window, std::int64_t context,
                      DocumentMask mask, const WindowRow& row);

}  // namespace gradtile
