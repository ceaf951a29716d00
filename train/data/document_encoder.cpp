#include <gradtile/train/data/document_encoder.h>

#include <algorithm>

#include <gradtile/core/check.h>
#include <gradtile/train/data/packing.h>

namespace gradtile {

std::size_t bytes_of(const Document& document) {
    if (const auto* const text = std::get_if<std::string>(&document)) return text->size();
    if (const auto* const completion = std::get_if<Completion>(&document))
        return completion->prompt.size() + completion->completion.size();
    std::size_t bytes = 0;
    if (const auto* const shared = std::get_if<SharedPrompt>(&document)) {
        bytes = shared->prompt.size();
        for (const std::string& completion : shared->completions) bytes += completion.size();
        return bytes;
    }
    for (const ChatMessage& message : std::get<Conversation>(document)) bytes += message.content.size();
    return bytes;
}

namespace {

/// Reads the next documents, some MiB of text. Returns none at the end.
std::vector<PlacedDocument> read_batch(DocumentReader& reader, const std::string& cut_at) {
    constexpr std::size_t enough_bytes = std::size_t{4} << 20, enough_documents = 4096;
    std::vector<PlacedDocument> batch;
    std::size_t bytes = 0;
    for (Document document;
         bytes < enough_bytes && batch.size() < enough_documents && reader.next(document);) {
        bytes += bytes_of(document);
        const auto* const text = std::get_if<std::string>(&document);
        if (cut_at.empty() || text == nullptr) {
            batch.push_back({std::move(document), reader.where()});
            continue;
        }
        for (std::string_view rest = *text; !rest.empty();) {
            const std::size_t end = std::min(rest.find(cut_at), rest.size());
            if (end > 0) batch.push_back({std::string(rest.substr(0, end)), reader.where()});
            rest.remove_prefix(std::min(end + cut_at.size(), rest.size()));
        }
    }
    return batch;
}

}  // namespace

DocumentEncoder::DocumentEncoder(Tokenizer tokenizer, DocumentEncoderOptions options)
    : tokenizer_(std::move(tokenizer)),
      options_(std::move(options)),
      format_(options_.chat_template, tokenizer_) {}

EncodedDocument DocumentEncoder::encode_text(std::string_view text, std::string_view where,
                                             int threads) const {
    EncodedDocument encoded;
    const EncodeOptions how{.special_tokens = options_.special_tokens, .threads = threads};
    encoded.ids = tokenizer_.encode(text, where, how);
    if (options_.separator) encoded.ids.insert(encoded.ids.begin(), *options_.separator);
    if (options_.separator || options_.text_end.empty()) return encoded;
    const std::vector<std::int32_t> end = tokenizer_.encode(options_.text_end, where, how);
    encoded.ids.insert(encoded.ids.end(), end.begin(), end.end());
    return encoded;
}

/// An answer's tokens and its end.
std::vector<std::int32_t> DocumentEncoder::encode_answer(const std::string& answer,
                                                         std::string_view where) const {
    const EncodeOptions how{.threads = 1};
    std::vector<std::int32_t> ids = tokenizer_.encode(answer, where, how);
    const std::vector<std::int32_t> end = options_.separator
                                              ? std::vector{*options_.separator}
                                              : tokenizer_.encode(options_.text_end, where, how);
    ids.insert(ids.end(), end.begin(), end.end());
    return ids;
}

EncodedDocument DocumentEncoder::encode_completion(const Completion& completion,
                                                   std::string_view where) const {
    const EncodeOptions how{.threads = 1};
    EncodedDocument encoded{.ids = tokenizer_.encode(completion.prompt, where, how), .is_target = {}};
    encoded.is_target.assign(encoded.ids.size(), options_.train_on == TrainOn::all);
    const std::vector<std::int32_t> answer = encode_answer(completion.completion, where);
    encoded.ids.insert(encoded.ids.end(), answer.begin(), answer.end());
    encoded.is_target.resize(encoded.ids.size(), true);
    if (!encoded.ids.empty()) encoded.is_target.front() = false;
    return encoded;
}

/// The prompt without its last token, and then for each answer this token, which predicts the answer's first
/// token, and the answer.
EncodedDocument DocumentEncoder::encode_shared_prompt(const SharedPrompt& shared,
                                                      std::string_view where) const {
    check(options_.train_on == TrainOn::answers, where, ": completions with train-on ",
          name_of(options_.train_on), "; expected answers, because they share the prompt's tokens");
    EncodedDocument encoded{.ids = tokenizer_.encode(shared.prompt, where, {.threads = 1}), .is_target = {}};
    check(!encoded.ids.empty(), where, ": prompt: has no token; expected at least one for completions");
    const std::int32_t last = encoded.ids.back();
    encoded.ids.pop_back();
    encoded.is_target.assign(encoded.ids.size(), false);
    for (const std::string& completion : shared.completions) {
        const std::vector<std::int32_t> answer = encode_answer(completion, where);
        encoded.ids.push_back(last);
        encoded.is_target.push_back(false);
        encoded.ids.insert(encoded.ids.end(), answer.begin(), answer.end());
        encoded.is_target.resize(encoded.ids.size(), true);
    }
    return encoded;
}

EncodedDocument DocumentEncoder::encode(const Document& document, std::string_view where, int threads) const {
    if (const auto* const text = std::get_if<std::string>(&document))
        return encode_text(*text, where, threads);
    if (const auto* const completion = std::get_if<Completion>(&document))
        return encode_completion(*completion, where);
    if (const auto* const shared = std::get_if<SharedPrompt>(&document))
        return encode_shared_prompt(*shared, where);
    return format_.encode(std::get<Conversation>(document), where, options_.train_on);
}

void DocumentEncoder::encode_all(DocumentReader& reader,
                                 const std::function<void(const EncodedDocument&)>& visit) const {
    ThreadPool pool(options_.threads);
    while (true) {
        const std::vector<PlacedDocument> batch = read_batch(reader, options_.cut_at);
        if (batch.empty()) return;
        for (const EncodedDocument& document : encode(batch, pool)) visit(document);
    }
}

std::vector<EncodedDocument> DocumentEncoder::encode(std::span<const PlacedDocument> documents,
                                                     ThreadPool& pool) const {
    // A long text is divided between the threads; several documents are encoded at the same time.
    if (documents.size() == 1) return {encode(documents[0].document, documents[0].where, options_.threads)};
    std::vector<EncodedDocument> encoded(documents.size());
    pool.run(std::ssize(documents), [&](std::int64_t i) {
        const auto index = static_cast<std::size_t>(i);
        encoded[index] = encode(documents[index].document, documents[index].where);
    });
    return encoded;
}

DocumentEncoderOptions with_document_borders(DocumentEncoderOptions options, const Tokenizer& tokenizer) {
    options.separator = separator_of(tokenizer);
    options.text_end = blank_line;
    return options;
}

}  // namespace gradtile
