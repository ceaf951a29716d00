#pragma once
/// Encodes parts of a text. An object holds one thread's state.
#include <string>
#include <string_view>
#include <vector>

#include <gradtile/train/tokenizers/byte_pair_encoding.h>
#include <gradtile/train/tokenizers/internal/byte_pair_merging.h>
#include <gradtile/train/tokenizers/internal/byte_pair_tables.h>
#include <gradtile/train/tokenizers/internal/piece_cache.h>

namespace gradtile {

class BytePairEncoding::Worker {
  public:
    using Ids = std::vector<std::int32_t>;

    /// `text` is the text to encode. It must outlive the worker.
    Worker(const BytePairEncoding& encoding, std::string_view text, std::string_view source)
        : tables_(*encoding.tables_),
          whole_pieces_(encoding.vocabulary_.whole_pieces),
          text_(text),
          source_(source),
          cutter_(tables_.splitter),
          merging_(tables_.pairs),
          cache_(text.size()) {}

    /// Encodes the whole text, including added tokens.
    void encode_all(SpecialTokens special, Ids& out);
    /// Encodes text in which added tokens are not searched for.
    void encode_plain(std::string_view part, Ids& out) {
        cutter_.cut(part, [&](std::string_view piece) { encode_piece(piece, out); });
        refuse_gap(take_gap());
    }
    /// See TextSplitter::Cutter. encode_next() may begin within a piece, where a gap has no meaning, so its
    /// callers decide.
    std::string_view take_gap() { return cutter_.take_gap(); }
    /// Throws Error with the position of text that no pattern matches, unless `gap` is empty.
    void refuse_gap(std::string_view gap) const;
    /// Encodes valid UTF-8 piece by piece up to the next match, and returns the match's end; see
    /// TextSplitter::Cutter::cut_next.
    std::size_t encode_next(std::string_view run, std::size_t from, Ids& out) {
        return cutter_.cut_next(run, from, [&](std::string_view piece) { encode_piece(piece, out); });
    }
    std::optional<std::size_t> encode_next_in_part(std::string_view part, std::size_t from, Ids& out) {
        return cutter_.cut_next_in_part(part, from,
                                        [&](std::string_view piece) { encode_piece(piece, out); });
    }
    /// Encodes one piece, which no pattern cuts.
    void encode_piece(std::string_view piece, Ids& out);

  private:
    void merge_piece(std::string_view piece);
    [[noreturn]] void refuse_byte(const char& byte) const;

    const Tables& tables_;
    bool whole_pieces_;
    std::string_view text_, source_;
    TextSplitter::Cutter cutter_;
    BytePairMerging merging_;
    PieceCache cache_;
    Ids merged_;  // merge_piece's result
};

/// Calls visit(part, id) for a text's parts in order: added tokens with their ids, and the text between them
/// with -1.
template <class Tables, class Visit>
void for_each_added_token(std::string_view text, const Tables& tables, SpecialTokens special, Visit&& visit) {
    const auto split = [special](std::string_view full_text, const AddedTokenFinder& finder, auto&& found) {
        for (std::size_t position = 0; position < full_text.size();) {
            const AddedTokenFinder::Found token = finder.find(full_text, position, special);
            if (token.begin > position) found(full_text.substr(position, token.begin - position), -1);
            if (token.length > 0) found(full_text.substr(token.begin, token.length), token.id);
            position = token.begin + token.length;
        }
    };
    split(text, tables.added, [&](std::string_view part, std::int32_t id) {
        if (id >= 0) return visit(part, id);
        split(part, tables.added_normalized, visit);
    });
}

}  // namespace gradtile
