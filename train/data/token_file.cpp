#include <gradtile/train/data/token_file.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <vector>

#include <gradtile/core/check.h>
#include <gradtile/core/io/durable_file.h>
#include <gradtile/core/os/internal/operating_system.h>
#include <gradtile/core/text/formatted.h>
#include <gradtile/core/text/with_source.h>
#include <gradtile/train/data/readers/data_files.h>

namespace gradtile {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are little-endian");

using ShardHeader = std::array<std::int32_t, 256>;

constexpr bool has_header(const TokenFormatTraits& format) {
    return format.magic != 0;
}

constexpr int id_bytes(const TokenFormatTraits& format) {
    return format.ids == TokenType::uint32 ? 4 : 2;
}

/// Magic numbers in llm.c's other files. If such files were read as headerless tokens, the tokens would be
/// noise.
constexpr std::array other_llm_c_files = {
    std::pair{20240326, std::string_view("a model")}, std::pair{20240327, std::string_view("a debug state")},
    std::pair{20240328, std::string_view("a tokenizer")},
    std::pair{20240522, std::string_view("a multiple-choice evaluation")}};

/// A file's first 1024 bytes, padded with zeros.
struct Head {
    ShardHeader words{};
    explicit Head(const DataFile& file) {
        const auto bytes = std::min<std::int64_t>(file.size(), sizeof words);
        file.read(0, std::as_writable_bytes(std::span(words)).first(static_cast<std::size_t>(bytes)));
    }
    std::int32_t magic() const { return words[0]; }
    std::int32_t version() const { return words[1]; }
    std::int64_t tokens() const { return words[2]; }
};

constexpr std::int64_t header_bytes = sizeof(ShardHeader);

/// Where a file's token ids are.
struct Layout {
    const TokenFormatTraits& format;
    std::int64_t offset, count;
};

Layout shard_layout(const DataFile& file, const Head& head, const TokenFormatTraits& format) {
    const std::string& path = file.path();
    check(file.size() >= header_bytes, path, ": truncated: ", file.size(),
          " bytes, less than a shard's header of ", header_bytes);
    check(head.version() == format.version, path, ": ", format.name, " token shard of version ",
          head.version(), "; version ", format.version, " is supported");
    check(head.tokens() >= 0, path, ": damaged: its header counts ", head.tokens(), " tokens");
    const std::int64_t body = file.size() - header_bytes, expected = head.tokens() * id_bytes(format);
    check(body >= expected, path, ": truncated: its header counts ", head.tokens(), " tokens of ",
          id_bytes(format), " bytes, ", body, " bytes follow");
    check(body == expected, path, ": damaged: its header counts ", head.tokens(), " tokens of ",
          id_bytes(format), " bytes, but ", body, " bytes follow");
    return {format, header_bytes, head.tokens()};
}

/// "20240520 (gpt2) or 20240801 (llama3)".
std::string known_magic_numbers() {
    std::string list;
    for (const TokenFormatTraits& format : token_format_table)
        if (has_header(format))
            list += concat(list.empty() ? "" : " or ", format.magic, " (", format.name, ")");
    return list;
}

std::int32_t byte_swapped(std::int32_t value) {
    return static_cast<std::int32_t>(__builtin_bswap32(static_cast<std::uint32_t>(value)));
}

/// llm.c's magic numbers are dates in 2024. No such number, read as two uint16, is a pair of GPT-2 ids.
bool looks_like_magic_number(std::int32_t value) {
    return value / 10000 == 2024;
}

/// Returns whether the header is valid except for its magic number: the count matches the file's size.
bool has_shard_header(const DataFile& file, const Head& head) {
    const std::int64_t body = file.size() - header_bytes;
    return body > 0 && head.version() > 0 && head.version() < 1000 &&
           (head.tokens() * 2 == body || head.tokens() * 4 == body);
}

/// Refuses files that are not headerless token files: if other files were read as token files, the tokens
/// would be noise.
void refuse_damaged_shards(const DataFile& file, const Head& head) {
    const std::string& path = file.path();
    for (const auto& [other, what] : other_llm_c_files)
        check(head.magic() != other, path, ": wrong magic ", other, ": this is ", what,
              " of llm.c, not tokens");
    check(!looks_like_magic_number(byte_swapped(head.magic())), path,
          ": wrong magic: a big-endian token shard; little-endian is supported");
    check(!looks_like_magic_number(head.magic()), path, ": wrong magic ", head.magic(), "; expected ",
          known_magic_numbers());
    check(!has_shard_header(file, head), path, ": wrong magic ", head.magic(), " before a shard's header of ",
          head.tokens(), " tokens, as many as the file holds; expected ", known_magic_numbers());
}

/// Returns whether every second 16-bit number is 0 to 3, but not all numbers are. A 32-bit id's upper half is
/// 0 with GPT-2, 0 or 1 with Llama 3, 0 to 3 with Gemma. 16-bit ids do not follow this pattern.
bool looks_like_uint32(const DataFile& file) {
    constexpr std::uint32_t max_upper_half = 3;
    constexpr std::int64_t min_words = 16;
    if (file.size() % 4 != 0) return false;
    std::int64_t words = 0;
    bool all_small = true, upper_halves_small = true;
    visit_samples(file, [&](std::span<const std::byte> bytes) {
        for (std::size_t offset = 0; offset + 4 <= bytes.size() && upper_halves_small; offset += 4) {
            std::uint16_t halves[2];
            std::memcpy(halves, bytes.data() + offset, sizeof halves);
            upper_halves_small = halves[1] <= max_upper_half;
            all_small &= halves[0] <= max_upper_half;
            ++words;
        }
    });
    return upper_halves_small && !all_small && words >= min_words;
}

Layout headerless_layout(const DataFile& file, TokenType type) {
    const std::string& path = file.path();
    if (type == TokenType::uint32) {
        check(file.size() % 4 == 0, path, ": odd size: ", file.size(),
              " bytes are not a whole number of 32-bit tokens");
        return {traits_of(TokenFormat::headerless_uint32), 0, file.size() / 4};
    }
    check(file.size() % 2 == 0, path, ": odd size: ", file.size(),
          " bytes are not a whole number of 16-bit tokens");
    check(
        type != TokenType::automatic || !looks_like_uint32(file), path,
        ": every second 16-bit number is 0 to 3, as in a file of 32-bit tokens; use --token-type uint32, or "
        "uint16 if they are 16-bit tokens");
    return {traits_of(TokenFormat::headerless), 0, file.size() / 2};
}

Layout layout_of(const DataFile& file, TokenType type) {
    check(file.size() > 0, file.path(), ": is empty; expected tokens");
    const Head head(file);
    for (const TokenFormatTraits& format : token_format_table) {
        if (!has_header(format) || head.magic() != format.magic) continue;
        check(type == TokenType::automatic || type == format.ids, file.path(), ": is a ", format.name,
              " shard of ", name_of(format.ids), " tokens, not ", name_of(type), " (token-type)");
        return shard_layout(file, head, format);
    }
    refuse_damaged_shards(file, head);
    return headerless_layout(file, type);
}

/// Reads every id and returns the largest. Throws Error, with its position, for an id that is `limit` or
/// more.
template <class Id>
std::int64_t largest_id(const DataFile& file, const Layout& layout, std::int64_t limit) {
    std::vector<Id> buffer(
        static_cast<std::size_t>(std::min<std::int64_t>(layout.count, (1 << 20) / sizeof(Id))));
    Id largest = 0;
    for (std::int64_t begin = 0; begin < layout.count;) {
        const std::span<Id> ids = std::span(buffer).first(
            static_cast<std::size_t>(std::min<std::int64_t>(std::ssize(buffer), layout.count - begin)));
        file.read(layout.offset + begin * id_bytes(layout.format), std::as_writable_bytes(ids));
        for (const Id id : ids) largest = std::max(largest, id);
        if (largest >= limit) {
            const auto first = std::ranges::find_if(ids, [&](Id id) { return id >= limit; });
            throw Error(concat(file.path(), ": token ", begin + (first - ids.begin()), " has id ", *first,
                               ", outside the vocabulary of ", limit));
        }
        begin += std::ssize(ids);
    }
    return largest;
}

TokenFile open_one(const std::string& path, const TokenFileOptions& options) {
    const auto file = std::make_shared<const DataFile>(path);
    const Layout layout = layout_of(*file, options.type);
    check(layout.count > 0, path, ": holds no tokens");
    TokenFile result{.format = layout.format.format,
                     .vocabulary = options.vocabulary > 0 ? options.vocabulary : layout.format.vocabulary,
                     .contents = {content_of(*file)}};
    result.vocabulary_of_ids = result.vocabulary == 0;
    const std::int64_t limit = result.vocabulary_of_ids ? max_vocabulary : result.vocabulary;
    const bool narrow = layout.format.ids == TokenType::uint16;
    // A vocabulary of 65536 contains every id in a 16-bit file, so no check is needed.
    if (result.vocabulary_of_ids || !narrow || limit <= std::numeric_limits<std::uint16_t>::max()) {
        const std::int64_t largest = narrow ? largest_id<std::uint16_t>(*file, layout, limit)
                                            : largest_id<std::uint32_t>(*file, layout, limit);
        if (result.vocabulary_of_ids) result.vocabulary = largest + 1;
    }
    result.tokens = TokenSequence::from_file({.file = file,
                                              .content = result.contents.front(),
                                              .offset = layout.offset,
                                              .id_bytes = id_bytes(layout.format),
                                              .count = layout.count,
                                              .vocabulary = result.vocabulary});
    return result;
}

}  // namespace

bool is_token_file(std::string_view path) {
    return path.ends_with(".bin");
}

bool begins_like_shard(std::string_view bytes) {
    std::int32_t magic = 0;
    if (bytes.size() < sizeof magic) return false;
    std::memcpy(&magic, bytes.data(), sizeof magic);
    return magic != 0 && std::ranges::find(token_format_table, magic, &TokenFormatTraits::magic) !=
                             token_format_table.end();
}

std::string TokenFile::description() const {
    const TokenFormatTraits& traits = traits_of(format);
    const bool several = contents.size() > 1;
    const std::string number = several ? concat(contents.size(), " files, ") : "";
    if (has_header(traits))
        return concat(number, "llm.c shard", several ? "s" : "", ", version ", traits.version, ", ",
                      grouped(tokens.size()), " ", name_of(traits.ids), " tokens");
    return concat(number, "headerless ", name_of(traits.ids), ", ", grouped(tokens.size()), " tokens",
                  vocabulary_of_ids ? concat(", largest id ", vocabulary - 1) : "");
}

TokenFile open_token_file(const std::string& path, const TokenFileOptions& options) {
    check(options.vocabulary >= 0, path, ": vocabulary: ", options.vocabulary, "; expected 0 or more");
    if (!is_pattern(path)) return open_one(path, options);
    const std::vector<std::string> names = data_files(path);
    require_open_files(names.size(), concat(names.size(), " shards, which stay open"));
    std::vector<TokenSequence> parts;
    TokenFile full;
    for (const std::string& name : names) {
        TokenFile part = open_one(name, options);
        check(parts.empty() || part.format == full.format, name, ": is a ", name_of(part.format),
              " token file, the one before it a ", name_of(full.format), " one");
        full.format = part.format;
        full.vocabulary = std::max(full.vocabulary, part.vocabulary);
        full.vocabulary_of_ids = part.vocabulary_of_ids;
        full.contents.push_back(std::move(part.contents.front()));
        parts.push_back(std::move(part.tokens));
    }
    full.tokens = TokenSequence::joined(parts, path);
    return full;
}

TokenFileWriter::TokenFileWriter(const std::string& path, TokenFormat format) : path_(path), format_(format) {
    with_source(path_, [&] {
        const bool exists = std::filesystem::exists(path);
        check(!std::filesystem::is_directory(path), "is a directory; expected a file");
        if (exists && !std::filesystem::is_regular_file(path)) {
            memory_ =
                OpenFile(FileSystem::posix(), static_cast<int>(file_check(os::unnamed_file(), "create")));
            return;
        }
        file_ = std::make_unique<DurableFile>(exists ? std::filesystem::canonical(path)
                                                     : std::filesystem::path(path));
    });
}
TokenFileWriter::~TokenFileWriter() = default;

const OpenFile& TokenFileWriter::file() const {
    return file_ ? file_->file() : memory_;
}

std::uint64_t TokenFileWriter::offset_of(std::int64_t token) const {
    const TokenFormatTraits& traits = traits_of(format_);
    return static_cast<std::uint64_t>((has_header(traits) ? header_bytes : 0) + token * id_bytes(traits));
}

void TokenFileWriter::append(std::span<const std::int32_t> ids) {
    const TokenFormatTraits& traits = traits_of(format_);
    const bool is_wide = traits.ids == TokenType::uint32;
    constexpr std::int32_t max_narrow = std::numeric_limits<std::uint16_t>::max();
    for (std::size_t i = 0; i < ids.size(); ++i)
        check(ids[i] >= 0 && (is_wide || ids[i] <= max_narrow), path_, ": token ",
              count_ + static_cast<std::int64_t>(i), " has id ", ids[i], "; a ", traits.name,
              " file holds 0 to ", is_wide ? std::numeric_limits<std::int32_t>::max() : max_narrow);
    check(!has_header(traits) || count_ + std::ssize(ids) <= std::numeric_limits<std::int32_t>::max(), path_,
          ": ", count_ + std::ssize(ids), " tokens are more than a shard's header can count");
    const std::size_t bytes = static_cast<std::size_t>(id_bytes(traits));
    std::size_t place = buffer_.size();
    buffer_.resize(place + ids.size() * bytes);
    for (const std::int32_t id : ids) {
        std::memcpy(buffer_.data() + place, &id, bytes);  // little-endian: the low half comes first
        place += bytes;
    }
    count_ += std::ssize(ids);
    constexpr std::size_t enough = std::size_t{1} << 20;
    if (buffer_.size() >= enough) flush();
}

void TokenFileWriter::flush() {
    with_source(path_, [&] { file().write(buffer_.data(), buffer_.size(), offset_of(flushed_)); });
    flushed_ = count_;
    buffer_.clear();
}

void TokenFileWriter::move_tail(std::int64_t first, TokenFileWriter& to) {
    flush();
    const auto bytes = static_cast<std::size_t>(id_bytes(traits_of(format_)));
    constexpr std::int64_t most = 1 << 18;
    std::vector<std::int32_t> ids;
    for (std::int64_t begin = first; begin < count_; begin += std::ssize(ids)) {
        ids.assign(static_cast<std::size_t>(std::min(most, count_ - begin)), 0);
        std::vector<std::byte> stored(ids.size() * bytes);
        with_source(path_, [&] { file().read(stored.data(), stored.size(), offset_of(begin)); });
        for (std::size_t i = 0; i < ids.size(); ++i) std::memcpy(&ids[i], stored.data() + i * bytes, bytes);
        to.append(ids);
    }
    count_ = flushed_ = first;
}

void TokenFileWriter::commit() {
    flush();
    const TokenFormatTraits& traits = traits_of(format_);
    const ShardHeader header{traits.magic, traits.version, static_cast<std::int32_t>(count_)};
    with_source(path_, [&] {
        if (has_header(traits))
            file().write(reinterpret_cast<const std::byte*>(header.data()), sizeof header, 0);
        if (file_) file_->commit(offset_of(count_), DurableFile::Sync::none);
    });
    if (file_) return;
    std::vector<std::byte> content(static_cast<std::size_t>(offset_of(count_)));
    memory_.read(content.data(), content.size(), 0);
    WholeFile(path_, {content}).commit();
}

void write_token_file(const std::string& path, TokenFormat format, std::span<const std::int32_t> ids) {
    TokenFileWriter writer(path, format);
    writer.append(ids);
    writer.commit();
}

}  // namespace gradtile
