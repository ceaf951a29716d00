// Fuzzes tokenizer.json and models of SentencePiece: any bytes give one Error or a tokenizer. Byte-level BPE
// without a normalizer must return every text unchanged; every tokenizer must decode its ids token by token
// as at once. An input that begins with a brace is a tokenizer.json, a NUL byte and the text; else it is a
// model.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include <gradtile/core/check.h>
#include <gradtile/core/text/json_value.h>
#include <gradtile/tools/formats/gguf_metadata.h>
#include <gradtile/train/tokenizers/byte_pair_encoding.h>
#include <gradtile/train/tokenizers/internal/sentencepiece_model.h>
#include <gradtile/train/tokenizers/streaming_decoder.h>
#include <gradtile/train/tokenizers/tokenizer_json.h>

namespace {

using namespace gradtile;

void require(bool condition) {
    if (!condition) std::abort();
}

bool keeps_text(const BytePairVocabulary& vocabulary) {
    return vocabulary.model == SubwordModel::byte_pairs && vocabulary.normalizer.empty();
}

void require_round_trip(const Tokenizer& tokenizer, std::string_view text, const EncodeOptions& options) {
    std::vector<std::int32_t> ids;
    try {
        ids = tokenizer.encode(text, "fuzz", options);
    } catch (const Error&) {
        return;  // a byte without a token, or a pattern that takes too many steps
    }
    const std::string decoded = tokenizer.decode(ids);
    require(decoded == text || !keeps_text(tokenizer.byte_pair_encoding()->vocabulary()));
    StreamingDecoder stream(tokenizer);
    std::string streamed;
    for (const std::int32_t id : ids) streamed += stream.next(id);
    require(streamed + stream.finish() == decoded);
}

/// GGUF's tables are as large as the model's vocabulary; the tokenizer's ids index them.
void require_metadata(const Tokenizer& tokenizer, std::int64_t vocabulary) {
    try {
        const GgufMetadata metadata = gguf_tokenizer_metadata(&tokenizer, vocabulary, {}, "fuzz");
        require(tokenizer.vocab_size() <= vocabulary);
    } catch (const Error&) {
        // The tokenizer has more ids, or GGUF has no name for its split or model.
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const std::string_view input(reinterpret_cast<const char*>(data), size);
    const bool is_json = input.starts_with('{');
    const std::size_t end = is_json ? std::min(input.find('\0'), size) : size;
    const std::string_view text = is_json ? input.substr(std::min(end + 1, size))
                                          : std::string_view("<sym> e\u0301 \uFF21  the text\xFF");
    TokenizerSource file{is_json ? "tokenizer.json" : "tokenizer.model", std::string(input.substr(0, end))};
    try {
        BytePairVocabulary vocabulary = is_json ? vocabulary_of_tokenizer_json(file.content, "fuzz")
                                                : vocabulary_of_sentencepiece(file.content, "fuzz");
        const Tokenizer tokenizer = Tokenizer::byte_pairs(
            std::move(vocabulary), "fuzz", std::make_shared<const TokenizerSource>(std::move(file)));
        // from_json() must accept to_json()'s output.
        require(Tokenizer::from_json(tokenizer.to_json(), "fuzz") == tokenizer);
        for (const std::int64_t vocabulary : {std::int64_t{1}, std::int64_t{300}, tokenizer.vocab_size()})
            require_metadata(tokenizer, vocabulary);
        for (const SpecialTokens special : {SpecialTokens::as_text, SpecialTokens::recognised})
            require_round_trip(tokenizer, text, {.special_tokens = special});
    } catch (const Error&) {
        // The reader refused the file.
    }
    return 0;
}
