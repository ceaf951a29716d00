#include <gradtile/train/data/packing.h>

#include <algorithm>

#include <gradtile/layers/vocabulary.h>

namespace gradtile {
namespace {

/// Divides a row where begins(i) is true, for the tokens i of the row and the one after them.
template <class Begins>
void divide_row(const Packing& packing, std::int64_t length, std::int64_t context, const WindowRow& row,
                std::vector<std::int32_t>& starts, const Begins& begins) {
    const bool predicts_first_token = packing.rule.predicts_first_token();
    std::int64_t start = 0, documents = 1;
    starts.push_back(0);
    for (std::int64_t i = 0; i < context; ++i) {
        if (i > 0 && i <= length && begins(i)) {
            if (!predicts_first_token) row.targets[i - 1] = ignored_target;
            if (documents == packing.max_documents && i < length) {
                std::fill(row.targets + i, row.targets + length, ignored_target);
                // The remaining tokens belong to the last document, and their targets are ignored.
                length = i;
            } else if (i < length) {
                ++documents;
                start = i;
                starts.push_back(static_cast<std::int32_t>(i));
            }
        }
        row.positions[i] = static_cast<std::int32_t>(i - start);
    }
    // The last target of a full window is the token after the window.
    if (length == context && begins(length) && !predicts_first_token)
        row.targets[length - 1] = ignored_target;
}

}  // namespace

bool DocumentRule::begins_document(std::span<const std::int32_t> tokens, std::size_t i) const {
    switch (kind) {
        case Kind::none:
        case Kind::examples:
            return false;
        case Kind::separator:
            return tokens[i] == token;
        case Kind::blank_lines:
            return i >= 2 && tokens[i] != token && tokens[i - 1] == token && tokens[i - 2] == token;
    }
    throw Error("packing: unknown rule");
}

std::optional<std::int32_t> separator_of(const Tokenizer& tokenizer) {
    const BytePairEncoding* const encoding = tokenizer.byte_pair_encoding();
    return encoding == nullptr ? std::nullopt : encoding->added_token("<|endoftext|>");
}

DocumentRule document_rule(std::int64_t document_token, const std::optional<Tokenizer>& tokenizer) {
    if (document_token >= 0)
        return {DocumentRule::Kind::separator, static_cast<std::int32_t>(document_token)};
    check(tokenizer && tokenizer->kind() != TokenizerKind::bpe,
          "packed: it is not known where documents begin in these tokens; expected document-token, the id "
          "of the token that begins a document");
    return {DocumentRule::Kind::blank_lines, tokenizer->encode("\n", "packed: the line break").front()};
}

void divide_into_documents(const Packing& packing, std::span<const std::int32_t> read, std::size_t first,
                           std::int64_t length, std::int64_t context, const WindowRow& row,
                           std::vector<std::int32_t>& starts) {
    divide_row(packing, length, context, row, starts, [&](std::int64_t i) {
        return packing.rule.begins_document(read, first + static_cast<std::size_t>(i));
    });
}

void divide_into_examples(const Packing& packing, std::span<const std::int64_t> borders, std::int64_t length,
                          std::int64_t context, const WindowRow& row, std::vector<std::int32_t>& starts) {
    divide_row(packing, length, context, row, starts,
               [&](std::int64_t i) { return std::ranges::binary_search(borders, i); });
}

}  // namespace gradtile
