#include <gradtile/train/data/examples.h>

#include <algorithm>
#include <array>

#include <gradtile/core/check.h>
#include <gradtile/core/text/formatted.h>

namespace gradtile {

std::int64_t Examples::targets() const {
    return std::ranges::count(is_target, true);
}

Examples Examples::slice(std::int64_t begin, std::int64_t end, std::string_view source) const {
    const auto first = std::ranges::lower_bound(begins, begin), last = std::ranges::lower_bound(begins, end);
    check(first != begins.end() && last != begins.end() && *first == begin && *last == end, source,
          ": tokens [", begin, ", ", end, ") were requested, which divide an example");
    Examples part{.begins = {first, last + 1},
                  .is_target = {is_target.begin() + begin, is_target.begin() + end},
                  .kind = kind};
    for (std::int64_t& place : part.begins) place -= begin;
    return part;
}

std::vector<TokenWindow> windows_of(const Examples& examples, std::int64_t context, const Packing& packing) {
    std::vector<TokenWindow> windows;
    const auto has_target = [&](const TokenWindow& window) {
        const auto first = examples.is_target.begin() + window.begin + 1;
        return std::find(first, first + (window.end - window.begin), true) !=
               first + (window.end - window.begin);
    };
    const auto add = [&](const TokenWindow& window) {
        if (has_target(window)) windows.push_back(window);
    };
    TokenWindow open;  // the window that is being filled with examples
    std::int64_t documents = 0;
    const auto close = [&] {
        if (documents > 0) add(open);
        documents = 0;
    };
    for (std::int64_t i = 0; i < examples.count(); ++i) {
        const std::int64_t begin = examples.begins[static_cast<std::size_t>(i)];
        // An example's last token is a target only.
        const std::int64_t end = examples.begins[static_cast<std::size_t>(i) + 1] - 1;
        if (packing && end - begin <= context) {
            if (documents == packing.max_documents || (documents > 0 && end - open.begin > context)) close();
            if (documents++ == 0) open.begin = begin;
            open.end = end;
            continue;
        }
        close();
        if (packing.has_ranges()) continue;
        for (std::int64_t part = begin; part < end; part += context)
            add({part, std::min(part + context, end)});
    }
    close();
    return windows;
}

DocumentKind document_kind_of(const TokenSequence& tokens) {
    return tokens.examples() ? tokens.examples()->kind : DocumentKind::text;
}

Packing packing_for(const Packing& packing, DocumentKind kind, std::string_view source) {
    const bool has_prompts = kind == DocumentKind::completions || kind == DocumentKind::shared_prompts;
    check(!packing.has_ranges() || has_prompts, source,
          ": holds no prompts with completions; expected them for a model with prefix");
    if (kind != DocumentKind::shared_prompts || packing.has_ranges()) return packing;
    Packing with_ranges = packing;
    if (!packing) with_ranges.rule.kind = DocumentRule::Kind::examples;
    with_ranges.mask = DocumentMask::ranges;
    return with_ranges;
}

std::string note_on_long_examples(const TokenSequence& tokens, std::int64_t context, const Packing& packing) {
    if (!packing.has_ranges() || !tokens.examples()) return "";
    const std::vector<std::int64_t>& begins = tokens.examples()->begins;
    std::int64_t count = 0;
    for (std::size_t i = 0; i + 1 < begins.size(); ++i) count += begins[i + 1] - begins[i] > context + 1;
    if (count == 0) return "";
    return concat(tokens.source(), ": ", grouped(count), " of ", grouped(tokens.examples()->count()),
                  " prompts are left out, because they have, with all their completions, more than ",
                  context + 1, " tokens (context + 1)");
}

namespace {

/// Writes the positions and row ranges of one example, tokens [begin, end) in the row. Answers follow the
/// places in `answers`, each of which is a prompt's last token; the first one is the prompt's end.
void write_example(std::int64_t begin, std::int64_t end, const std::vector<std::int64_t>& answers,
                   DocumentMask mask, const WindowRow& row) {
    const bool is_prefix = mask == DocumentMask::prefix_ranges;
    const auto write = [&](std::int64_t key, std::int64_t position, const std::array<std::int64_t, 4>& rows) {
        row.positions[key] = static_cast<std::int32_t>(position);
        for (std::size_t i = 0; i < rows.size(); ++i)
            row.ranges[4 * key + static_cast<std::int64_t>(i)] = static_cast<std::int32_t>(rows[i]);
    };
    const std::int64_t prompt_end = answers.front();
    for (std::int64_t key = begin; key < prompt_end; ++key)
        write(key, key - begin, {is_prefix ? begin : key, end, 0, 0});
    for (std::size_t i = 0; i < answers.size(); ++i) {
        const std::int64_t first = answers[i], last = i + 1 < answers.size() ? answers[i + 1] : end;
        for (std::int64_t key = first; key < last; ++key)
            write(key, prompt_end - begin + key - first, {key, last, 0, 0});
        // The other tokens of a prefix see the prompt's last token, which stands once before each answer.
        if (is_prefix && i == 0 && first < end)
            write(first, prompt_end - begin, {first, last, begin, prompt_end});
    }
}

}  // namespace

void write_row_ranges(const Examples& examples, const TokenWindow& window, std::int64_t context,
                      DocumentMask mask, const WindowRow& row) {
    std::fill_n(row.positions, context, 0);
    std::fill_n(row.ranges, 4 * context, 0);
    const auto is_target = [&](std::int64_t token) {
        return examples.is_target[static_cast<std::size_t>(token)];
    };
    auto example = std::ranges::upper_bound(examples.begins, window.begin) - 1;
    for (; example + 1 != examples.begins.end() && *example < window.end; ++example) {
        const std::int64_t begin = *example, end = example[1];
        std::vector<std::int64_t> answers;
        for (std::int64_t token = begin + 1; token < end; ++token)
            if (is_target(token) && !is_target(token - 1)) answers.push_back(token - 1 - window.begin);
        const std::int64_t end_in_row = std::min(end, window.end) - window.begin;
        if (answers.empty()) answers.push_back(end_in_row);
        write_example(begin - window.begin, end_in_row, answers, mask, row);
    }
}

}  // namespace gradtile
