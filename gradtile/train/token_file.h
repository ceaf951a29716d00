#pragma once
/// Token files: the binary formats of llm.c and nanoGPT (little-endian), mapped into memory and validated.
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <gradtile/core/enum_names.h>
#include <gradtile/train/token_sequence.h>

namespace gradtile {

/// gpt2_shard:   llm.c, 256 int32 of header (20240520, 1, token count, 0 ...), then uint16 ids.
/// llama3_shard: llm.c, 256 int32 of header (20240801, 7, token count, 0 ...), then uint32 ids.
/// headerless:   nanoGPT's train.bin and val.bin, uint16 ids and nothing else.
enum class TokenFormat { gpt2_shard, llama3_shard, headerless };

struct TokenFile {
    TokenSequence tokens;
    TokenFormat format = TokenFormat::headerless;
    std::int64_t vocabulary = 0;  ///< every id is below it
};

/// A name that ends in .bin is read as tokens, any other as text.
bool is_token_file(std::string_view path);

/// Opens a token file, or every file a pattern with *, ? or [] matches, in the order of their names, as one
/// sequence. The format is told from the file's first words. vocabulary = 0 takes the format's own (GPT-2
/// 50257, Llama-3 128256), for a headerless file the largest id + 1.
/// Throws Error naming the file when it is missing, empty, truncated, of odd size, of an unknown version, not
/// tokens, or holds an id outside the vocabulary (with its position).
TokenFile open_token_file(const std::string& path, std::int64_t vocabulary = 0);

/// The same for a file's bytes, which `owner` keeps alive; aligned to four bytes.
TokenFile read_token_bytes(std::shared_ptr<const void> owner, std::span<const std::byte> bytes,
                           const std::string& source, std::int64_t vocabulary = 0);

/// Throws Error when an id does not fit the format or the file cannot be written.
void write_token_file(const std::string& path, TokenFormat format, std::span<const std::int32_t> ids);

template <>
struct EnumNames<TokenFormat> {
    static constexpr std::array names = {std::pair{TokenFormat::gpt2_shard, std::string_view("gpt2")},
                                         std::pair{TokenFormat::llama3_shard, std::string_view("llama3")},
                                         std::pair{TokenFormat::headerless, std::string_view("headerless")}};
};

}  // namespace gradtile
