#include <gradtile/train/data/packing.h>

#include <algorithm>

#include <gradtile/layers/vocabulary.h>
#include <gradtile/train/data/examples.h>
#include <gradtile/train/tokenizers/byte_pair_encoding.h>

namespace gradtile {
namespace {

/// Divides a row where begins(i) is true, for the row's tokens i and the token after the row.
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
    // A full window's last target is the token after the window.
    if (length == context && begins(length) && !predicts_first_token)
        row.targets[length - 1] = ignored_target;
}

}  // namespace

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
    DocumentRule rule{DocumentRule::Kind::blank_lines,
                      tokenizer->encode("\n", "packed: the line break").front()};
    auto blank = rule.blanks.begin();
    constexpr std::string_view blanks = " \t\v\f\r";
    for (std::int32_t id = 0; id < tokenizer->vocab_size(); ++id)
        if (const std::string text = tokenizer->decode(std::span(&id, 1));
            text.size() == 1 && blanks.find(text) != std::string_view::npos)
            *blank++ = id;
    return rule;
}

std::vector<std::int64_t> document_begins(const TokenSequence& tokens, const DocumentRule& rule,
                                          std::int64_t count) {
    if (const Examples* const examples = tokens.examples()) {
        const auto& all = examples->begins;
        return {std::ranges::upper_bound(all, 0), std::ranges::lower_bound(all, count)};
    }
    if (rule.kind == DocumentRule::Kind::none || rule.kind == DocumentRule::Kind::examples) return {};
    std::vector<std::int64_t> begins;
    const auto add = [&](std::int64_t begin) {
        if (begin > 0) begins.push_back(begin);
    };
    // After blank lines, a document begins where its first line begins; this line may be indented.
    std::int64_t place = 0, line = 0;  // positions of the token and of its line's first token
    bool is_blank = true, follows_blank_line = false;
    const auto read = [&](std::int32_t token) {
        if (rule.kind == DocumentRule::Kind::separator) {
            if (token == rule.token) add(place);
        } else if (token == rule.token) {
            // The text before the first line break is no blank line between two documents.
            follows_blank_line = line > 0 && is_blank;
            line = place + 1;
            is_blank = true;
        } else if (is_blank && std::ranges::find(rule.blanks, token) == rule.blanks.end()) {
            is_blank = false;
            if (follows_blank_line) add(line);
        }
        ++place;
    };
    std::vector<std::int32_t> some(std::size_t{1} << 16);
    for (std::int64_t begin = 0; begin < count; begin += std::ssize(some)) {
        some.resize(static_cast<std::size_t>(std::min<std::int64_t>(count - begin, std::ssize(some))));
        tokens.read(begin, some);
        for (const std::int32_t token : some) read(token);
    }
    return begins;
}

void divide_at_separators(const Packing& packing, std::span<const std::int32_t> read, std::int64_t length,
                          std::int64_t context, const WindowRow& row, std::vector<std::int32_t>& starts) {
    const DocumentRule& rule = packing.rule;
    divide_row(packing, length, context, row, starts, [&](std::int64_t i) {
        return rule.kind == DocumentRule::Kind::separator && read[static_cast<std::size_t>(i)] == rule.token;
    });
}

void divide_at(const Packing& packing, std::span<const std::int64_t> borders, std::int64_t length,
               std::int64_t context, const WindowRow& row, std::vector<std::int32_t>& starts) {
    divide_row(packing, length, context, row, starts,
               [&](std::int64_t i) { return std::ranges::binary_search(borders, i); });
}

}  // namespace gradtile
