#pragma once
/// The commands of the program `gradtile`. Each add_* declares one subcommand; when the user chose it,
/// `chosen` becomes the function that does it and returns the exit code.
#include <functional>

#include <CLI/CLI.hpp>

namespace gradtile::cli {

using Action = std::function<int()>;

void add_train(CLI::App& app, Action& chosen);
void add_sample(CLI::App& app, Action& chosen);
void add_eval(CLI::App& app, Action& chosen);
void add_gradcheck(CLI::App& app, Action& chosen);
void add_inspect(CLI::App& app, Action& chosen);
void add_corpus(CLI::App& app, Action& chosen);

}  // namespace gradtile::cli
