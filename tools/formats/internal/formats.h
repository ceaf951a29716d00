#pragma once
/// The file formats of other projects. A format is a source file with one of these functions, and its row in
/// a table; one that is written is also an ExportFormat.
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <gradtile/tools/formats/export.h>
#include <gradtile/tools/formats/import.h>

namespace gradtile {

class ModelExport;

/// Reads a model; see import_model().
ImportedModel import_transformers(const std::string& path, const ImportOptions& options);
ImportedModel import_llmc(const std::string& path, const ImportOptions& options);
/// Whether a path that exists is in the format.
bool is_transformers(const std::string& path);
bool is_llmc(const std::string& path);

/// Writes a model to model.out(), and returns the new files; see export_model().
std::vector<std::string> export_transformers(ModelExport& model);
std::vector<std::string> export_gguf(ModelExport& model);

struct ImportFormatRow {
    std::string_view files;  ///< in help and errors
    bool (*recognises)(const std::string& path);
    ImportedModel (*read)(const std::string& path, const ImportOptions& options);
};
inline constexpr ImportFormatRow import_formats[] = {
    {"a folder of Hugging Face transformers, one of its .safetensors files or their index", is_transformers,
     import_transformers},
    {"a .bin file of llm.c (GPT-2)", is_llmc, import_llmc}};

struct ExportFormatRow {
    ExportFormat format;
    std::string_view files;  ///< in help
    std::vector<std::string> (*write)(ModelExport& model);
};
inline constexpr ExportFormatRow export_formats[] = {
    {ExportFormat::safetensors, "a folder for transformers", export_transformers},
    {ExportFormat::gguf, "a file for llama.cpp", export_gguf}};
static_assert(std::size(export_formats) == EnumNames<ExportFormat>::names.size());

/// Returns "a folder ... or a file ...".
std::string import_file_kinds();
/// Returns the run's dtype that the options choose; nullopt: that of the stored weights.
std::optional<TrainDType> dtype_of_run(ImportDType dtype);

}  // namespace gradtile
