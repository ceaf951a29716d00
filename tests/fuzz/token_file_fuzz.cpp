// Fuzzes the token file reader: any bytes give either ids inside the reported vocabulary or one Error, never
// a crash. The file is then truncated or overwritten while it is open: the loader must either return ids
// inside the vocabulary, or throw and keep its state.
#include <string>
#include <vector>

#include "memory_file.h"

#include <gradtile/core/check.h>
#include <gradtile/train/data/data_loader.h>
#include <gradtile/train/data/readers/data_content.h>
#include <gradtile/train/data/token_file.h>

namespace {

using namespace gradtile;
using fuzz::MemoryFile;
using fuzz::require;

void require_ids_below(std::span<const std::int32_t> ids, std::int64_t vocabulary) {
    for (const std::int32_t id : ids) require(id >= 0 && id < vocabulary);
}

void read_in_order(const TokenFile& file) {
    std::vector<std::int32_t> ids(static_cast<std::size_t>(file.tokens.size()));
    file.tokens.read(0, ids);
    require_ids_below(ids, file.vocabulary);
    SequentialLoader loader(file.tokens, 8);
    std::vector<std::int32_t> tokens(16), targets(16);
    std::int64_t counted = 0;
    while (!loader.done()) counted += loader.next(tokens, targets);
    require(counted == file.tokens.size() - 1);
}

void read_while_it_changes(const TokenFile& file) {
    DataLoader loader(file.tokens, {.context = 4, .seed = {1}});
    std::vector<std::int32_t> tokens(12), targets(12);
    for (int i = 0; i < 20; ++i) {
        const JsonValue before = loader.state();
        try {
            loader.next(tokens, targets);
            require_ids_below(tokens, file.vocabulary);
        } catch (const Error&) {
            require(loader.state() == before);
        }
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    static const MemoryFile bytes;
    const std::span<const std::uint8_t> input(data, size);
    bytes.write(input);
    // The last byte chooses the reader's options and the change to the file.
    const unsigned choice = size > 0 ? data[size - 1] : 0;
    const TokenFileOptions options{.vocabulary = choice & 1 ? 1000 : 0,
                                   .type = static_cast<TokenType>((choice >> 1) % 3)};
    try {
        const TokenFile file = open_token_file(bytes.path(), options);
        require(file.contents.front() == content_of(DataFile(bytes.path())));
        require(!file.description().empty());
        read_in_order(file);
        if (choice & 64) bytes.resize(size / 2);
        if (choice & 128) bytes.write(std::vector<std::uint8_t>(input.rbegin(), input.rend()));
        read_while_it_changes(file);
    } catch (const Error& error) {
        fuzz::require_clear(error, bytes.path());
    }
    return 0;
}
