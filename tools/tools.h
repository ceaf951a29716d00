#pragma once
/// Includes the headers of the library gradtile::tools: what programs use around training.

// Texts of a model.
#include <gradtile/tools/generation/batch_sampler.h>
#include <gradtile/tools/generation/chat_session.h>
#include <gradtile/tools/generation/sampler.h>

// Losses and accuracies of a model on data.
#include <gradtile/tools/evaluation/evaluate.h>
#include <gradtile/tools/evaluation/multiple_choice.h>

// Weights of other programs.
#include <gradtile/tools/formats/export.h>
#include <gradtile/tools/formats/import.h>
#include <gradtile/tools/formats/imported_run.h>

// Texts, pictures and event files of a run; stories to train on.
#include <gradtile/tools/corpus/corpus.h>
#include <gradtile/tools/observers/run_observers.h>
