// Any bytes as a token file: either every id is inside the vocabulary it reports, or one clear Error; never a
// crash.
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include <gradtile/core/check.h>
#include <gradtile/train/data_loader.h>
#include <gradtile/train/token_file.h>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace gradtile;
    // A copy aligned as a mapping is; its last byte chooses whether a vocabulary is given.
    // then.
    auto words = std::make_shared<std::vector<std::uint32_t>>((size + 3) / 4);
    if (size > 0) std::memcpy(words->data(), data, size);
    const std::int64_t vocabulary = size > 0 && data[size - 1] % 2 == 1 ? 1000 : 0;
    const auto bytes = std::as_bytes(std::span(*words)).first(size);
    try {
        const TokenFile file = read_token_bytes(words, bytes, "fuzz", vocabulary);
        std::vector<std::int32_t> ids(static_cast<std::size_t>(file.tokens.size()));
        file.tokens.read(0, ids);
        for (const std::int32_t id : ids)
            if (id < 0 || id >= file.vocabulary) std::abort();
        SequentialLoader loader(file.tokens, 8);
        std::vector<std::int32_t> tokens(16), targets(16);
        std::int64_t counted = 0;
        while (!loader.done()) counted += loader.next(tokens, targets);
        if (counted != file.tokens.size() - 1) std::abort();
    } catch (const Error&) {
        // refused by name
    }
    return 0;
}
