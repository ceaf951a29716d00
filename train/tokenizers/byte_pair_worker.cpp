#include <gradtile/train/tokenizers/internal/byte_pair_worker.h>

#include <iomanip>
#include <sstream>

#include <gradtile/core/check.h>
#include <gradtile/core/text/message.h>

namespace gradtile {

void BytePairEncoding::Worker::encode_all(SpecialTokens special, Ids& out) {
    for_each_added_token(text_, tables_, special, [&](std::string_view part, std::int32_t id) {
        if (id >= 0) {
            out.push_back(id);
        } else {
            encode_plain(part, out);
        }
    });
}

void BytePairEncoding::Worker::encode_piece(std::string_view piece, Ids& out) {
    if (piece.size() > PieceCache::max_piece_bytes) {
        merge_piece(piece);
        out.insert(out.end(), merged_.begin(), merged_.end());
        return;
    }
    const auto readable = static_cast<std::size_t>(text_.data() + text_.size() - piece.data());
    const PieceCache::Key key = PieceCache::key_of(piece, readable);
    PieceCache::Slot& slot = cache_.slot_of(key);
    if (slot.key == key) {
        const auto known = slot.tokens();
        out.insert(out.end(), known.begin(), known.end());
        return;
    }
    merge_piece(piece);
    PieceCache::store(slot, key, merged_);
    out.insert(out.end(), merged_.begin(), merged_.end());
}

void BytePairEncoding::Worker::merge_piece(std::string_view piece) {
    merged_.clear();
    if (whole_pieces_) {
        if (const std::int32_t token = tables_.token_index.find(piece); token >= 0) {
            merged_.push_back(token);
            return;
        }
    }
    for (const char& byte : piece) {
        const std::int32_t id = tables_.byte_ids[static_cast<unsigned char>(byte)];
        if (id < 0) refuse_byte(byte);
        merged_.push_back(id);
    }
    merging_.run(merged_);
}

void BytePairEncoding::Worker::refuse_gap(std::string_view gap) const {
    constexpr std::size_t max_shown = 40;
    check(gap.empty(), source_, ": byte offset ", gap.data() - text_.data(), ": '",
          printable(gap, {.max_characters = max_shown}),
          "' matches no pattern of the tokenizer, which would remove it (pre_tokenizer, behavior Removed)");
}

void BytePairEncoding::Worker::refuse_byte(const char& byte) const {
    std::ostringstream value;
    value << "0x" << std::hex << std::uppercase << std::setw(2) << std::setfill('0')
          << int{static_cast<unsigned char>(byte)};
    throw Error(concat(source_, ": byte ", value.str(), " at byte offset ", &byte - text_.data(),
                       " has no token in the vocabulary"));
}

}  // namespace gradtile
