#pragma once
/// Run observers: callbacks that write samples, a loss picture and TensorBoard's event files. Call each
/// function before Trainer::run(), in rank 0 only.
#include <gradtile/core/text/message.h>
#include <gradtile/train/trainer.h>

namespace gradtile {

/// Adds a sampled text to metrics.jsonl every config().sample_every steps. Every text has the same draws, so
/// that texts differ by the weights only.
void add_samples(Trainer& trainer);

/// The picture loss.svg in the run's directory, with the losses before a resume. A failed write is reported
/// through on_message.
void add_loss_curve(Trainer& trainer, const MessageHandler& on_message);

/// Event files in the directory config().tensorboard; nothing if it is empty. A failed write is reported
/// through on_message.
///
/// A run's settings come from files that another user may have prepared. Such a file alone never makes a run
/// write anything outside its directory: unless `named` says that the user named the event files' directory,
/// it must be inside the run's, or have this run's events. Throws Error otherwise, and when the directory
/// cannot be used. The test PreparedDirectory.NoSettingOfAFileLeadsOutOfTheRun tries every setting.
enum class Named { by_the_user, by_a_file };
void add_tensorboard(Trainer& trainer, Named named, const MessageHandler& on_message);

/// Throws Error unless `place`, the setting `tensorboard` in `file`, is inside the run directory `run`.
void require_events_inside_run(const std::string& place, const std::filesystem::path& run,
                               const std::string& file);

}  // namespace gradtile
