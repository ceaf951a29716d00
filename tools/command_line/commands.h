#pragma once
/// The `gradtile` program's commands; each add_* declares one.
#include <gradtile/tools/command_line/command_line.h>

namespace gradtile::cli {

void add_train(CommandLine& program);
void add_sample(CommandLine& program);
void add_chat(CommandLine& program);
void add_eval(CommandLine& program);
void add_gradcheck(CommandLine& program);
void add_inspect(CommandLine& program);
void add_import(CommandLine& program);
void add_export(CommandLine& program);
void add_corpus(CommandLine& program);
void add_tokenizer(CommandLine& program);
void add_tokenize(CommandLine& program);
void add_bench(CommandLine& program);
void add_plan(CommandLine& program);
void add_models(CommandLine& program);
void add_lab(CommandLine& program);
void add_report(CommandLine& program);
void add_doctor(CommandLine& program);

}  // namespace gradtile::cli
