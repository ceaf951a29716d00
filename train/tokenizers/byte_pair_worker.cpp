#include <gradtile/train/tokenizers/internal/byte_pair_worker.h>

#include <functional>
#include <iomanip>
#include <sstream>

#include <gradtile/core/check.h>
#include <gradtile/core/text/message.h>

namespace gradtile {

void BytePairEncoding::Worker::encode_all(SpecialTokens special, Ids& out) {
    std::deque<std::string> storage;
    tables_.for_each_part(text_, special, storage, [&](std::string_view part, std::int32_t id) {
        if (id >= 0) {
            out.push_back(id);
        } else {
            encode_plain(part, out);
        }
    });
}

void BytePairEncoding::Worker::encode_piece(std::string_view piece, Ids& out) {
    if (!tables_.borders.cuts()) return encode_word(piece, out);
    for (std::size_t begin = 0; begin < piece.size();) {
        const std::size_t end = tables_.borders.next(piece, begin);
        encode_word(piece.substr(begin, end - begin), out);
        begin = end;
    }
}

void BytePairEncoding::Worker::encode_word(std::string_view word, Ids& out) {
    if (word.size() > PieceCache::max_piece_bytes) {
        compute(word);
        out.insert(out.end(), merged_.begin(), merged_.end());
        return;
    }
    const auto readable = static_cast<std::size_t>(part_.data() + part_.size() - word.data());
    const PieceCache::Key key = PieceCache::key_of(word, readable);
    PieceCache::Slot& slot = cache_->slot_of(key);
    if (slot.key == key) {
        const auto known = slot.tokens();
        out.insert(out.end(), known.begin(), known.end());
        return;
    }
    compute(word);
    PieceCache::store(slot, key, merged_);
    out.insert(out.end(), merged_.begin(), merged_.end());
}

void BytePairEncoding::Worker::compute(std::string_view word) {
    merged_.clear();
    if (vocabulary_.whole_pieces) {
        if (const std::int32_t token = tables_.token_index.find(word); token >= 0) {
            merged_.push_back(token);
            return;
        }
    }
    switch (vocabulary_.model) {
        case SubwordModel::byte_pairs:
            return merge_bytes(word);
        case SubwordModel::character_pairs:
            return merge_characters(word);
        case SubwordModel::unigram:
            return choose_tokens(word);
    }
}

void BytePairEncoding::Worker::merge_bytes(std::string_view word) {
    for (const char& byte : word) {
        const std::int32_t id = tables_.byte_ids[static_cast<unsigned char>(byte)];
        if (id < 0) refuse_byte(byte);
        merged_.push_back(id);
    }
    merging_.run(merged_);
}

void BytePairEncoding::Worker::merge_characters(std::string_view word) {
    for (std::size_t begin = 0; begin < word.size();) {
        const std::string_view character = word.substr(begin, character_length(word, begin));
        add(tables_.token_index.find(character), character);
        begin += character.size();
    }
    merging_.run(merged_);
}

void BytePairEncoding::Worker::choose_tokens(std::string_view word) {
    tables_.unigram->run(word, unigram_scratch_,
                         [&](std::string_view token, std::int32_t id) { add(id, token); });
}

void BytePairEncoding::Worker::add(std::int32_t id, std::string_view text) {
    if (id >= 0) {
        merged_.push_back(id);
    } else {
        add_unknown(text);
    }
}

/// Adds the ids for a character without a token.
void BytePairEncoding::Worker::add_unknown(std::string_view character) {
    if (vocabulary_.byte_fallback) {
        for (const char byte : character)
            merged_.push_back(tables_.byte_ids[static_cast<unsigned char>(byte)]);
        return;
    }
    const std::int32_t unknown = vocabulary_.unknown;
    if (unknown < 0) refuse_byte(character.front());
    if (!vocabulary_.fuses_unknown || merged_.empty() || merged_.back() != unknown)
        merged_.push_back(unknown);
}

void BytePairEncoding::Worker::refuse_gap(std::string_view gap) const {
    constexpr std::size_t max_shown = 40;
    if (gap.empty()) return;
    throw Error(
        concat(source_, ": ", place_of(gap.data()), ": '", printable(gap, {.max_characters = max_shown}),
               "' matches no pattern of the tokenizer, which would remove it (pre_tokenizer, behavior "
               "Removed)"));
}

void BytePairEncoding::Worker::refuse_byte(const char& byte) const {
    std::ostringstream value;
    value << "0x" << std::hex << std::uppercase << std::setw(2) << std::setfill('0')
          << int{static_cast<unsigned char>(byte)};
    throw Error(
        concat(source_, ": byte ", value.str(), " at ", place_of(&byte), " has no token in the vocabulary"));
}

std::string BytePairEncoding::Worker::place_of(const char* place) const {
    // A normalizer's result is another text.
    const bool is_in_text =
        std::less_equal<>()(text_.data(), place) && std::less<>()(place, text_.data() + text_.size());
    return is_in_text ? concat("byte offset ", place - text_.data())
                      : concat("byte offset ", place - part_.data(), " of the normalized text");
}

}  // namespace gradtile
