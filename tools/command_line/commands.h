#pragma once
/// The `gradtile` program's commands; each add_* declares one.
#include <gradtile/tools/command_line/command_line.h>

namespace gradtile::cli {

using AddCommand = void(CommandLine& program);
AddCommand add_train, add_sample, add_chat, add_eval, add_gradcheck, add_lab, add_inspect, add_report,
    add_import, add_export, add_corpus, add_tokenizer, add_tokenize, add_bench, add_plan, add_models,
    add_doctor;

/// All commands, in the order of --help.
inline constexpr AddCommand* commands[] = {add_train,  add_sample,    add_chat,     add_eval,   add_gradcheck,
                                           add_lab,    add_inspect,   add_report,   add_import, add_export,
                                           add_corpus, add_tokenizer, add_tokenize, add_bench,  add_plan,
                                           add_models, add_doctor};

}  // namespace gradtile::cli
