#include <gradtile/tools/tokenizer/byte_pair_trainer.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <unordered_map>

#include <gradtile/core/check.h>
#include <gradtile/core/context.h>
#include <gradtile/core/text/formatted.h>
#include <gradtile/train/tokenizers/byte_characters.h>
#include <gradtile/train/tokenizers/internal/text_splitter.h>

namespace gradtile {
namespace {

struct PieceHash {
    using is_transparent = void;
    std::size_t operator()(std::string_view piece) const { return std::hash<std::string_view>{}(piece); }
};
using CountByPiece = std::unordered_map<std::string, std::int64_t, PieceHash, std::equal_to<>>;

void count_piece(CountByPiece& counts, std::string_view piece, std::int64_t times = 1) {
    if (const auto known = counts.find(piece); known != counts.end()) {
        known->second += times;
    } else {
        counts.emplace(piece, times);
    }
}

/// Returns whether a piece of GPT-2's pattern begins at `position`, whatever the text before `position - 1`
/// is. A piece begins between a line break and a visible ASCII character, because no piece contains both.
bool is_safe_border(std::string_view text, std::size_t position) {
    return text[position - 1] == '\n' && text[position] > ' ' && text[position] < '\x7F';
}

/// Two adjacent tokens.
using TokenPair = std::pair<std::int32_t, std::int32_t>;
struct TokenPairHash {
    std::size_t operator()(const TokenPair& pair) const {
        const auto key = std::uint64_t{static_cast<std::uint32_t>(pair.first)} << 32 |
                         static_cast<std::uint32_t>(pair.second);
        return (key ^ key >> 29) * 0x9E3779B97F4A7C15u >> 16;
    }
};

/// Returns the bytes in id order, which is the order of the characters that represent the bytes
/// (byte_characters.h).
std::vector<std::string> bytes_by_character() {
    std::vector<std::string> bytes;
    for (int byte = 0; byte < 256; ++byte) bytes.emplace_back(1, static_cast<char>(byte));
    std::ranges::sort(bytes, {}, [](const std::string& byte) { return characters_of_bytes(byte); });
    return bytes;
}

}  // namespace

class BytePairTrainer::PieceCounts {
  public:
    explicit PieceCounts(int threads)
        : splitter_({{std::string(gpt2_pattern())}}, "tokenizer"), pool_(threads) {}

    void add(std::string_view text) {
        constexpr std::size_t max_parts = std::size_t{1} << 16;  // limits parts in text that is full of
                                                                 // invalid bytes
        std::vector<Part> parts;
        for (std::size_t position = 0; position < text.size();) {
            const std::size_t end = end_of_utf8(text, position);
            cut_run(text.substr(position, end - position), parts);
            position = end_of_invalid_utf8(text, end);
            if (position > end)
                parts.push_back({text.substr(end, position - end), 0, position - end, /*is_utf8=*/false});
            if (parts.size() >= max_parts) count(parts);
        }
        count(parts);
    }
    const CountByPiece& counts() const { return counts_; }

  private:
    static constexpr std::size_t chunk_bytes = std::size_t{1} << 22;

    /// The pieces that begin in [begin, end) of a valid UTF-8 run, or all bytes in an invalid run, which are
    /// one piece.
    struct Part {
        std::string_view run;
        std::size_t begin, end;
        bool is_utf8;
    };

    /// Cuts a valid UTF-8 run into parts of about chunk_bytes.
    static void cut_run(std::string_view run, std::vector<Part>& parts) {
        for (std::size_t begin = 0; begin < run.size();) {
            std::size_t end = std::min(begin + chunk_bytes, run.size());
            while (end < run.size() && !is_safe_border(run, end)) ++end;
            parts.push_back({run, begin, end, /*is_utf8=*/true});
            begin = end;
        }
    }

    /// Counts the pieces in the parts and removes the parts. Each thread counts a group of neighbouring parts
    /// at a time, with chunk_bytes or more in all.
    void count(std::vector<Part>& parts) {
        std::vector<std::size_t> borders{0};
        std::size_t bytes = 0;
        for (std::size_t i = 0; i < parts.size(); ++i) {
            bytes += parts[i].end - parts[i].begin;
            if (bytes < chunk_bytes && i + 1 < parts.size()) continue;
            borders.push_back(i + 1);
            bytes = 0;
        }
        std::mutex mutex;
        pool_.run(std::ssize(borders) - 1, [&](std::int64_t chunk) {
            TextSplitter::Cutter cutter(splitter_);
            CountByPiece counted;
            const auto count_one = [&](std::string_view piece) { count_piece(counted, piece); };
            const auto first = static_cast<std::size_t>(chunk);
            for (std::size_t i = borders[first]; i < borders[first + 1]; ++i) {
                const Part& part = parts[i];
                if (!part.is_utf8) count_one(part.run);
                for (std::size_t position = part.begin; part.is_utf8 && position < part.end;)
                    position = cutter.cut_next(part.run, position, count_one);
            }
            const std::scoped_lock lock(mutex);
            for (const auto& [piece, count] : counted) count_piece(counts_, piece, count);
        });
        parts.clear();
    }

    TextSplitter splitter_;
    ThreadPool pool_;
    CountByPiece counts_;
};

/// Merges pairs in all pieces. A merge changes only the counts for the pairs that it touches.
class BytePairTrainer::Merger {
  public:
    Merger(const BytePairTrainerOptions& options, const CountByPiece& counts) : options_(options) {
        for (const std::string& token : options.special_tokens) {
            const std::int32_t id = id_of(token);
            vocabulary_.added.push_back({.id = id, .text = token});
        }
        for (const std::string& byte : bytes_by_character())
            byte_ids_[static_cast<unsigned char>(byte.front())] = id_of(byte);
        for (const auto& [piece, count] : counts) add_piece(piece, count);
        queue_changed_pairs();
    }

    TrainedBytePairs run() {
        const std::int64_t first = std::ssize(vocabulary_.tokens);
        bool has_rare_pairs = false, has_long_pairs = false;
        while (std::ssize(vocabulary_.tokens) < options_.vocabulary && !queue_.empty()) {
            std::ranges::pop_heap(queue_, comes_later);
            Candidate best = std::move(queue_.back());
            queue_.pop_back();
            const std::int64_t count = pair_counts_.at(best.pair);
            if (best.count != count) {  // the count has changed since the pair was queued
                best.count = count;
                push(std::move(best));
                continue;
            }
            if (count < 1) break;
            has_rare_pairs = count < options_.min_frequency;
            if (has_rare_pairs) break;
            const bool is_long = merged_bytes(best.pair) > max_token_bytes;
            has_long_pairs |= is_long;
            if (is_long) continue;
            merge(best);
            constexpr std::int64_t report_every = 256;
            const std::int64_t done = std::ssize(vocabulary_.tokens) - first;
            if (options_.on_progress && done % report_every == 0)
                options_.on_progress(done, options_.vocabulary - first);
        }
        vocabulary_.patterns.push_back({std::string(gpt2_pattern())});
        const bool is_full = std::ssize(vocabulary_.tokens) == options_.vocabulary;
        std::string shortage = is_full ? "" : shortage_of(has_rare_pairs, has_long_pairs);
        return {std::move(vocabulary_), std::move(shortage)};
    }

  private:
    using PieceIndex = std::uint32_t;
    struct Piece {
        std::vector<std::int32_t> ids;
        std::int64_t count;
    };
    /// A queued pair: its count when it was queued, and the pieces that contain it.
    struct Candidate {
        std::int64_t count;
        TokenPair pair;
        std::vector<PieceIndex> pieces;
    };
    static bool comes_later(const Candidate& a, const Candidate& b) {
        return a.count != b.count ? a.count < b.count : a.pair > b.pair;
    }

    std::string shortage_of(bool has_rare_pairs, bool has_long_pairs) const {
        const std::string rare = concat("occurs ", grouped(options_.min_frequency), " times");
        if (!has_long_pairs) return has_rare_pairs ? "no other pair " + rare : "the text has no more pairs";
        return concat("the remaining pairs are longer than ", grouped(max_token_bytes), " bytes",
                      has_rare_pairs ? ", and no other " + rare : "");
    }

    /// Returns the id for the token with these bytes. If there is none, adds a token.
    std::int32_t id_of(const std::string& bytes) {
        const auto [token, is_new] = ids_.emplace(bytes, static_cast<std::int32_t>(ids_.size()));
        if (is_new) vocabulary_.tokens.push_back(bytes);
        return token->second;
    }

    void add_piece(std::string_view bytes, std::int64_t count) {
        const auto index = static_cast<PieceIndex>(pieces_.size());
        Piece& piece = pieces_.emplace_back(Piece{{}, count});
        for (const char byte : bytes) piece.ids.push_back(byte_ids_[static_cast<unsigned char>(byte)]);
        for (std::size_t i = 0; i + 1 < piece.ids.size(); ++i)
            change({piece.ids[i], piece.ids[i + 1]}, 1, index);
    }

    /// Counts `pair` once more or once less in a piece.
    void change(TokenPair pair, int times, PieceIndex index) {
        pair_counts_[pair] += times * pieces_[index].count;
        if (times < 0) return;
        std::vector<PieceIndex>& where = changed_[pair];
        if (where.empty() || where.back() != index) where.push_back(index);
    }

    void push(Candidate candidate) {
        queue_.push_back(std::move(candidate));
        std::ranges::push_heap(queue_, comes_later);
    }

    void queue_changed_pairs() {
        for (auto& [pair, where] : changed_)
            if (const std::int64_t count = pair_counts_.at(pair); count > 0)
                push({count, pair, std::move(where)});
        changed_.clear();
    }

    const std::string& bytes_of(std::int32_t id) const {
        return vocabulary_.tokens[static_cast<std::size_t>(id)];
    }
    std::size_t merged_bytes(TokenPair pair) const {
        return bytes_of(pair.first).size() + bytes_of(pair.second).size();
    }

    void merge(const Candidate& best) {
        const std::int32_t result = id_of(bytes_of(best.pair.first) + bytes_of(best.pair.second));
        vocabulary_.merges.push_back({best.pair.first, best.pair.second, result});
        for (const PieceIndex index : best.pieces) merge_in(index, best.pair, result);
        queue_changed_pairs();
    }

    void merge_in(PieceIndex index, TokenPair pair, std::int32_t result) {
        std::vector<std::int32_t>& ids = pieces_[index].ids;
        std::size_t kept = 0;  // ids[0, kept) are already merged
        for (std::size_t i = 0; i < ids.size(); ++kept) {
            if (i + 1 == ids.size() || ids[i] != pair.first || ids[i + 1] != pair.second) {
                ids[kept] = ids[i++];
                continue;
            }
            if (kept > 0) {
                change({ids[kept - 1], pair.first}, -1, index);
                change({ids[kept - 1], result}, 1, index);
            }
            i += 2;
            if (i < ids.size()) {
                change({pair.second, ids[i]}, -1, index);
                change({result, ids[i]}, 1, index);
            }
            ids[kept] = result;
        }
        ids.resize(kept);
    }

    const BytePairTrainerOptions& options_;
    BytePairVocabulary vocabulary_;
    std::unordered_map<std::string, std::int32_t> ids_;
    std::array<std::int32_t, 256> byte_ids_{};
    std::vector<Piece> pieces_;
    // A merged pair's count is kept. A second merge with the same result may create the pair again, and the
    // tokenizers library then continues from the old count.
    std::unordered_map<TokenPair, std::int64_t, TokenPairHash> pair_counts_;
    std::unordered_map<TokenPair, std::vector<PieceIndex>, TokenPairHash> changed_;
    std::vector<Candidate> queue_;
};

BytePairTrainer::BytePairTrainer(BytePairTrainerOptions options)
    : options_(std::move(options)), counts_(std::make_unique<PieceCounts>(options_.threads)) {
    const std::int64_t least = 256 + std::ssize(options_.special_tokens);
    check(options_.vocabulary >= least && options_.vocabulary <= max_byte_pair_vocabulary,
          "vocabulary: ", options_.vocabulary, "; expected ", least, " (special tokens and bytes) to ",
          max_byte_pair_vocabulary);
    check(options_.min_frequency >= 0, "min-frequency: ", options_.min_frequency, "; expected 0 or more");
    for (const std::string& token : options_.special_tokens) {
        check(token.size() > 1, "special-tokens: '", token, "': expected two bytes or more");
        check(token.size() <= max_token_bytes, "special-tokens: a token of ", token.size(),
              " bytes; expected at most ", max_token_bytes);
    }
}
BytePairTrainer::~BytePairTrainer() = default;

void BytePairTrainer::add(std::string_view text) {
    counts_->add(text);
}

std::int64_t BytePairTrainer::distinct_pieces() const {
    return std::ssize(counts_->counts());
}

TrainedBytePairs BytePairTrainer::train() const {
    return Merger(options_, counts_->counts()).run();
}

}  // namespace gradtile
