#pragma once
/// Token files: the binary formats of llm.c and nanoGPT (little-endian). Files are validated, and read
/// without loading them into memory.
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gradtile/core/enum_names.h>
#include <gradtile/core/io/data_file.h>
#include <gradtile/core/io/file_system.h>
#include <gradtile/train/data/readers/data_content.h>
#include <gradtile/train/data/token_sequence.h>

namespace gradtile {

class DurableFile;

enum class TokenFormat {
    gpt2_shard,        ///< a GPT-2 token shard, as llm.c writes it
    llama3_shard,      ///< a Llama 3 token shard, as llm.c writes it
    headerless,        ///< nanoGPT's train.bin and val.bin: only uint16 ids
    headerless_uint32  ///< only uint32 ids
};

/// A shard begins with 256 int32: magic, version, token count, 0 ... A file without header has magic 0.
struct TokenFormatTraits {
    TokenFormat format;
    std::string_view name;  ///< the format's name in messages
    TokenType ids;
    std::int32_t magic = 0, version = 0;
    std::int64_t vocabulary = 0;  ///< every id is below this number; 0: the format does not fix a vocabulary
    std::int32_t separator = -1;  ///< the id that llm.c writes before each document; -1: none is known
};

inline constexpr std::array token_format_table{
    TokenFormatTraits{.format = TokenFormat::gpt2_shard,
                      .name = "gpt2",
                      .ids = TokenType::uint16,
                      .magic = 20240520,
                      .version = 1,
                      .vocabulary = 50257,
                      .separator = 50256},
    TokenFormatTraits{.format = TokenFormat::llama3_shard,
                      .name = "llama3",
                      .ids = TokenType::uint32,
                      .magic = 20240801,
                      .version = 7,
                      .vocabulary = 128256,
                      .separator = 128000},
    TokenFormatTraits{.format = TokenFormat::headerless, .name = "headerless", .ids = TokenType::uint16},
    TokenFormatTraits{
        .format = TokenFormat::headerless_uint32, .name = "headerless-uint32", .ids = TokenType::uint32},
};

template <>
struct EnumNames<TokenFormat> {
    static constexpr auto names =
        names_in_table(token_format_table, &TokenFormatTraits::format, &TokenFormatTraits::name);
};

constexpr const TokenFormatTraits& traits_of(TokenFormat format) {
    static_assert(names_every_enumerator<TokenFormat>());
    return token_format_table.at(static_cast<std::size_t>(format));
}

/// Returns the format that holds these ids without a header in the fewest bytes.
constexpr TokenFormat headerless_format(std::int64_t vocabulary) {
    return vocabulary <= 65536 ? TokenFormat::headerless : TokenFormat::headerless_uint32;
}

inline constexpr std::int64_t max_vocabulary = std::int64_t{1} << 31;  ///< ids become int32

struct TokenFileOptions {
    /// Every id must be less than this number; 0: the format's vocabulary, or the largest id + 1.
    std::int64_t vocabulary = 0;
    TokenType type = TokenType::automatic;
};

struct TokenFile {
    TokenSequence tokens{};
    TokenFormat format = TokenFormat::headerless;
    std::int64_t vocabulary = 0;  ///< every id is below it
    /// The vocabulary is the largest id + 1, so another file may hold a larger id.
    bool vocabulary_of_ids = false;
    std::vector<DataContent> contents{};  ///< the file's content, or each shard's
    /// "headerless uint16, 1,003,854 tokens, largest id 64"
    std::string description() const;
};

/// Ids in a file: consecutive little-endian 16-bit or 32-bit integers.
struct FileTokens {
    std::shared_ptr<const DataFile> file;
    DataContent content{};    ///< the file's content, for require_unchanged()
    std::int64_t offset = 0;  ///< the first id's offset in bytes
    int id_bytes = 2;
    std::int64_t count = 0;
    std::int64_t vocabulary = 0;  ///< every id is below this number; at most max_vocabulary
};

/// Returns whether the name ends in .bin: such files are read as tokens, others as text.
bool is_token_file(std::string_view path);

/// Returns whether a file that begins with these bytes is a shard of llm.c, whatever its name is.
bool begins_like_shard(std::string_view bytes);

/// Opens a token file, or all files that match a pattern with *, ? or [], in name order, as one sequence. A
/// file's first words determine its format. Checks every id, unless every id of that width is below the
/// vocabulary; each later read is checked again.
///
/// Throws Error naming the file when it is missing, empty, truncated or not a token file, has an odd size or
/// an unknown version; when it looks like a shard but has the wrong magic number; when it looks like 32-bit
/// ids but TokenFileOptions::type is not uint32; or when it holds an id outside the vocabulary (with its
/// position).
TokenFile open_token_file(const std::string& path, const TokenFileOptions& options = {});

/// Writes a token file piece by piece, under a temporary name until commit(). Holds a small part in memory,
/// unless the path is a pipe or a device.
class TokenFileWriter {
  public:
    /// Throws Error naming the file when it cannot be written.
    TokenFileWriter(const std::string& path, TokenFormat format);
    ~TokenFileWriter();

    std::int64_t count() const { return count_; }
    /// Throws Error when an id does not fit the format, or when there are more than a header can count.
    void append(std::span<const std::int32_t> ids);
    /// Appends the tokens from `first` on to a writer of the same format, and removes them from this one.
    void move_tail(std::int64_t first, TokenFileWriter& to);
    /// Writes the header, and gives the file its name.
    void commit();

  private:
    void flush();
    const OpenFile& file() const;
    std::uint64_t offset_of(std::int64_t token) const;

    std::string path_;
    TokenFormat format_;
    std::unique_ptr<DurableFile> file_;
    OpenFile memory_;  // instead of file_, for a pipe or a device
    std::vector<std::byte> buffer_;
    std::int64_t count_ = 0, flushed_ = 0;  // in tokens
};

void write_token_file(const std::string& path, TokenFormat format, std::span<const std::int32_t> ids);

}  // namespace gradtile
