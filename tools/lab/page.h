#pragma once
/// The `gradtile lab --html` page: one file with recorded runs of the lab's algorithms, their source lines,
/// and the script that shows the runs step by step. The build embeds the files in tools/lab/page/ and the
/// source code in the program.
#include <span>
#include <string>
#include <vector>

#include <gradtile/tools/command_line/embedded_page.h>
#include <gradtile/tools/lab/trace.h>

namespace gradtile::cli {

std::span<const EmbeddedFile> lab_page_files();
std::string lab_page(const attention::lab::Setup& setup, const std::vector<attention::lab::Trace>& traces);

}  // namespace gradtile::cli
