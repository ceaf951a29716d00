#include <gradtile/train/tokenizers/byte_pair_encoding.h>

#include <gradtile/core/check.h>
#include <gradtile/train/tokenizers/internal/byte_pair_tables.h>
#include <gradtile/train/tokenizers/internal/byte_pair_worker.h>
#include <gradtile/train/tokenizers/internal/token_length.h>

namespace gradtile {
namespace {

std::string shown_bytes(std::string_view bytes) {
    constexpr std::size_t max_shown = 40;
    std::string text;
    for (const char c : bytes.substr(0, max_shown)) text += c < ' ' || c > '~' ? '?' : c;
    return concat('\'', text, bytes.size() > max_shown ? "...'" : "'");
}

}  // namespace

BytePairEncoding::BytePairEncoding(BytePairVocabulary vocabulary, std::string_view source)
    : vocabulary_(std::move(vocabulary)), tables_(std::make_unique<Tables>(vocabulary_, source)) {
    add_texts(source);
    add_merges(source);
}

BytePairEncoding::~BytePairEncoding() = default;

void BytePairEncoding::add_texts(std::string_view source) {
    check(std::ssize(vocabulary_.tokens) <= max_byte_pair_vocabulary, source, ": ", vocabulary_.tokens.size(),
          " tokens; expected at most ", max_byte_pair_vocabulary);
    texts_.assign(vocabulary_.tokens.begin(), vocabulary_.tokens.end());
    for (std::size_t i = 0; i < texts_.size(); ++i) {
        const std::string_view text = texts_[i];
        if (text.empty()) continue;
        const auto id = static_cast<std::int32_t>(i);
        check(text.size() <= max_token_bytes, source, ": token ", id, " has ", text.size(),
              " bytes; expected at most ", max_token_bytes);
        const auto [place, is_new] = tables_->whole.emplace(text, id);
        check(is_new, source, ": tokens ", place->second, " and ", id, " are both ", shown_bytes(text));
        if (text.size() == 1) tables_->byte_ids[static_cast<unsigned char>(text.front())] = id;
    }
    for (const AddedToken& token : vocabulary_.added) {
        check(token.id >= 0 && token.id < max_byte_pair_vocabulary, source, ": added token ",
              shown_bytes(token.text), " has id ", token.id, "; expected 0 to ",
              max_byte_pair_vocabulary - 1);
        check(!token.text.empty(), source, ": added token ", token.id, " is empty");
        check(token.text.size() <= max_token_bytes, source, ": added token ", token.id, " has ",
              token.text.size(), " bytes; expected at most ", max_token_bytes);
        const auto index = static_cast<std::size_t>(token.id);
        if (index >= texts_.size()) texts_.resize(index + 1);
        check(texts_[index].empty() || texts_[index] == token.text, source, ": added token ",
              shown_bytes(token.text), " has id ", token.id, ", which is ", shown_bytes(texts_[index]));
        texts_[index] = token.text;
        check(added_token(token.text).value_or(token.id) == token.id, source, ": added token ",
              shown_bytes(token.text), " occurs twice, with ids ", token.id, " and ",
              added_token(token.text).value_or(-1));
        const auto finder = [&](Tables::Finders& finders) -> AddedTokenFinder& {
            return token.normalized ? finders.second : finders.first;
        };
        finder(tables_->with_special).add(token.text, token.id);
        if (!token.special) finder(tables_->without_special).add(token.text, token.id);
    }
    check(!texts_.empty(), source, ": has no tokens");
    for (const auto* const ids : {&vocabulary_.before, &vocabulary_.after})
        for (const std::int32_t id : *ids)
            check(text_of(id).has_value(), source, ": post_processor: adds token ", id,
                  ", which the vocabulary does not have");
}

void BytePairEncoding::add_merges(std::string_view source) {
    if (vocabulary_.merges_by_id) {
        std::vector<BytePairMerge> pairs;
        for (const auto& [text, id] : tables_->whole)
            for (std::size_t cut = 1; cut < text.size(); ++cut) {
                const auto left = tables_->whole.find(text.substr(0, cut));
                if (left == tables_->whole.end()) continue;
                const auto right = tables_->whole.find(text.substr(cut));
                if (right != tables_->whole.end()) pairs.push_back({left->second, right->second, id});
            }
        tables_->pairs = PairTable(pairs.size());
        for (const BytePairMerge& pair : pairs)
            tables_->pairs.set(pair.left, pair.right, {static_cast<std::uint32_t>(pair.result), pair.result});
        return;
    }
    tables_->pairs = PairTable(vocabulary_.merges.size());
    std::uint32_t rank = 0;
    for (const BytePairMerge& merge : vocabulary_.merges) {
        std::string_view parts[3];
        for (int i = 0; const std::int32_t id : {merge.left, merge.right, merge.result}) {
            check(id >= 0 && id < std::ssize(vocabulary_.tokens), source, ": merge ", rank, " has token ", id,
                  ", of a vocabulary of ", vocabulary_.tokens.size());
            parts[i++] = vocabulary_.tokens[static_cast<std::size_t>(id)];
        }
        check(!parts[0].empty() && !parts[1].empty() && concat(parts[0], parts[1]) == parts[2], source,
              ": merge ", rank, ": ", shown_bytes(parts[0]), " and ", shown_bytes(parts[1]),
              " together are not ", shown_bytes(parts[2]));
        // If a pair has two merges, the later merge replaces the earlier one, as in the tokenizers library.
        tables_->pairs.set(merge.left, merge.right, {rank++, merge.result});
    }
}

std::optional<std::string_view> BytePairEncoding::text_of(std::int32_t id) const {
    if (id < 0 || id >= vocab_size()) return std::nullopt;
    const std::string_view text = texts_[static_cast<std::size_t>(id)];
    return text.empty() ? std::nullopt : std::optional(text);
}

std::optional<std::int32_t> BytePairEncoding::added_token(std::string_view text) const {
    for (const AddedTokenFinder* finder : {&tables_->with_special.first, &tables_->with_special.second})
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
