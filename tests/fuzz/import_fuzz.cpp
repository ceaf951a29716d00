// Fuzzes the files of other projects' models: a transformers folder with its tokenizer's files, llm.c's
// models, and rank files. Any bytes give one Error in one line that names a file, or a model whose tensors
// are those of its config, or a tokenizer.
//
// An input is a list of files: a byte that chooses the name, two bytes with the length, and the content.
#include <filesystem>
#include <fstream>
#include <functional>
#include <string_view>

#include "memory_file.h"

#include <gradtile/core/check.h>
#include <gradtile/tools/formats/import.h>
#include <gradtile/tools/formats/imported_run.h>
#include <gradtile/train/model/language_model.h>
#include <gradtile/train/tokenizers/tokenizer_files.h>

namespace {

using namespace gradtile;
using fuzz::require;
namespace fs = std::filesystem;

constexpr const char *llmc = "model.bin", *ranks = "gpt2.tiktoken", *llama3_ranks = "llama3.model";
constexpr std::array names{"config.json",
                           "generation_config.json",
                           "model.safetensors",
                           "model.safetensors.index.json",
                           "part.safetensors",
                           "tokenizer.json",
                           "tokenizer.model",
                           "vocab.json",
                           "merges.txt",
                           "tokenizer_config.json",
                           "special_tokens_map.json",
                           "added_tokens.json",
                           "chat_template.jinja",
                           "adapter_config.json",
                           llmc,
                           ranks,
                           llama3_ranks};

/// A folder in memory, if the system has one.
const fs::path& folder() {
    static const fs::path path = [] {
        const fs::path memory = "/dev/shm";
        std::string name =
            ((fs::is_directory(memory) ? memory : fs::temp_directory_path()) / "fuzz-XXXXXX").string();
        require(::mkdtemp(name.data()) != nullptr);
        return fs::path(name);
    }();
    return path;
}

void write_files(std::string_view input) {
    for (const auto& entry : fs::directory_iterator(folder())) fs::remove(entry);
    while (input.size() >= 3) {
        const auto byte = [&](std::size_t i) {
            return static_cast<std::size_t>(static_cast<unsigned char>(input[i]));
        };
        const fs::path file = folder() / names[byte(0) % names.size()];
        const std::size_t length = byte(1) + 256 * byte(2);
        input.remove_prefix(3);
        std::ofstream(file, std::ios::binary) << input.substr(0, length);
        input.remove_prefix(std::min(length, input.size()));
    }
}

void read_or_refuse(const std::function<void()>& read) {
    try {
        read();
    } catch (const Error& error) {
        fuzz::require_clear(error, folder().native());
    }
}

void import_from(const fs::path& path) {
    const ImportedModel model = import_model(path.string(), {.allow_unknown = true});
    check_model(model.config, checkpoint_of(model, "fuzz"), "fuzz");
    require(!model.tokenizer || model.tokenizer->vocab_size() <= model.config.vocabulary);
    for (const std::int32_t id : model.text.end_tokens) require(id >= 0 && id < model.config.vocabulary);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    write_files({reinterpret_cast<const char*>(data), size});
    read_or_refuse([] { import_from(folder()); });
    if (fs::exists(folder() / llmc)) read_or_refuse([] { import_from(folder() / llmc); });
    read_or_refuse([] { load_tokenizer(folder().string()); });
    for (const char* const name : {ranks, llama3_ranks, "vocab.json"})
        if (fs::exists(folder() / name))
            read_or_refuse([name] { load_tokenizer((folder() / name).string()); });
    return 0;
}
