#pragma once
/// The page of `gradtile lab --html`: one file with recorded runs of the lab's algorithms, the lines of their
/// sources, and the script that plays them. The files of cli/lab/page/ and the sources are embedded by the
/// build.
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include <gradtile/attention/lab/trace.h>
#include <gradtile/cli/embedded_page.h>

namespace gradtile::cli {

std::span<const EmbeddedFile> lab_page_files();
std::string lab_page(const attention::lab::Setup& setup, const std::vector<attention::lab::Trace>& traces);
/// Replaces the file at once. Throws Error with the path if it cannot be written.
void write_lab_page(const std::filesystem::path& path, const attention::lab::Setup& setup,
                    const std::vector<attention::lab::Trace>& traces);

}  // namespace gradtile::cli
