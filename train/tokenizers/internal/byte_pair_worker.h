#pragma once
/// Encodes parts of a text. An object holds one thread's state.
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <gradtile/train/tokenizers/byte_pair_encoding.h>
#include <gradtile/train/tokenizers/internal/byte_pair_merging.h>
#include <gradtile/train/tokenizers/internal/byte_pair_tables.h>

namespace gradtile {

class BytePairEncoding::Worker {
  public:
    using Ids = std::vector<std::int32_t>;

    /// `text` is the text to encode. It must outlive the worker.
    Worker(const BytePairEncoding& encoding, std::string_view text, std::string_view source)
        : tables_(*encoding.tables_),
          vocabulary_(encoding.vocabulary_),
          text_(text),
          source_(source),
          cutter_(tables_.splitter),
          merging_(tables_.pairs),
          cache_(tables_.caches.lend()) {}
    ~Worker() { tables_.caches.take_back(std::move(cache_)); }
    Worker(const Worker&) = delete;
    Worker& operator=(const Worker&) = delete;

    /// Encodes the whole text, including added tokens.
    void encode_all(SpecialTokens special, Ids& out);
    /// Encodes text in which added tokens are not searched for.
    void encode_plain(std::string_view part, Ids& out) {
        part_ = part;
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
        part_ = run;
        return cutter_.cut_next(run, from, [&](std::string_view piece) { encode_piece(piece, out); });
    }
    std::optional<std::size_t> encode_next_in_part(std::string_view part, std::size_t from, Ids& out) {
        part_ = part;
        return cutter_.cut_next_in_part(part, from,
                                        [&](std::string_view piece) { encode_piece(piece, out); });
    }

  private:
    /// Encodes one piece, which no pattern cuts.
    void encode_piece(std::string_view piece, Ids& out);
    /// Encodes a piece, or a word in it.
    void encode_word(std::string_view word, Ids& out);
    /// Sets merged_ to the word's ids.
    void compute(std::string_view word);
    void merge_bytes(std::string_view word);
    void merge_characters(std::string_view word);
    void choose_tokens(std::string_view word);
    /// Adds a token; if the id is negative, the ids for its text, which is a character without a token.
    void add(std::int32_t id, std::string_view text);
    void add_unknown(std::string_view character);
    [[noreturn]] void refuse_byte(const char& byte) const;
    std::string place_of(const char* place) const;

    const Tables& tables_;
    const BytePairVocabulary& vocabulary_;
    std::string_view text_, source_;
    std::string_view part_;  // the normalized text that is encoded now
    TextSplitter::Cutter cutter_;
    BytePairMerging merging_;
    Unigram::Scratch unigram_scratch_;
    std::unique_ptr<PieceCache> cache_;
    Ids merged_;  // compute()'s result
};

}  // namespace gradtile
