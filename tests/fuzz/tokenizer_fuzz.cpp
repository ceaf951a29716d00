// Fuzzes tokenizer.json: any bytes give one Error or a tokenizer that returns every text unchanged. The input
// is a tokenizer.json, a NUL byte and the text.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include <gradtile/core/check.h>
#include <gradtile/core/text/json_value.h>
#include <gradtile/tools/formats/gguf_metadata.h>
#include <gradtile/train/tokenizers/streaming_decoder.h>
#include <gradtile/train/tokenizers/tokenizer_json.h>

namespace {

using namespace gradtile;

void require(bool condition) {
    if (!condition) std::abort();
}

void require_round_trip(const Tokenizer& tokenizer, std::string_view text, const EncodeOptions& options) {
    std::vector<std::int32_t> ids;
    try {
        ids = tokenizer.encode(text, "fuzz", options);
    } catch (const Error&) {
        return;  // a byte without a token, or a pattern that takes too many steps
    }
    require(tokenizer.decode(ids) == text);
    StreamingDecoder stream(tokenizer);
    std::string streamed;
    for (const std::int32_t id : ids) streamed += stream.next(id);
    require(streamed + stream.finish() == text);
}

/// GGUF's tables are as large as the model's vocabulary; the tokenizer's ids index them.
void require_metadata(const Tokenizer& tokenizer, std::int64_t vocabulary) {
    try {
        const GgufMetadata metadata = gguf_tokenizer_metadata(&tokenizer, vocabulary, {}, "fuzz");
        require(tokenizer.vocab_size() <= vocabulary);
    } catch (const Error&) {
        // The tokenizer has more ids, or a split without a name in GGUF.
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const std::string_view input(reinterpret_cast<const char*>(data), size);
    const std::size_t end = std::min(input.find('\0'), size);
    const std::string_view text = input.substr(std::min(end + 1, size));
    try {
        const Tokenizer tokenizer =
            Tokenizer::byte_pairs(vocabulary_of_tokenizer_json(input.substr(0, end), "fuzz"), "fuzz");
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
