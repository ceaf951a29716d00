#include <gradtile/tools/formats/import.h>

#include <algorithm>
#include <filesystem>

#include <gradtile/tools/formats/internal/formats.h>

namespace gradtile {

std::optional<TrainDType> dtype_of_run(ImportDType dtype) {
    switch (dtype) {
        case ImportDType::stored:
            return std::nullopt;
        case ImportDType::f32:
            return TrainDType::f32;
        case ImportDType::bf16:
            return TrainDType::bf16;
    }
    throw Error("import: unknown dtype");
}

std::string import_file_kinds() {
    std::string kinds;
    for (const ImportFormatRow& format : import_formats)
        kinds += concat(kinds.empty() ? "" : ", or ", format.files);
    return kinds;
}

ImportedModel import_model(const std::string& path, const ImportOptions& options) {
    check(std::filesystem::exists(path), path, ": no such file or directory");
    const auto format = std::ranges::find_if(
        import_formats, [&](const ImportFormatRow& row) { return row.recognises(path); });
    check(format != std::end(import_formats), path, ": expected ", import_file_kinds());
    ImportedModel model = format->read(path, options);
    if (model.tokenizer) check_tokenizer(*model.tokenizer, model.config.vocabulary, path);
    return model;
}

}  // namespace gradtile
