#include <gradtile/train/token_sequence.h>

#include <algorithm>
#include <cstddef>

#include <gradtile/core/check.h>

namespace gradtile {
namespace {

template <class Id>
void copy_ids(const std::byte* data, std::int64_t begin, std::span<std::int32_t> out) {
    const Id* const __restrict ids = reinterpret_cast<const Id*>(data) + begin;
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<std::int32_t>(ids[i]);
}

}  // namespace

TokenSequence::TokenSequence(std::vector<std::int32_t> ids, std::string source) : source_(std::move(source)) {
    auto owner = std::make_shared<const std::vector<std::int32_t>>(std::move(ids));
    const std::span<const std::int32_t> all(*owner);
    append({std::move(owner), std::as_bytes(all).data(), 4, 0, std::ssize(all)});
}

TokenSequence::TokenSequence(std::shared_ptr<const void> owner, std::span<const std::uint8_t> ids,
                             std::string source)
    : source_(std::move(source)) {
    append({std::move(owner), std::as_bytes(ids).data(), 1, 0, std::ssize(ids)});
}

TokenSequence::TokenSequence(std::shared_ptr<const void> owner, std::span<const std::uint16_t> ids,
                             std::string source)
    : source_(std::move(source)) {
    append({std::move(owner), std::as_bytes(ids).data(), 2, 0, std::ssize(ids)});
}

TokenSequence::TokenSequence(std::shared_ptr<const void> owner, std::span<const std::uint32_t> ids,
                             std::string source)
    : source_(std::move(source)) {
    append({std::move(owner), std::as_bytes(ids).data(), 4, 0, std::ssize(ids)});
}

TokenSequence TokenSequence::joined(std::span<const TokenSequence> parts, std::string source) {
    TokenSequence all;
    all.source_ = std::move(source);
    for (const TokenSequence& part : parts)
        for (const Piece& piece : part.pieces_) all.append(piece);
    return all;
}

void TokenSequence::append(Piece piece) {
    if (piece.length == 0) return;
    piece.begin = size_;
    size_ += piece.length;
    pieces_.push_back(std::move(piece));
}

void TokenSequence::read(std::int64_t begin, std::span<std::int32_t> out) const {
    check(begin >= 0 && begin <= size_ - std::ssize(out), source_, ": tokens [", begin, ", ",
          begin + std::ssize(out), ") of ", size_);
    if (out.empty()) return;
    auto piece = std::ranges::upper_bound(pieces_, begin, {}, &Piece::begin) - 1;
    while (!out.empty()) {
        const std::int64_t offset = begin - piece->begin;
        const std::int64_t count = std::min(piece->length - offset, std::ssize(out));
        const std::span<std::int32_t> here = out.first(static_cast<std::size_t>(count));
        if (piece->width == 1) copy_ids<std::uint8_t>(piece->data, offset, here);
        if (piece->width == 2) copy_ids<std::uint16_t>(piece->data, offset, here);
        if (piece->width == 4) copy_ids<std::uint32_t>(piece->data, offset, here);
        out = out.subspan(here.size());
        begin += count;
        ++piece;
    }
}

TokenSequence TokenSequence::slice(std::int64_t begin, std::int64_t end) const {
    check(begin >= 0 && begin <= end && end <= size_, source_, ": tokens [", begin, ", ", end, ") of ",
          size_);
    TokenSequence part;
    part.source_ = source_;
    for (Piece piece : pieces_) {
        const std::int64_t first = std::max(begin, piece.begin);
        const std::int64_t last = std::min(end, piece.begin + piece.length);
        if (first >= last) continue;
        piece.data += (first - piece.begin) * piece.width;
        piece.length = last - first;
        part.append(std::move(piece));
    }
    return part;
}

}  // namespace gradtile
