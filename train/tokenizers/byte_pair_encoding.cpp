#include <gradtile/train/tokenizers/byte_pair_encoding.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include <gradtile/core/check.h>
#include <gradtile/core/text/with_source.h>
#include <gradtile/train/tokenizers/internal/byte_pair_tables.h>
#include <gradtile/train/tokenizers/internal/byte_pair_worker.h>
#include <gradtile/train/tokenizers/internal/merges_by_id.h>

namespace gradtile {
namespace {

/// The trie of a Unigram model may have a node for each byte of its tokens. Known models have 4 MB.
constexpr std::size_t max_unigram_bytes = std::size_t{1} << 24;

std::string shown_bytes(std::string_view bytes) {
    constexpr std::size_t max_shown = 40;
    std::string text;
    for (const char c : bytes.substr(0, max_shown)) text += c < ' ' || c > '~' ? '?' : c;
    return concat('\'', text, bytes.size() > max_shown ? "...'" : "'");
}

/// SentencePiece's name for the token of a byte: <0x00> to <0xFF>.
std::string byte_token(std::size_t byte) {
    constexpr std::string_view digits = "0123456789ABCDEF";
    return concat("<0x", digits[byte >> 4], digits[byte & 15], '>');
}

/// Returns each score's place among the different scores, the highest first.
std::vector<std::uint32_t> ranks_by_score(const std::vector<double>& scores) {
    std::vector<double> sorted = scores;
    std::ranges::sort(sorted, std::greater{});
    std::vector<std::uint32_t> ranks;
    for (const double score : scores)
        ranks.push_back(static_cast<std::uint32_t>(std::ranges::lower_bound(sorted, score, std::greater{}) -
                                                   sorted.begin()));
    return ranks;
}

}  // namespace

BytePairEncoding::BytePairEncoding(BytePairVocabulary vocabulary, std::string_view source)
    : vocabulary_(std::move(vocabulary)), tables_(std::make_unique<Tables>(vocabulary_, source)) {
    add_tokens(source);
    if (vocabulary_.model != SubwordModel::byte_pairs) {
        check_model(source);
        decode_tokens();
    }
    if (vocabulary_.model == SubwordModel::unigram) {
        tables_->unigram.emplace(vocabulary_);
    } else if (vocabulary_.merges_by_id) {
        add_derived_merges();
    } else {
        add_listed_merges(source);
    }
}

BytePairEncoding::~BytePairEncoding() = default;

void BytePairEncoding::add_tokens(std::string_view source) {
    const std::vector<std::string>& tokens = vocabulary_.tokens;
    check(std::ssize(tokens) <= max_byte_pair_vocabulary, source, ": ", tokens.size(),
          " tokens; expected at most ", max_byte_pair_vocabulary);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
        const std::string_view text = tokens[i];
        if (text.empty()) continue;
        const auto id = static_cast<std::int32_t>(i);
        check(text.size() <= max_token_bytes, source, ": token ", id, " has ", text.size(),
              " bytes; expected at most ", max_token_bytes);
        const std::int32_t first = tables_->token_index.find(text);
        if (first != id)  // not check(), because check() would construct the name for every token
            throw Error(concat(source, ": tokens ", first, " and ", id, " are both ", shown_bytes(text)));
        if (text.size() == 1) tables_->byte_ids[static_cast<unsigned char>(text.front())] = id;
    }
    vocab_size_ = std::ssize(tokens);
    for (const AddedToken& token : vocabulary_.added) add_added_token(token, source);
    const auto empty = std::ranges::count_if(tokens, [](const std::string& token) { return token.empty(); });
    with_source(source, [&] {
        check_missing_ids(vocab_size_ - 1,
                          tokens.size() - static_cast<std::size_t>(empty) + vocabulary_.added.size());
    });
    std::ranges::stable_sort(added_by_id_, {}, &AddedToken::id);
    for (std::size_t i = 1; i < added_by_id_.size(); ++i) {
        const AddedToken &a = *added_by_id_[i - 1], &b = *added_by_id_[i];
        if (a.id == b.id && a.text != b.text)
            throw Error(concat(source, ": added token ", shown_bytes(b.text), " has id ", b.id, ", which is ",
                               shown_bytes(a.text)));
        if (a.id == b.id && a.normalized != b.normalized)
            throw Error(concat(source, ": added token ", shown_bytes(b.text),
                               " occurs twice, with two values of normalized"));
    }
    check(vocab_size_ > 0, source, ": has no tokens");
    for (const auto* const ids : {&vocabulary_.before, &vocabulary_.after})
        for (const std::int32_t id : *ids)
            check(text_of(id).has_value(), source, ": post_processor: adds token ", id,
                  ", which the vocabulary does not have");
}

void BytePairEncoding::add_added_token(const AddedToken& token, std::string_view source) {
    const auto refuse = [&](const auto&... reason) {
        throw Error(concat(source, ": added token ", shown_bytes(token.text), reason...));
    };
    if (token.id < 0 || token.id >= max_byte_pair_vocabulary)
        refuse(" has id ", token.id, "; expected 0 to ", max_byte_pair_vocabulary - 1);
    check(!token.text.empty(), source, ": added token ", token.id, " is empty");
    check(token.text.size() <= max_token_bytes, source, ": added token ", token.id, " has ",
          token.text.size(), " bytes; expected at most ", max_token_bytes);
    const auto index = static_cast<std::size_t>(token.id);
    const bool is_in_vocabulary = index < vocabulary_.tokens.size() && !vocabulary_.tokens[index].empty();
    if (is_in_vocabulary && vocabulary_.tokens[index] != token.text)
        refuse(" has id ", token.id, ", which is ", shown_bytes(vocabulary_.tokens[index]));
    if (const auto known = added_token(token.text); known && *known != token.id)
        refuse(" occurs twice, with ids ", token.id, " and ", *known);
    std::string_view name = token.text;
    // The tokenizers library normalizes these texts, SentencePiece does not normalize its symbols.
    if (token.normalized && !tables_->normalizer.keeps_symbols())
        name = tables_->normalized_names.emplace_back(tables_->normalizer.run(token.text));
    check(!name.empty(), source, ": added token ", token.id, ": its normalized text is empty");
    AddedTokenFinder& finder = token.normalized ? tables_->added_normalized : tables_->added;
    finder.add({.text = name,
                .id = token.id,
                .special = token.special,
                .lstrip = token.lstrip,
                .rstrip = token.rstrip,
                .single_word = token.single_word},
               source);
    added_by_id_.push_back(&token);
    vocab_size_ = std::max(vocab_size_, std::int64_t{token.id} + 1);
}

/// Checks what SentencePiece's models have in addition, and finds the tokens for bytes.
void BytePairEncoding::check_model(std::string_view source) {
    const std::vector<std::string>& tokens = vocabulary_.tokens;
    const bool is_unigram = vocabulary_.model == SubwordModel::unigram;
    check(is_unigram ? vocabulary_.scores.size() == tokens.size()
                     : vocabulary_.scores.empty() || vocabulary_.merges_by_id,
          source, ": ", vocabulary_.scores.size(), " scores of ", tokens.size(), " tokens");
    std::size_t bytes = 0;
    for (const std::string& token : tokens) bytes += token.size();
    check(!is_unigram || bytes <= max_unigram_bytes, source, ": ", bytes,
          " bytes of tokens; expected at most ", max_unigram_bytes);
    for (std::size_t id = 0; id < vocabulary_.scores.size(); ++id)
        if (!std::isfinite(vocabulary_.scores[id]))
            throw Error(concat(source, ": token ", id, ": its score is not a finite number"));
    const std::int32_t unknown = vocabulary_.unknown;
    check(unknown < std::ssize(tokens) && (unknown < 0 || !tokens[static_cast<std::size_t>(unknown)].empty()),
          source, ": the unknown token ", unknown, " is not in the vocabulary");
    tables_->byte_ids.fill(-1);
    for (std::size_t byte = 0; byte < tables_->byte_ids.size(); ++byte) {
        const std::string name = byte_token(byte);
        tables_->byte_ids[byte] = tables_->token_index.find(name);
        check(!vocabulary_.byte_fallback || tables_->byte_ids[byte] >= 0, source,
              ": byte_fallback: the vocabulary has no token ", name);
    }
}

/// Decodes all tokens: bytes, and blanks for blank_symbol.
void BytePairEncoding::decode_tokens() {
    std::vector<std::string>& decoded = tables_->decoded;
    decoded.resize(static_cast<std::size_t>(vocab_size_));
    const auto decode = [&](std::size_t id, std::string_view text) {
        decoded[id] = vocabulary_.decodes_blanks ? replaced(text, blank_symbol, " ") : std::string(text);
    };
    for (std::size_t id = 0; id < vocabulary_.tokens.size(); ++id) decode(id, vocabulary_.tokens[id]);
    for (const AddedToken& token : vocabulary_.added) decode(static_cast<std::size_t>(token.id), token.text);
    if (!vocabulary_.byte_fallback) return;
    for (std::size_t byte = 0; byte < tables_->byte_ids.size(); ++byte)
        decoded[static_cast<std::size_t>(tables_->byte_ids[byte])] = std::string(1, static_cast<char>(byte));
}

void BytePairEncoding::add_derived_merges() {
    std::vector<BytePairMerge> pairs;
    for_each_merge_by_id(vocabulary_, tables_->token_index,
                         [&](const BytePairMerge& merge) { pairs.push_back(merge); });
    const std::vector<std::uint32_t> ranks = ranks_by_score(vocabulary_.scores);
    tables_->pairs = PairTable(pairs.size());
    for (const BytePairMerge& pair : pairs) {
        const auto result = static_cast<std::uint32_t>(pair.result);
        tables_->pairs.set(pair.left, pair.right, {ranks.empty() ? result : ranks[result], pair.result});
    }
}

void BytePairEncoding::add_listed_merges(std::string_view source) {
    // A list may repeat merges. Different merges that make the same token cut it at different places.
    std::size_t cuts = 0;
    for (const std::string& token : vocabulary_.tokens) cuts += token.empty() ? 0 : token.size() - 1;
    tables_->pairs = PairTable(std::min(vocabulary_.merges.size(), cuts));
    std::uint32_t rank = 0;
    for (const BytePairMerge& merge : vocabulary_.merges) {
        std::string_view parts[3];
        for (int i = 0; const std::int32_t id : {merge.left, merge.right, merge.result}) {
            check(id >= 0 && id < std::ssize(vocabulary_.tokens), source, ": merge ", rank, " has token ", id,
                  ", of a vocabulary of ", vocabulary_.tokens.size());
            parts[i++] = vocabulary_.tokens[static_cast<std::size_t>(id)];
        }
        const auto [left, right, result] = parts;
        const bool fits = !left.empty() && !right.empty() && result.size() == left.size() + right.size() &&
                          result.starts_with(left) && result.ends_with(right);
        if (!fits)
            throw Error(concat(source, ": merge ", rank, ": ", shown_bytes(left), " and ", shown_bytes(right),
                               " together are not ", shown_bytes(result)));
        // If a pair has two merges, the later merge replaces the earlier one, as in the tokenizers library.
        tables_->pairs.set(merge.left, merge.right, {rank++, merge.result});
    }
}

std::optional<std::string_view> BytePairEncoding::text_of(std::int32_t id) const {
    if (id < 0 || id >= vocab_size()) return std::nullopt;
    const auto index = static_cast<std::size_t>(id);
    if (!tables_->decoded.empty())
        return tables_->decoded[index].empty() ? std::nullopt
                                               : std::optional<std::string_view>(tables_->decoded[index]);
    if (index < vocabulary_.tokens.size() && !vocabulary_.tokens[index].empty())
        return vocabulary_.tokens[index];
    const auto added = std::ranges::lower_bound(added_by_id_, id, {}, &AddedToken::id);
    if (added == added_by_id_.end() || (*added)->id != id) return std::nullopt;
    return (*added)->text;
}

std::optional<std::int32_t> BytePairEncoding::added_token(std::string_view text) const {
    for (const AddedTokenFinder* finder : {&tables_->added, &tables_->added_normalized})
        if (const std::int32_t id = finder->id_of(text); id >= 0) return id;
    return std::nullopt;
}

std::vector<std::int32_t> BytePairEncoding::encode(std::string_view text, std::string_view source,
                                                   const EncodeOptions& options) const {
    // Encoding a shorter text on several threads would take longer than on one.
    constexpr std::size_t parallel_bytes = std::size_t{1} << 20;
    std::vector<std::int32_t> ids;
    if (options.threads == 1 || text.size() < parallel_bytes) {
        ids.reserve(text.size() / 3);
        Worker worker(*this, text, source);
        worker.encode_all(options.special_tokens, ids);
    } else {
        ids = encode_in_parallel(text, source, options);
    }
    if (options.add_special_tokens) {
        ids.insert(ids.begin(), vocabulary_.before.begin(), vocabulary_.before.end());
        ids.insert(ids.end(), vocabulary_.after.begin(), vocabulary_.after.end());
    }
    return ids;
}

}  // namespace gradtile
