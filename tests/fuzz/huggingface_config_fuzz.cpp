// Fuzzes the reader of transformers' config.json: any bytes give either one Error, or a model that export can
// describe again in the same family.
#include <cstdint>
#include <cstdlib>
#include <string>

#include <gradtile/core/check.h>
#include <gradtile/core/text/json_reader.h>
#include <gradtile/tools/formats/huggingface_config.h>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace gradtile;
    const std::string text(reinterpret_cast<const char*>(data), size);
    HuggingFaceModel model;
    try {
        UnknownMembers unknown{.allowed = true};
        model = read_huggingface_config(parse_json(text, "fuzz"), "fuzz", unknown);
    } catch (const Error&) {
        return 0;  // the config was refused
    }
    // Each must accept what the reader has accepted.
    if (&family_of(model.config, text, "fuzz") != model.family) std::abort();
    if (!kept_config_of(text, model.config, DType::f32, "fuzz")) std::abort();
    const JsonValue written = huggingface_config_of(*model.family, model.config, {}, DType::f32, {}, "fuzz");
    UnknownMembers none;
    if (read_huggingface_config(written, "fuzz", none).family != model.family) std::abort();
    return 0;
}
