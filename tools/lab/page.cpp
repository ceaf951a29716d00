#include <gradtile/tools/lab/page.h>

#include <algorithm>

#include <gradtile/core/check.h>
#include <gradtile/core/text/formatted.h>
#include <gradtile/core/text/json_value.h>

namespace gradtile::cli {
namespace {

using attention::lab::RowUpdate;
using attention::lab::Setup;
using attention::lab::Trace;
using attention::lab::TracedLine;
using attention::lab::TracedMatrix;
using attention::lab::TracedTile;
using attention::lab::TraceStep;
using List = std::vector<JsonValue>;

std::string_view file_text(std::string_view path) {
    return text_of(lab_page_files(), path);
}

/// Rounds a number to 6 digits, which suffice for the page.
double shortened(double x) {
    return std::stod(formatted("%.6g", x));
}

/// Gives a number to each source file that the traces mention.
class FileTable {
  public:
    std::int64_t index_of(const std::string& path) {
        const auto known = std::find(paths_.begin(), paths_.end(), path);
        const auto index = known - paths_.begin();
        if (known == paths_.end()) paths_.push_back(path);
        return index;
    }
    List paths() const { return {paths_.begin(), paths_.end()}; }
    JsonValue texts() const {
        JsonValue texts = JsonValue::object({});
        for (const std::string& path : paths_) texts.set(path, std::string(file_text(path)));
        return texts;
    }

  private:
    std::vector<std::string> paths_;
};

JsonValue as_json(const TraceStep& step) {
    return List{static_cast<std::int64_t>(step.kind),
                std::int64_t{step.line},
                std::int64_t{step.caller},
                std::int64_t{step.tile},
                std::int64_t{step.matrix},
                step.rows.begin,
                step.rows.end,
                step.columns.begin,
                step.columns.end};
}

JsonValue as_json(const Trace& trace, FileTable& files) {
    List matrices, tiles, lines, steps, updates;
    for (const TracedMatrix& matrix : trace.matrices)
        matrices.emplace_back(List{matrix.name, matrix.rows, matrix.columns});
    for (const TracedTile& tile : trace.tiles)
        tiles.emplace_back(List{tile.name, tile.offset, tile.bytes, tile.rows, tile.columns, tile.first_step,
                                tile.end_step});
    for (const TracedLine& line : trace.lines)
        lines.emplace_back(List{files.index_of(line.file), std::int64_t{line.line}});
    for (const TraceStep& step : trace.steps) steps.push_back(as_json(step));
    for (const RowUpdate& update : trace.updates)
        updates.emplace_back(List{update.step, update.row, shortened(update.maximum), shortened(update.sum)});
    const attention::lab::Measurement& m = trace.measurement;
    return JsonValue::object({{"name", m.name},
                              {"pass", m.pass},
                              {"block_rows", m.block_rows},
                              {"block_keys", m.block_keys},
                              {"loads", m.loads},
                              {"stores", m.stores},
                              {"slow_bytes", m.slow_bytes},
                              {"peak_bytes", m.peak_bytes},
                              {"peak_fast_bytes", m.peak_fast_bytes},
                              {"matrices", matrices},
                              {"tiles", tiles},
                              {"lines", lines},
                              {"steps", steps},
                              {"updates", updates}});
}

std::string json_of(const Setup& setup, const std::vector<Trace>& traces) {
    FileTable files;
    List passes;
    for (const Trace& trace : traces) passes.push_back(as_json(trace, files));
    return JsonValue::object({{"length", setup.length},
                              {"head_dim", setup.head_dim},
                              {"fast_memory", setup.fast_memory},
                              {"passes", passes},
                              {"files", files.paths()},
                              {"sources", files.texts()}})
        .dump();
}

}  // namespace

std::string lab_page(const Setup& setup, const std::vector<Trace>& traces) {
    std::string page(file_text("tools/lab/page/page.html"));
    insert_text(page, "style", file_text("tools/lab/page/page.css"));
    insert_text(page, "script",
                concat(file_text("tools/lab/page/trace.js"), file_text("tools/lab/page/view.js"),
                       file_text("tools/lab/page/controls.js")));
    insert_text(page, "trace", json_in_script(json_of(setup, traces)));
    return page;
}

}  // namespace gradtile::cli
