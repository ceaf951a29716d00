#pragma once
/// Documents as tokens.
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <gradtile/core/context.h>
#include <gradtile/train/data/documents.h>

namespace gradtile {

struct DocumentEncoderOptions {
    ChatTemplate chat_template = ChatTemplate::automatic;   ///< for conversations
    TrainOn train_on = TrainOn::answers;                    ///< for completions and conversations
    SpecialTokens special_tokens = SpecialTokens::as_text;  ///< for texts
    /// The id before each text and after each completion; empty: text_end follows instead.
    std::optional<std::int32_t> separator = {};
    std::string text_end = {};
    /// Texts are cut into several documents where this text occurs; empty: they are not cut.
    std::string cut_at = {};
    int threads = 0;  ///< 0: one per core
};

/// A document with its place in the files, for error messages.
struct PlacedDocument {
    Document document;
    std::string where;
};

/// Returns the length of a document's texts.
std::size_t bytes_of(const Document& document);

class DocumentEncoder {
  public:
    DocumentEncoder(Tokenizer tokenizer, DocumentEncoderOptions options);

    /// Throws Error that begins with `where` when the tokenizer cannot encode the document.
    EncodedDocument encode(const Document& document, std::string_view where, int threads = 1) const;
    /// Encodes several documents at the same time.
    std::vector<EncodedDocument> encode(std::span<const PlacedDocument> documents, ThreadPool& pool) const;
    /// Calls visit for each of a reader's documents, in order. Several documents are encoded at the same
    /// time, and some MiB of text are in memory.
    void encode_all(DocumentReader& reader, const std::function<void(const EncodedDocument&)>& visit) const;

  private:
    EncodedDocument encode_text(std::string_view text, std::string_view where, int threads) const;
    std::vector<std::int32_t> encode_answer(const std::string& answer, std::string_view where) const;
    EncodedDocument encode_completion(const Completion& completion, std::string_view where) const;
    EncodedDocument encode_shared_prompt(const SharedPrompt& shared, std::string_view where) const;

    Tokenizer tokenizer_;
    DocumentEncoderOptions options_;
    ChatFormat format_;
};

/// Ends documents of training data if the tokenizer has no <|endoftext|>.
inline constexpr std::string_view blank_line = "\n\n";
/// Where documents of training data begin and end: with the tokenizer's <|endoftext|>, or if it has none,
/// with a blank line at the end.
DocumentEncoderOptions with_document_borders(DocumentEncoderOptions options, const Tokenizer& tokenizer);

}  // namespace gradtile
