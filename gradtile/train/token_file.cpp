#include <gradtile/train/token_file.h>

#include <glob.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <vector>

#include <gradtile/core/check.h>
#include <gradtile/train/mapped_file.h>

namespace gradtile {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are little-endian");

using ShardHeader = std::array<std::int32_t, 256>;

/// What distinguishes the two kinds of llm.c shard.
struct ShardFacts {
    TokenFormat format;
    std::int32_t magic;
    std::int32_t version;
    std::int64_t vocabulary;
};
constexpr ShardFacts gpt2_facts{TokenFormat::gpt2_shard, 20240520, 1, 50257};
constexpr ShardFacts llama3_facts{TokenFormat::llama3_shard, 20240801, 7, 128256};

/// llm.c's other files begin with these; read as headerless tokens they would train on noise.
constexpr std::array other_llm_c_files = {
    std::pair{20240326, std::string_view("a model")}, std::pair{20240327, std::string_view("a debug state")},
    std::pair{20240328, std::string_view("a tokenizer")},
    std::pair{20240522, std::string_view("a multiple-choice evaluation")}};

/// The largest id: one pass, vectorised, at the speed memory delivers.
template <class Id>
Id largest(std::span<const Id> ids) {
    Id most = 0;
    for (const Id id : ids) most = std::max(most, id);
    return most;
}

template <class Id>
TokenFile validated(std::shared_ptr<const void> owner, std::span<const std::byte> bytes, TokenFormat format,
                    const std::string& source, std::int64_t vocabulary) {
    const std::span ids(reinterpret_cast<const Id*>(bytes.data()), bytes.size() / sizeof(Id));
    check(!ids.empty(), source, ": holds no tokens");
    // Every id a 16-bit file can hold is in a vocabulary of 65536: nothing to look for.
    const bool needs_scan = vocabulary == 0 || vocabulary <= std::numeric_limits<Id>::max();
    const std::int64_t most = needs_scan ? std::int64_t{largest(ids)} : 0;
    if (vocabulary == 0) vocabulary = most + 1;
    if (most >= vocabulary) {
        const auto first = std::ranges::find_if(ids, [&](Id id) { return id >= vocabulary; });
        throw Error(concat(source, ": token ", first - ids.begin(), " has id ", *first,
                           ", outside the vocabulary of ", vocabulary));
    }
    return {TokenSequence(std::move(owner), ids, source), format, vocabulary};
}

/// The ids of a shard, after its header has been checked against the file's size.
std::span<const std::byte> shard_body(std::span<const std::byte> bytes, const ShardFacts& facts,
                                      std::int64_t id_bytes, const std::string& source) {
    check(bytes.size() >= sizeof(ShardHeader), source, ": truncated: ", bytes.size(),
          " bytes, less than a shard's header of ", sizeof(ShardHeader));
    ShardHeader header;
    std::memcpy(header.data(), bytes.data(), sizeof(ShardHeader));
    check(header[1] == facts.version, source, ": ", name_of(facts.format), " token shard of version ",
          header[1], "; version ", facts.version, " is supported");
    check(header[2] >= 0, source, ": damaged: its header counts ", header[2], " tokens");
    const std::span<const std::byte> body = bytes.subspan(sizeof(ShardHeader));
    const std::int64_t expected = header[2] * id_bytes;
    check(std::ssize(body) >= expected, source, ": truncated: its header counts ", header[2], " tokens of ",
          id_bytes, " bytes, ", body.size(), " bytes follow");
    check(std::ssize(body) == expected, source, ": damaged: its header counts ", header[2], " tokens of ",
          id_bytes, " bytes, yet ", body.size(), " bytes follow");
    return body;
}

std::vector<std::string> matching_files(const std::string& pattern) {
    glob_t matches{};
    const int outcome = ::glob(pattern.c_str(), GLOB_ERR, nullptr, &matches);
    std::vector<std::string> paths;
    if (outcome == 0) paths.assign(matches.gl_pathv, matches.gl_pathv + matches.gl_pathc);
    ::globfree(&matches);
    check(outcome == 0 || outcome == GLOB_NOMATCH, pattern, ": cannot be searched: ", std::strerror(errno));
    check(!paths.empty(), pattern, ": no file matches");
    return paths;  // glob() sorts them
}

TokenFile open_one(const std::string& path, std::int64_t vocabulary) {
    auto file = std::make_shared<const MappedFile>(path);
    const std::span<const std::byte> bytes = file->bytes();
    return read_token_bytes(std::move(file), bytes, path, vocabulary);
}

}  // namespace

bool is_token_file(std::string_view path) {
    return path.ends_with(".bin");
}

TokenFile read_token_bytes(std::shared_ptr<const void> owner, std::span<const std::byte> bytes,
                           const std::string& source, std::int64_t vocabulary) {
    check(vocabulary >= 0, source, ": vocabulary: ", vocabulary, "; expected 0 or more");
    check(!bytes.empty(), source, ": is empty; expected tokens");
    std::int32_t magic = 0;
    if (bytes.size() >= sizeof(magic)) std::memcpy(&magic, bytes.data(), sizeof(magic));
    const auto own_or = [&](std::int64_t usual) { return vocabulary == 0 ? usual : vocabulary; };

    if (magic == gpt2_facts.magic) {
        const auto body = shard_body(bytes, gpt2_facts, sizeof(std::uint16_t), source);
        return validated<std::uint16_t>(std::move(owner), body, gpt2_facts.format, source,
                                        own_or(gpt2_facts.vocabulary));
    }
    if (magic == llama3_facts.magic) {
        const auto body = shard_body(bytes, llama3_facts, sizeof(std::uint32_t), source);
        return validated<std::uint32_t>(std::move(owner), body, llama3_facts.format, source,
                                        own_or(llama3_facts.vocabulary));
    }
    for (const auto& [other, what] : other_llm_c_files)
        check(magic != other, source, ": wrong magic ", magic, ": this is ", what, " of llm.c, not tokens");
    for (const ShardFacts& facts : {gpt2_facts, llama3_facts})
        check(static_cast<std::uint32_t>(magic) != __builtin_bswap32(static_cast<std::uint32_t>(facts.magic)),
              source, ": wrong magic: a big-endian token shard; little-endian is supported");
    check(bytes.size() % sizeof(std::uint16_t) == 0, source, ": odd size: ", bytes.size(),
          " bytes are no whole number of 16-bit tokens");
    return validated<std::uint16_t>(std::move(owner), bytes, TokenFormat::headerless, source, vocabulary);
}

TokenFile open_token_file(const std::string& path, std::int64_t vocabulary) {
    if (path.find_first_of("*?[") == std::string::npos) return open_one(path, vocabulary);
    std::vector<TokenSequence> parts;
    TokenFile whole;
    for (const std::string& name : matching_files(path)) {
        TokenFile part = open_one(name, vocabulary);
        check(parts.empty() || part.format == whole.format, name, ": is a ", name_of(part.format),
              " token file, the one before it a ", name_of(whole.format), " one");
        whole.format = part.format;
        whole.vocabulary = std::max(whole.vocabulary, part.vocabulary);
        parts.push_back(std::move(part.tokens));
    }
    whole.tokens = TokenSequence::joined(parts, path);
    return whole;
}

void write_token_file(const std::string& path, TokenFormat format, std::span<const std::int32_t> ids) {
    const bool wide = format == TokenFormat::llama3_shard;
    const std::int64_t limit = wide ? std::numeric_limits<std::int32_t>::max() : 65535;
    for (std::size_t i = 0; i < ids.size(); ++i)
        check(ids[i] >= 0 && ids[i] <= limit, path, ": token ", i, " has id ", ids[i], "; a ",
              name_of(format), " file holds 0 to ", limit);
    std::ofstream file(path, std::ios::binary | std::ios::trunc);
    check(file.good(), path, ": cannot be written: ", std::strerror(errno));
    const auto write = [&](const auto& values) {
        file.write(reinterpret_cast<const char*>(values.data()),
                   static_cast<std::streamsize>(values.size() * sizeof(values[0])));
    };
    if (format != TokenFormat::headerless) {
        check(std::ssize(ids) <= std::numeric_limits<std::int32_t>::max(), path, ": ", ids.size(),
              " tokens are more than a shard's header can count");
        const ShardFacts& facts = wide ? llama3_facts : gpt2_facts;
        ShardHeader header{facts.magic, facts.version, static_cast<std::int32_t>(ids.size())};
        write(header);
    }
    if (wide) {
        write(ids);
    } else {
        write(std::vector<std::uint16_t>(ids.begin(), ids.end()));
    }
    file.close();
    check(file.good(), path, ": cannot be written: ", std::strerror(errno));
}

}  // namespace gradtile
