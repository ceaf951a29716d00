#include <gradtile/train/data/tokenized_documents.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <limits>
#include <memory>
#include <set>

#include <gradtile/core/available_memory.h>
#include <gradtile/core/check.h>
#include <gradtile/core/io/checksum.h>
#include <gradtile/core/io/durable_file.h>
#include <gradtile/core/text/json_reader.h>
#include <gradtile/core/text/utf8.h>
#include <gradtile/core/text/with_source.h>
#include <gradtile/train/data/token_file.h>

namespace gradtile {
namespace {

/// Collects the characters of all documents, which a character tokenizer needs.
Tokenizer characters_of(const TokenizeDocumentsOptions& options, ChatTemplate chat_template) {
    DocumentReader reader(options.files, options.text_column);
    std::set<char32_t> found;
    const auto add = [&](std::string_view text, const std::string& where) {
        for (std::size_t place = 0; place < text.size();) {
            const CodePoint point = decode_utf8(text, place);
            check(point.length > 0, where, ": invalid UTF-8 at byte offset ", place,
                  " of a document; use --tokenizer bytes for other encodings");
            found.insert(point.value);
            place += static_cast<std::size_t>(point.length);
        }
    };
    for (Document document; reader.next(document);) {
        for (const std::string& text : texts_of(document)) add(text, reader.where());
        if (const auto* const conversation = std::get_if<Conversation>(&document))
            for (const ChatMessage& message : *conversation)
                add(role_header(chat_template, message.role) + message_text(message, chat_template),
                    reader.where());
    }
    check(!found.empty(), options.source, ": is empty; expected text");
    add(reader.kind() == DocumentKind::conversations ? template_alphabet(chat_template) : blank_line,
        options.source);
    std::string alphabet;
    for (const char32_t character : found) append_utf8(alphabet, character);
    return Tokenizer::characters_of(alphabet, options.source);
}

Tokenizer tokenizer_of(const TokenizeDocumentsOptions& options, TokenizerKind kind) {
    check(kind != TokenizerKind::bpe, options.source,
          ": a BPE tokenizer is not made from the text; expected its file");
    if (kind == TokenizerKind::bytes) return Tokenizer::bytes();
    // Only BPE tokenizers have a template's special tokens.
    const ChatTemplate chosen = options.encoding.chat_template;
    return characters_of(options, chosen == ChatTemplate::automatic ? ChatTemplate::plain : chosen);
}

/// Receives the documents' ids: into memory, or into a token file.
class IdReceiver {
  public:
    IdReceiver(const std::string& source, std::unique_ptr<TokenFileWriter> file)
        : source_(source), file_(std::move(file)) {}

    void append(std::span<const std::int32_t> ids) {
        if (file_) return file_->append(ids);
        if (ids_.size() + ids.size() > ids_.capacity()) {
            // The vector grows to twice its size, while the old one still exists.
            const std::size_t needed = 3 * (ids_.size() + ids.size()) * sizeof(std::int32_t);
            check(ids_.size() < examined || needed <= available_memory(Device::cpu()), source_,
                  ": more than ", ids_.size(),
                  " tokens do not fit the available memory (--token-cache DIR keeps them on disk)");
        }
        ids_.insert(ids_.end(), ids.begin(), ids.end());
    }
    TokenFileWriter* file() { return file_.get(); }
    std::vector<std::int32_t> take() { return std::move(ids_); }

  private:
    static constexpr std::size_t examined = std::size_t{1} << 24;
    std::string source_;
    std::unique_ptr<TokenFileWriter> file_;
    std::vector<std::int32_t> ids_;
};

/// Encodes all documents. Sets everything but the tokens, and returns the targets.
std::vector<bool> encode_documents(const TokenizeDocumentsOptions& options, const DocumentEncoder& encoder,
                                   TokenizedDocuments& to, IdReceiver& ids) {
    std::vector<bool> is_target;
    DocumentReader reader(options.files, options.text_column);
    reader.hash_files();
    std::int64_t count = 0;
    encoder.encode_all(reader, [&](const EncodedDocument& document) {
        ids.append(document.ids);
        is_target.insert(is_target.end(), document.is_target.begin(), document.is_target.end());
        to.begins.push_back(count += std::ssize(document.ids));
    });
    check(to.count() > 0, options.source, ": is empty; expected text");
    to.kind = reader.kind();
    for (std::int64_t file = 0; file < std::ssize(options.files); ++file)
        to.contents.push_back(reader.content(file));
    return is_target;
}

void set_tokens(TokenizedDocuments& to, TokenSequence tokens, std::vector<bool> is_target) {
    to.tokens = std::move(tokens);
    if (to.kind == DocumentKind::text) return;
    to.tokens = TokenSequence::from_examples(
        std::move(to.tokens),
        Examples{.begins = to.begins, .is_target = std::move(is_target), .kind = to.kind});
}

/// Returns the CRC-32C of the first `bytes` bytes.
std::uint32_t crc32c_of(const DataFile& file, std::int64_t bytes) {
    std::uint32_t sum = 0;
    std::vector<std::byte> buffer(std::size_t{1} << 20);
    for (std::int64_t place = 0; place < bytes; place += std::ssize(buffer)) {
        buffer.resize(static_cast<std::size_t>(std::min<std::int64_t>(std::ssize(buffer), bytes - place)));
        file.read(place, buffer);
        sum = crc32c(buffer, sum);
    }
    return sum;
}

/// An entry of the cache: NAME.bin holds the ids, as a token file without a header; NAME.documents the rest:
///
///     "gradtile documents 2\n" | bytes of the JSON text, int64 | JSON text, with the CRC-32C of NAME.bin |
///     begins, int64 each | targets, a bit each (not for texts) | CRC-32C of all before, uint32
///
/// NAME.documents is written last, so an entry without it does not count.
class CacheEntry {
  public:
    CacheEntry(const TokenizeDocumentsOptions& options, const std::optional<Tokenizer>& tokenizer,
               TokenizerKind kind)
        : source_(options.source), key_(key_of(options, tokenizer, kind)) {
        const std::filesystem::path directory = options.cache;
        with_source(concat("token-cache: ", options.cache),
                    [&] { make_directories(FileSystem::posix(), directory); });
        const std::string name = sha256(key_).substr(0, 32);
        ids_path_ = (directory / (name + ".bin")).string();
        documents_path_ = (directory / (name + ".documents")).string();
    }

    std::unique_ptr<TokenFileWriter> new_ids(std::int64_t vocabulary) const {
        return std::make_unique<TokenFileWriter>(ids_path_, headerless_format(vocabulary));
    }
    /// Completes the entry. `made`: the tokenizer, if it was made from the documents.
    void write(const TokenizedDocuments& documents, const std::vector<bool>& is_target,
               const std::optional<Tokenizer>& made, TokenFileWriter& ids) const;
    /// Returns nullopt when there is no entry. Throws Error naming the file when it is damaged.
    std::optional<TokenizedDocuments> read(const std::optional<Tokenizer>& tokenizer) const;
    /// Returns the ids in the entry's token file; each read checks that they are in the vocabulary.
    TokenSequence ids(std::int64_t count, std::int64_t vocabulary) const;

  private:
    static constexpr std::string_view magic = "gradtile documents 2\n";

    void require(bool ok, const char* what) const {
        check(ok, documents_path_, ": damaged: ", what, " (remove the file, and the data are encoded again)");
    }
    static std::string key_of(const TokenizeDocumentsOptions& options,
                              const std::optional<Tokenizer>& tokenizer, TokenizerKind kind);
    void read_arrays(const DataFile& file, std::int64_t place, std::int64_t count, TokenizedDocuments& to,
                     std::vector<bool>& is_target) const;

    std::string source_, key_, ids_path_, documents_path_;
};

std::string CacheEntry::key_of(const TokenizeDocumentsOptions& options,
                               const std::optional<Tokenizer>& tokenizer, TokenizerKind kind) {
    std::string key =
        concat(magic, "text-column ", options.text_column, "\nchat-template ",
               name_of(options.encoding.chat_template), "\ntrain-on ", name_of(options.encoding.train_on),
               "\nspecial-tokens ", options.encoding.special_tokens == SpecialTokens::recognised,
               "\ntokenizer ", tokenizer ? sha256(tokenizer->to_json()) : std::string(name_of(kind)));
    for (const std::string& path : options.files) {
        const DataFile file(path);
        std::error_code error;
        key += concat('\n', std::filesystem::absolute(path, error).string(), ' ', file.size(), ' ',
                      file.modified());
    }
    return key;
}

void CacheEntry::write(const TokenizedDocuments& documents, const std::vector<bool>& is_target,
                       const std::optional<Tokenizer>& made, TokenFileWriter& ids) const {
    JsonValue contents = JsonValue::array();
    for (const DataContent& content : documents.contents) contents.push_back(content.to_json());
    JsonValue description = JsonValue::object({{"key", key_},
                                               {"kind", static_cast<int>(documents.kind)},
                                               {"documents", documents.count()},
                                               {"contents", std::move(contents)}});
    ids.commit();
    const DataFile ids_file(ids_path_);
    description.set("ids_crc32c", crc32c_of(ids_file, ids_file.size()));
    if (made) description.set("tokenizer", made->to_json());
    const std::string text = description.dump();
    const std::int64_t text_bytes = std::ssize(text);
    std::vector<std::byte> bits((is_target.size() + 7) / 8);
    for (std::size_t i = 0; i < is_target.size(); ++i)
        if (is_target[i]) bits[i / 8] |= std::byte{1} << (i % 8);
    const std::array parts{std::as_bytes(std::span(magic)), std::as_bytes(std::span(&text_bytes, 1)),
                           std::as_bytes(std::span(text)), std::as_bytes(std::span(documents.begins)),
                           std::span<const std::byte>(bits)};
    std::uint32_t sum = 0;
    for (const std::span<const std::byte> part : parts) sum = crc32c(part, sum);
    WholeFile(documents_path_,
              {parts[0], parts[1], parts[2], parts[3], parts[4], std::as_bytes(std::span(&sum, 1))})
        .commit();
}

TokenSequence CacheEntry::ids(std::int64_t count, std::int64_t vocabulary) const {
    const auto file = std::make_shared<const DataFile>(ids_path_);
    const int id_bytes = headerless_format(vocabulary) == TokenFormat::headerless ? 2 : 4;
    check(file->size() == count * id_bytes, ids_path_, ": ", file->size(), " bytes; expected ",
          count * id_bytes, " (remove the file, and the data are encoded again)");
    return TokenSequence::from_file({.file = file,
                                     .content = content_of(*file),
                                     .id_bytes = id_bytes,
                                     .count = count,
                                     .vocabulary = vocabulary})
        .named(source_);
}

void CacheEntry::read_arrays(const DataFile& file, std::int64_t place, std::int64_t count,
                             TokenizedDocuments& to, std::vector<bool>& is_target) const {
    const auto number = static_cast<std::int64_t>(sizeof(std::int64_t));
    require(count >= 1 && count < (file.size() - place) / number, "the number of documents");
    to.begins.resize(static_cast<std::size_t>(count) + 1);
    file.read(place, std::as_writable_bytes(std::span(to.begins)));
    place += (count + 1) * number;
    require(to.begins.front() == 0 && std::ranges::is_sorted(to.begins), "the documents' places");
    const std::int64_t tokens = to.begins.back();
    const std::int64_t marked = to.kind == DocumentKind::text ? 0 : tokens;
    const auto sum_bytes = static_cast<std::int64_t>(sizeof(std::uint32_t));
    require(marked <= std::numeric_limits<std::int64_t>::max() - 7 &&
                file.size() - place - sum_bytes == (marked + 7) / 8,
            "its size");
    std::vector<std::byte> bits(static_cast<std::size_t>(file.size() - place - sum_bytes));
    file.read(place, bits);
    is_target.resize(static_cast<std::size_t>(marked));
    for (std::size_t i = 0; i < is_target.size(); ++i)
        is_target[i] = (bits[i / 8] >> (i % 8) & std::byte{1}) != std::byte{0};
}

std::optional<TokenizedDocuments> CacheEntry::read(const std::optional<Tokenizer>& tokenizer) const {
    if (!std::filesystem::exists(documents_path_)) return std::nullopt;
    const DataFile file(documents_path_);
    std::array<std::byte, magic.size() + sizeof(std::int64_t)> head{};
    require(file.size() >= std::ssize(head), "it is too short");
    file.read(0, head);
    std::int64_t text_bytes = 0;
    std::memcpy(&text_bytes, head.data() + magic.size(), sizeof text_bytes);
    require(std::memcmp(head.data(), magic.data(), magic.size()) == 0, "it does not begin as such a file");
    std::uint32_t sum = 0;
    const std::int64_t summed = file.size() - static_cast<std::int64_t>(sizeof sum);
    file.read(summed, std::as_writable_bytes(std::span(&sum, 1)));
    require(crc32c_of(file, summed) == sum, "its checksum");
    require(text_bytes >= 0 && text_bytes <= file.size() - std::ssize(head), "the length of its description");
    std::string text(static_cast<std::size_t>(text_bytes), '\0');
    file.read(std::ssize(head), std::as_writable_bytes(std::span(text)));
    TokenizedDocuments documents;
    // An element for each file: there may be more than a JsonValue can hold.
    JsonElements contents(JsonElements::Of::array, [&](const std::string&, const JsonValue& content) {
        documents.contents.push_back({content["bytes"].get<std::int64_t>(), content["hash"].text()});
    });
    const JsonValue description = parse_json(text, documents_path_, {{{"contents"}, contents}});
    require(description["key"].text() == key_, "it belongs to other data");
    const int kind = description["kind"].get<int>();
    require(kind >= 0 && kind <= static_cast<int>(DocumentKind::shared_prompts), "the documents' kind");
    documents.kind = static_cast<DocumentKind>(kind);
    documents.tokenizer =
        tokenizer ? *tokenizer : Tokenizer::from_json(description["tokenizer"].text(), documents_path_);
    std::vector<bool> is_target;
    read_arrays(file, std::ssize(head) + text_bytes, description["documents"].get<std::int64_t>(), documents,
                is_target);
    TokenSequence tokens = ids(documents.begins.back(), documents.tokenizer->vocab_size());
    const DataFile ids_file(ids_path_);
    check(crc32c_of(ids_file, ids_file.size()) == description["ids_crc32c"].get<std::uint32_t>(), ids_path_,
          ": damaged: its checksum (remove the file, and the data are encoded again)");
    set_tokens(documents, std::move(tokens), std::move(is_target));
    return documents;
}

}  // namespace

TokenizedDocuments tokenize_documents(const TokenizeDocumentsOptions& options,
                                      const std::optional<Tokenizer>& tokenizer, TokenizerKind kind) {
    std::optional<CacheEntry> entry;
    if (!options.cache.empty()) entry.emplace(options, tokenizer, kind);
    std::optional<TokenizedDocuments> cached;
    if (entry) cached = entry->read(tokenizer);
    TokenizedDocuments result = cached ? *std::move(cached) : TokenizedDocuments();
    if (!cached) {
        result.tokenizer = tokenizer ? *tokenizer : tokenizer_of(options, kind);
        const DocumentEncoder encoder(*result.tokenizer,
                                      options.is_one_text
                                          ? options.encoding
                                          : with_document_borders(options.encoding, *result.tokenizer));
        const std::int64_t vocabulary = result.tokenizer->vocab_size();
        IdReceiver ids(options.source, entry ? entry->new_ids(vocabulary) : nullptr);
        std::vector<bool> is_target = encode_documents(options, encoder, result, ids);
        if (entry) {
            entry->write(result, is_target, tokenizer ? std::nullopt : result.tokenizer, *ids.file());
            set_tokens(result, entry->ids(result.begins.back(), vocabulary), std::move(is_target));
        } else {
            set_tokens(result, TokenSequence(ids.take(), options.source), std::move(is_target));
        }
    }
    result.chat_template = resolved_template(options.encoding.chat_template, *result.tokenizer);
    return result;
}

}  // namespace gradtile
