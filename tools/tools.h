#pragma once
/// Includes the headers of the library gradtile::tools: what programs use around training.

// A model's texts.
#include <gradtile/tools/generation/chat_session.h>
#include <gradtile/tools/generation/sampler.h>

// A model's losses and accuracies on data.
#include <gradtile/tools/evaluation/evaluate.h>
#include <gradtile/tools/evaluation/multiple_choice.h>

// Other programs' weights.
#include <gradtile/tools/formats/export.h>
#include <gradtile/tools/formats/import.h>
#include <gradtile/tools/formats/imported_run.h>

// A run's texts, pictures and event files; stories to train on.
#include <gradtile/tools/corpus/corpus.h>
#include <gradtile/tools/observers/run_observers.h>
