#include <gradtile/tools/formats/export.h>

#include <algorithm>

#include <gradtile/tools/formats/internal/formats.h>
#include <gradtile/tools/formats/internal/model_export.h>
#include <gradtile/train/model/merged_adapters.h>

namespace gradtile {

ExportResult export_model(const Checkpoint& checkpoint, const std::string& source,
                          const ExportOptions& options) {
    const auto format = std::ranges::find(export_formats, options.format, &ExportFormatRow::format);
    check(format != std::end(export_formats), "export: unknown format");
    const Checkpoint merged = merged_adapters(checkpoint, source);
    ModelExport model(merged, source, options);
    std::vector<std::string> files = format->write(model);
    return {std::move(files), model.notes()};
}

}  // namespace gradtile
