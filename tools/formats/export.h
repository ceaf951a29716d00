#pragma once
/// Exports models in other projects' formats.
#include <filesystem>
#include <optional>
#include <string>

#include <gradtile/core/enum_names.h>
#include <gradtile/train/checkpoint/checkpoint.h>

namespace gradtile {

enum class ExportFormat {
    safetensors,  ///< a folder for transformers: model.safetensors, config.json, tokenizer.json
    gguf          ///< a file for llama.cpp
};
enum class ExportDType { run, f32, bf16, f16 };

struct ExportOptions {
    ExportFormat format = ExportFormat::safetensors;
    std::string out;  ///< the folder or file to write; the files to write must not exist
    /// The exported weights' dtype. run: the run's dtype. For a bf16 run, float32 weights are its masters.
    ExportDType dtype = ExportDType::run;
};

struct ExportResult {
    std::vector<std::string> files;
    std::vector<std::string> notes;  ///< lines for the user that say what the target does not contain
};

/// Writes a checkpoint's model. `source` is the checkpoint's name in errors. Throws Error that names a
/// setting which the target cannot express (query and key norms, for example), or a tensor whose values
/// exceed float16's range. After such an error no file has been written.
ExportResult export_model(const Checkpoint& checkpoint, const std::string& source,
                          const ExportOptions& options);

template <>
struct EnumNames<ExportFormat> {
    static constexpr std::array names = {
        std::pair{ExportFormat::safetensors, std::string_view("safetensors")},
        std::pair{ExportFormat::gguf, std::string_view("gguf")}};
};
template <>
struct EnumNames<ExportDType> {
    static constexpr std::array names = {std::pair{ExportDType::run, std::string_view("run")},
                                         std::pair{ExportDType::f32, std::string_view("f32")},
                                         std::pair{ExportDType::bf16, std::string_view("bf16")},
                                         std::pair{ExportDType::f16, std::string_view("f16")}};
};

}  // namespace gradtile
