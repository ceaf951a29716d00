#include <gradtile/train/data/token_sequence.h>

#include <algorithm>
#include <array>
#include <cstddef>

#include <gradtile/core/check.h>
#include <gradtile/train/data/examples.h>
#include <gradtile/train/data/readers/data_content.h>
#include <gradtile/train/data/token_file.h>

namespace gradtile {

class TokenStorage {
  public:
    TokenStorage() = default;
    virtual ~TokenStorage() = default;
    TokenStorage(const TokenStorage&) = delete;
    TokenStorage& operator=(const TokenStorage&) = delete;

    virtual void read(std::int64_t first, std::span<std::int32_t> out) const = 0;
    virtual void require_unchanged() const {}
};

namespace {

template <class Ids>
class IdsInMemory final : public TokenStorage {
  public:
    explicit IdsInMemory(Ids ids) : ids_(std::move(ids)) {}

    void read(std::int64_t first, std::span<std::int32_t> out) const override {
        using Id = std::conditional_t<std::is_same_v<Ids, std::string>, unsigned char, std::int32_t>;
        const Id* const __restrict from = reinterpret_cast<const Id*>(ids_.data()) + first;
        for (std::size_t i = 0; i < out.size(); ++i) out[i] = from[i];
    }

  private:
    Ids ids_;
};

template <class Id>
class IdsInFile final : public TokenStorage {
  public:
    explicit IdsInFile(FileTokens tokens) : tokens_(std::move(tokens)) {}

    void read(std::int64_t first, std::span<std::int32_t> out) const override {
        std::array<Id, 8192> buffer;
        while (!out.empty()) {
            const std::size_t count = std::min(out.size(), buffer.size());
            const std::span<Id> ids = std::span(buffer).first(count);
            tokens_.file->read(tokens_.offset + first * std::int64_t{sizeof(Id)},
                               std::as_writable_bytes(ids));
            Id largest = 0;
            for (std::size_t i = 0; i < count; ++i) {
                largest = std::max(largest, ids[i]);
                out[i] = static_cast<std::int32_t>(ids[i]);
            }
            // The ids were below the vocabulary when the file was opened. A larger id would read outside the
            // embedding.
            check(largest < tokens_.vocabulary, tokens_.file->path(), ": tokens [", first, ", ",
                  first + static_cast<std::int64_t>(count), ") have an id ", largest,
                  ", outside the vocabulary of ", tokens_.vocabulary, " (it was changed while it was read)");
            out = out.subspan(count);
            first += static_cast<std::int64_t>(count);
        }
    }

    void require_unchanged() const override { gradtile::require_unchanged(*tokens_.file, tokens_.content); }

  private:
    FileTokens tokens_;
};

}  // namespace

TokenSequence::TokenSequence(std::shared_ptr<const TokenStorage> storage, std::int64_t length,
                             std::string source)
    : source_(std::move(source)) {
    append({std::move(storage), 0, 0, length});
}

TokenSequence::TokenSequence(std::vector<std::int32_t> ids, std::string source) : source_(std::move(source)) {
    const std::int64_t length = std::ssize(ids);
    append({std::make_shared<IdsInMemory<std::vector<std::int32_t>>>(std::move(ids)), 0, 0, length});
}

TokenSequence TokenSequence::from_bytes(std::string text, std::string source) {
    const std::int64_t length = std::ssize(text);
    return {std::make_shared<IdsInMemory<std::string>>(std::move(text)), length, std::move(source)};
}

TokenSequence TokenSequence::from_file(FileTokens tokens) {
    const std::int64_t length = tokens.count;
    std::string source = tokens.file->path();
    check(tokens.id_bytes == 2 || tokens.id_bytes == 4, source, ": ids of ", tokens.id_bytes,
          " bytes; expected 2 or 4");
    check(tokens.vocabulary >= 1 && tokens.vocabulary <= max_vocabulary, source, ": vocabulary ",
          tokens.vocabulary, "; expected 1 to ", max_vocabulary);
    std::shared_ptr<const TokenStorage> storage;
    if (tokens.id_bytes == 2) {
        storage = std::make_shared<IdsInFile<std::uint16_t>>(std::move(tokens));
    } else {
        storage = std::make_shared<IdsInFile<std::uint32_t>>(std::move(tokens));
    }
    return {std::move(storage), length, std::move(source)};
}

TokenSequence TokenSequence::from_examples(std::vector<std::int32_t> ids, Examples examples,
                                           std::string source) {
    return from_examples(TokenSequence(std::move(ids), std::move(source)), std::move(examples));
}

TokenSequence TokenSequence::from_examples(TokenSequence tokens, Examples examples) {
    check(examples.begins.back() == tokens.size() && std::ssize(examples.is_target) == tokens.size(),
          tokens.source(), ": examples of ", examples.begins.back(), " tokens and ",
          examples.is_target.size(), " marks for ", tokens.size(), " ids");
    tokens.examples_ = std::make_shared<const Examples>(std::move(examples));
    return tokens;
}

TokenSequence TokenSequence::named(std::string source) const {
    TokenSequence copy = *this;
    copy.source_ = std::move(source);
    return copy;
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
        const std::int64_t count = std::min<std::int64_t>(piece->length - offset, std::ssize(out));
        const std::span<std::int32_t> here = out.first(static_cast<std::size_t>(count));
        piece->storage->read(piece->first + offset, here);
        out = out.subspan(here.size());
        begin += count;
        ++piece;
    }
}

void TokenSequence::require_unchanged() const {
    for (const Piece& piece : pieces_) piece.storage->require_unchanged();
}

TokenSequence TokenSequence::slice(std::int64_t begin, std::int64_t end) const {
    check(begin >= 0 && begin <= end && end <= size_, source_, ": tokens [", begin, ", ", end, ") of ",
          size_);
    TokenSequence part;
    if (examples_) part.examples_ = std::make_shared<const Examples>(examples_->slice(begin, end, source_));
    part.source_ = source_;
    for (Piece piece : pieces_) {
        const std::int64_t first = std::max(begin, piece.begin);
        const std::int64_t last = std::min(end, piece.begin + piece.length);
        if (first >= last) continue;
        piece.first += first - piece.begin;
        piece.length = last - first;
        part.append(std::move(piece));
    }
    return part;
}

}  // namespace gradtile
