// GPT-2 models in llm.c's .bin format (github.com/karpathy/llm.c, train_gpt2.py, write_model): 256 int32,
// then the weights.
//
// Header: magic 20240326, version 3 (float32) or 5 (bfloat16), context, vocabulary, layers, heads, width,
// padded vocabulary. Weights: wte [padded vocabulary, C] and wpe, then the blocks' weights by kind: ln_1 of
// all blocks, then qkv of all blocks and so on (ln_1, qkv, proj, ln_2, fc, fc's projection; weight before
// bias; matrices [out, in]), then ln_f.
#include <array>
#include <filesystem>

#include <gradtile/core/io/data_file.h>
#include <gradtile/core/io/little_endian.h>
#include <gradtile/core/tensor_ops.h>
#include <gradtile/layers/transformer/transformer.h>
#include <gradtile/tools/formats/internal/formats.h>
#include <gradtile/tools/formats/internal/weight_rounding.h>
#include <gradtile/train/checkpoint/tensor_bytes.h>
#include <gradtile/train/tokenizers/tokenizer_files.h>

namespace gradtile {
namespace {

constexpr std::int32_t llmc_magic = 20240326, float32_version = 3, bfloat16_version = 5;
constexpr std::int64_t header_words = 256, header_bytes = 4 * header_words;

struct LlmcHeader {
    std::int32_t magic = 0, version = 0, context = 0, vocabulary = 0, layers = 0, heads = 0, width = 0,
                 padded_vocabulary = 0;
};

LlmcHeader read_header(const DataFile& file) {
    check(file.size() >= header_bytes, file.path(), ": has ", file.size(),
          " bytes; expected a model of llm.c");
    std::array<std::byte, 8 * sizeof(std::int32_t)> bytes{};
    file.read(0, bytes);
    std::array<std::int32_t, 8> words{};
    for (std::size_t i = 0; i < words.size(); ++i)
        words[i] = get_little_endian<std::int32_t>(bytes.data() + 4 * i);
    return {words[0], words[1], words[2], words[3], words[4], words[5], words[6], words[7]};
}

/// A block's parameters in file order. The file contains every block's first parameter, then every block's
/// second parameter, and so on.
constexpr std::array in_a_block{"ln_1.weight",      "ln_1.bias",      "attn.qkv.weight", "attn.qkv.bias",
                                "attn.proj.weight", "attn.proj.bias", "ln_2.weight",     "ln_2.bias",
                                "mlp.fc.weight",    "mlp.fc.bias",    "mlp.proj.weight", "mlp.proj.bias"};

std::vector<std::string> names_in_order(std::int64_t layers) {
    std::vector<std::string> names{"wte.weight", "wpe.weight"};
    for (const char* const name : in_a_block)
        for (std::int64_t layer = 0; layer < layers; ++layer) names.push_back(concat("h.", layer, ".", name));
    names.insert(names.end(), {"ln_f.weight", "ln_f.bias"});
    return names;
}

ModelConfig config_of(const LlmcHeader& header, const std::string& path) {
    const ModelConfig config{.layers = header.layers,
                             .heads = header.heads,
                             .width = header.width,
                             .context = header.context,
                             .vocabulary = header.vocabulary};
    try {
        validate(config);
        check(config.vocabulary >= 1, "vocabulary: 0; expected at least 1");
        check(header.padded_vocabulary >= header.vocabulary, "padded vocabulary: ", header.padded_vocabulary,
              "; expected at least ", header.vocabulary);
    } catch (const Error& error) {
        throw Error(concat(path, ": header: ", error.what()));
    }
    return config;
}

/// Throws Error that names the file if the version is another one, if a size is outside the model's limits,
/// or if the file's length is not the length that the header gives.
ImportedModel read_llmc_model(const std::string& path) {
    const DataFile file(path);
    const LlmcHeader header = read_header(file);
    check(header.magic == llmc_magic, path, ": begins with ", header.magic, "; expected ", llmc_magic,
          ", a model of llm.c");
    check(header.version == float32_version || header.version == bfloat16_version, path, ": version ",
          header.version, "; expected ", float32_version, " (float32) or ", bfloat16_version, " (bfloat16)");
    ImportedModel model{.config = config_of(header, path)};
    model.dtype = header.version == float32_version ? TrainDType::f32 : TrainDType::bf16;
    const DType dtype = storage_dtype(model.dtype);
    const auto bytes = static_cast<std::int64_t>(size_of(dtype));
    const std::int64_t padding =
        (std::int64_t{header.padded_vocabulary} - header.vocabulary) * header.width * bytes;
    const std::int64_t expected = header_bytes + padding + parameter_count(model.config) * bytes;
    check(file.size() == expected, path, ": has ", file.size(), " bytes; a model of ", header.layers,
          " layers of width ", header.width, " has ", expected);

    ParameterStore parameters;
    const Transformer shapes(model.config, parameters);
    NamedTensors& tensors = model.parameters;
    for (const Parameter& parameter : parameters.parameters())
        tensors[parameter.name()] = empty_on_host(parameter.shape(), dtype);
    std::int64_t offset = header_bytes;
    for (const std::string& name : names_in_order(header.layers)) {
        const Tensor& x = tensors.at(name);
        file.read(offset, {x.raw_data(), x.bytes()});
        check(all_finite(dtype, x.raw_data(), static_cast<std::size_t>(x.elements())), path, ": ", name,
              " holds an infinity or a NaN");
        offset += static_cast<std::int64_t>(x.bytes());
        if (name == "wte.weight") offset += padding;
    }
    model.description = concat("llm.c GPT-2, ", dtype);
    return model;
}

}  // namespace

bool is_llmc(const std::string& path) {
    return !std::filesystem::is_directory(path) && path.ends_with(".bin");
}

ImportedModel import_llmc(const std::string& path, const ImportOptions& options) {
    const std::string& tokenizer = options.tokenizer;
    ImportedModel model = read_llmc_model(path);
    model.dtype = dtype_of_run(options.dtype).value_or(model.dtype);
    const Context ctx(Device::cpu(), 1);
    for (auto& [name, x] : model.parameters) {
        if (x.dtype() == storage_dtype(model.dtype)) continue;
        const Tensor rounded = cast(ctx, x, storage_dtype(model.dtype));
        check_rounded(x, rounded, concat(path, ": ", name));
        x = rounded;
    }
    const std::filesystem::path folder = std::filesystem::path(path).parent_path();
    if (!tokenizer.empty()) {
        if (tokenizer != "none") model.tokenizer = load_tokenizer(tokenizer);
        return model;
    }
    for (const char* const name : {"tokenizer.json", "vocab.json"})
        if (!model.tokenizer && exists(folder / name))
            model.tokenizer = load_tokenizer((folder / name).string());
    return model;
}

}  // namespace gradtile
