#pragma once
/// TokenSequence: token ids in order, in memory or in files.
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <gradtile/core/io/data_file.h>
#include <gradtile/train/data/data_content.h>

namespace gradtile {

struct Examples;
/// The ids in one file or one memory block.
class TokenStorage;

/// Ids in a file: consecutive little-endian 16-bit or 32-bit integers.
struct FileTokens {
    std::shared_ptr<const DataFile> file;
    DataContent content{};    ///< the file's content, for require_unchanged()
    std::int64_t offset = 0;  ///< the first id's offset in bytes
    int id_bytes = 2;
    std::int64_t count = 0;
    std::int64_t vocabulary = 0;  ///< every id is below this number; at most 2^31
};

/// A cheap, immutable view of token ids. The ids are in memory, or are read from files when needed; several
/// pieces (shards) form one text. Copies share the storage. Several threads may read at once.
class TokenSequence {
  public:
    TokenSequence() = default;
    /// Ids in memory. `source` is their name in messages.
    TokenSequence(std::vector<std::int32_t> ids, std::string source);
    /// Each byte in the text is an id.
    static TokenSequence from_bytes(std::string text, std::string source);
    static TokenSequence from_file(FileTokens tokens);
    /// Ids that are trained on example by example. `examples` covers exactly these ids.
    static TokenSequence from_examples(std::vector<std::int32_t> ids, Examples examples, std::string source);

    /// Concatenates several sequences.
    static TokenSequence joined(std::span<const TokenSequence> parts, std::string source);

    std::int64_t size() const { return size_; }
    /// Where the tokens come from, for messages: usually a file name.
    const std::string& source() const { return source_; }
    /// The examples in the sequence; null if it is one text.
    const Examples* examples() const { return examples_.get(); }

    /// Copies tokens [begin, begin + out.size()) to `out`. Throws Error when the range is outside the
    /// sequence, when a file cannot be read or became shorter, and when it now holds an id outside its
    /// vocabulary. Makes one system call for up to 8192 tokens in a file.
    void read(std::int64_t begin, std::span<std::int32_t> out) const;
    /// Throws Error when a file in this sequence was changed since it was opened; see require_unchanged().
    void require_unchanged() const;
    /// Returns tokens [begin, end) as a sequence without copying them. For a sequence with examples(), throws
    /// Error unless the range is the whole sequence.
    TokenSequence slice(std::int64_t begin, std::int64_t end) const;

  private:
    struct Piece {
        std::shared_ptr<const TokenStorage> storage;
        std::int64_t first;  ///< index of the part's first id in the storage
        std::int64_t begin;  ///< index of the part's first id in the sequence
        std::int64_t length;
    };
    TokenSequence(std::shared_ptr<const TokenStorage> storage, std::int64_t length, std::string source);
    void append(Piece piece);

    std::vector<Piece> pieces_;
    std::int64_t size_ = 0;
    std::string source_;
    std::shared_ptr<const Examples> examples_;
};

}  // namespace gradtile
